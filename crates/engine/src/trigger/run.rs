//! Perform due firings. The server that holds the lease of a trigger's log sends the text and waits for the result;
//! other servers only follow the log. Every step is logged before the next one starts, so another server can continue
//! after a crash.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sapwood_core::entry::{Body, InputQueued, Outcome, Queue};
use sapwood_core::port::store::{Append, StoreError};
use sapwood_core::trigger::{
    Conflict, Firing, FiringStep, SentTo, TriggerNote, TriggerState, TriggerTarget, next_steps,
};
use sapwood_core::{Draft, EntryId, Kind, Part, Seq, SessionId, TurnId};

use super::{InstalledTrigger, NoteConditions};
use crate::follow::Follower;
use crate::lease::{Hold, LEASE_TTL_MS};
use crate::turn::OnWait;
use crate::{Engine, EngineError, Result};

/// Wait time after a failure, and while another server has the lease.
const RETRY_MS: u64 = 1_000;
/// Poll interval for a session that is running another turn.
const BUSY_PAUSE: Duration = Duration::from_millis(300);
/// Poll interval for a session that is waiting for an answer.
const ANSWER_PAUSE: Duration = Duration::from_secs(3);
/// Longest pause between two checks.
const PAUSE_MS_MAX: u64 = 30_000;

type FiringResult = (Seq, Result<(String, Option<String>)>);

/// Runs one trigger in this process.
pub struct TriggerRunner {
    engine: Engine,
    installed: Arc<InstalledTrigger>,
    log: SessionId,
    state: TriggerState,
    follower: Follower,
    hold: Option<Hold>,
    /// Firings whose result this process is waiting for.
    awaited: BTreeSet<Seq>,
    work: FuturesUnordered<BoxFuture<'static, FiringResult>>,
    /// The last entry of the watched session that was checked without a match.
    seen: Option<Seq>,
}

impl TriggerRunner {
    pub async fn new(engine: &Engine, installed: InstalledTrigger) -> Result<Self> {
        let log = engine.triggers().open_log(&installed).await?;
        let follower = engine.events().follow(&installed.scope, &log, Seq::ZERO).await?;
        Ok(Self {
            engine: engine.clone(),
            installed: Arc::new(installed),
            log,
            state: TriggerState::default(),
            follower,
            hold: None,
            awaited: BTreeSet::new(),
            work: FuturesUnordered::new(),
            seen: None,
        })
    }

    /// Run until dropped. Failures are logged and retried.
    pub async fn run(mut self) {
        loop {
            let pause_ms = match self.tick(Detection::On).await {
                Ok(pause_ms) => pause_ms.min(PAUSE_MS_MAX),
                Err(error) => {
                    let trigger = &self.installed.trigger.name;
                    tracing::warn!(%trigger, %error, "a trigger failed; retrying");
                    self.hold = None;
                    RETRY_MS
                }
            };
            self.wait(Duration::from_millis(pause_ms)).await;
        }
    }

    /// Perform due firings and wait for their results, without detecting new firings. Returns [`Drained::Elsewhere`]
    /// if another process still holds the lease after a dead process's lease would have expired.
    pub async fn drain(mut self) -> Result<Drained> {
        let deadline = self.engine.clock.now().0 + LEASE_TTL_MS + i64::try_from(RETRY_MS).unwrap_or_default();
        loop {
            let pause_ms = self.tick(Detection::Off).await?;
            if self.state.open.is_empty() {
                self.release().await;
                return Ok(Drained::Done(Box::new(self.state)));
            }
            if self.hold.is_none() && self.engine.clock.now().0 > deadline {
                return Ok(Drained::Elsewhere);
            }
            self.wait(Duration::from_millis(pause_ms.min(RETRY_MS))).await;
        }
    }

    async fn wait(&mut self, pause: Duration) {
        let lost = async {
            match &mut self.hold {
                Some(hold) => hold.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((firing, done)) = self.work.next() => {
                if let Err(error) = self.record_result(firing, done).await {
                    let trigger = &self.installed.trigger.name;
                    tracing::warn!(%trigger, %firing, %error, "failed to record the result of a firing");
                }
            }
            record = self.follower.next() => match record.map(|record| record.into_entry()) {
                Ok(Ok(entry)) => self.state.apply(&entry),
                // The next tick reports the error.
                Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(RETRY_MS)).await,
            },
            () = lost => self.drop_work(),
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Stop waiting for firings, because another process has taken the lease and waits for them.
    fn drop_work(&mut self) {
        self.hold = None;
        self.awaited.clear();
        self.work = FuturesUnordered::new();
    }

    /// Detect and perform due firings. Returns the milliseconds until the next tick.
    async fn tick(&mut self, detection: Detection) -> Result<u64> {
        self.catch_up().await?;
        let mut pause_ms = PAUSE_MS_MAX;
        if detection == Detection::On {
            let (installed, log) = (self.installed.clone(), self.log.clone());
            let next_check_ms =
                self.engine.triggers().detect(&installed, &log, &self.state, &mut self.seen).await?;
            pause_ms = next_check_ms.unwrap_or(pause_ms);
            self.catch_up().await?;
        }
        if self.state.open.is_empty() {
            self.release().await;
            return Ok(pause_ms);
        }
        if !self.take_hold().await? {
            return Ok(pause_ms.min(RETRY_MS));
        }
        let (steps, next_step_ms) = next_steps(&self.installed.trigger, &self.state, self.engine.clock.now());
        let has_steps = !steps.is_empty();
        for step in steps {
            match step {
                FiringStep::Skip(firing, why) => self.note(TriggerNote::Skipped { firing, why }).await?,
                FiringStep::Send(firing) => self.send(firing).await?,
            }
        }
        self.await_results();
        // Entries read during these steps are not processed yet and cause no further wake-up, so the next tick
        // follows at once.
        Ok(if has_steps { 0 } else { next_step_ms.unwrap_or(pause_ms).min(pause_ms) })
    }

    async fn catch_up(&mut self) -> Result<()> {
        while let Some(record) = self.follower.try_next().await? {
            let unreadable = |source| EngineError::Unreadable { session: self.log.clone(), source };
            self.state.apply(&record.into_entry().map_err(unreadable)?);
        }
        Ok(())
    }

    /// Try to acquire the lease, and then read the entries that other processes wrote. Returns whether this process
    /// holds the lease.
    async fn take_hold(&mut self) -> Result<bool> {
        if self.hold.is_some() {
            return Ok(true);
        }
        match Hold::take(&self.engine, &self.installed.scope, &self.log).await {
            Ok(hold) => self.hold = Some(hold),
            Err(EngineError::Store(StoreError::Leased { .. })) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.catch_up().await?;
        Ok(true)
    }

    async fn release(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.release().await;
        }
    }

    async fn note(&mut self, note: TriggerNote) -> Result<()> {
        let conditions =
            NoteConditions { fence: self.hold.as_ref().map(|hold| hold.fence), ..NoteConditions::default() };
        self.engine.triggers().append_note(&self.installed.scope, &self.log, &note, conditions).await?;
        self.catch_up().await
    }

    /// Queue the text in its session exactly once, and log that it was sent.
    async fn send(&mut self, firing: Seq) -> Result<()> {
        let Some(firing) = self.state.open.get(&firing).cloned() else { return Ok(()) };
        let (engine, installed) = (self.engine.clone(), self.installed.clone());
        if is_busy(&engine, &installed).await? {
            let why = "its session is running another turn".to_owned();
            return self.note(TriggerNote::Skipped { firing: firing.seq, why }).await;
        }
        match queue_text(&engine, &installed, &firing).await {
            Ok(SentTo { session, input }) => {
                self.note(TriggerNote::Sent { firing: firing.seq, session, input }).await
            }
            Err(error) if is_temporary(&error) => Err(error),
            Err(error) => {
                let (outcome, code) = ("failed".to_owned(), Some(error.code().to_owned()));
                self.note(TriggerNote::Ended { firing: firing.seq, outcome, code }).await
            }
        }
    }

    /// Wait for every firing that was sent, including those sent by a process that died.
    fn await_results(&mut self) {
        for firing in self.state.running() {
            let Some(sent) = firing.sent.clone().filter(|_| !self.awaited.contains(&firing.seq)) else {
                continue;
            };
            self.awaited.insert(firing.seq);
            let (engine, installed, seq) = (self.engine.clone(), self.installed.clone(), firing.seq);
            self.work.push(Box::pin(async move { (seq, await_result(&engine, &installed, &sent).await) }));
        }
    }

    async fn record_result(&mut self, firing: Seq, done: Result<(String, Option<String>)>) -> Result<()> {
        self.awaited.remove(&firing);
        let (outcome, code) = match done {
            Ok(done) => done,
            Err(error) if is_temporary(&error) => return Err(error),
            Err(error) => ("failed".to_owned(), Some(error.code().to_owned())),
        };
        self.note(TriggerNote::Ended { firing, outcome, code }).await
    }
}

/// The result of draining a trigger.
#[derive(Debug)]
pub enum Drained {
    Done(Box<TriggerState>),
    /// Another process is running the trigger.
    Elsewhere,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Detection {
    On,
    Off,
}

/// Whether a retry may succeed.
fn is_temporary(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Store(
            StoreError::Busy { .. }
                | StoreError::Io { .. }
                | StoreError::Backend { .. }
                | StoreError::DiskFull { .. }
                | StoreError::StaleFence { .. }
                | StoreError::Leased { .. }
        ) | EngineError::LeaseLost { .. }
            | EngineError::TurnLost { .. }
    )
}

/// Whether the target session of a trigger with the skip policy is in use.
async fn is_busy(engine: &Engine, installed: &InstalledTrigger) -> Result<bool> {
    let (Conflict::Skip, TriggerTarget::Session(session)) =
        (installed.trigger.conflict, &installed.trigger.target)
    else {
        return Ok(false);
    };
    match engine.store.summary(&installed.scope, session).await {
        Ok(summary) => Ok(summary.open_turn.is_some()),
        Err(StoreError::NoSession { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn key_of(installed: &InstalledTrigger, firing: Seq) -> String {
    format!("{}:{firing}", installed.trigger.log_id())
}

/// Queue the text. Idempotent: repeated calls return the same entry.
async fn queue_text(engine: &Engine, installed: &InstalledTrigger, firing: &Firing) -> Result<SentTo> {
    let session = engine.triggers().open_target(installed, firing.seq).await?;
    let now = engine.clock.now();
    let queued =
        InputQueued { queue: Queue::Next, parts: vec![Part::text(installed.trigger.render_prompt(firing))] };
    let mut append = Append::new(session.clone(), now, vec![Draft::new(now, queued)]);
    append.idempotency_key = Some(key_of(installed, firing.seq));
    let appended = engine.log().append(&installed.scope, append).await?;
    let lost = EngineError::TurnLost { session: session.clone() };
    let input = appended.entries.first().map(|(_, id)| *id).ok_or(lost)?;
    Ok(SentTo { session, input })
}

/// Resume the session until the turn with this input has ended or waits for an answer, in this or another process.
async fn await_result(
    engine: &Engine,
    installed: &InstalledTrigger,
    sent: &SentTo,
) -> Result<(String, Option<String>)> {
    let SentTo { session, input } = sent;
    loop {
        match status_of(engine, installed, session, *input).await? {
            FiringStatus::Ended(outcome, code) => return Ok((outcome, code)),
            FiringStatus::Waiting => return Ok(("waiting".to_owned(), None)),
            FiringStatus::Pending => {}
        }
        match engine.turns().resume(&installed.scope, session, OnWait::Leave).await {
            Ok(Some(running)) => {
                // An earlier turn of the session waits for an answer, so this input has to wait.
                if running.ended().await?.ended.is_none() {
                    tokio::time::sleep(ANSWER_PAUSE).await;
                }
            }
            Ok(None) | Err(EngineError::Store(StoreError::Leased { .. })) => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

enum FiringStatus {
    Pending,
    Waiting,
    Ended(String, Option<String>),
}

/// The status of the turn that consumed this input.
async fn status_of(
    engine: &Engine,
    installed: &InstalledTrigger,
    session: &SessionId,
    input: EntryId,
) -> Result<FiringStatus> {
    let kinds = [Kind::InputTaken, Kind::TurnEnded];
    let (mut turn, mut found): (Option<TurnId>, FiringStatus) = (None, FiringStatus::Pending);
    engine
        .log()
        .each_of_kinds(&installed.scope, session, &kinds, |entry| match entry.body {
            Body::InputTaken(taken) if taken.input == input => turn = entry.meta.turn,
            Body::TurnEnded(ended) if turn.is_some() && entry.meta.turn == turn => {
                found = FiringStatus::Ended(outcome_name(ended.outcome).to_owned(), ended.code);
            }
            _ => {}
        })
        .await?;
    if let (Some(_), FiringStatus::Pending) = (turn, &found)
        && !engine.turn_control().approvals(&installed.scope, session).await?.is_empty()
    {
        return Ok(FiringStatus::Waiting);
    }
    Ok(found)
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Cancelled => "cancelled",
        Outcome::Failed => "failed",
        Outcome::Limited => "limited",
    }
}
