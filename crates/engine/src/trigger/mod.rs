//! Run triggers. Each trigger has a separate log session, so leases, fences and idempotency keys apply to it.
//! Several servers may detect that a trigger is due, but the firing is recorded by one entry and performed by one
//! server. If that server dies, another server continues from the same log.
//!
//! The text of a firing is queued in its target session under the firing's idempotency key, so it is sent
//! exactly once. [`detect`] finds due firings, [`run`] performs them.

mod detect;
mod run;

pub use run::{Drained, TriggerRunner};

use std::sync::Arc;

use sapwood_core::agent::Agent;
use sapwood_core::entry::Draft;
use sapwood_core::port::store::{Append, Appended, Expect, StoreError};
use sapwood_core::port::trigger::{Calendar, Watcher};
use sapwood_core::scope::Reach;
use sapwood_core::trigger::{Missed, PAYLOAD_BYTES_MAX, Trigger, TriggerNote, TriggerState, log_id};
use sapwood_core::{Right, Scope, Seq, SessionId, TimestampMs};
use serde_json::Value;

use crate::directory::check_role;
use crate::sessions::{OpenOptions, StartOptions};
use crate::{EngineError, Result, service};

/// The event source of a trigger.
#[derive(Clone)]
pub enum TriggerSource {
    /// An HTTP request.
    Webhook,
    Cron {
        calendar: Arc<dyn Calendar>,
        missed: Missed,
    },
    Watch {
        watcher: Arc<dyn Watcher>,
        poll_ms: u64,
    },
    /// Entries of another session with one of these event names; any event if empty.
    Event {
        session: SessionId,
        types: Vec<String>,
    },
}

impl TriggerSource {
    pub fn name(&self) -> &'static str {
        match self {
            TriggerSource::Webhook => "webhook",
            TriggerSource::Cron { .. } => "cron",
            TriggerSource::Watch { .. } => "watch",
            TriggerSource::Event { .. } => "event",
        }
    }

    pub fn describe(&self) -> String {
        match self {
            TriggerSource::Webhook => "webhook".to_owned(),
            TriggerSource::Cron { calendar, .. } => calendar.describe(),
            TriggerSource::Watch { watcher, .. } => watcher.describe(),
            TriggerSource::Event { session, types } => format!("{session} {}", types.join(" ")),
        }
    }
}

/// An installed trigger with its source, its agent and its owner.
#[derive(Clone)]
pub struct InstalledTrigger {
    pub trigger: Trigger,
    pub source: TriggerSource,
    pub agent: Agent,
    pub cwd: Option<String>,
    /// The scope of the installer, who owns the trigger's sessions.
    pub scope: Scope,
}

impl InstalledTrigger {
    pub fn log_id(&self) -> Result<SessionId> {
        Ok(self.trigger.log_id().parse()?)
    }

    /// The next scheduled time, for a calendar trigger.
    pub fn next_at(&self, now: TimestampMs) -> Option<TimestampMs> {
        match &self.source {
            TriggerSource::Cron { calendar, .. } => calendar.next_after(now),
            TriggerSource::Webhook | TriggerSource::Watch { .. } | TriggerSource::Event { .. } => None,
        }
    }
}

service! {
    /// Starting turns on events and schedules.
    pub struct Triggers;
    triggers
}

impl Triggers<'_> {
    /// Open a trigger's log. Refuses an imported log, and a log with another owner, because that owner could fire the
    /// trigger at will.
    async fn open_log(self, installed: &InstalledTrigger) -> Result<SessionId> {
        let id = installed.log_id()?;
        let title = Some(format!("trigger {}", installed.trigger.name));
        let open = OpenOptions { id: Some(id.clone()), title, ..OpenOptions::default() };
        self.engine.sessions().create(&installed.scope, open).await?;
        let summary = self.engine.store.summary(&installed.scope, &id).await?;
        let owner = summary.owner.clone();
        if owner != installed.scope.principal {
            return Err(EngineError::TriggerTaken { session: id, owner });
        }
        if self.engine.configuration().authority_of(&installed.scope, &summary).await?.has_imports() {
            return Err(EngineError::TriggerImported { session: id });
        }
        Ok(id)
    }

    /// Fire a trigger by name. The caller needs write access to its log. The same key fires only once.
    pub async fn fire(self, scope: &Scope, name: &str, key: Option<&str>, payload: Value) -> Result<Seq> {
        if payload.to_string().len() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::TooLarge { what: "the payload", limit: PAYLOAD_BYTES_MAX }.into());
        }
        let unknown = || EngineError::NoTrigger { name: name.chars().take(64).collect() };
        let session: SessionId = log_id(name).parse().map_err(|_| unknown())?;
        let key = key.map(|key| format!("fire:{key}"));
        let due = TriggerNote::Due { payload, mark: None };
        let appended = match self
            .append_note(scope, &session, &due, NoteConditions { key, ..NoteConditions::default() })
            .await
        {
            Err(EngineError::Store(StoreError::NoSession { .. })) => return Err(unknown()),
            appended => appended?,
        };
        Ok(appended.entries.first().map_or(appended.head.seq, |(seq, _)| *seq))
    }

    /// Open a trigger's log if necessary, and fire the trigger.
    pub async fn fire_installed(
        self,
        installed: &InstalledTrigger,
        key: Option<&str>,
        payload: Value,
    ) -> Result<Seq> {
        self.open_log(installed).await?;
        self.fire(&installed.scope, &installed.trigger.name, key, payload).await
    }

    /// The state of a trigger from its log; empty if it never ran.
    pub async fn state(self, installed: &InstalledTrigger) -> Result<TriggerState> {
        let mut state = TriggerState::default();
        match self
            .engine
            .log()
            .each_entry(&installed.scope, &installed.log_id()?, Seq::ZERO, |entry| state.apply(&entry))
            .await
        {
            Ok(()) | Err(EngineError::Store(StoreError::NoSession { .. })) => Ok(state),
            Err(error) => Err(error),
        }
    }

    async fn append_note(
        self,
        scope: &Scope,
        log: &SessionId,
        note: &TriggerNote,
        conditions: NoteConditions,
    ) -> Result<Appended> {
        let now = self.engine.clock.now();
        let mut append = Append::new(log.clone(), now, vec![Draft::new(now, note.to_body())]);
        append.expect = conditions.head.map_or(Expect::Any, Expect::Head);
        append.fence = conditions.fence;
        append.idempotency_key = conditions.key;
        self.engine.log().append(scope, append).await
    }

    /// The target session of a firing, created if necessary.
    async fn open_target(self, installed: &InstalledTrigger, firing: Seq) -> Result<SessionId> {
        let id: SessionId = installed.trigger.target_of(firing).parse()?;
        self.check_target(installed, &id).await?;
        let title = Some(format!("{} {firing}", installed.trigger.name));
        let (id, cwd) = (Some(id.clone()), installed.cwd.clone());
        let open = OpenOptions { id, title, cwd, ..OpenOptions::default() };
        let start = StartOptions { open, agent: installed.agent.clone(), ..StartOptions::default() };
        match self.engine.sessions().start_any(&installed.scope, start).await {
            Err(EngineError::Store(StoreError::Exists { session })) => {
                Err(EngineError::TriggerTarget { session, owner: installed.scope.principal.clone() })
            }
            started => Ok(started?.0),
        }
    }

    /// Check that an existing target session belongs to the trigger's owner, or is shared with them for
    /// writing. An operator's reach is not enough: the owner of that session would receive the trigger's
    /// text.
    async fn check_target(self, installed: &InstalledTrigger, session: &SessionId) -> Result<()> {
        let scope = Scope { reach: Reach::Own, ..installed.scope.clone() };
        let summary = match self.engine.store.summary(&installed.scope, session).await {
            Err(StoreError::NoSession { .. }) => return Ok(()),
            summary => summary?,
        };
        let denied = |_| EngineError::TriggerTarget {
            session: session.clone(),
            owner: installed.scope.principal.clone(),
        };
        check_role(&scope, &summary, Right::Write).map_err(denied)
    }
}

/// Conditions for appending a note.
#[derive(Default)]
struct NoteConditions {
    key: Option<String>,
    head: Option<Seq>,
    fence: Option<u64>,
}
