//! Wake the followers of a session when entries are appended. A wake-up carries no payload: the follower then
//! reads the store.
//!
//! Appends in this process wake the session's followers immediately. For appends by other processes, one poller
//! serves all followed sessions. It first checks whether anything in the store changed, and only then which
//! sessions. The poller runs while there are followers. If a session has many followers, its new entries are read
//! once for all of them, see [`FollowerPage`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sapwood_core::port::store::Store;
use sapwood_core::scope::Members;
use sapwood_core::{Principal, Record, Scope, Seq, SessionId, TenantId};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often the store is polled for writes by other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time without reading the heads while the store reports no change. Needed because a notification may be lost.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Polling uses at most 1/n of a core, unless a poll takes longer than [`POLL_INTERVAL_MAX`] / n.
const POLL_SHARE: u32 = 8;

/// Minimum number of followers for sharing reads.
const SHARED_READ_FOLLOWERS_MIN: usize = 4;

type SessionKey = (TenantId, SessionId);

#[derive(Default)]
pub(crate) struct Wakeups {
    state: Mutex<WakeupState>,
}

#[derive(Default)]
struct WakeupState {
    followed: BTreeMap<SessionKey, Followed>,
    poller: Option<JoinHandle<()>>,
}

/// Wakes the waiting followers in the order of arrival. A `watch` channel wakes in random order, which
/// simulations could not reproduce.
#[derive(Default)]
struct WakeSignal {
    /// Number of wake-ups so far.
    wakes: AtomicU64,
    waiting: Notify,
}

impl WakeSignal {
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.waiting.notify_waiters();
    }
}

#[derive(Default)]
struct Followed {
    /// Each follower holds a clone, so the reference count determines the number of followers.
    signal: Arc<WakeSignal>,
    /// The head that the poller last saw; `None` before its first poll.
    seen: Option<Option<Seq>>,
    page: SharedPage,
}

impl Followed {
    fn followers(&self) -> usize {
        Arc::strong_count(&self.signal) - 1
    }
}

/// Entries read once for all followers near the head, and the principals who may see them.
pub(crate) struct FollowerPage {
    /// The page starts after this entry.
    pub after: Seq,
    pub records: Vec<Record>,
    /// The wake-up count before the read. With `is_end`, the page has everything appended up to that wake-up.
    pub wakes: u64,
    pub is_end: bool,
    pub owner: Principal,
    pub members: Members,
}

/// The latest shared page. The first follower to acquire the lock reads the page for the others.
pub(crate) type SharedPage = Arc<tokio::sync::Mutex<Option<Arc<FollowerPage>>>>;

/// One follower's subscription to wake-ups of a session.
pub(crate) struct Watch {
    signal: Arc<WakeSignal>,
    /// The wake-up count that this follower has seen.
    seen_wakes: u64,
    page: SharedPage,
    wakeups: Weak<Wakeups>,
    key: SessionKey,
}

impl Wakeups {
    pub(crate) fn wake(&self, tenant: &TenantId, session: &SessionId) {
        let state = self.lock();
        if state.followed.is_empty() {
            return;
        }
        if let Some(followed) = state.followed.get(&(tenant.clone(), session.clone())) {
            followed.signal.wake();
        }
    }

    pub(crate) fn watch(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Watch {
        let key = (tenant.clone(), session.clone());
        let mut state = self.lock();
        let followed = state.followed.entry(key.clone()).or_default();
        let (signal, page) = (followed.signal.clone(), followed.page.clone());
        if state.poller.as_ref().is_none_or(JoinHandle::is_finished) {
            state.poller = Some(tokio::spawn(poll(Arc::downgrade(self), store.clone())));
        }
        let seen_wakes = signal.wakes.load(Ordering::SeqCst);
        Watch { signal, seen_wakes, page, wakeups: Arc::downgrade(self), key }
    }

    fn lock(&self) -> MutexGuard<'_, WakeupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unregister the poller if there are no followers. Returns whether the poller must end; the next follower starts
    /// another poller.
    fn stop_if_unused(&self) -> bool {
        let mut state = self.lock();
        if state.followed.is_empty() {
            state.poller = None;
        }
        state.poller.is_none()
    }

    /// The followed sessions, by tenant.
    fn followed(&self) -> BTreeMap<TenantId, Vec<SessionId>> {
        let state = self.lock();
        let mut sessions: BTreeMap<TenantId, Vec<SessionId>> = BTreeMap::new();
        for (tenant, session) in state.followed.keys() {
            sessions.entry(tenant.clone()).or_default().push(session.clone());
        }
        sessions
    }

    /// Record the head of a log, and wake its followers if it changed.
    fn note_head(&self, tenant: &TenantId, session: SessionId, head: Option<Seq>) {
        let mut state = self.lock();
        let Some(followed) = state.followed.get_mut(&(tenant.clone(), session)) else { return };
        if followed.seen != Some(head) {
            followed.seen = Some(head);
            followed.signal.wake();
        }
    }

    fn unregister(&self, key: &SessionKey) {
        let mut state = self.lock();
        // The follower that is leaving is still counted.
        if state.followed.get(key).is_some_and(|followed| followed.followers() <= 1) {
            state.followed.remove(key);
        }
    }
}

impl Watch {
    /// Mark all wake-ups so far as seen, and return their count. Call this before reading the store, so that
    /// an append between the read and the wait still wakes the follower.
    pub(crate) fn mark_seen(&mut self) -> u64 {
        self.seen_wakes = self.signal.wakes.load(Ordering::SeqCst);
        self.seen_wakes
    }

    /// The shared page, if the session has enough followers.
    pub(crate) fn shared_page(&self) -> Option<SharedPage> {
        let wakeups = self.wakeups.upgrade()?;
        let state = wakeups.lock();
        let followers = state.followed.get(&self.key)?.followers();
        (followers >= SHARED_READ_FOLLOWERS_MIN).then(|| self.page.clone())
    }

    pub(crate) async fn changed(&mut self) {
        loop {
            // Register before checking the counter, so that no wake-up in between is missed.
            let notified = self.signal.waiting.notified();
            let wakes = self.signal.wakes.load(Ordering::SeqCst);
            if wakes != self.seen_wakes {
                self.seen_wakes = wakes;
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            wakeups.unregister(&self.key);
        }
    }
}

async fn poll(wakeups: Weak<Wakeups>, store: Arc<dyn Store>) {
    let mut mark = None;
    let mut pause = Duration::ZERO;
    let mut polled_at = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        let change = async {
            match mark {
                Some(mark) => store.changed(mark).await,
                None => std::future::pending().await,
            }
        };
        // A change notification ends the wait early.
        let _ = tokio::time::timeout(POLL_INTERVAL.saturating_sub(pause), change).await;
        let Some(wakeups) = wakeups.upgrade() else { return };
        if wakeups.stop_if_unused() {
            return;
        }
        let began = Instant::now();
        match store.change_mark().await {
            Ok(Some(now)) if mark == Some(now) && polled_at.elapsed() < POLL_INTERVAL_MAX => {}
            Ok(now) => {
                (mark, polled_at) = (now, began);
                // List the followed sessions after reading the mark: a follower that starts later reads the store
                // itself, at a later state.
                poll_heads(&wakeups, store.as_ref(), wakeups.followed()).await;
            }
            Err(error) => tracing::debug!(%error, "failed to poll the store for changes"),
        }
        pause = pause_after(began.elapsed());
    }
}

/// The pause after a poll. It is limited: a poll that waited for a database to return must not delay the next one.
fn pause_after(took: Duration) -> Duration {
    (took * POLL_SHARE).min(POLL_INTERVAL_MAX)
}

async fn poll_heads(wakeups: &Wakeups, store: &dyn Store, sessions: BTreeMap<TenantId, Vec<SessionId>>) {
    for (tenant, sessions) in sessions {
        let scope = Scope::operator(tenant, Principal::System);
        match store.heads(&scope, &sessions).await {
            Ok(heads) => {
                for (session, head) in sessions.into_iter().zip(heads) {
                    wakeups.note_head(&scope.tenant, session, head);
                }
            }
            Err(error) => tracing::debug!(%error, "failed to poll the store for changes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_waited_for_an_outage_does_not_delay_the_next_poll() {
        assert_eq!(pause_after(Duration::from_secs(15)), POLL_INTERVAL_MAX);
        assert_eq!(pause_after(Duration::from_millis(2)), Duration::from_millis(2) * POLL_SHARE);
    }
}
