//! Starts a turn from the input of a request or a WebSocket message.

use sapwood::SessionId;
use sapwood::core::Part;
use sapwood::core::entry::Body;
use sapwood::engine::turn::{OnWait, SendOptions, Sent};
use sapwood::formats::read_message;
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Sends input to a session and tracks the turn that it starts.
pub async fn begin_turn(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    input: &Value,
    if_running: wire::IfRunning,
) -> Result<wire::Accepted> {
    if state.is_stopping() {
        return Err(Problem::new("server.stopping", "the server is shutting down"));
    }
    let if_running = match if_running {
        wire::IfRunning::Refuse => sapwood::engine::turn::IfRunning::Refuse,
        wire::IfRunning::Queue => sapwood::engine::turn::IfRunning::Queue,
    };
    let options = SendOptions { if_running, on_wait: OnWait::Leave };
    let sent = state.engine.turns().send(&caller.scope, session, input_parts(input)?, options).await?;
    let accepted = wire::Accepted::of(session);
    Ok(match sent {
        Sent::Started(running) => {
            let accepted = accepted.begun(&running);
            state.track_turn(running);
            accepted
        }
        Sent::Queued(entry) => wire::Accepted { queued: Some(entry.to_string()), ..accepted },
    })
}

/// Parses input like the content of a user message: a string or an array of parts.
pub fn input_parts(input: &Value) -> Result<Vec<Part>> {
    let message = json!({ "role": "user", "content": input }).to_string();
    let mut parts = Vec::new();
    for body in read_message(message.as_bytes())? {
        match body {
            Body::UserMessage(message) => parts.extend(message.parts),
            _ => return Err(Problem::invalid("the input has a part that a user message cannot contain")),
        }
    }
    Ok(parts)
}
