//! Escalate and expire questions at their deadlines while a server runs. The task remembers the next deadline of each
//! session that has one. Its first scan covers all sessions with an open turn, so deadlines survive a restart. Later
//! scans cover only sessions that changed since the previous scan, so their cost does not depend on the number of
//! sessions.

use std::collections::HashMap;
use std::time::Duration;

use sapwood_core::port::store::{ListFilter, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Principal, Scope, Seq, SessionId, TenantId, TimestampMs};
use tokio::task::JoinHandle;

use crate::{Engine, EngineError, Result};

/// How often deadlines are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(2_000);
/// Overlap of two scans, because clocks of other writers may be behind and appends take time.
const OVERLAP_MS: i64 = 30_000;
/// Sessions per page of a scan.
const PAGE_SESSIONS: usize = 500;
/// Maximum number of pages per scan and tenant. Sessions beyond this limit are found when they change.
const PAGES_MAX: usize = 1_000;
/// Maximum number of sessions whose deadlines are remembered. Others are found when they change, or after a restart.
const DEADLINES_MAX: usize = 100_000;

/// Background task that escalates and expires questions. Dropping it stops the task.
pub struct ApprovalTask(JoinHandle<()>);

impl Drop for ApprovalTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ApprovalTask {
    /// Start checking deadlines.
    pub fn start(engine: &Engine) -> Self {
        let mut deadlines = Deadlines::new(engine.clone());
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = deadlines.check().await {
                    tracing::warn!(%error, "failed to check the deadlines of approvals");
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        }))
    }
}

/// The next deadline of each session, and the time of the latest scan.
struct Deadlines {
    engine: Engine,
    next: HashMap<(TenantId, SessionId), TimestampMs>,
    /// The heads of the sessions that the latest scan found.
    seen: HashMap<(TenantId, SessionId), Seq>,
    looked_at: Option<TimestampMs>,
}

impl Deadlines {
    fn new(engine: Engine) -> Self {
        Self { engine, next: HashMap::new(), seen: HashMap::new(), looked_at: None }
    }

    async fn check(&mut self) -> Result<()> {
        let now = self.engine.clock.now();
        let mut seen = HashMap::new();
        for tenant in self.engine.store.list_tenants().await? {
            self.look(&tenant, &mut seen).await?;
        }
        self.seen = seen;
        self.looked_at = Some(now);
        let due = self.next.iter().filter(|(_, deadline)| **deadline <= now).map(|(place, _)| place.clone());
        for (tenant, session) in due.collect::<Vec<_>>() {
            self.settle(tenant, session).await;
        }
        Ok(())
    }

    /// Settle the sessions with an open turn that changed since the latest scan.
    async fn look(
        &mut self,
        tenant: &TenantId,
        seen: &mut HashMap<(TenantId, SessionId), Seq>,
    ) -> Result<()> {
        let system = Scope::operator(tenant.clone(), Principal::System);
        let since = self.looked_at.map(|at| TimestampMs(at.0 - OVERLAP_MS));
        let mut filter =
            ListFilter { has_open_turn: true, since, limit: PAGE_SESSIONS, ..ListFilter::default() };
        for _ in 0..PAGES_MAX {
            let page = self.engine.store.list(&system, &filter).await?;
            for Summary { id, head, .. } in page.items {
                let place = (tenant.clone(), id);
                if self.seen.get(&place) != Some(&head.seq) {
                    self.settle(place.0.clone(), place.1.clone()).await;
                }
                if seen.len() < DEADLINES_MAX {
                    seen.insert(place, head.seq);
                }
            }
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn settle(&mut self, tenant: TenantId, session: SessionId) {
        let place = (tenant, session);
        match self.engine.approvals().settle(&place.0, &place.1).await {
            Ok(Some(deadline)) if self.next.len() < DEADLINES_MAX || self.next.contains_key(&place) => {
                self.next.insert(place, deadline);
            }
            Ok(_) | Err(EngineError::Store(StoreError::NoSession { .. })) => {
                self.next.remove(&place);
            }
            // Keep the deadline: the next check tries again.
            Err(error) => {
                tracing::warn!(session = %place.1, %error, "failed to settle the deadlines of a session");
            }
        }
    }
}
