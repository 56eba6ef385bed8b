//! Subscribe to a session: all entries after a cursor, once and in order, then live, interleaved with the
//! fragments of the running turn. Available as a stream of [`SessionEvent`]s or as a callback.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use sapwood_core::{Record, Scope, Seq, SessionId};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use crate::Result;
use crate::follow::{Events, Follower};
use crate::fragments::Fragment;

/// An event of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// A durable entry. Its seq is the cursor for resuming.
    Entry(Record),
    Fragment(Arc<Fragment>),
}

pub struct Subscription {
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
        Ok(Subscription { follower, fragments, record: None, fragment: None, cursor: after })
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
    /// later entries.
    pub async fn next(&mut self) -> Result<SessionEvent> {
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

    /// The next event that is available now; `None` when the reader is up to date.
    pub async fn try_next(&mut self) -> Result<Option<SessionEvent>> {
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

    /// Convert to a stream, which ends with the first error.
    pub fn into_stream(self) -> impl futures_core::Stream<Item = Result<SessionEvent>> + Send {
        futures_util::stream::unfold(Some(self), |subscription| async move {
            let mut subscription = subscription?;
            let event = subscription.next().await;
            let rest = event.is_ok().then_some(subscription);
            Some((event, rest))
        })
    }
}
