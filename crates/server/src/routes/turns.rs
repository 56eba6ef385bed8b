//! Turns: begin one, look at it, cancel it, steer it, answer what it asks, carry it on.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sapwood::SessionId;
use sapwood::core::Part;
use sapwood::core::TurnId;
use sapwood::core::entry::{ApprovalAnswer, Body as EntryBody, Outcome};
use sapwood::engine::turn::{OnWait, PendingApproval, TurnLook};
use sapwood::formats::read_message;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use crate::auth::Caller;
use crate::extract::{At, Body, Seen};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sse::{Extent, Flow, stream};
use crate::state::{Inner, State};
use crate::wire;
use crate::ws::begin_turn;

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

/// Words, or an array of parts, as a user's message has them.
pub fn input_parts(input: &Value) -> Result<Vec<Part>> {
    let message = json!({ "role": "user", "content": input }).to_string();
    let mut parts = Vec::new();
    for body in read_message(message.as_bytes())? {
        match body {
            EntryBody::UserMessage(message) => parts.extend(message.parts),
            _ => return Err(Problem::invalid("the input holds something a user cannot say")),
        }
    }
    Ok(parts)
}

/// Sends words to a session and runs the turn they begin. It goes on when the client goes away.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns", tag = "turns", params(("session" = String, Path)),
    request_body = wire::NewTurn,
    responses((status = 202, body = wire::Accepted),
        (status = 200, body = wire::StreamEvent, content_type = "text/event-stream", description = "The turn's events, if asked for")))]
async fn create_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Body(new): Body<wire::NewTurn>,
) -> Result<Response> {
    if !new.stream {
        let accepted = begin_turn(&state, &caller, &session, &new.input, new.if_running).await?;
        return Ok((StatusCode::ACCEPTED, Json(accepted)).into_response());
    }
    // Subscribed first, so that not even a fragment is missed.
    let head = state.engine.summary(&caller.scope, &session).await?.head.seq;
    let flow = Flow::open(&state, &caller, &session, head).await?;
    let accepted = begin_turn(&state, &caller, &session, &new.input, new.if_running).await?;
    match accepted.turn.as_deref().map(str::parse) {
        Some(turn) => Ok(stream(flow, Extent::Turn(turn?)).into_response()),
        None => Ok((StatusCode::ACCEPTED, Json(accepted)).into_response()),
    }
}

/// How a turn stands.
#[utoipa::path(get, path = "/v1/sessions/{session}/turns/{turn}", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), responses((status = 200, body = wire::Turn)))]
async fn get_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    Seen((session, turn)): Seen<(SessionId, String)>,
) -> Result<Json<wire::Turn>> {
    Ok(Json(turn_of(&session, look(&state, &caller, &session, &turn).await?)))
}

async fn look(state: &State, caller: &Caller, session: &SessionId, turn: &str) -> Result<TurnLook> {
    // The session first: without it the turn is nobody's business.
    state.engine.summary(&caller.scope, session).await?;
    let unknown = || Problem::new("turn.not_found", format!("session {session} has no turn {turn:.64}"));
    let turn: TurnId = turn.parse().map_err(|_| unknown())?;
    state.engine.turn(&caller.scope, session, turn).await?.ok_or_else(unknown)
}

fn turn_of(session: &SessionId, look: TurnLook) -> wire::Turn {
    let status = match look.ended.as_ref().map(|(_, ended)| ended.outcome) {
        Some(Outcome::Completed) => wire::TurnStatus::Completed,
        Some(Outcome::Cancelled) => wire::TurnStatus::Cancelled,
        Some(Outcome::Failed) => wire::TurnStatus::Failed,
        Some(Outcome::Limited) => wire::TurnStatus::Limited,
        None if look.waiting.is_empty() => wire::TurnStatus::Open,
        None => wire::TurnStatus::Waiting,
    };
    wire::Turn {
        turn: look.turn.to_string(),
        session: session.to_string(),
        status,
        code: look.ended.as_ref().and_then(|(_, ended)| ended.code.clone()),
        text: look.text,
        started_at: look.started_at.0,
        ended_at: look.ended.as_ref().map(|(at, _)| at.0),
        approvals: look.waiting.iter().map(approval_of).collect(),
    }
}

fn approval_of(pending: &PendingApproval) -> wire::Approval {
    wire::Approval {
        approval: pending.approval.clone(),
        session: pending.session.to_string(),
        question: pending.question.clone(),
        kind: pending.kind.clone(),
        call: pending.call.as_ref().and_then(|call| serde_json::to_value(call).ok()),
    }
}

/// The turn, if it has not ended.
async fn open_turn(state: &State, caller: &Caller, session: &SessionId, turn: &str) -> Result<TurnId> {
    let look = look(state, caller, session, turn).await?;
    if look.ended.is_some() {
        return Err(Problem::new("turn.ended", format!("turn {turn} has ended")));
    }
    Ok(look.turn)
}

/// Asks a turn to end. What it said so far stays.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/cancel", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), responses((status = 202, body = wire::Accepted)))]
async fn cancel_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    At((session, turn)): At<(SessionId, String)>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let turn = open_turn(&state, &caller, &session, &turn).await?;
    state.engine.cancel_turn(&caller.scope, &session, turn).await?;
    // One that waits for a person, or whose process died, runs nowhere: it ends when it is carried on.
    Inner::resume_later(&state, caller.scope.clone(), session.clone());
    let accepted = wire::Accepted { turn: Some(turn.to_string()), ..wire::Accepted::of(&session) };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Adds words to a turn; the model hears them before its next call.
#[utoipa::path(post, path = "/v1/sessions/{session}/turns/{turn}/steer", tag = "turns",
    params(("session" = String, Path), ("turn" = String, Path)), request_body = wire::Steer,
    responses((status = 202, body = wire::Accepted)))]
async fn steer_turn(
    Shared(state): Shared<State>,
    caller: Caller,
    At((session, turn)): At<(SessionId, String)>,
    Body(steer): Body<wire::Steer>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let turn = open_turn(&state, &caller, &session, &turn).await?;
    let parts = input_parts(&steer.input)?;
    let queued = state.engine.steer_turn(&caller.scope, &session, turn, parts).await?;
    let turn = Some(turn.to_string());
    let accepted = wire::Accepted { turn, queued: Some(queued.to_string()), ..wire::Accepted::of(&session) };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Carries on a turn whose process died, or takes up input that waits.
#[utoipa::path(post, path = "/v1/sessions/{session}/resume", tag = "turns", params(("session" = String, Path)),
    responses((status = 202, body = wire::Accepted)))]
async fn resume_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let mut running = state.engine.resume(&caller.scope, &session, OnWait::Leave).await?;
    if running.is_none() {
        running = state.engine.continue_imported(&caller.scope, &session, OnWait::Leave).await?;
    }
    let mut accepted = wire::Accepted::of(&session);
    if let Some(running) = running {
        accepted = accepted.begun(&running);
        state.keep_running(running);
    }
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// What the session waits for.
#[utoipa::path(get, path = "/v1/sessions/{session}/approvals", tag = "turns", params(("session" = String, Path)),
    responses((status = 200, body = wire::Approvals)))]
async fn list_approvals(
    Shared(state): Shared<State>,
    caller: Caller,
    Seen(session): Seen<SessionId>,
) -> Result<Json<Items<PendingApproval>>> {
    Ok(Json(Items { items: state.engine.approvals(&caller.scope, &session).await? }))
}

/// Answers what a turn asked. The first answer counts.
#[utoipa::path(post, path = "/v1/approvals/{approval}", tag = "turns", params(("approval" = String, Path)),
    request_body = wire::Answer, responses((status = 202, body = wire::Accepted)))]
async fn answer_approval(
    Shared(state): Shared<State>,
    caller: Caller,
    At(approval): At<String>,
    Body(given): Body<wire::Answer>,
) -> Result<(StatusCode, Json<wire::Accepted>)> {
    let answer = match given.answer {
        wire::AnswerGiven::Approved => ApprovalAnswer::Approved,
        wire::AnswerGiven::Denied => ApprovalAnswer::Denied,
    };
    let session = state.engine.answer(&caller.scope, &approval, answer, given.reason).await?;
    Inner::resume_later(&state, caller.scope.clone(), session.clone());
    let accepted = wire::Accepted::of(&session);
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}
