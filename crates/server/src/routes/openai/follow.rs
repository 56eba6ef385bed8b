//! Delivery of a response: as an event stream, or as JSON once the response is complete. Past the time limit of a
//! request, the client receives spaces, which JSON parsers ignore, until the response is complete.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sapwood::Seq;
use sapwood::engine::{News, SessionEvent};
use sapwood::formats::responses::ResponseId;
use sapwood::formats::responses::event_sequence::{Live, Script};
use sapwood::formats::responses::response::response_of;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::error_of;
use super::target::Passing;
use crate::auth::Caller;
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sse::{Flow, Next};
use crate::state::State;

/// The event stream of one response.
pub struct Telling {
    flow: Flow,
    script: Script,
    waiting: VecDeque<Value>,
    is_over: bool,
    /// Held until the last event is sent.
    _passing: Option<Passing>,
}

impl Telling {
    /// Opens a stream of the events after `after`. `from` is the seq before the turn.
    pub async fn open(
        state: &State,
        caller: &Caller,
        id: &ResponseId,
        from: Seq,
        after: Option<u32>,
    ) -> Result<Self> {
        let flow = Flow::open(state, caller, &id.session, from).await?;
        Self::on(flow, state, caller, id, after).await
    }

    /// Creates the stream from a flow that was opened before the turn started.
    pub async fn on(
        flow: Flow,
        state: &State,
        caller: &Caller,
        id: &ResponseId,
        after: Option<u32>,
    ) -> Result<Self> {
        let mut script = Script::new(id.clone(), after);
        // With self-rated confidence, the model streams text that the stored entry will not contain.
        if state.engine.agent_of(&caller.scope, &id.session).await?.confidence.is_some() {
            script = script.without_preview();
        }
        Ok(Self { flow, script, waiting: VecDeque::new(), is_over: false, _passing: None })
    }

    pub fn keeping(mut self, passing: Option<Passing>) -> Self {
        self._passing = passing;
        self
    }

    pub fn into_response(self, turn: sapwood::core::TurnId) -> Response {
        let events = stream::unfold((self, turn), |(mut telling, turn)| async move {
            let event = telling.next(turn).await?;
            Some((Ok::<Event, Infallible>(event), (telling, turn)))
        });
        Sse::new(events).into_response()
    }

    async fn next(&mut self, turn: sapwood::core::TurnId) -> Option<Event> {
        loop {
            if let Some(value) = self.waiting.pop_front() {
                let name = value["type"].as_str().unwrap_or_default().to_owned();
                return Some(Event::default().event(name).data(value.to_string()));
            }
            if self.is_over || self.script.is_over() {
                return None;
            }
            match self.flow.next().await {
                Ok(Next::Heartbeat) => return Some(Event::default().comment("")),
                Ok(Next::Stopping) => return None,
                Ok(Next::Event(event)) => match self.take(event, turn) {
                    Ok(values) => self.waiting.extend(values),
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
                let (Some(place), Some(live)) = (fragment.place, live_of(&fragment.news)) else {
                    return Ok(Vec::new());
                };
                Ok(self.script.preview(place, live))
            }
            SessionEvent::Entry(_) | SessionEvent::Fragment(_) => Ok(Vec::new()),
        }
    }

    /// Queues the final error event of a stream that fails.
    fn fail(&mut self, problem: &Problem) {
        problem.log(self.flow.request());
        let fault = error_of(problem).error;
        self.waiting.push_back(json!({
            "type": "error", "code": fault.code, "message": fault.message, "param": null,
            "sequence_number": self.script.next_number(),
        }));
        self.is_over = true;
    }
}

fn live_of(news: &News) -> Option<Live<'_>> {
    match news {
        News::Token { text } => Some(Live::Words(text)),
        News::Reasoning { text } => Some(Live::Thought(text)),
        News::ToolCall { .. } => Some(Live::Call),
        _ => None,
    }
}

/// Returns the current state of the response.
pub async fn look(state: &State, caller: &Caller, id: &ResponseId) -> Result<Value> {
    let entries = state.engine.turn_entries(&caller.scope, &id.session, id.turn).await?;
    Ok(response_of(id, &entries))
}

/// Sends the response once it is complete. The HTTP response head is always sent within the time limit.
pub async fn answer_whole(
    state: &State,
    caller: &Caller,
    id: ResponseId,
    mut ended: oneshot::Receiver<()>,
    passing: Option<Passing>,
) -> Result<Response> {
    let patience = state.settings.request_time_max / 2;
    if tokio::time::timeout(patience, &mut ended).await.is_ok() {
        let response = look(state, caller, &id).await?;
        drop(passing);
        return Ok(Json(response).into_response());
    }
    let (state, caller, pause) = (state.clone(), caller.clone(), state.settings.heartbeat);
    let waiting = Waiting { state, caller, id, ended, pause, passing };
    let body = stream::unfold(Some(waiting), |waiting| async move {
        let (bytes, rest) = waiting?.next().await;
        Some((Ok::<Bytes, Infallible>(bytes), rest))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response())
}

struct Waiting {
    state: State,
    caller: Caller,
    id: ResponseId,
    ended: oneshot::Receiver<()>,
    pause: Duration,
    passing: Option<Passing>,
}

impl Waiting {
    async fn next(mut self) -> (Bytes, Option<Self>) {
        if tokio::time::timeout(self.pause, &mut self.ended).await.is_err() {
            return (Bytes::from_static(b" "), Some(self));
        }
        let shown = match look(&self.state, &self.caller, &self.id).await {
            Ok(response) => response,
            Err(problem) => {
                problem.log(self.caller.request);
                serde_json::to_value(error_of(&problem)).unwrap_or_default()
            }
        };
        drop(self.passing.take());
        (Bytes::from(shown.to_string()), None)
    }
}
