//! Streams a session as server-sent events. A durable event has its seq as id; a fragment has no id. A client that
//! reconnects with `Last-Event-ID` therefore resumes at the last durable event, on any server. Nothing is buffered for
//! a slow reader: the next event is read from the store when the connection can send it.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use futures_core::Stream;
use futures_util::stream;
use sapwood::core::project::event::Event as Durable;
use sapwood::core::project::feed::Feed;
use sapwood::core::{Entry, Kind, Record, TurnId};
use sapwood::engine::{Fragment, SessionEvent, Subscription};
use sapwood::{Seq, SessionId};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

use crate::admission::StreamPermit;
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;
use crate::state::State;

/// Reconnect delay for clients.
const RETRY: Duration = Duration::from_millis(1_000);

/// The part of a session to stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamExtent {
    /// All events, until the client disconnects.
    Session,
    /// The events of one turn, until it ends.
    Turn(TurnId),
}

/// A session's events and heartbeats; used by every kind of stream.
pub struct SessionStream {
    state: State,
    caller: Caller,
    pub session: SessionId,
    subscription: Subscription,
    heartbeat: Interval,
    stopping: watch::Receiver<bool>,
    /// The feed before the next event, if its changes are sent.
    feed: Option<Feed>,
    _permit: StreamPermit,
}

/// An item of a session stream.
pub enum StreamItem {
    Event(SessionEvent),
    Heartbeat,
    /// The server is shutting down; clients reconnect to another server.
    Stopping,
}

impl SessionStream {
    /// Opens a stream, which counts toward the caller's stream limit.
    pub async fn open(state: &State, caller: &Caller, session: &SessionId, after: Seq) -> Result<Self> {
        let permit = state.admission.open_stream(caller)?;
        Self::open_with(permit, state, caller, session, after).await
    }

    pub async fn open_with(
        permit: StreamPermit,
        state: &State,
        caller: &Caller,
        session: &SessionId,
        after: Seq,
    ) -> Result<Self> {
        let subscription = state.engine.events().subscribe(&caller.scope, session, after).await?;
        let mut heartbeat = tokio::time::interval(state.settings.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        state.metrics.stream_opened();
        Ok(Self {
            state: state.clone(),
            caller: caller.clone(),
            session: session.clone(),
            subscription,
            heartbeat,
            stopping: state.stopping(),
            feed: None,
            _permit: permit,
        })
    }

    /// Adds the feed's changes to the events. The feed is that of the entries after `start`.
    pub async fn with_feed(mut self, start: Seq, after: Seq) -> Result<Self> {
        let (engine, mut feed) = (&self.state.engine, Feed::default());
        let mut follower = engine.events().follow(&self.caller.scope, &self.session, start).await?;
        while let Some(record) = follower.try_next().await?.filter(|record| record.meta.seq <= after) {
            feed.take_change(&entry_of(&record)?);
        }
        self.feed = Some(feed);
        Ok(self)
    }

    /// Returns the id of the request that opened the stream.
    pub fn request(&self) -> RequestId {
        self.caller.request
    }

    /// Returns the next item. The caller's rights are checked continuously: session access with every store read, and
    /// the key with every heartbeat.
    pub async fn next(&mut self) -> Result<StreamItem> {
        tokio::select! {
            event = self.subscription.next() => {
                let event = event?;
                if matches!(event, SessionEvent::Entry(_)) {
                    self.state.metrics.events_sent.fetch_add(1, Ordering::Relaxed);
                }
                Ok(StreamItem::Event(event))
            }
            _ = self.heartbeat.tick() => {
                self.state.auth.recheck(&self.caller).await?;
                Ok(StreamItem::Heartbeat)
            }
            () = stopped(&mut self.stopping) => Ok(StreamItem::Stopping),
        }
    }
}

pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        self.state.metrics.stream_closed();
    }
}

/// Returns the name and the JSON of a durable event, with the change of the feed if there is a feed.
pub fn durable_json(
    session: &SessionId,
    record: &Record,
    feed: Option<&mut Feed>,
) -> Result<(&'static str, String)> {
    let mut event = Durable::of(session, record).map_err(damaged)?;
    if let Some(feed) = feed {
        event.feed = Some(feed.take_change(&entry_of(record)?));
    }
    Ok((event.name, serde_json::to_string(&event).map_err(damaged)?))
}

fn entry_of(record: &Record) -> Result<Entry> {
    Ok(Entry { meta: record.meta.clone(), body: record.decode().map_err(damaged)? })
}

fn damaged(error: impl std::fmt::Display) -> Problem {
    Problem::new("store.damaged", error.to_string())
}

pub fn fragment_json(fragment: &Fragment) -> String {
    serde_json::to_string(fragment).unwrap_or_default()
}

/// Returns the event name of a fragment, which equals the `type` in its JSON.
fn fragment_name(fragment: &Fragment) -> String {
    let value = serde_json::to_value(&fragment.kind).unwrap_or_default();
    value["type"].as_str().unwrap_or("fragment").to_owned()
}

pub fn stream(
    source: SessionStream,
    extent: StreamExtent,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let preamble = Event::default().retry(RETRY).comment("sapwood");
    let events = stream::unfold(Some((source, extent)), |rest| async move {
        let (mut source, extent) = rest?;
        loop {
            match step(&mut source, extent).await {
                StreamStep::Skip => {}
                StreamStep::Send(event) => return Some((Ok(event), Some((source, extent)))),
                StreamStep::Last(event) => return Some((Ok(event), None)),
                StreamStep::End => return None,
            }
        }
    });
    Sse::new(stream::StreamExt::chain(stream::iter([Ok(preamble)]), events))
}

enum StreamStep {
    Send(Event),
    Skip,
    Last(Event),
    End,
}

async fn step(source: &mut SessionStream, extent: StreamExtent) -> StreamStep {
    match source.next().await {
        Ok(StreamItem::Event(event)) => step_for(source, extent, &event)
            .unwrap_or_else(|problem| StreamStep::Last(error_event(source, &problem))),
        Ok(StreamItem::Heartbeat) => StreamStep::Send(Event::default().comment("")),
        Ok(StreamItem::Stopping) => StreamStep::End,
        Err(problem) => StreamStep::Last(error_event(source, &problem)),
    }
}

fn step_for(source: &mut SessionStream, extent: StreamExtent, event: &SessionEvent) -> Result<StreamStep> {
    let wanted = match extent {
        StreamExtent::Session => None,
        StreamExtent::Turn(turn) => Some(turn),
    };
    Ok(match event {
        SessionEvent::Entry(record) => {
            if wanted.is_some() && record.meta.turn != wanted {
                return Ok(StreamStep::Skip);
            }
            let (name, json) = durable_json(&source.session, record, source.feed.as_mut())?;
            let event = Event::default().id(record.meta.seq.to_string()).event(name).data(json);
            let is_end = wanted.is_some() && record.meta.kind == Kind::TurnEnded;
            if is_end { StreamStep::Last(event) } else { StreamStep::Send(event) }
        }
        SessionEvent::Fragment(fragment) => {
            if wanted.is_some() && fragment.turn != wanted {
                return Ok(StreamStep::Skip);
            }
            StreamStep::Send(Event::default().event(fragment_name(fragment)).data(fragment_json(fragment)))
        }
    })
}

/// Logs the problem and returns the final event of a stream that fails.
fn error_event(source: &SessionStream, problem: &Problem) -> Event {
    problem.log(source.request());
    let json = serde_json::to_string(&problem.wire()).unwrap_or_default();
    Event::default().event("error").data(json)
}
