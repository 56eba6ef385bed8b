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

use super::OnWait;
use crate::flow::RunStatus;
use crate::{Engine, EngineError, Result};

/// Search interval. After a server dies, its turns pause for this interval plus the lease TTL.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);
/// Turns taken over per search.
const TAKEN_MAX: usize = 16;
/// Maximum number of takeovers of the same turn or run by one process.
const TRIES_MAX: u32 = 3;
/// Turn searches between two run searches.
const LOOKS_PER_RUN_LOOK: u64 = 10;
/// Runs checked per tenant, newest first.
const RUNS_MAX: usize = 50;
/// Sessions checked per tenant, newest first, if the store cannot list open turns.
const LOOKED_THROUGH_MAX: usize = 200;
/// Turns and runs remembered for [`TRIES_MAX`]; when the limit is reached, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Background task that takes over abandoned turns and runs. Dropping it stops the search.
pub struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Number of takeovers by this process, by turn or run id.
#[derive(Default)]
struct Tries(HashMap<String, u32>);

impl Tries {
    fn are_left(&self, what: impl ToString) -> bool {
        self.0.get(&what.to_string()).is_none_or(|tries| *tries < TRIES_MAX)
    }

    fn count(&mut self, what: impl ToString) {
        if self.0.len() >= REMEMBERED_MAX {
            self.0.clear();
        }
        *self.0.entry(what.to_string()).or_default() += 1;
    }
}

impl Engine {
    /// Start searching for abandoned turns and runs.
    pub fn keep_turns(&self) -> Result<Keeper> {
        self.backends()?;
        let engine = self.clone();
        Ok(Keeper(tokio::spawn(async move {
            let mut tries = Tries::default();
            for look in 0_u64.. {
                let mut looked = engine.take_over_turns(&mut tries).await;
                if look.is_multiple_of(LOOKS_PER_RUN_LOOK) {
                    looked = looked.and(engine.take_over_runs(&mut tries).await);
                }
                if let Err(error) = looked {
                    tracing::warn!(%error, "failed to search for abandoned turns");
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })))
    }

    async fn take_over_turns(&self, tries: &mut Tries) -> Result<()> {
        for (tenant, session) in self.abandoned_turns().await?.into_iter().take(TAKEN_MAX) {
            report(&session, self.take_over_turn(&tenant, &session, tries).await);
        }
        Ok(())
    }

    /// Take over open runs that no process holds.
    async fn take_over_runs(&self, tries: &mut Tries) -> Result<()> {
        for tenant in self.store.list_tenants().await? {
            let operator = Scope::operator(tenant.clone(), Principal::System);
            let runs = self.list_flows(&operator, RUNS_MAX, None).await?.items;
            for row in runs.into_iter().filter(|row| row.status == RunStatus::Open).take(TAKEN_MAX) {
                let owner = self.store.summary(&operator, &row.run).await.map(|summary| summary.owner);
                let taken = match owner {
                    Ok(owner) => self.take_over_run(&scope_of(&tenant, owner), &row.run, tries).await,
                    Err(error) => Err(error.into()),
                };
                report(&row.run, taken);
            }
        }
        Ok(())
    }

    /// Sessions with an open turn that no process holds. Without store support, held sessions are included.
    async fn abandoned_turns(&self) -> Result<Vec<(TenantId, SessionId)>> {
        if let Some(found) = self.store.abandoned_turns(TAKEN_MAX).await? {
            return Ok(found);
        }
        let mut found = Vec::new();
        for tenant in self.store.list_tenants().await? {
            let scope = Scope::operator(tenant.clone(), Principal::System);
            let filter = ListFilter { limit: LOOKED_THROUGH_MAX, ..ListFilter::default() };
            let sessions = self.store.list(&scope, &filter).await?.items;
            let open = sessions.into_iter().filter(|summary| summary.open_turn.is_some());
            found.extend(open.map(|summary| (tenant.clone(), summary.id)));
        }
        Ok(found)
    }

    async fn take_over_turn(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        tries: &mut Tries,
    ) -> Result<Taken> {
        let operator = Scope::operator(tenant.clone(), Principal::System);
        let summary = self.settled_summary(&operator, session).await?;
        let Some(turn) = summary.open_turn.filter(|turn| tries.are_left(turn)) else {
            return Ok(Taken::Nothing);
        };
        let entries = self.turn_entries(&operator, session, turn).await?;
        let Some(began) = entries.iter().find(|entry| entry.meta.kind == Kind::TurnStarted) else {
            return Ok(Taken::Nothing);
        };
        if !super::send::pending_of(session, &entries).is_empty() {
            return Ok(Taken::Nothing);
        }
        let scope = scope_of(tenant, began.meta.by.clone());
        if let Some(run) = self.run_of(&operator, session).await?
            && self.run_status(&scope, &run).await? == RunStatus::Open
            && self.take_over_run(&scope, &run, tries).await? == Taken::Up
        {
            return Ok(Taken::Up);
        }
        let hold = self.take_hold(&scope, session).await?;
        tries.count(turn);
        let running = self.resume_held(&scope, session, hold, OnWait::Stay).await?;
        Ok(running.map_or(Taken::Nothing, |_| Taken::Up))
    }

    /// Take over an open run.
    async fn take_over_run(&self, scope: &Scope, run: &SessionId, tries: &mut Tries) -> Result<Taken> {
        if !tries.are_left(run) {
            return Ok(Taken::Nothing);
        }
        let hold = self.take_hold(scope, run).await?;
        tries.count(run);
        let running = self.carry_on(scope, run, hold).await?;
        Ok(running.map_or(Taken::Nothing, |_| Taken::Up))
    }
}

/// The result of a takeover attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Up,
    Nothing,
}

/// Act with the current rights of the principal who started the turn, not with those at its start.
fn scope_of(tenant: &TenantId, principal: Principal) -> Scope {
    match principal {
        Principal::System => Scope::operator(tenant.clone(), Principal::System),
        principal => Scope { tenant: tenant.clone(), principal, reach: Reach::Own },
    }
}

fn report(session: &SessionId, taken: Result<Taken>) {
    match taken {
        Ok(Taken::Up) => tracing::info!(%session, "took over an abandoned turn or run"),
        Ok(Taken::Nothing) => {}
        // Another process was faster, or the session was erased.
        Err(EngineError::Store(StoreError::Leased { .. } | StoreError::NoSession { .. })) => {}
        // An imported run was not abandoned by a local process.
        Err(EngineError::FlowImported { .. }) => {}
        Err(error) => tracing::warn!(%session, %error, "failed to take over an abandoned turn or run"),
    }
}
