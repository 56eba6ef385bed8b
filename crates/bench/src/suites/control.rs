//! Control verbs in a short and in a huge session: show an old turn, list approvals, steer, cancel, answer. Their cost
//! must not depend on the length of the log.

use std::time::Instant;

use sapwood::core::content::Json;
use sapwood::core::entry::{
    ApprovalAnswer, ApprovalAsked, AssistantMessage, InputTaken, Outcome, Stop, TurnEnded, TurnStarted,
};
use sapwood::core::port::clock::Clock;
use sapwood::core::port::store::Append;
use sapwood::core::{Draft, TimestampMs, TurnId};
use sapwood::store::Durability;
use sapwood::{Body, Engine, Part, SessionId, SystemClock, user_text};

use crate::measure::{median, millis};
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "control";
const STORE: &str = "control.db";
/// Entries per turn: start, input, answer, end.
const TURN_ENTRIES: usize = 4;
/// Turns per append while a session is filled.
const BATCH_TURNS: usize = 250;
/// Time between the starts of two turns.
const TURN_MS: i64 = 100;
/// Measurements per verb.
const RUNS: usize = 101;
const VERBS: [&str; 5] = ["turn", "approvals", "steer", "cancel", "answer"];

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let (small, huge) = (stage.sizes.small, stage.sizes.huge);
    let mut times = Vec::new();
    for (name, entries) in [("small", small), ("huge", huge)] {
        // Without a sync per append: a sync takes longer than the rest of a verb and would hide its growth.
        let engine = stage.open(STORE, Durability::Normal)?;
        times.push(time_verbs(stage, &engine, name, entries).await?);
        stage.close(STORE, engine)?;
    }
    stage.scratch.remove(STORE);
    let figures = VERBS.iter().enumerate().flat_map(|(at, verb)| {
        let (small_ms, huge_ms) = (times[0][at], times[1][at]);
        [
            Figure::new(AXIS, format!("{verb}, after {small} entries"), small_ms, "ms"),
            Figure::new(AXIS, format!("{verb}, after {huge} entries, vs. {small}"), huge_ms, "ms")
                .over(small_ms)
                .goal(Goal::AtMost(1.5)),
        ]
    });
    Ok(figures.collect())
}

/// The median time of each verb, in the order of [`VERBS`].
async fn time_verbs(
    stage: &Stage,
    engine: &Engine,
    name: &str,
    entries: usize,
) -> anyhow::Result<[f64; VERBS.len()]> {
    let session = stage.session(engine, name).await?;
    let turns = fill(stage, engine, &session, entries / TURN_ENTRIES).await?;
    let open = TurnId::mint(SystemClock.now(), SystemClock.random());
    append(stage, engine, &session, vec![(open, TurnStarted::default().into()), (open, user_text("go"))])
        .await?;
    let mut times: [Vec<f64>; VERBS.len()] = Default::default();
    for run in 0..=RUNS {
        let approval = ask(stage, engine, &session, open, run).await?;
        // A stride through all turns, so that no run finds the rows of another in a cache.
        let turn = turns[(run * 7_919) % turns.len()];
        let measured = measure(stage, engine, &session, (turn, open), &approval).await?;
        // The first run is a warm-up.
        if run > 0 {
            times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
        }
    }
    Ok(times.map(median))
}

async fn measure(
    stage: &Stage,
    engine: &Engine,
    session: &SessionId,
    (old, open): (TurnId, TurnId),
    approval: &str,
) -> anyhow::Result<[f64; VERBS.len()]> {
    let (scope, control) = (&stage.scope, engine.turn_control());
    let start = Instant::now();
    let found = control.turn(scope, session, old).await?;
    let turn_ms = millis(start.elapsed());
    anyhow::ensure!(found.is_some_and(|turn| turn.ended.is_some()), "the turn was not found");
    let start = Instant::now();
    let waiting = control.approvals(scope, session).await?;
    let approvals_ms = millis(start.elapsed());
    anyhow::ensure!(waiting.len() == 1, "there are {} approvals instead of one", waiting.len());
    let start = Instant::now();
    let input = control.steer_turn(scope, session, open, vec![Part::text("more")]).await?;
    let steer_ms = millis(start.elapsed());
    append(stage, engine, session, vec![(open, InputTaken { input }.into())]).await?;
    let start = Instant::now();
    control.cancel_turn(scope, session, open).await?;
    let cancel_ms = millis(start.elapsed());
    let start = Instant::now();
    control.answer(scope, approval, ApprovalAnswer::Approved, None).await?;
    Ok([turn_ms, approvals_ms, steer_ms, cancel_ms, millis(start.elapsed())])
}

/// Ask a question in the open turn. The open turn stays short, because each question starts it again.
async fn ask(
    stage: &Stage,
    engine: &Engine,
    session: &SessionId,
    open: TurnId,
    number: usize,
) -> anyhow::Result<String> {
    let approval = format!("{session}~{number}");
    let asked = ApprovalAsked {
        approval: approval.clone(),
        question: "May I?".to_owned(),
        call_id: None,
        details: Json::parse(r#"{"kind":"budget"}"#).ok(),
        deadlines: None,
    };
    append(stage, engine, session, vec![(open, TurnStarted::default().into()), (open, asked.into())]).await?;
    Ok(approval)
}

/// Append turns that have ended, and return their ids.
async fn fill(
    stage: &Stage,
    engine: &Engine,
    session: &SessionId,
    turns: usize,
) -> anyhow::Result<Vec<TurnId>> {
    let first = SystemClock.now().0 - turns as i64 * TURN_MS;
    let at = |turn: usize| TimestampMs(first + turn as i64 * TURN_MS);
    let ids: Vec<TurnId> = (0..turns).map(|turn| TurnId::mint(at(turn), SystemClock.random())).collect();
    for (batch, ids) in ids.chunks(BATCH_TURNS).enumerate() {
        let draft = |(number, id): (usize, &TurnId)| {
            let at = at(batch * BATCH_TURNS + number);
            turn_bodies().map(|body| Draft::new(at, body).in_turn(*id))
        };
        let drafts = ids.iter().enumerate().flat_map(draft).collect();
        let append = Append::new(session.clone(), SystemClock.now(), drafts);
        engine.store().append(&stage.scope, append).await?;
    }
    Ok(ids)
}

fn turn_bodies() -> [Body; TURN_ENTRIES] {
    let parts = vec![Part::text("The build is green.")];
    let (usage, cost_nano_usd) = (None, None);
    let answer = AssistantMessage { parts, model: None, usage, cost_nano_usd, stop: Stop::Stop };
    let outcome = Outcome::Completed;
    let ended = TurnEnded { outcome, code: None, message: None, usage, cost_nano_usd };
    [TurnStarted::default().into(), user_text("Is the build green?"), answer.into(), ended.into()]
}

async fn append(
    stage: &Stage,
    engine: &Engine,
    session: &SessionId,
    bodies: Vec<(TurnId, Body)>,
) -> anyhow::Result<()> {
    let now = SystemClock.now();
    let drafts = bodies.into_iter().map(|(turn, body)| Draft::new(now, body).in_turn(turn)).collect();
    engine.store().append(&stage.scope, Append::new(session.clone(), now, drafts)).await?;
    Ok(())
}
