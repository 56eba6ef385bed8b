//! Triggers at work. What a trigger did is a session of its own, so leases, fences and idempotency keys hold for it too:
//! of several servers each may notice that it is time, one entry says so, and one of them does it. A server that dies is
//! followed by another one that finds the same log.
//!
//! The words of a firing go into the queue of their session under a key of the firing: they are said once, whatever is
//! repeated. [`detect`] notices, [`run`] does.

mod detect;
mod run;

use std::sync::Arc;

use sapwood_core::agent::Agent;
use sapwood_core::entry::Draft;
use sapwood_core::port::store::{Append, Appended, Expect, StoreError};
use sapwood_core::port::trigger::{Calendar, Watcher};
use sapwood_core::scope::Reach;
use sapwood_core::trigger::{Missed, PAYLOAD_BYTES_MAX, Trigger, TriggerNote, TriggerState, log_id};
use sapwood_core::{Right, Scope, Seq, SessionId, TimestampMs};
use serde_json::Value;

use crate::read::check_role;
use crate::turn::StartOptions;
use crate::write::OpenOptions;
use crate::{Engine, EngineError, Result};

pub use run::{Drained, Runner};

/// What sets a trigger off.
#[derive(Clone)]
pub enum Source {
    /// Somebody calls.
    Webhook,
    Cron {
        calendar: Arc<dyn Calendar>,
        missed: Missed,
    },
    Watch {
        watcher: Arc<dyn Watcher>,
        poll_ms: u64,
    },
    /// Entries of another session whose events have these names; every one if there are none.
    Event {
        session: SessionId,
        types: Vec<String>,
    },
}

impl Source {
    pub fn name(&self) -> &'static str {
        match self {
            Source::Webhook => "webhook",
            Source::Cron { .. } => "cron",
            Source::Watch { .. } => "watch",
            Source::Event { .. } => "event",
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Source::Webhook => "webhook".to_owned(),
            Source::Cron { calendar, .. } => calendar.describe(),
            Source::Watch { watcher, .. } => watcher.describe(),
            Source::Event { session, types } => format!("{session} {}", types.join(" ")),
        }
    }
}

/// A trigger with all that it needs: what sets it off, who acts, and with which agent.
#[derive(Clone)]
pub struct Installed {
    pub trigger: Trigger,
    pub source: Source,
    pub agent: Agent,
    pub cwd: Option<String>,
    /// Whoever installed it: its sessions are theirs.
    pub scope: Scope,
}

impl Installed {
    pub fn log_id(&self) -> Result<SessionId> {
        Ok(self.trigger.log_id().parse()?)
    }

    /// When it fires next, where a calendar says so.
    pub fn next_at(&self, now: TimestampMs) -> Option<TimestampMs> {
        match &self.source {
            Source::Cron { calendar, .. } => calendar.next_after(now),
            Source::Webhook | Source::Watch { .. } | Source::Event { .. } => None,
        }
    }
}

impl Engine {
    /// Opens a trigger's log. One that somebody else owns is not touched: whoever owns it could fire at will.
    async fn open_trigger_log(&self, installed: &Installed) -> Result<SessionId> {
        let id = installed.log_id()?;
        let title = Some(format!("trigger {}", installed.trigger.name));
        let open = OpenOptions { id: Some(id.clone()), title, ..OpenOptions::default() };
        self.create(&installed.scope, open).await?;
        let summary = self.store.summary(&installed.scope, &id).await?;
        let owner = summary.owner.clone();
        if owner != installed.scope.principal {
            return Err(EngineError::TriggerTaken { session: id, owner });
        }
        if self.authority_of(&installed.scope, &summary).await?.has_imports() {
            return Err(EngineError::TriggerImported { session: id });
        }
        Ok(id)
    }

    /// Fires a trigger by its name, as whoever may write its log. The same key fires once.
    pub async fn fire_trigger(
        &self,
        scope: &Scope,
        name: &str,
        key: Option<&str>,
        payload: Value,
    ) -> Result<Seq> {
        if payload.to_string().len() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::TooLarge { what: "the payload", limit: PAYLOAD_BYTES_MAX }.into());
        }
        let unknown = || EngineError::NoTrigger { name: name.chars().take(64).collect() };
        let session: SessionId = log_id(name).parse().map_err(|_| unknown())?;
        let key = key.map(|key| format!("fire:{key}"));
        let due = TriggerNote::Due { payload, mark: None };
        let appended =
            match self.append_trigger_note(scope, &session, &due, Terms { key, ..Terms::default() }).await {
                Err(EngineError::Store(StoreError::NoSession { .. })) => return Err(unknown()),
                appended => appended?,
            };
        Ok(appended.entries.first().map_or(appended.head.seq, |(seq, _)| *seq))
    }

    /// Opens a trigger's log if it is not there, and fires it.
    pub async fn fire_installed(
        &self,
        installed: &Installed,
        key: Option<&str>,
        payload: Value,
    ) -> Result<Seq> {
        self.open_trigger_log(installed).await?;
        self.fire_trigger(&installed.scope, &installed.trigger.name, key, payload).await
    }

    /// What a trigger's log shows; nothing yet for one that never ran.
    pub async fn trigger_state(&self, installed: &Installed) -> Result<TriggerState> {
        let mut state = TriggerState::default();
        match self
            .each_entry(&installed.scope, &installed.log_id()?, Seq::ZERO, |entry| state.apply(&entry))
            .await
        {
            Ok(()) | Err(EngineError::Store(StoreError::NoSession { .. })) => Ok(state),
            Err(error) => Err(error),
        }
    }

    async fn append_trigger_note(
        &self,
        scope: &Scope,
        log: &SessionId,
        note: &TriggerNote,
        terms: Terms,
    ) -> Result<Appended> {
        let now = self.clock.now();
        let mut append = Append::new(log.clone(), now, vec![Draft::new(now, note.to_info())]);
        append.expect = terms.head.map_or(Expect::Any, Expect::Head);
        append.fence = terms.fence;
        append.idempotency_key = terms.key;
        self.append(scope, append).await
    }

    /// The session a firing goes to, opened if it is not there.
    async fn open_target(&self, installed: &Installed, firing: Seq) -> Result<SessionId> {
        let id: SessionId = installed.trigger.target_of(firing).parse()?;
        self.check_target(installed, &id).await?;
        let title = Some(format!("{} {firing}", installed.trigger.name));
        let open = OpenOptions { id: Some(id.clone()), title, cwd: installed.cwd.clone(), agent: None };
        let start = StartOptions { open, agent: installed.agent.clone(), ..StartOptions::default() };
        match self.start_any(&installed.scope, start).await {
            Err(EngineError::Store(StoreError::Exists { session })) => {
                Err(EngineError::TriggerTarget { session, owner: installed.scope.principal.clone() })
            }
            started => Ok(started?.0),
        }
    }

    /// A session that is there is addressed only if it belongs to the trigger's owner, or was shared with them to write. An
    /// operator's reach is not enough: the owner of that session would receive what the trigger says.
    async fn check_target(&self, installed: &Installed, session: &SessionId) -> Result<()> {
        let scope = Scope { reach: Reach::Own, ..installed.scope.clone() };
        let summary = match self.store.summary(&installed.scope, session).await {
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

/// Under which conditions a note is written.
#[derive(Default)]
struct Terms {
    key: Option<String>,
    head: Option<Seq>,
    fence: Option<u64>,
}
