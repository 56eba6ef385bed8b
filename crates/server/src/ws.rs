//! A session over a WebSocket. The server first sends the feed so far, in one or more messages, then live events.
//! Clients can send input, answer approvals, steer and cancel. Each client message gets one reply, which repeats the
//! message's optional `id`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use sapwood::core::entry::ApprovalAnswer;
use sapwood::core::project::feed::{Feed, FeedItem};
use sapwood::core::{Right, TurnId};
use sapwood::engine::SessionEvent;
use sapwood::{Seq, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admission::{Permit, StreamPermit};
use crate::auth::Caller;
use crate::extract::short;
use crate::problem::{Problem, Result};
use crate::sse::{SessionStream, StreamItem, durable_json, fragment_json};
use crate::state::{Inner, State};
use crate::turn_start::{begin_turn, input_parts};
use crate::wire;

/// Maximum size of a client message.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Timeout for sending a message. A client that does not read in this time is disconnected.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// Approximate log bytes per replay message.
const REPLAY_BYTES: usize = 256 << 10;
/// Close code: the server is shutting down, and the client may reconnect.
const GOING_AWAY: u16 = 1001;

/// A client message. Its `id` field is removed before parsing and returned with the reply.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ClientMessage {
    Send {
        input: Value,
        #[serde(default)]
        if_running: wire::IfRunning,
    },
    Answer {
        approval: String,
        answer: wire::AnswerGiven,
        #[serde(default)]
        reason: Option<String>,
    },
    Steer {
        input: Value,
    },
    Cancel,
    Ping,
}

/// The permits of an open WebSocket.
pub struct Permits {
    pub stream: StreamPermit,
    /// `None` if the request did not pass through the middleware.
    pub request: Option<Arc<Permit>>,
}

/// Serves the socket until the client disconnects, the server stops, or the caller loses read access.
pub async fn run(mut socket: WebSocket, state: State, caller: Caller, session: SessionId, permits: Permits) {
    let Permits { stream, request: _request } = permits;
    let close = match follow(&mut socket, &state, &caller, &session, stream).await {
        Ok(()) => CloseFrame { code: GOING_AWAY, reason: "".into() },
        Err(SocketEnd::Disconnected) => return,
        Err(SocketEnd::Problem(problem)) => {
            problem.log(caller.request);
            let error = json!({ "type": "error", "error": problem.wire() });
            if send(&mut socket, error.to_string()).await.is_err() {
                return;
            }
            CloseFrame { code: 1008, reason: problem.code.into() }
        }
    };
    let _ = tokio::time::timeout(SEND_TIME_MAX, socket.send(Message::Close(Some(close)))).await;
}

enum SocketEnd {
    /// The client has disconnected.
    Disconnected,
    Problem(Problem),
}

impl From<Problem> for SocketEnd {
    fn from(problem: Problem) -> Self {
        SocketEnd::Problem(problem)
    }
}

async fn follow(
    socket: &mut WebSocket,
    state: &State,
    caller: &Caller,
    session: &SessionId,
    permit: StreamPermit,
) -> Result<(), SocketEnd> {
    let (mut feed, last_seq) = replay(socket, state, caller, session).await?;
    let mut source = SessionStream::open_with(permit, state, caller, session, last_seq).await?;
    loop {
        tokio::select! {
            next = source.next() => match next? {
                StreamItem::Event(SessionEvent::Entry(record)) => {
                    send(socket, durable_json(session, &record, Some(&mut feed))?.1).await?;
                }
                StreamItem::Event(SessionEvent::Fragment(fragment)) => {
                    send(socket, fragment_json(&fragment)).await?;
                }
                StreamItem::Heartbeat => send_message(socket, Message::Ping(Vec::new().into())).await?,
                StreamItem::Stopping => return Ok(()),
            },
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) => {
                    let reply = handle_message(state, caller, session, text.as_str()).await;
                    send(socket, reply.to_string()).await?;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => return Err(Problem::invalid("messages must be text").into()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(SocketEnd::Disconnected),
            },
        }
    }
}

/// Sends the feed so far in chunks. Returns the feed and its last seq, after which the live events begin.
async fn replay(
    socket: &mut WebSocket,
    state: &State,
    caller: &Caller,
    session: &SessionId,
) -> Result<(Feed, Seq), SocketEnd> {
    let follower = state.engine.events().follow(&caller.scope, session, Seq::ZERO).await;
    let mut follower = follower.map_err(Problem::from)?;
    let (mut feed, mut last_seq, mut bytes) = (Feed::default(), Seq::ZERO, 0);
    while let Some(record) = follower.try_next().await.map_err(Problem::from)? {
        (last_seq, bytes) = (record.meta.seq, bytes + record.body.len());
        let entry = record.into_entry().map_err(|error| Problem::new("store.damaged", error.to_string()))?;
        feed.apply(&entry);
        if bytes >= REPLAY_BYTES {
            send_replay(socket, session, last_seq, feed.take_items(), true).await?;
            bytes = 0;
        }
    }
    send_replay(socket, session, last_seq, feed.take_items(), false).await?;
    Ok((feed, last_seq))
}

async fn send_replay(
    socket: &mut WebSocket,
    session: &SessionId,
    seq: Seq,
    items: Vec<FeedItem>,
    more: bool,
) -> Result<(), SocketEnd> {
    let replay = Replay { kind: "feed_replay", session, seq, items, more };
    let text = serde_json::to_string(&replay).unwrap_or_default();
    // Keep only the serialized text in memory while it is sent.
    drop(replay);
    send(socket, text).await
}

/// A chunk of the feed so far.
#[derive(Serialize)]
struct Replay<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    session: &'a SessionId,
    seq: Seq,
    items: Vec<FeedItem>,
    /// Whether another chunk follows.
    more: bool,
}

async fn send(socket: &mut WebSocket, text: String) -> Result<(), SocketEnd> {
    send_message(socket, Message::Text(text.into())).await
}

async fn send_message(socket: &mut WebSocket, message: Message) -> Result<(), SocketEnd> {
    match tokio::time::timeout(SEND_TIME_MAX, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(SocketEnd::Disconnected),
    }
}

async fn handle_message(state: &State, caller: &Caller, session: &SessionId, text: &str) -> Value {
    let received: Result<Value, _> = serde_json::from_str(text);
    let mut received = received.map_err(|error| Problem::new("input.json", error.to_string()));
    let fields = received.as_mut().ok().and_then(Value::as_object_mut);
    let id = fields.and_then(|fields| fields.remove("id"));
    let command = received
        .and_then(|received| serde_json::from_value(received).map_err(|error| short(&error.to_string())));
    let done = match command {
        Ok(command) => execute(state, caller, session, command).await,
        Err(problem) => Err(problem),
    };
    match done {
        Ok(mut done) => {
            done["type"] = json!("ok");
            done["id"] = id.unwrap_or_default();
            done
        }
        Err(problem) => {
            problem.log(caller.request);
            json!({ "type": "error", "id": id, "error": problem.wire() })
        }
    }
}

async fn execute(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    command: ClientMessage,
) -> Result<Value> {
    state.check_rate(caller)?;
    if !matches!(command, ClientMessage::Ping) {
        // The caller's key may have been revoked since the socket was opened.
        state.auth.recheck(caller).await?;
        caller.check(Right::Write)?;
    }
    let (engine, scope) = (&state.engine, &caller.scope);
    match command {
        ClientMessage::Ping => Ok(json!({})),
        ClientMessage::Send { input, if_running } => {
            let accepted = begin_turn(state, caller, session, &input, if_running).await?;
            Ok(serde_json::to_value(accepted).unwrap_or_default())
        }
        ClientMessage::Answer { approval, answer, reason } => {
            let answer = match answer {
                wire::AnswerGiven::Approved => ApprovalAnswer::Approved,
                wire::AnswerGiven::Denied => ApprovalAnswer::Denied,
            };
            let answered = engine.turn_control().answer(scope, &approval, answer, reason).await?;
            Inner::spawn_resume(state, scope.clone(), answered);
            Ok(json!({ "approval": approval }))
        }
        ClientMessage::Steer { input } => {
            let parts = input_parts(state, caller, session, &input).await?;
            let queued = engine.turn_control().steer(scope, session, parts).await?;
            Ok(json!({ "queued": queued }))
        }
        ClientMessage::Cancel => {
            let turn: TurnId = engine.turn_control().cancel(scope, session).await?;
            Inner::spawn_resume(state, scope.clone(), session.clone());
            Ok(json!({ "turn": turn }))
        }
    }
}
