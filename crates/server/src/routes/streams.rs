//! Routes for live session events: server-sent events and a WebSocket.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State as Shared;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use sapwood::{Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admission::Permit;
use crate::auth::Caller;
use crate::extract::{AuditedPath, Params, header_text};
use crate::problem::{Problem, Result};
use crate::sse::{SessionStream, StreamExtent, stream};
use crate::state::State;
use crate::{wire, ws};

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(follow_events)).routes(routes!(open_socket))
}

/// Stream the events after a cursor, each once and in order, then live ones. The id of a durable event is its seq;
/// fragments have no id.
#[utoipa::path(get, path = "/v1/sessions/{session}/events", tag = "streams",
    params(("session" = String, Path), wire::EventsAfter,
        ("Last-Event-ID" = Option<String>, Header, description = "The seq of the last received event")),
    responses((status = 200, body = wire::StreamEvent, content_type = "text/event-stream")))]
async fn follow_events(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    Params(query): Params<wire::EventsAfter>,
    headers: HeaderMap,
) -> Result<Response> {
    let last_id = header_text(&headers, "last-event-id")?.filter(|last_id| !last_id.is_empty());
    let after = match last_id {
        Some(last_id) => {
            last_id.trim().parse().map_err(|_| Problem::invalid("Last-Event-ID is not a seq"))?
        }
        None => query.after.unwrap_or(0),
    };
    let mut source = SessionStream::open(&state, &caller, &session, Seq(after)).await?;
    state.audit_open(&caller, &session).await?;
    if let Some(start) = query.feed_after {
        source = source.with_feed(Seq(start), Seq(after)).await?;
    }
    Ok(stream(source, StreamExtent::Session).into_response())
}

/// Open a WebSocket, which sends `feed_replay` and then every event. Accepts `send`, `answer`, `steer`, `cancel` and
/// `ping`.
#[utoipa::path(get, path = "/v1/sessions/{session}/ws", tag = "streams", params(("session" = String, Path)),
    responses((status = 101, description = "Switched to the WebSocket protocol")))]
async fn open_socket(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    request: Option<Extension<Arc<Permit>>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    state.engine.directory().summary(&caller.scope, &session).await?;
    let upgrade = upgrade.map_err(|error| Problem::invalid(error.body_text()))?;
    let upgrade = upgrade.max_message_size(ws::MESSAGE_BYTES_MAX);
    let permits = ws::Permits {
        stream: state.admission.open_stream(&caller)?,
        request: request.map(|Extension(permit)| permit),
    };
    state.audit_open(&caller, &session).await?;
    Ok(upgrade.on_upgrade(move |socket| ws::run(socket, state, caller, session, permits)))
}
