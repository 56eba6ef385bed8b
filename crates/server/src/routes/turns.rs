//! Routes for turns: start, show, cancel, steer, answer approvals, resume.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sapwood::SessionId;
use sapwood::core::TurnId;
use sapwood::core::entry::Outcome;
use sapwood::engine::turn::{OnWait, PendingApproval, TurnSnapshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sse::{SessionStream, StreamExtent, stream};
use crate::state::{Inner, State};
use crate::turn_start::{begin_turn, input_parts};
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(create_turn))
        .routes(routes!(get_turn))
        .routes(routes!(cancel_turn))
        .routes(routes!(steer_turn))
        .routes(routes!(resume_session))
        .routes(routes!(list_approvals))
        .routes(routes!(answer_approval))
}

/// Send input to a session and start a turn. The turn continues if the client disconnects.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns", tag = "turns", params(("session" = String, Path)),
    request_body = wire::NewTurn,
    responses((status = 202, body = wire::Accepted),
        (status = 200, body = wire::StreamEvent, content_type = "text/event-stream", description = "The turn's events, with `stream`")))]
async fn create_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(new): Body<wire::NewTurn>,
) -> Result<Response> {
    if !new.stream {
        let accepted = begin_turn(&state, &caller, &session, &new.input, new.if_running).await?;
        return Ok((StatusCode::ACCEPTED, Json(accepted)).into_response());
    }
    // Subscribe first, so that no fragment is missed.
    let head = state.engine.directory().summary(&caller.scope, &session).await?.head.seq;
    let source = SessionStream::open(&state, &caller, &session, head).await?;
    let accepted = begin_turn(&state, &caller, &session, &new.input, new.if_running).await?;
    match accepted.turn.as_deref().map(str::parse) {
        Some(turn) => Ok(stream(source, StreamExtent::Turn(turn?)).into_response()),
        None => Ok((StatusCode::ACCEPTED, Json(accepted)).into_response()),
    }
}

/// Get the status of a turn.
#[utoipa::path(get, path = "/v1/sessions/{session}/turns/{turn}", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), responses((status = 200, body = wire::Turn)))]
async fn get_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath((session, turn)): AuditedPath<(SessionId, String)>,
) -> Result<Json<wire::Turn>> {
    Ok(Json(turn_of(&session, find_turn(&state, &caller, &session, &turn).await?)))
}

async fn find_turn(state: &State, caller: &Caller, session: &SessionId, turn: &str) -> Result<TurnSnapshot> {
    // Check the session first: a caller without access must not learn whether the turn exists.
    state.engine.directory().summary(&caller.scope, session).await?;
    let unknown = || Problem::new("turn.not_found", format!("session `{session}` has no turn `{turn:.64}`"));
    let turn: TurnId = turn.parse().map_err(|_| unknown())?;
    state.engine.turn_control().turn(&caller.scope, session, turn).await?.ok_or_else(unknown)
}

fn turn_of(session: &SessionId, turn_state: TurnSnapshot) -> wire::Turn {
    let status = match turn_state.ended.as_ref().map(|(_, ended)| ended.outcome) {
        Some(Outcome::Completed) => wire::TurnStatus::Completed,
        Some(Outcome::Cancelled) => wire::TurnStatus::Cancelled,
        Some(Outcome::Failed) => wire::TurnStatus::Failed,
        Some(Outcome::Limited) => wire::TurnStatus::Limited,
        None if turn_state.waiting.is_empty() => wire::TurnStatus::Open,
        None => wire::TurnStatus::Waiting,
    };
    wire::Turn {
        turn: turn_state.turn.to_string(),
        session: session.to_string(),
        status,
        code: turn_state.ended.as_ref().and_then(|(_, ended)| ended.code.clone()),
        text: turn_state.text,
        started_at: turn_state.started_at.0,
        ended_at: turn_state.ended.as_ref().map(|(at, _)| at.0),
        approvals: turn_state.waiting.iter().map(approval_of).collect(),
    }
}

fn approval_of(pending: &PendingApproval) -> wire::Approval {
    wire::Approval {
        approval: pending.approval.clone(),
        session: pending.session.to_string(),
        why: pending.why.clone(),
        question: pending.question.clone(),
        kind: pending.kind.clone(),
        call: pending.call.as_ref().and_then(|call| serde_json::to_value(call).ok()),
        asked_at: pending.asked_at.0,
        escalates_at: pending.deadlines.escalates_at.map(|at| at.0),
        escalate_to: pending.deadlines.escalate_to.clone(),
        escalated_at: pending.escalated_at.map(|at| at.0),
        expires_at: pending.deadlines.expires_at.map(|at| at.0),
    }
}

/// Returns the turn. Fails if it has ended.
async fn open_turn(state: &State, caller: &Caller, session: &SessionId, turn: &str) -> Result<TurnId> {
    let turn_state = find_turn(state, caller, session, turn).await?;
    if turn_state.ended.is_some() {
        return Err(Problem::new("turn.ended", format!("turn `{turn}` has ended")));
    }
    Ok(turn_state.turn)
}

/// Cancel a turn. Its output so far is kept.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/cancel", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), responses((status = 202, body = wire::Accepted)))]
async fn cancel_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams((session, turn)): PathParams<(SessionId, String)>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let turn = open_turn(&state, &caller, &session, &turn).await?;
    state.engine.turn_control().cancel_turn(&caller.scope, &session, turn).await?;
    // A turn that waits for a person or was interrupted is not running, so it must be resumed to process the cancel.
    Inner::spawn_resume(&state, caller.scope.clone(), session.clone());
    let accepted = wire::Accepted { turn: Some(turn.to_string()), ..wire::Accepted::of(&session) };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Add input to a running turn. The model receives it with its next call.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/steer", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), request_body = wire::Steer,
    responses((status = 202, body = wire::Accepted)))]
async fn steer_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams((session, turn)): PathParams<(SessionId, String)>,
    Body(steer): Body<wire::Steer>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let turn = open_turn(&state, &caller, &session, &turn).await?;
    let parts = input_parts(&state, &caller, &session, &steer.input).await?;
    let queued = state.engine.turn_control().steer_turn(&caller.scope, &session, turn, parts).await?;
    let turn = Some(turn.to_string());
    let accepted = wire::Accepted { turn, queued: Some(queued.to_string()), ..wire::Accepted::of(&session) };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Resume an interrupted turn, or process queued input.
#[utoipa::path(post, path = "/v1/sessions/{session}/resume", tag = "turns", params(("session" = String, Path)),
    responses((status = 202, body = wire::Accepted)))]
async fn resume_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let mut running = state.engine.turns().resume(&caller.scope, &session, OnWait::Leave).await?;
    if running.is_none() {
        running = state.engine.turns().continue_imported(&caller.scope, &session, OnWait::Leave).await?;
    }
    let mut accepted = wire::Accepted::of(&session);
    if let Some(running) = running {
        accepted = accepted.begun(&running);
        state.track_turn(running);
    }
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// List the session's pending approvals.
#[utoipa::path(get, path = "/v1/sessions/{session}/approvals", tag = "turns", params(("session" = String, Path)),
    responses((status = 200, body = wire::Approvals)))]
async fn list_approvals(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Items<PendingApproval>>> {
    Ok(Json(Items { items: state.engine.turn_control().approvals(&caller.scope, &session).await? }))
}

/// Answer an approval. The first answer counts.
#[utoipa::path(post, path = "/v1/approvals/{approval}", tag = "turns", params(("approval" = String, Path)),
    request_body = wire::Answer, responses((status = 202, body = wire::Accepted)))]
async fn answer_approval(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(approval): PathParams<String>,
    Body(request): Body<wire::Answer>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let (answer, control) = (request.answer.into(), state.engine.turn_control());
    let session = control.answer(&caller.scope, &approval, answer, request.reason).await?;
    Inner::spawn_resume(&state, caller.scope.clone(), session.clone());
    let accepted = wire::Accepted::of(&session);
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}
