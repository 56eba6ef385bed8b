//! Hold a session's lease while a turn or a flow run is active. The lease is renewed in the background. If the
//! process dies, the lease expires; if the process stalls for too long, its fence is refused and it stops.

use std::sync::Arc;
use std::time::Duration;

use sapwood_core::port::store::{LEASE_TTL_MS_MAX, Lease, Store, StoreError};
use sapwood_core::{Scope, SessionId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Engine, EngineError, Result};

/// TTL of a lease without renewal: how long other processes wait after a crash.
pub const LEASE_TTL_MS: i64 = 4_000;
const _: () = assert!(LEASE_TTL_MS <= LEASE_TTL_MS_MAX);
/// Renewal interval. Several renewals fit into one TTL, so that one slow write does not lose the lease.
const RENEW_INTERVAL: Duration = Duration::from_millis(1_200);
/// How long a caller waits for a lease: slightly longer than the TTL of an abandoned lease.
const WAIT_MAX: Duration = Duration::from_millis(LEASE_TTL_MS.cast_unsigned() + 1_000);
/// How often a waiting caller retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A held lease. Dropping it stops the renewal; [`Hold::release`] also frees the session immediately.
pub(crate) struct Hold {
    pub(crate) fence: u64,
    lease: Lease,
    scope: Scope,
    store: Arc<dyn Store>,
    renewal: JoinHandle<()>,
    /// Set when another process has taken the session or the session was erased.
    lost: watch::Receiver<bool>,
}

impl Hold {
    /// Take the lease. Fails with [`StoreError::Leased`] if another holder has it.
    pub(crate) async fn take(engine: &Engine, scope: &Scope, session: &SessionId) -> Result<Self> {
        let holder = format!("{:032x}", engine.clock.random());
        let lease = engine.store.take_lease(scope, session, &holder, LEASE_TTL_MS).await?;
        let (lost_sender, lost) = watch::channel(false);
        let renewal =
            tokio::spawn(renew(engine.store.clone(), scope.clone(), session.clone(), holder, lost_sender));
        Ok(Self {
            fence: lease.fence,
            lease,
            scope: scope.clone(),
            store: engine.store.clone(),
            renewal,
            lost,
        })
    }

    /// Wait for the lease. Gives up after slightly more than one TTL: a holder that still has the lease then is alive.
    pub(crate) async fn wait(engine: &Engine, scope: &Scope, session: &SessionId) -> Result<Self> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match Self::take(engine, scope, session).await {
                Err(EngineError::Store(StoreError::Leased { .. })) if Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                answer => return answer,
            }
        }
    }
}

impl Hold {
    pub(crate) async fn release(self) {
        self.renewal.abort();
        // If the release fails, the lease expires after its TTL.
        let _ = self.store.release_lease(&self.scope, &self.lease).await;
    }

    /// Resolves when another process has taken the session or the session was erased.
    pub(crate) async fn lost(&mut self) {
        if self.lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn renew(
    store: Arc<dyn Store>,
    scope: Scope,
    session: SessionId,
    holder: String,
    lost_sender: watch::Sender<bool>,
) {
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        let renewed = store.take_lease(&scope, &session, &holder, LEASE_TTL_MS).await;
        // Other failures may be temporary; if not, the fence check stops this process.
        if matches!(renewed, Err(StoreError::Leased { .. } | StoreError::NoSession { .. })) {
            let _ = lost_sender.send(true);
            return;
        }
    }
}
