//! Wakes readers after a write. The writer sends a notification to all processes on a channel. The
//! notification contains only the sender's id, and the receivers query the changes. It is sent after
//! the transaction, because a notification inside a transaction would serialize commits. Writers do
//! not wait for it. If it is lost, readers still poll periodically.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

use super::connect::{DbRole, Server};

const CHANNEL: &str = "sapwood";
/// Minimum interval between notifications. One notification covers all earlier writes.
const PAUSE: Duration = Duration::from_millis(5);
/// Delay before the listener reconnects.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);

/// State shared between the sender and the listener.
struct Shared {
    /// Changes after each write by any process.
    mark: watch::Sender<u64>,
    is_listening: AtomicBool,
    is_started: AtomicBool,
    is_due: AtomicBool,
    is_sending: AtomicU64,
    /// Identifies this process, so that it ignores its own notifications.
    name: String,
}

#[derive(Clone)]
pub(super) struct Notifier {
    shared: Arc<Shared>,
    pool: Pool,
    handle: Handle,
}

impl Notifier {
    pub fn new(pool: Pool, handle: Handle) -> Self {
        let shared = Shared {
            mark: watch::Sender::new(1),
            is_listening: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            is_sending: AtomicU64::new(0),
            name: uuid::Uuid::new_v4().simple().to_string(),
        };
        Self { shared: Arc::new(shared), pool, handle }
    }

    /// Signals a write. Returns immediately.
    pub fn signal_write(&self) {
        self.shared.mark.send_modify(|mark| *mark += 1);
        self.shared.is_due.store(true, Ordering::SeqCst);
        if self.shared.is_sending.swap(1, Ordering::SeqCst) == 0 {
            self.handle.spawn(self.clone().send());
        }
    }

    async fn send(self) {
        loop {
            while self.shared.is_due.swap(false, Ordering::SeqCst) {
                self.notify().await;
                tokio::time::sleep(PAUSE).await;
            }
            self.shared.is_sending.store(0, Ordering::SeqCst);
            // A write may have been signaled in between.
            if !self.shared.is_due.load(Ordering::SeqCst)
                || self.shared.is_sending.swap(1, Ordering::SeqCst) == 1
            {
                return;
            }
        }
    }

    async fn notify(&self) {
        let Ok(client) = self.pool.get().await else { return };
        // A lost notification is harmless, because readers also poll.
        let _ = client.batch_execute(&format!("NOTIFY {CHANNEL}, '{}'", self.shared.name)).await;
    }

    /// Sends a pending notification.
    pub async fn flush(&self) {
        if self.shared.is_due.swap(false, Ordering::SeqCst) {
            self.notify().await;
        }
    }

    pub fn is_due(&self) -> bool {
        self.shared.is_due.load(Ordering::SeqCst)
    }

    /// Returns the current mark, or `None` while the listener is not connected. The first call
    /// starts the listener.
    pub fn mark(&self, server: &Server, role: DbRole) -> Option<u64> {
        if !self.shared.is_started.swap(true, Ordering::SeqCst) {
            self.handle.spawn(listen(Arc::downgrade(&self.shared), server.clone(), role));
        }
        self.shared.is_listening.load(Ordering::SeqCst).then(|| *self.shared.mark.borrow())
    }

    /// Waits until the mark changes.
    pub async fn changed(&self, since: u64) {
        let mut mark = self.shared.mark.subscribe();
        // The sender is a field of this struct, so this cannot fail.
        let _ = mark.wait_for(|mark| *mark != since).await;
    }
}

async fn listen(shared: Weak<Shared>, server: Server, role: DbRole) {
    while shared.strong_count() > 0 {
        let (receiver, closed) = (shared.clone(), Arc::new(tokio::sync::Notify::new()));
        let close = closed.clone();
        let on_message = move |message| match message {
            Some(AsyncMessage::Notification(wake)) => {
                if let Some(shared) = receiver.upgrade().filter(|shared| shared.name != wake.payload()) {
                    shared.mark.send_modify(|mark| *mark += 1);
                }
            }
            Some(_) => {}
            None => close.notify_one(),
        };
        if let Ok(client) = server.connect(role, on_message).await
            && client.batch_execute(&format!("LISTEN {CHANNEL}")).await.is_ok()
        {
            set_listening(&shared, true);
            closed.notified().await;
            set_listening(&shared, false);
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// Sets the listener's state. Also changes the mark, because the listener may have missed writes
/// while it was disconnected.
fn set_listening(shared: &Weak<Shared>, listening: bool) {
    if let Some(shared) = shared.upgrade() {
        shared.is_listening.store(listening, Ordering::SeqCst);
        shared.mark.send_modify(|mark| *mark += 1);
    }
}
