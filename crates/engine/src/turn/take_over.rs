//! Taking over turns whose process died. A server looks at its start and then again and again for turns that are open and
//! that nobody holds, and carries them on as `resume` would, each as the one who began it. The lease decides between
//! servers that look at the same time. A turn that waits for a person is left alone until somebody has answered; and one
//! that keeps dying is given up by this process after a few tries, and stays for `resume` by hand.

use std::collections::HashMap;
use std::time::Duration;

use sapwood_core::port::store::{ListFilter, StoreError};
use sapwood_core::scope::Reach;
use sapwood_core::{Kind, Principal, Scope, SessionId, TenantId, TurnId};
use tokio::task::JoinHandle;

use super::{OnWait, Running};
use crate::{Engine, EngineError, Result};

/// How often a server looks. With the life of a lease, this is how long a turn stands still when its server died.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);
/// Turns taken over at one look.
const TAKEN_MAX: usize = 16;
/// How often one process takes over the same turn.
const TRIES_MAX: u32 = 3;
/// Sessions looked through for each tenant, the newest first, in a store that cannot tell open turns by itself.
const LOOKED_THROUGH_MAX: usize = 200;
/// Turns remembered for [`TRIES_MAX`]; when there are more, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Looks for abandoned turns until it is dropped.
pub struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    /// Begins to look for abandoned turns.
    pub fn keep_turns(&self) -> Result<Keeper> {
        self.world()?;
        let engine = self.clone();
        Ok(Keeper(tokio::spawn(async move {
            let mut tries: HashMap<TurnId, u32> = HashMap::new();
            loop {
                if let Err(error) = engine.take_over_some(&mut tries).await {
                    tracing::warn!(%error, "abandoned turns cannot be looked for just now");
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })))
    }

    async fn take_over_some(&self, tries: &mut HashMap<TurnId, u32>) -> Result<()> {
        if tries.len() > REMEMBERED_MAX {
            tries.clear();
        }
        for (tenant, session) in self.abandoned_turns().await?.into_iter().take(TAKEN_MAX) {
            match self.take_over(&tenant, &session, tries).await {
                Ok(Some(running)) => tracing::info!(%session, turn = %running.turn, "took over a turn"),
                Ok(None) => {}
                // Somebody was quicker, or it is being erased.
                Err(EngineError::Store(StoreError::Leased { .. } | StoreError::NoSession { .. })) => {}
                Err(error) => tracing::warn!(%session, %error, "a turn cannot be taken over"),
            }
        }
        Ok(())
    }

    /// Sessions with an open turn that nobody holds, as far as the store can tell.
    async fn abandoned_turns(&self) -> Result<Vec<(TenantId, SessionId)>> {
        if let Some(found) = self.store.abandoned_turns(self.clock.now(), TAKEN_MAX).await? {
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

    async fn take_over(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        tries: &mut HashMap<TurnId, u32>,
    ) -> Result<Option<Running>> {
        let operator = Scope::operator(tenant.clone(), Principal::System);
        let Some(turn) = self.store.summary(&operator, session).await?.open_turn else { return Ok(None) };
        if tries.get(&turn).is_some_and(|tries| *tries >= TRIES_MAX) {
            return Ok(None);
        }
        let entries = self.turn_entries(&operator, session, turn).await?;
        let Some(began) = entries.iter().find(|entry| entry.meta.kind == Kind::TurnStarted) else {
            return Ok(None);
        };
        if !super::send::pending_of(session, &entries).is_empty() {
            return Ok(None);
        }
        // Who began it may do what it does, or no longer.
        let scope = Scope { tenant: tenant.clone(), principal: began.meta.by.clone(), reach: Reach::Own };
        let scope = if scope.principal == Principal::System { operator } else { scope };
        let hold = self.take_hold(&scope, session).await?;
        *tries.entry(turn).or_default() += 1;
        self.resume_held(&scope, session, hold, OnWait::Stay).await
    }
}
