//! Many sessions on PostgreSQL vs. plain inserts with one commit each, from as many connections in the same database.
//! Also measures the context at the end and a fork at the middle of a short and of a long session.

use std::time::Instant;

use anyhow::Context as _;
use sapwood::store::OpenOptions as StoreOptions;
use sapwood::store::postgres::baseline;
use sapwood::{Body, Engine, ForkAt, OpenOptions, Seq, SessionId};

use super::append::{append_all, run_as_tasks};
use crate::bodies::{bodies, line_of, short_bodies};
use crate::measure::{median, median_millis, millis, per_second};
use crate::stage::{KEPT, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "postgres";
const STREAMS: usize = 64;
const RUNS: usize = 101;
const FORKS: usize = 64;
/// Number of entries in the short session, and the factor for the long session.
const SHORT: usize = 1_000;
const LONGER: usize = 100;

pub async fn run(stage: &mut Stage, url: Option<&str>) -> anyhow::Result<Vec<Figure>> {
    let admin = url.context(
        "the axis postgres needs a server: pass --postgres postgres://USER@HOST/postgres (USER may create databases)",
    )?;
    let name = format!("sapwood_bench_{}", std::process::id());
    baseline::run(admin, &format!("CREATE DATABASE {name}")).map_err(anyhow::Error::msg)?;
    let measured = measure(stage, &at_database(admin, &name)?).await;
    baseline::run(admin, &format!("DROP DATABASE {name} WITH (FORCE)")).map_err(anyhow::Error::msg)?;
    measured
}

/// The URL of another database on the same server.
fn at_database(url: &str, name: &str) -> anyhow::Result<String> {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    let server = address.rsplit_once('/').context("the URL contains no database name")?.0;
    Ok(format!("{server}/{name}?{options}").trim_end_matches('?').to_owned())
}

async fn measure(stage: &Stage, url: &str) -> anyhow::Result<Vec<Figure>> {
    let mut figures = rates(stage, url).await?;
    let engine = sapwood::open_engine(url, StoreOptions::default())?;
    let long = SHORT * if stage.sizes.long > 10_000 { LONGER } else { LONGER / 10 };
    let mut sessions = Vec::new();
    for entries in [SHORT, long] {
        let session = stage.session(&engine, &format!("of-{entries}")).await?;
        stage.fill(&engine, &session, short_bodies(2), entries, |_| ()).await?;
        sessions.push((session, Seq(entries as u32 / 2)));
    }
    let forks = time_forks(stage, &engine, &sessions).await?;
    let mut contexts = Vec::new();
    for (session, _) in &sessions {
        stage.compact_behind(&engine, session).await?;
        let read = || async { Ok(engine.views().context(&stage.scope, session, None).await?) };
        contexts.push(median_millis(RUNS, read).await?);
    }
    for (what, times) in
        [(format!("context, last {KEPT}"), contexts), ("fork at the middle".to_owned(), forks)]
    {
        figures.push(Figure::new(AXIS, format!("{what}, of {SHORT} entries"), times[0], "ms"));
        let figure = Figure::new(AXIS, format!("{what}, of {long} entries"), times[1], "ms");
        figures.push(figure.over(times[0]).goal(Goal::AtMost(2.0)));
    }
    Ok(figures)
}

async fn rates(stage: &Stage, url: &str) -> anyhow::Result<Vec<Figure>> {
    let messages: Vec<Body> = bodies(11).take(stage.sizes.appends).collect();
    let lines: Vec<Vec<u8>> = messages.iter().cycle().take(messages.len() * 4).map(line_of).collect();
    let inserts = |connections: usize, count: usize| {
        let taken = baseline::plain_inserts(url, connections, &lines[..count]).map_err(anyhow::Error::msg)?;
        anyhow::Ok(per_second(count, taken))
    };
    let (mut floor_one, mut floor_many, mut one, mut many) = (vec![], vec![], vec![], vec![]);
    // Baselines and measurements alternate, so that temporary slowness of the machine affects both.
    for round in 0..stage.sizes.rounds {
        floor_one.push(inserts(1, messages.len().min(lines.len()) / 4)?);
        floor_many.push(inserts(STREAMS, lines.len())?);
        one.push(streams(stage, url, &messages[..messages.len() / 4], 1, round).await?);
        many.push(streams(stage, url, &messages, STREAMS, round).await?);
    }
    let (floor_one, floor_many) = (median(floor_one), median(floor_many));
    let figure = |name: &str, value: f64| Figure::new(AXIS, name, value, "/s");
    Ok(vec![
        figure("baseline: plain inserts, one connection", floor_one),
        figure("baseline: plain inserts, 64 connections", floor_many),
        figure("one session", median(one)).over(floor_one).goal(Goal::AtLeast(0.5)),
        figure("64 sessions", median(many)).over(floor_many).goal(Goal::AtLeast(0.5)),
    ])
}

/// Each stream waits for its append before it starts the next.
async fn streams(
    stage: &Stage,
    url: &str,
    messages: &[Body],
    count: usize,
    round: usize,
) -> anyhow::Result<f64> {
    let engine = sapwood::open_engine(url, StoreOptions::default())?;
    let each = if count == 1 { messages.len() } else { messages.len() * 4 / count };
    let mut streams = Vec::with_capacity(count);
    for stream in 0..count {
        let session = stage.session(&engine, &format!("stream-{round}-{count}-{stream}")).await?;
        let mine: Vec<Body> = messages.iter().cycle().skip(stream * 7).take(each).cloned().collect();
        streams.push(append_all(engine.clone(), stage.scope.clone(), session, mine));
    }
    let start = Instant::now();
    run_as_tasks(streams)?;
    Ok(per_second(each * count, start.elapsed()))
}

/// The median time of a fork of each session. The sessions alternate, so that background work of the database affects
/// both.
async fn time_forks(
    stage: &Stage,
    engine: &Engine,
    sources: &[(SessionId, Seq)],
) -> anyhow::Result<Vec<f64>> {
    let mut times = vec![Vec::with_capacity(FORKS); sources.len()];
    for number in 0..FORKS {
        for ((source, at), times) in sources.iter().zip(&mut times) {
            let id = format!("fork-{source}-{number}").parse()?;
            let options = OpenOptions { id: Some(id), ..OpenOptions::default() };
            let start = Instant::now();
            engine.sessions().fork(&stage.scope, source, ForkAt::Entry(*at), options).await?;
            times.push(millis(start.elapsed()));
        }
    }
    Ok(times.into_iter().map(median).collect())
}
