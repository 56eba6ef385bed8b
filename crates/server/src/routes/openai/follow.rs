//! Delivery of a response: as an event stream, or as JSON once the response is complete. After half of the time limit
//! of a request, the client receives spaces, which JSON parsers ignore, until the response is complete.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sapwood::Seq;
use sapwood::engine::{FragmentKind, SessionEvent};
use sapwood::formats::responses::ResponseId;
use sapwood::formats::responses::event_sequence::{EventSequence, LiveChunk};
use sapwood::formats::responses::response::response_of;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::error_of;
use super::target::UnstoredSession;
use crate::auth::Caller;
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sse::{SessionStream, StreamItem};
use crate::state::State;

/// The event stream of one response.
pub struct ResponseStream {
    source: SessionStream,
    script: EventSequence,
    pending: VecDeque<Value>,
    is_over: bool,
    /// Erases the session of an unstored response after the last event is sent.
    _unstored: Option<UnstoredSession>,
}

impl ResponseStream {
    /// Opens a stream of the events after `after`. `from` is the seq before the turn.
    pub async fn open(
        state: &State,
        caller: &Caller,
        id: &ResponseId,
        from: Seq,
        after: Option<u32>,
    ) -> Result<Self> {
        let source = SessionStream::open(state, caller, &id.session, from).await?;
        Self::on(source, state, caller, id, after).await
    }

    /// Creates the stream from a session stream that was opened before the turn started.
    pub async fn on(
        source: SessionStream,
        state: &State,
        caller: &Caller,
        id: &ResponseId,
        after: Option<u32>,
    ) -> Result<Self> {
        let mut script = EventSequence::new(id.clone(), after);
        // With self-rated confidence, the model streams text that the stored entry will not contain.
        if state.engine.configuration().agent_of(&caller.scope, &id.session).await?.confidence.is_some() {
            script = script.without_preview();
        }
        Ok(Self { source, script, pending: VecDeque::new(), is_over: false, _unstored: None })
    }

    pub fn with_unstored(mut self, unstored: Option<UnstoredSession>) -> Self {
        self._unstored = unstored;
        self
    }

    pub fn into_response(self, turn: sapwood::core::TurnId) -> Response {
        let events = stream::unfold((self, turn), |(mut response_stream, turn)| async move {
            let event = response_stream.next(turn).await?;
            Some((Ok::<Event, Infallible>(event), (response_stream, turn)))
        });
        Sse::new(events).into_response()
    }

    async fn next(&mut self, turn: sapwood::core::TurnId) -> Option<Event> {
        loop {
            if let Some(value) = self.pending.pop_front() {
                let name = value["type"].as_str().unwrap_or_default().to_owned();
                return Some(Event::default().event(name).data(value.to_string()));
            }
            if self.is_over || self.script.is_over() {
                return None;
            }
            match self.source.next().await {
                Ok(StreamItem::Heartbeat) => return Some(Event::default().comment("")),
                Ok(StreamItem::Stopping) => return None,
                Ok(StreamItem::Event(event)) => match self.take(event, turn) {
                    Ok(values) => self.pending.extend(values),
                    Err(problem) => self.fail(&problem),
                },
                Err(problem) => self.fail(&problem),
            }
        }
    }

    fn take(&mut self, event: SessionEvent, turn: sapwood::core::TurnId) -> Result<Vec<Value>> {
        match event {
            SessionEvent::Entry(record) if record.meta.turn == Some(turn) => {
                let entry =
                    record.into_entry().map_err(|error| Problem::new("store.damaged", error.to_string()))?;
                Ok(self.script.apply(&entry))
            }
            SessionEvent::Fragment(fragment) if fragment.turn == Some(turn) => {
                let (Some(place), Some(live)) = (fragment.index, live_of(&fragment.kind)) else {
                    return Ok(Vec::new());
                };
                Ok(self.script.preview(place, live))
            }
            SessionEvent::Entry(_) | SessionEvent::Fragment(_) => Ok(Vec::new()),
        }
    }

    /// Queues the final error event of a stream that fails.
    fn fail(&mut self, problem: &Problem) {
        problem.log(self.source.request());
        let fault = error_of(problem).error;
        self.pending.push_back(json!({
            "type": "error", "code": fault.code, "message": fault.message, "param": null,
            "sequence_number": self.script.next_number(),
        }));
        self.is_over = true;
    }
}

fn live_of(news: &FragmentKind) -> Option<LiveChunk<'_>> {
    match news {
        FragmentKind::Token { text } => Some(LiveChunk::Text(text)),
        FragmentKind::Reasoning { text } => Some(LiveChunk::Reasoning(text)),
        FragmentKind::ToolCall { .. } => Some(LiveChunk::Call),
        _ => None,
    }
}

/// Returns the current state of the response.
pub async fn read_response(state: &State, caller: &Caller, id: &ResponseId) -> Result<Value> {
    let entries = state.engine.turn_control().turn_entries(&caller.scope, &id.session, id.turn).await?;
    Ok(response_of(id, &entries))
}

/// Sends the response once it is complete. The HTTP response head is always sent within the time limit.
pub async fn respond_when_complete(
    state: &State,
    caller: &Caller,
    id: ResponseId,
    mut ended: oneshot::Receiver<()>,
    unstored: Option<UnstoredSession>,
) -> Result<Response> {
    let wait_max = state.settings.request_time_max / 2;
    if tokio::time::timeout(wait_max, &mut ended).await.is_ok() {
        let response = read_response(state, caller, &id).await?;
        drop(unstored);
        return Ok(Json(response).into_response());
    }
    let (state, caller, pause) = (state.clone(), caller.clone(), state.settings.heartbeat);
    let pending = PendingResponse { state, caller, id, ended, pause, unstored };
    let body = stream::unfold(Some(pending), |pending| async move {
        let (bytes, rest) = pending?.next().await;
        Some((Ok::<Bytes, Infallible>(bytes), rest))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response())
}

struct PendingResponse {
    state: State,
    caller: Caller,
    id: ResponseId,
    ended: oneshot::Receiver<()>,
    pause: Duration,
    unstored: Option<UnstoredSession>,
}

impl PendingResponse {
    async fn next(mut self) -> (Bytes, Option<Self>) {
        if tokio::time::timeout(self.pause, &mut self.ended).await.is_err() {
            return (Bytes::from_static(b" "), Some(self));
        }
        let shown = match read_response(&self.state, &self.caller, &self.id).await {
            Ok(response) => response,
            Err(problem) => {
                problem.log(self.caller.request);
                serde_json::to_value(error_of(&problem)).unwrap_or_default()
            }
        };
        drop(self.unstored.take());
        (Bytes::from(shown.to_string()), None)
    }
}
