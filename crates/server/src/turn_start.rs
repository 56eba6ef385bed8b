//! Starts a turn from the input of a request or a WebSocket message.

use sapwood::SessionId;
use sapwood::core::Part;
use sapwood::core::entry::Body;
use sapwood::engine::turn::{OnWait, SendOptions, Sent};
use sapwood::formats::read_message_with_media;
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
    let parts = input_parts(state, caller, session, input).await?;
    let sent = state.engine.turns().send(&caller.scope, session, parts, options).await?;
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

/// Parses input like the content of a user message: a string or an array of parts. Stores its inline media.
pub async fn input_parts(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    input: &Value,
) -> Result<Vec<Part>> {
    let message = json!({ "role": "user", "content": input }).to_string();
    let message = read_message_with_media(message.as_bytes())?;
    let mut parts = Vec::new();
    for body in message.bodies {
        match body {
            Body::UserMessage(message) => parts.extend(message.parts),
            _ => return Err(Problem::invalid("the input has a part that a user message cannot contain")),
        }
    }
    state.engine.edits().put_media(&caller.scope, session, message.media).await?;
    Ok(parts)
}
