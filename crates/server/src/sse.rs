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
use sapwood::core::{Kind, Record, TurnId};
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
pub enum Extent {
    /// All events, until the client disconnects.
    Session,
    /// The events of one turn, until it ends.
    Turn(TurnId),
}

/// A session's events and heartbeats; used by every kind of stream.
pub struct Flow {
    state: State,
    caller: Caller,
    pub session: SessionId,
    subscription: Subscription,
    heartbeat: Interval,
    stopping: watch::Receiver<bool>,
    _permit: StreamPermit,
}

/// The next item of a flow.
pub enum Next {
    Event(SessionEvent),
    Heartbeat,
    /// The server is shutting down; clients reconnect to another server.
    Stopping,
}

impl Flow {
    /// Opens a flow, which counts toward the caller's stream limit.
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
        let subscription = state.engine.subscribe(&caller.scope, session, after).await?;
        let mut heartbeat = tokio::time::interval(state.settings.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        state.meters.stream_opened();
        Ok(Self {
            state: state.clone(),
            caller: caller.clone(),
            session: session.clone(),
            subscription,
            heartbeat,
            stopping: state.stopping(),
            _permit: permit,
        })
    }

    /// The id of the request that opened the flow.
    pub fn request(&self) -> RequestId {
        self.caller.request
    }

    /// Returns the next item. The caller's rights are checked continuously: session access with every store read, and
    /// the key with every heartbeat.
    pub async fn next(&mut self) -> Result<Next> {
        tokio::select! {
            event = self.subscription.next() => {
                let event = event?;
                if matches!(event, SessionEvent::Entry(_)) {
                    self.state.meters.events_sent.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Next::Event(event))
            }
            _ = self.heartbeat.tick() => {
                self.state.door.recheck(&self.caller).await?;
                Ok(Next::Heartbeat)
            }
            () = stopped(&mut self.stopping) => Ok(Next::Stopping),
        }
    }
}

pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.state.meters.stream_closed();
    }
}

/// The JSON of a durable event.
pub fn durable_json(session: &SessionId, record: &Record) -> Result<(&'static str, String)> {
    let unreadable = |what: String| Problem::new("store.damaged", what);
    let event = Durable::of(session, record).map_err(|error| unreadable(error.to_string()))?;
    let json = serde_json::to_string(&event).map_err(|error| unreadable(error.to_string()))?;
    Ok((event.name, json))
}

pub fn fragment_json(fragment: &Fragment) -> String {
    serde_json::to_string(fragment).unwrap_or_default()
}

/// The event name of a fragment, which equals the `type` in its JSON.
fn fragment_name(fragment: &Fragment) -> String {
    let value = serde_json::to_value(&fragment.news).unwrap_or_default();
    value["type"].as_str().unwrap_or("fragment").to_owned()
}

pub fn stream(flow: Flow, extent: Extent) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let hello = Event::default().retry(RETRY).comment("sapwood");
    let events = stream::unfold(Some((flow, extent)), |rest| async move {
        let (mut flow, extent) = rest?;
        loop {
            match step(&mut flow, extent).await {
                StreamStep::Skip => {}
                StreamStep::Send(event) => return Some((Ok(event), Some((flow, extent)))),
                StreamStep::Last(event) => return Some((Ok(event), None)),
                StreamStep::End => return None,
            }
        }
    });
    Sse::new(stream::StreamExt::chain(stream::iter([Ok(hello)]), events))
}

enum StreamStep {
    Send(Event),
    Skip,
    Last(Event),
    End,
}

async fn step(flow: &mut Flow, extent: Extent) -> StreamStep {
    match flow.next().await {
        Ok(Next::Event(event)) => {
            show(flow, extent, &event).unwrap_or_else(|problem| StreamStep::Last(failed(flow, &problem)))
        }
        Ok(Next::Heartbeat) => StreamStep::Send(Event::default().comment("")),
        Ok(Next::Stopping) => StreamStep::End,
        Err(problem) => StreamStep::Last(failed(flow, &problem)),
    }
}

fn show(flow: &Flow, extent: Extent, event: &SessionEvent) -> Result<StreamStep> {
    let wanted = match extent {
        Extent::Session => None,
        Extent::Turn(turn) => Some(turn),
    };
    Ok(match event {
        SessionEvent::Entry(record) => {
            if wanted.is_some() && record.meta.turn != wanted {
                return Ok(StreamStep::Skip);
            }
            let (name, json) = durable_json(&flow.session, record)?;
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

/// The final event of a stream that fails.
fn failed(flow: &Flow, problem: &Problem) -> Event {
    problem.log(flow.request());
    let json = serde_json::to_string(&problem.wire()).unwrap_or_default();
    Event::default().event("error").data(json)
}
