//! Taking over turns and runs of flows whose process died. A server looks at its start and then again and again for turns
//! that are open and that nobody holds, and carries them on as `resume` would, each as the one who began it; if such a
//! turn is a visit of a run, the run is carried on, and the turn with it. Less often it looks for runs that died between two
//! turns. The lease decides between servers that look at the same time. What waits for a person is left alone until
//! somebody has answered; and what keeps dying is given up by this process after a few tries, and stays for `resume` by hand.

use std::collections::HashMap;
use std::time::Duration;

use sapwood_core::port::store::{ListFilter, StoreError};
use sapwood_core::scope::Reach;
use sapwood_core::{Kind, Principal, Scope, SessionId, TenantId};
use tokio::task::JoinHandle;

use super::OnWait;
use crate::flow::RunStatus;
use crate::{Engine, EngineError, Result};

/// How often a server looks. With the life of a lease, this is how long a turn stands still when its server died.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);
/// Turns taken over at one look.
const TAKEN_MAX: usize = 16;
/// How often one process takes over the same turn or run.
const TRIES_MAX: u32 = 3;
/// Looks for turns between two looks for runs.
const LOOKS_PER_RUN_LOOK: u64 = 10;
/// Runs looked at for each tenant, the newest first.
const RUNS_MAX: usize = 50;
/// Sessions looked through for each tenant, the newest first, in a store that cannot tell open turns by itself.
const LOOKED_THROUGH_MAX: usize = 200;
/// Turns and runs remembered for [`TRIES_MAX`]; when there are more, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Looks for abandoned turns and runs until it is dropped.
pub struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How often what was taken over, by its id.
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
    /// Begins to look for abandoned turns and runs.
    pub fn keep_turns(&self) -> Result<Keeper> {
        self.world()?;
        let engine = self.clone();
        Ok(Keeper(tokio::spawn(async move {
            let mut tries = Tries::default();
            for look in 0_u64.. {
                let mut looked = engine.take_over_turns(&mut tries).await;
                if look.is_multiple_of(LOOKS_PER_RUN_LOOK) {
                    looked = looked.and(engine.take_over_runs(&mut tries).await);
                }
                if let Err(error) = looked {
                    tracing::warn!(%error, "abandoned turns cannot be looked for just now");
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

    /// Runs that go on by themselves and that nobody holds.
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

    /// Sessions with an open turn that nobody holds, as far as the store can tell.
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

    /// Of one that is open.
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

/// What came of a look at something that seemed abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Up,
    Nothing,
}

/// Who began something may do what it does, or no longer.
fn scope_of(tenant: &TenantId, principal: Principal) -> Scope {
    match principal {
        Principal::System => Scope::operator(tenant.clone(), Principal::System),
        principal => Scope { tenant: tenant.clone(), principal, reach: Reach::Own },
    }
}

fn report(session: &SessionId, taken: Result<Taken>) {
    match taken {
        Ok(Taken::Up) => tracing::info!(%session, "took over what another process left"),
        Ok(Taken::Nothing) => {}
        // Another process was faster, or it is being erased.
        Err(EngineError::Store(StoreError::Leased { .. } | StoreError::NoSession { .. })) => {}
        // History, and not left by any process here.
        Err(EngineError::FlowImported { .. }) => {}
        Err(error) => tracing::warn!(%session, %error, "what another process left cannot be taken over"),
    }
}
