//! Take over turns and flow runs whose process died. A server regularly searches for open turns that no
//! process holds and resumes each as the principal who started it. If the turn belongs to a flow run, the run
//! is resumed together with the turn. Less often, the server searches for runs that stopped between two
//! turns.
//!
//! The lease decides between servers that find the same turn. A turn that waits for an answer is left alone
//! until it is answered. A turn that keeps failing is skipped by this process after a few attempts and can be
//! resumed manually.

use std::collections::HashMap;
use std::time::Duration;

use sapwood_core::port::store::{ListFilter, StoreError};
use sapwood_core::scope::Reach;
use sapwood_core::{Kind, Principal, Scope, SessionId, TenantId};
use tokio::task::JoinHandle;

use super::control::pending_of;
use super::run::OnWait;
use crate::flow::RunStatus;
use crate::lease::Hold;
use crate::{Engine, EngineError, Result};

/// Search interval. After a server dies, its turns usually pause for at most this interval plus the lease TTL.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1_000);
/// Maximum number of turns, or of runs per tenant, taken over per search.
const TURNS_TAKEN_OVER_MAX: usize = 16;
/// Maximum number of takeovers of the same turn or run by one process.
const ATTEMPTS_MAX: u32 = 3;
/// Number of turn searches per run search.
const TURN_SEARCHES_PER_RUN_SEARCH: u64 = 10;
/// Maximum number of runs checked per tenant, newest first.
const RUNS_MAX: usize = 50;
/// Maximum number of sessions checked per tenant, newest first, if the store cannot list open turns.
const SESSIONS_CHECKED_MAX: usize = 200;
/// Maximum number of turns and runs with an attempt count. When the limit is reached, all counts are cleared.
const COUNTED_MAX: usize = 10_000;

/// Background task that takes over abandoned turns and runs. Dropping it stops the search.
pub struct TakeoverTask(JoinHandle<()>);

impl Drop for TakeoverTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Number of takeovers by this process, by turn or run id.
#[derive(Default)]
struct AttemptCounts(HashMap<String, u32>);

impl AttemptCounts {
    fn has_left(&self, what: impl ToString) -> bool {
        self.0.get(&what.to_string()).is_none_or(|attempts| *attempts < ATTEMPTS_MAX)
    }

    fn count(&mut self, what: impl ToString) {
        if self.0.len() >= COUNTED_MAX {
            self.0.clear();
        }
        *self.0.entry(what.to_string()).or_default() += 1;
    }
}

impl TakeoverTask {
    /// Start searching for abandoned turns and runs. Fails if the engine has no models and tools.
    pub fn start(engine: &Engine) -> Result<Self> {
        engine.backends()?;
        let mut search = AbandonedSearch { engine: engine.clone(), attempts: AttemptCounts::default() };
        Ok(Self(tokio::spawn(async move { search.run().await })))
    }
}

/// The search for abandoned turns and runs.
struct AbandonedSearch {
    engine: Engine,
    attempts: AttemptCounts,
}

impl AbandonedSearch {
    async fn run(&mut self) {
        for search in 0_u64.. {
            let mut result = self.take_over_turns().await;
            if search.is_multiple_of(TURN_SEARCHES_PER_RUN_SEARCH) {
                result = result.and(self.take_over_runs().await);
            }
            if let Err(error) = result {
                tracing::warn!(%error, "failed to search for abandoned turns");
            }
            tokio::time::sleep(SEARCH_INTERVAL).await;
        }
    }

    async fn take_over_turns(&mut self) -> Result<()> {
        for (tenant, session) in self.abandoned_turns().await?.into_iter().take(TURNS_TAKEN_OVER_MAX) {
            report(&session, self.take_over_turn(&tenant, &session).await);
        }
        Ok(())
    }

    /// Take over open runs that no process holds.
    async fn take_over_runs(&mut self) -> Result<()> {
        for tenant in self.engine.store.list_tenants().await? {
            let operator = Scope::operator(tenant.clone(), Principal::System);
            let runs = self.engine.flows().list(&operator, RUNS_MAX, None).await?.items;
            for row in runs.into_iter().filter(|row| row.status == RunStatus::Open).take(TURNS_TAKEN_OVER_MAX)
            {
                let owner = self.engine.store.summary(&operator, &row.run).await.map(|summary| summary.owner);
                let takeover = match owner {
                    Ok(owner) => self.take_over_run(&scope_of(&tenant, owner), &row.run).await,
                    Err(error) => Err(error.into()),
                };
                report(&row.run, takeover);
            }
        }
        Ok(())
    }

    /// Sessions with an open turn that no process holds. Without store support, held sessions are included.
    async fn abandoned_turns(&self) -> Result<Vec<(TenantId, SessionId)>> {
        if let Some(found) = self.engine.store.abandoned_turns(TURNS_TAKEN_OVER_MAX).await? {
            return Ok(found);
        }
        let mut found = Vec::new();
        for tenant in self.engine.store.list_tenants().await? {
            let scope = Scope::operator(tenant.clone(), Principal::System);
            let filter = ListFilter { limit: SESSIONS_CHECKED_MAX, ..ListFilter::default() };
            let sessions = self.engine.store.list(&scope, &filter).await?.items;
            let open = sessions.into_iter().filter(|summary| summary.open_turn.is_some());
            found.extend(open.map(|summary| (tenant.clone(), summary.id)));
        }
        Ok(found)
    }

    async fn take_over_turn(&mut self, tenant: &TenantId, session: &SessionId) -> Result<Takeover> {
        let operator = Scope::operator(tenant.clone(), Principal::System);
        let summary = self.engine.turns().settled_summary(&operator, session).await?;
        let Some(turn) = summary.open_turn.filter(|turn| self.attempts.has_left(turn)) else {
            return Ok(Takeover::Skipped);
        };
        let entries = self.engine.turn_control().turn_entries(&operator, session, turn).await?;
        let Some(began) = entries.iter().find(|entry| entry.meta.kind == Kind::TurnStarted) else {
            return Ok(Takeover::Skipped);
        };
        if !pending_of(session, &entries).is_empty() {
            return Ok(Takeover::Skipped);
        }
        let scope = scope_of(tenant, began.meta.by.clone());
        if let Some(run) = self.engine.flows().run_of(&operator, session).await?
            && self.engine.flows().run_status(&scope, &run).await? == RunStatus::Open
            && self.take_over_run(&scope, &run).await? == Takeover::Done
        {
            return Ok(Takeover::Done);
        }
        let hold = Hold::take(&self.engine, &scope, session).await?;
        self.attempts.count(turn);
        let running = self.engine.turns().resume_held(&scope, session, hold, OnWait::Stay).await?;
        Ok(running.map_or(Takeover::Skipped, |_| Takeover::Done))
    }

    async fn take_over_run(&mut self, scope: &Scope, run: &SessionId) -> Result<Takeover> {
        if !self.attempts.has_left(run) {
            return Ok(Takeover::Skipped);
        }
        let hold = Hold::take(&self.engine, scope, run).await?;
        self.attempts.count(run);
        let running = self.engine.flows().resume_held(scope, run, hold).await?;
        Ok(running.map_or(Takeover::Skipped, |_| Takeover::Done))
    }
}

/// The result of a takeover attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takeover {
    Done,
    Skipped,
}

/// Act with the current rights of the principal who started the turn, not with those at its start.
fn scope_of(tenant: &TenantId, principal: Principal) -> Scope {
    match principal {
        Principal::System => Scope::operator(tenant.clone(), Principal::System),
        principal => Scope { tenant: tenant.clone(), principal, reach: Reach::Own },
    }
}

fn report(session: &SessionId, takeover: Result<Takeover>) {
    match takeover {
        Ok(Takeover::Done) => tracing::info!(%session, "took over an abandoned turn or run"),
        Ok(Takeover::Skipped) => {}
        // Another process was faster, or the session was erased.
        Err(EngineError::Store(StoreError::Leased { .. } | StoreError::NoSession { .. })) => {}
        // An imported run was not abandoned by a local process.
        Err(EngineError::FlowImported { .. }) => {}
        Err(error) => tracing::warn!(%session, %error, "failed to take over an abandoned turn or run"),
    }
}
