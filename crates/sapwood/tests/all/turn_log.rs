//! Turns, approvals and queued input of random logs: they equal the result of a scan of the whole log. The logs have
//! imported entries that claim to belong to local turns, clocks that jump, and notes after the end of a turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood::core::content::Json;
use sapwood::core::entry::{
    ApprovalAnswer, ApprovalAnswered, ApprovalAsked, AssistantMessage, CustomInfo, InputQueued, InputTaken,
    Outcome, Queue, Stop, TurnEnded, TurnStarted,
};
use sapwood::core::fixture::Dice;
use sapwood::core::port::store::{Append, NewSession, Store};
use sapwood::core::{Body, Draft, Entry, EntryId, Source, TimestampMs, TurnId};
use sapwood::engine::turn::TurnSnapshot;
use sapwood::storage::{StoreOptions, open_store};
use sapwood::{Part, Sapwood, Scope, Seq, SessionId, user_text};
use tempfile::TempDir;

const STEPS: usize = 120;

fn assistant_text(text: &str) -> Body {
    let parts = vec![Part::text(text)];
    AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop: Stop::Stop }.into()
}

/// Writes a random log, and remembers the turns in it.
struct LogWriter {
    dice: Dice,
    store: Arc<dyn Store>,
    scope: Scope,
    session: SessionId,
    now: i64,
    turns: Vec<TurnId>,
    open: Option<TurnId>,
    questions: Vec<String>,
    queued: Vec<EntryId>,
}

impl LogWriter {
    async fn append(&mut self, source: Source, turn: Option<TurnId>, bodies: Vec<Body>) -> Vec<EntryId> {
        self.now += self.dice.below(3) as i64;
        let now = TimestampMs(self.now);
        let draft = |body: Body| Draft { turn, ..Draft::new(now, body) };
        let drafts = bodies.into_iter().map(draft).collect();
        let append = Append { source, ..Append::new(self.session.clone(), now, drafts) };
        let appended = self.store.append(&self.scope, append).await.unwrap();
        appended.entries.into_iter().map(|(_, id)| id).collect()
    }

    async fn step(&mut self) {
        match (self.dice.below(100), self.open) {
            (0..25, None) => self.begin().await,
            (0..10, Some(turn)) => self.end(turn).await,
            (10..25, Some(turn)) => self.ask(turn).await,
            (25..35, Some(turn)) => self.answer(turn).await,
            (35..50, Some(turn)) => {
                self.append(Source::Own, Some(turn), vec![assistant_text("working")]).await;
            }
            (50..60, _) => self.queue().await,
            (60..68, _) => self.take().await,
            (68..76, _) => self.import().await,
            (76..84, _) => self.note().await,
            (84..88, _) => self.now += [-50_000, 50_000][self.dice.below(2)],
            _ => drop(self.append(Source::Own, None, vec![user_text("more")]).await),
        }
    }

    async fn begin(&mut self) {
        let turn = TurnId::mint(TimestampMs(self.now), u128::from(self.dice.roll()) << 64);
        if self.dice.one_in(10) {
            // The clock was set back between the start of the turn and its first entry.
            self.now -= 5_000;
        }
        self.append(Source::Own, Some(turn), vec![TurnStarted::default().into(), user_text("go")]).await;
        self.turns.push(turn);
        self.open = Some(turn);
    }

    async fn end(&mut self, turn: TurnId) {
        let outcome = [Outcome::Completed, Outcome::Failed][self.dice.below(2)];
        let ended = TurnEnded { outcome, code: None, message: None, usage: None, cost_nano_usd: None };
        self.append(Source::Own, Some(turn), vec![ended.into()]).await;
        self.open = None;
        self.questions.clear();
    }

    async fn ask(&mut self, turn: TurnId) {
        let approval = format!("{}~{}", self.session, self.dice.roll());
        let details = Json::parse(r#"{"kind":"budget"}"#).ok();
        let asked = ApprovalAsked {
            approval: approval.clone(),
            question: "May I?".to_owned(),
            call_id: None,
            details,
            deadlines: None,
        };
        self.append(Source::Own, Some(turn), vec![asked.into()]).await;
        self.questions.push(approval);
    }

    async fn answer(&mut self, turn: TurnId) {
        let Some(approval) = self.questions.pop() else { return };
        let answered = ApprovalAnswered { approval, answer: ApprovalAnswer::Approved, reason: None };
        // An imported answer does not count.
        let source = if self.dice.one_in(3) { Source::Imported } else { Source::Own };
        self.append(source, Some(turn), vec![answered.into()]).await;
    }

    async fn queue(&mut self) {
        let queued = InputQueued { queue: Queue::Next, parts: vec![Part::text("later")] };
        let ids = self.append(Source::Own, None, vec![queued.into()]).await;
        self.queued.extend(ids);
    }

    async fn take(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let input = self.queued.remove(self.dice.below(self.queued.len()));
        self.append(Source::Own, None, vec![InputTaken { input }.into()]).await;
    }

    /// Append an imported turn, either with the id of an earlier turn or with a new id.
    async fn import(&mut self) {
        let turn = match self.dice.pick(&self.turns) {
            Some(turn) if self.dice.one_in(2) => turn,
            _ => TurnId::mint(TimestampMs(self.now), u128::from(self.dice.roll()) << 64),
        };
        let queued = InputQueued { queue: Queue::Next, parts: vec![Part::text("theirs")] };
        let bodies = vec![TurnStarted::default().into(), assistant_text("theirs"), queued.into()];
        self.append(Source::Imported, Some(turn), bodies).await;
        self.turns.push(turn);
    }

    async fn note(&mut self) {
        let info = CustomInfo { custom_type: "test.note".to_owned(), data: Json::parse("{}").unwrap() };
        let turn = self.dice.pick(&self.turns);
        self.append(Source::Own, turn, vec![info.into()]).await;
    }
}

/// The whole log, decoded.
async fn whole_log(writer: &LogWriter) -> Vec<Entry> {
    let records = writer.store.read_after(&writer.scope, &writer.session, Seq::ZERO, 10_000).await.unwrap();
    records.into_iter().map(|record| record.into_entry().unwrap()).collect()
}

/// The entries of a turn, by a scan. A turn of this store has precedence over an imported one with the same id.
fn scanned_turn<'a>(log: &'a [Entry], is_own: &dyn Fn(Seq) -> bool, turn: TurnId) -> Vec<&'a Entry> {
    let starts = || {
        let of_turn = |entry: &&Entry| matches!(entry.body, Body::TurnStarted(_));
        log.iter().filter(of_turn).filter(|entry| entry.meta.turn == Some(turn)).map(|entry| entry.meta.seq)
    };
    let Some(first) = starts().find(|seq| is_own(*seq)).or_else(|| starts().next()) else {
        return Vec::new();
    };
    let belongs = |entry: &&Entry| {
        let is_from_here = is_own(entry.meta.seq) || !is_own(first);
        entry.meta.turn == Some(turn) && entry.meta.seq >= first && is_from_here
    };
    log.iter().filter(belongs).collect()
}

fn scanned_end(entries: &[&Entry]) -> Option<Outcome> {
    entries.iter().find_map(|entry| match &entry.body {
        Body::TurnEnded(ended) => Some(ended.outcome),
        _ => None,
    })
}

/// The last question of the turn, if it is still pending: it was not answered, and the turn has not continued.
fn scanned_question(entries: &[&Entry]) -> Option<String> {
    let mut waiting = None;
    for entry in entries {
        match &entry.body {
            Body::ApprovalAsked(asked) => waiting = Some(asked.approval.clone()),
            Body::ApprovalAnswered(given) if waiting.as_ref() == Some(&given.approval) => waiting = None,
            Body::AssistantMessage(_) | Body::UserMessage(_) | Body::TurnEnded(_) => waiting = None,
            _ => {}
        }
    }
    waiting
}

fn check_turn(snapshot: Option<&TurnSnapshot>, entries: &[&Entry], what: &str) {
    let Some(started) = entries.first() else { return assert!(snapshot.is_none(), "{what}") };
    let snapshot = snapshot.unwrap_or_else(|| panic!("{what} was not found"));
    assert_eq!(snapshot.started_at, started.meta.at, "{what}");
    assert_eq!(snapshot.ended.as_ref().map(|(_, ended)| ended.outcome), scanned_end(entries), "{what}");
    let text = entries.iter().rev().find(|entry| matches!(entry.body, Body::AssistantMessage(_)));
    assert_eq!(snapshot.text, text.map(|entry| entry.body.text()), "{what}");
    if snapshot.ended.is_none() {
        let waiting: Vec<String> = snapshot.waiting.iter().map(|pending| pending.approval.clone()).collect();
        assert_eq!(waiting, Vec::from_iter(scanned_question(entries)), "{what}");
    }
}

async fn check_log(sapwood: &Sapwood, writer: &LogWriter, seed: u64) {
    let engine = sapwood.engine();
    let (scope, session) = (&writer.scope, &writer.session);
    let summary = engine.store().summary(scope, session).await.unwrap();
    let authority = summary.authority.clone().unwrap();
    let is_own = |seq: Seq| authority.is_own(seq);
    let log = whole_log(writer).await;
    let unknown = TurnId::mint(TimestampMs(writer.now), 77 << 64);
    for turn in writer.turns.iter().chain([&unknown]) {
        let what = format!("seed {seed}, turn {turn}");
        let snapshot = engine.turn_control().turn(scope, session, *turn).await.unwrap();
        let entries = scanned_turn(&log, &is_own, *turn);
        check_turn(snapshot.as_ref(), &entries, &what);
        let with_notes = engine.turn_control().turn_entries_and_notes(scope, session, *turn).await.unwrap();
        let seqs = |entries: Vec<&Entry>| entries.iter().map(|entry| entry.meta.seq).collect::<Vec<Seq>>();
        assert_eq!(seqs(with_notes.iter().collect()), seqs(entries), "{what}");
    }
    let waiting = engine.turn_control().approvals(scope, session).await.unwrap();
    let open = writer.open.map(|turn| scanned_turn(&log, &is_own, turn)).unwrap_or_default();
    let approvals: Vec<String> = waiting.into_iter().map(|pending| pending.approval).collect();
    assert_eq!(approvals, Vec::from_iter(scanned_question(&open)), "seed {seed}");
    let mut queued = BTreeMap::new();
    for entry in log.iter().filter(|entry| is_own(entry.meta.seq)) {
        match &entry.body {
            Body::InputQueued(_) => drop(queued.insert(entry.meta.seq, entry.meta.id)),
            Body::InputTaken(taken) => queued.retain(|_, id| *id != taken.input),
            _ => {}
        }
    }
    let positions = summary.queued.unwrap().iter().map(|input| (input.seq, input.id)).collect();
    assert_eq!(queued, positions, "seed {seed}");
}

async fn check_store(url: &str, seeds: std::ops::Range<u64>) {
    let sapwood = Sapwood::with_store(open_store(url, StoreOptions::default()).unwrap()).unwrap();
    for seed in seeds {
        let session: SessionId = format!("s{seed}").parse().unwrap();
        let (store, scope) = (sapwood.engine().store().clone(), sapwood.scope().clone());
        let new = NewSession::new(session.clone(), TimestampMs(1_700_000_000_000));
        store.create(&scope, new).await.unwrap();
        let mut writer = LogWriter {
            dice: Dice::new(seed),
            store,
            scope,
            session,
            now: 1_700_000_000_000,
            turns: Vec::new(),
            open: None,
            questions: Vec::new(),
            queued: Vec::new(),
        };
        for _ in 0..STEPS {
            writer.step().await;
        }
        check_log(&sapwood, &writer, seed).await;
    }
}

#[tokio::test]
async fn turns_in_memory_equal_a_scan_of_the_log() {
    check_store("memory:", 0..40).await;
}

#[tokio::test]
async fn turns_in_sqlite_equal_a_scan_of_the_log() {
    let dir = TempDir::new().unwrap();
    check_store(&format!("sqlite:{}", dir.path().join("s.db").display()), 0..8).await;
}

#[tokio::test]
async fn turns_in_files_equal_a_scan_of_the_log() {
    let dir = TempDir::new().unwrap();
    check_store(&format!("jsonl:{}", dir.path().display()), 0..8).await;
}
