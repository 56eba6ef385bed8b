//! Wakes readers when something was appended in this process. It carries no payload: a reader that is woken asks the
//! store. Appends of other processes are found by asking now and then, see [`crate::follow`].

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

#[derive(Default)]
pub(crate) struct Tail {
    changed: Notify,
}

impl Tail {
    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}
