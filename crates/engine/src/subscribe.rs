//! Subscribe to a session: all entries after a cursor, once and in order, then live, interleaved with the
//! fragments of the running turn. Available as a stream of [`SessionEvent`]s or as a callback.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use sapwood_core::{Record, Scope, Seq, SessionId};
use tokio::sync::{Mutex, broadcast};
use tokio::task::JoinHandle;

use crate::Result;
use crate::follow::{Events, Follower};
use crate::fragments::Fragment;

/// An event of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// A durable entry. Its seq is the cursor for resuming.
    Entry(Record),
    /// A part of the running turn that is not durable, such as a token.
    Fragment(Arc<Fragment>),
}

/// The events of a session after a cursor. Read it with [`next`](Subscription::next), or as a [`Stream`], which ends
/// after the first error. Dropping it ends the subscription.
pub struct Subscription {
    reader: Arc<Mutex<EventReader>>,
    /// The read that the stream waits for. Dropping it loses no event.
    pending: Option<PendingEvent>,
    has_failed: bool,
}

type PendingEvent = Pin<Box<dyn Future<Output = Result<SessionEvent>> + Send>>;

struct EventReader {
    follower: Follower,
    fragments: broadcast::Receiver<Arc<Fragment>>,
    /// Read ahead by one record and one fragment, to put them in order.
    record: Option<Record>,
    fragment: Option<Arc<Fragment>>,
    cursor: Seq,
}

/// A callback for a session's events. Dropping the listener stops the callback.
pub struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Events<'_> {
    /// Subscribe from after a cursor. A cursor past the head is an error, because it belongs to a different log.
    pub async fn subscribe(self, scope: &Scope, session: &SessionId, after: Seq) -> Result<Subscription> {
        let fragments = self.engine.fragments.watch(&scope.tenant, session);
        let follower = self.follow(scope, session, after).await?;
        let reader = EventReader { follower, fragments, record: None, fragment: None, cursor: after };
        Ok(Subscription { reader: Arc::new(Mutex::new(reader)), pending: None, has_failed: false })
    }

    /// Call `listener` with every event after the cursor. A listener that panics is stopped; the session and
    /// other listeners are not affected.
    pub async fn listen(
        self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        mut listener: impl FnMut(SessionEvent) + Send + 'static,
    ) -> Result<Listener> {
        let mut subscription = self.subscribe(scope, session, after).await?;
        let session = session.clone();
        Ok(Listener(tokio::spawn(async move {
            loop {
                match subscription.next().await {
                    Ok(event) => {
                        let call = AssertUnwindSafe(|| listener(event));
                        if std::panic::catch_unwind(call).is_err() {
                            tracing::error!(%session, "a listener panicked and is not called again");
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%session, %error, "failed to read a listener's session; the listener stops");
                        return;
                    }
                }
            }
        })))
    }
}

impl Subscription {
    /// Wait for the next event. A fragment is returned after the entries that existed when it was sent, and before
    /// later entries. Dropping the returned future loses no event.
    pub async fn next(&mut self) -> Result<SessionEvent> {
        self.pending = None;
        self.reader.lock().await.next().await
    }

    /// The next event that is available now; `None` when the reader is up to date.
    pub async fn try_next(&mut self) -> Result<Option<SessionEvent>> {
        self.pending = None;
        self.reader.lock().await.try_next().await
    }
}

impl Stream for Subscription {
    type Item = Result<SessionEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        let read = || -> PendingEvent {
            let reader = this.reader.clone();
            Box::pin(async move { reader.lock_owned().await.next().await })
        };
        let event = std::task::ready!(this.pending.get_or_insert_with(read).as_mut().poll(cx));
        self.pending = None;
        self.has_failed = event.is_err();
        Poll::Ready(Some(event))
    }
}

impl EventReader {
    async fn next(&mut self) -> Result<SessionEvent> {
        loop {
            if let Some(event) = self.take_buffered() {
                return Ok(event);
            }
            tokio::select! {
                biased;
                record = self.follower.next(), if self.record.is_none() => self.record = Some(record?),
                fragment = self.fragments.recv(), if self.fragment.is_none() => match fragment {
                    Ok(fragment) => self.fragment = Some(fragment),
                    // Losing fragments is acceptable: the entry that follows has the complete content.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => self.record = Some(self.follower.next().await?),
                },
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<SessionEvent>> {
        if self.record.is_none() {
            self.record = self.follower.try_next().await?;
        }
        Ok(self.take_buffered())
    }

    /// The buffered record or fragment, depending on which is first; `None` while their order is unknown.
    fn take_buffered(&mut self) -> Option<SessionEvent> {
        if self.fragment.is_none() {
            self.fragment = self.fragments.try_recv().ok();
        }
        let after = self.fragment.as_ref().map(|fragment| fragment.after);
        match (&self.record, after) {
            (Some(record), after) if after.is_none_or(|after| after >= record.meta.seq) => {
                self.cursor = record.meta.seq;
                self.record.take().map(SessionEvent::Entry)
            }
            (_, Some(after)) if self.record.is_some() || after <= self.cursor => {
                self.fragment.take().map(SessionEvent::Fragment)
            }
            _ => None,
        }
    }
}
