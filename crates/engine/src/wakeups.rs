//! Wakes whoever follows a session when something was appended to it. A wake-up carries no payload: a reader that is
//! woken asks the store.
//!
//! Appends of this process wake their session's followers at once. For those of other processes there is one poller for
//! all followed sessions, not one per follower: it asks the store whether anything changed at all, and only then which
//! session did. It runs as long as somebody follows. What many follow is read once, see [`Page`].

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

/// How often the store is asked whether another process wrote.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A store that is told of writes may miss one: so often it is looked anyway.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
/// Polling takes at most one part in so many of a core, however many sessions are followed.
const POLL_SHARE: u32 = 8;

/// From so many followers on, one reads for all of them.
const SHARED_FROM: usize = 4;

type SessionKey = (TenantId, SessionId);

#[derive(Default)]
pub(crate) struct Wakeups {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    followed: BTreeMap<SessionKey, Followed>,
    poller: Option<JoinHandle<()>>,
}

/// Wakes whoever waits, in the order they came: a `watch` would draw lots, and a simulation could not do the same again.
#[derive(Default)]
struct Bell {
    /// Counts wake-ups; the number means nothing.
    rung: AtomicU64,
    waiting: Notify,
}

impl Bell {
    fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        self.waiting.notify_waiters();
    }
}

#[derive(Default)]
struct Followed {
    /// Each follower holds it, too.
    bell: Arc<Bell>,
    /// Where the poller last saw the log end; none before it has looked.
    seen: Option<Option<Seq>>,
    page: SharedPage,
}

impl Followed {
    fn followers(&self) -> usize {
        Arc::strong_count(&self.bell) - 1
    }
}

/// What was read of a session for all who follow it closely, and who may see it.
pub(crate) struct Page {
    /// Where it begins: after this entry.
    pub after: Seq,
    pub records: Vec<Record>,
    /// The wake-up it was read after: it holds all that was there by then, if it is the end.
    pub wakes: u64,
    pub is_end: bool,
    pub owner: Principal,
    pub members: Members,
}

/// One reads, and the others find it read.
pub(crate) type SharedPage = Arc<tokio::sync::Mutex<Option<Arc<Page>>>>;

/// Somebody's ear on one session.
pub(crate) struct Watch {
    bell: Arc<Bell>,
    /// The wake-ups it knows of.
    heard: u64,
    page: SharedPage,
    tail: Weak<Wakeups>,
    key: SessionKey,
}

impl Wakeups {
    pub(crate) fn wake(&self, tenant: &TenantId, session: &SessionId) {
        let state = self.lock();
        if state.followed.is_empty() {
            return;
        }
        if let Some(followed) = state.followed.get(&(tenant.clone(), session.clone())) {
            followed.bell.ring();
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
        let (bell, page) = (followed.bell.clone(), followed.page.clone());
        if state.poller.as_ref().is_none_or(JoinHandle::is_finished) {
            state.poller = Some(tokio::spawn(poll(Arc::downgrade(self), store.clone())));
        }
        let heard = bell.rung.load(Ordering::SeqCst);
        Watch { bell, heard, page, tail: Arc::downgrade(self), key }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody follows; then the poller ends, and whoever comes next starts another.
    fn is_left(&self) -> bool {
        let mut state = self.lock();
        if state.followed.is_empty() {
            state.poller = None;
        }
        state.poller.is_none()
    }

    /// The followed sessions of each tenant.
    fn followed(&self) -> BTreeMap<TenantId, Vec<SessionId>> {
        let state = self.lock();
        let mut sessions: BTreeMap<TenantId, Vec<SessionId>> = BTreeMap::new();
        for (tenant, session) in state.followed.keys() {
            sessions.entry(tenant.clone()).or_default().push(session.clone());
        }
        sessions
    }

    /// Notes where a log ends, and wakes whoever follows it if that is news.
    fn note_head(&self, tenant: &TenantId, session: SessionId, head: Option<Seq>) {
        let mut state = self.lock();
        let Some(followed) = state.followed.get_mut(&(tenant.clone(), session)) else { return };
        if followed.seen != Some(head) {
            followed.seen = Some(head);
            followed.bell.ring();
        }
    }

    fn leave(&self, key: &SessionKey) {
        let mut state = self.lock();
        // The one who leaves still counts.
        if state.followed.get(key).is_some_and(|followed| followed.followers() <= 1) {
            state.followed.remove(key);
        }
    }
}

impl Watch {
    /// Forgets the wake-ups so far, and says how many there were: called before the store is asked, so that an append
    /// between the question and the wait still wakes.
    pub(crate) fn listen(&mut self) -> u64 {
        self.heard = self.bell.rung.load(Ordering::SeqCst);
        self.heard
    }

    /// Where to look for what somebody else has read, if several follow the session.
    pub(crate) fn shared_page(&self) -> Option<SharedPage> {
        let tail = self.tail.upgrade()?;
        let state = tail.lock();
        let followers = state.followed.get(&self.key)?.followers();
        (followers >= SHARED_FROM).then(|| self.page.clone())
    }

    pub(crate) async fn changed(&mut self) {
        loop {
            // Before it is looked, so that a ring in between is not missed.
            let rings = self.bell.waiting.notified();
            let rung = self.bell.rung.load(Ordering::SeqCst);
            if rung != self.heard {
                self.heard = rung;
                return;
            }
            rings.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(tail) = self.tail.upgrade() {
            tail.leave(&self.key);
        }
    }
}

async fn poll(tail: Weak<Wakeups>, store: Arc<dyn Store>) {
    let mut mark = None;
    let mut rest = Duration::ZERO;
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(rest).await;
        let told = async {
            match mark {
                Some(mark) => store.changed(mark).await,
                None => std::future::pending().await,
            }
        };
        // Whoever is told need not ask.
        let _ = tokio::time::timeout(POLL_INTERVAL.saturating_sub(rest), told).await;
        let Some(tail) = tail.upgrade() else { return };
        if tail.is_left() {
            return;
        }
        let began = Instant::now();
        match store.change_mark().await {
            Ok(Some(now)) if mark == Some(now) && looked.elapsed() < LOOK_ANYWAY => {}
            Ok(now) => {
                (mark, looked) = (now, began);
                // Only now: whoever begins to follow after this reads the store after the mark was taken.
                look(&tail, store.as_ref(), tail.followed()).await;
            }
            Err(error) => tracing::debug!(%error, "the store cannot be watched just now"),
        }
        rest = began.elapsed() * POLL_SHARE;
    }
}

async fn look(tail: &Wakeups, store: &dyn Store, sessions: BTreeMap<TenantId, Vec<SessionId>>) {
    for (tenant, sessions) in sessions {
        let scope = Scope::operator(tenant, Principal::System);
        match store.heads(&scope, &sessions).await {
            Ok(heads) => {
                for (session, head) in sessions.into_iter().zip(heads) {
                    tail.note_head(&scope.tenant, session, head);
                }
            }
            Err(error) => tracing::debug!(%error, "the store cannot be watched just now"),
        }
    }
}
