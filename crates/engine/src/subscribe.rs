//! Subscribing to a session: everything after a cursor, once, in order, then live, with the fragments of what is under
//! way in between. As a stream of [`SessionEvent`]s, or as a closure that is called with each.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use sapwood_core::{Record, Scope, Seq, SessionId};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use crate::fragments::Fragment;
use crate::{Engine, Follower, Result};

/// One thing that happened in a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// An entry: durable, with a seq that is the cursor to go on from.
    Entry(Record),
    Fragment(Arc<Fragment>),
}

pub struct Subscription {
    follower: Follower,
    fragments: broadcast::Receiver<Arc<Fragment>>,
    /// One of each is looked at ahead, to put them in order.
    record: Option<Record>,
    fragment: Option<Arc<Fragment>>,
    cursor: Seq,
}

/// A closure that is called with what happens; dropping this ends it.
pub struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    /// A cursor that cannot be served is an error: whoever has it saw another log.
    pub async fn subscribe(&self, scope: &Scope, session: &SessionId, after: Seq) -> Result<Subscription> {
        let fragments = self.live.watch(&scope.tenant, session);
        let follower = self.follow(scope, session, after).await?;
        Ok(Subscription { follower, fragments, record: None, fragment: None, cursor: after })
    }

    /// Calls `listener` with everything that happens after the cursor. One that panics ends alone: it harms neither the
    /// session nor anyone else who listens.
    pub async fn listen(
        &self,
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
                        tracing::warn!(%session, %error, "a listener's session cannot be read any more");
                        return;
                    }
                }
            }
        })))
    }
}

impl Subscription {
    /// The next thing that happens, whenever that is. A fragment comes after the entries that were there when it
    /// happened, and before those that were not.
    pub async fn next(&mut self) -> Result<SessionEvent> {
        loop {
            if let Some(event) = self.take_held() {
                return Ok(event);
            }
            tokio::select! {
                biased;
                record = self.follower.next(), if self.record.is_none() => self.record = Some(record?),
                fragment = self.fragments.recv(), if self.fragment.is_none() => match fragment {
                    Ok(fragment) => self.fragment = Some(fragment),
                    // Lost fragments are not missed: the entry they belong to comes whole.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => self.record = Some(self.follower.next().await?),
                },
            }
        }
    }

    /// What has happened by now and was not handed out yet; none when the reader is up to date.
    pub async fn try_next(&mut self) -> Result<Option<SessionEvent>> {
        if self.record.is_none() {
            self.record = self.follower.try_next().await?;
        }
        Ok(self.take_held())
    }

    /// Whichever of the two comes first; none as long as that is not certain.
    fn take_held(&mut self) -> Option<SessionEvent> {
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

    /// The same as a stream, which ends with the first error.
    pub fn into_stream(self) -> impl futures_core::Stream<Item = Result<SessionEvent>> + Send {
        futures_util::stream::unfold(Some(self), |subscription| async move {
            let mut subscription = subscription?;
            let event = subscription.next().await;
            let rest = event.is_ok().then_some(subscription);
            Some((event, rest))
        })
    }
}
