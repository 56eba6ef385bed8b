//! Routes for whole sessions: create, list, show, rename, close, archive, erase.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::Right;
use sapwood::core::TimestampMs;
use sapwood::core::entry::{ModelChanged, SessionState, ThinkingChanged};
use sapwood::core::id::NAME_BYTES_MAX;
use sapwood::core::port::model::Thinking;
use sapwood::core::port::store::{Created, ListFilter, ListOrder};
use sapwood::core::project::summary::Summary;
use sapwood::engine::directory::{parse_state, parse_state_filter};
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::sessions::checked_title;
use sapwood::{OpenOptions, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::members::parse_member;
use super::session_search::find_sessions;
use super::{ListPage, rows};
use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, OptionalBody, Params, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::session_config::{change_of, check_directory, context_of, narrowing};
use crate::state::State;
use crate::wire;

const ROWS_MAX: u32 = 500;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_sessions, create_session))
        .routes(routes!(get_session, patch_session, erase_session))
        .routes(routes!(get_length))
        .routes(routes!(check_session))
        .routes(routes!(close_session))
        .routes(routes!(archive_session))
}

/// List your sessions and those shared with you, newest first.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(wire::ListSessions),
    responses((status = 200, body = wire::Sessions)))]
async fn list_sessions(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ListSessions>,
) -> Result<Json<ListPage<Summary>>> {
    let words = query.q.clone();
    let filter = filter_of(query)?;
    if let Some(words) = words {
        let page = find_sessions(&state, &caller, words, filter).await?;
        state.audit_listed(&caller, &page.items).await?;
        return Ok(Json(page.with_omissions(&state, &caller).await?));
    }
    let page = state.engine.directory().list(&caller.scope, &filter).await?;
    Ok(Json(ListPage::new(page.items, page.next).with_omissions(&state, &caller).await?))
}

fn filter_of(query: wire::ListSessions) -> Result<ListFilter> {
    let (state, context) = query.state.as_deref().map(parse_state_filter).transpose()?.unwrap_or_default();
    Ok(ListFilter {
        state,
        context,
        cwd: query.cwd,
        agent: query.agent,
        owner: query.owner.as_deref().map(parse_member).transpose()?,
        since: query.since.map(TimestampMs),
        until: query.until.map(TimestampMs),
        title: query.title,
        order: match query.order.unwrap_or_default() {
            wire::ListOrder::Newest => ListOrder::NewestFirst,
            wire::ListOrder::Oldest => ListOrder::OldestFirst,
        },
        limit: rows(query.limit, ROWS_MAX)?,
        cursor: query.cursor,
        id_prefix: None,
        has_open_turn: false,
    })
}

/// Create a session. If you already have a session with this id, it is returned unchanged.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = Option<wire::NewSession>,
    responses((status = 201, body = wire::Session), (status = 200, body = wire::Session, description = "The session already existed")))]
async fn create_session(
    Shared(state): Shared<State>,
    caller: Caller,
    OptionalBody(new): OptionalBody<wire::NewSession>,
) -> Result<(StatusCode, Json<Summary>)> {
    let context = context_of(&new);
    check_directory(&caller, context.working_dir.as_ref())?;
    if new.agent.is_none() && new.needs_agent() {
        return Err(Problem::invalid("variables, context, tools, fs_scope and approvals require an agent"));
    }
    let narrowing = narrowing(new.tools, new.fs_scope, new.approvals)?;
    let id = new.id.map(|id| id.parse()).transpose()?;
    let open =
        OpenOptions { id, title: new.title, agent: None, cwd: context.working_dir.clone(), parent: None };
    let (id, created) = match new.agent {
        Some(agent) => {
            let agent = state.agent(&agent)?.clone();
            let agent = if new.interactive { agent.interactive() } else { agent };
            let options = StartOptions { open, agent, narrowing, context };
            state.engine.sessions().start(&caller.scope, options).await?
        }
        None => state.engine.sessions().open(&caller.scope, open).await?,
    };
    let status = if created == Created::New { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(state.engine.directory().summary(&caller.scope, &id).await?)))
}

/// Get a session's summary.
#[utoipa::path(get, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn get_session(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Summary>> {
    Ok(Json(state.engine.directory().summary(&caller.scope, &session).await?))
}

/// Count the messages in a session's context.
#[utoipa::path(get, path = "/v1/sessions/{session}/length", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Length)))]
async fn get_length(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<wire::Length>> {
    let length = state.engine.views().length(&caller.scope, &session).await?;
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Ok(Json(wire::Length { session: session.to_string(), length }))
}

/// Check whether a session exists. A session that you may not read does not exist for you.
#[utoipa::path(get, path = "/v1/sessions/{session}/exists", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Exists)))]
async fn check_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<wire::Exists>> {
    let exists = state.engine.directory().exists(&caller.scope, &session).await?;
    Ok(Json(wire::Exists { session: session.to_string(), exists }))
}

/// Change a session's title, state, model, thinking level, context or limits.
#[utoipa::path(patch, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    request_body = wire::SessionPatch, responses((status = 200, body = wire::Session)))]
async fn patch_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(patch): Body<wire::SessionPatch>,
) -> Result<Json<Summary>> {
    let (engine, scope) = (&state.engine, &caller.scope);
    let new_state = patch.state.as_deref().map(parse_state).transpose()?;
    check_patch(&patch, new_state)?;
    let change = change_of(&patch)?;
    check_directory(&caller, change.as_ref().and_then(|change| change.working_dir.as_ref()))?;
    // Check the right for all changes first, so that no change is applied partially.
    let is_owners = new_state.is_some_and(needs_owner) || change.is_some();
    let right = if is_owners { Right::Own } else { Right::Write };
    engine.directory().check_right(scope, &session, right).await?;
    if new_state == Some(SessionState::Active) {
        engine.sessions().reopen(scope, &session).await?;
    }
    if let Some(change) = &change {
        engine.configuration().change(scope, &session, change).await?;
    }
    if let Some(title) = &patch.title {
        engine.sessions().rename(scope, &session, title).await?;
    }
    let model = patch.model.map(|model| ModelChanged { model }.into());
    let thinking = patch.thinking.map(|level| ThinkingChanged { level }.into());
    let settings: Vec<_> = model.into_iter().chain(thinking).collect();
    if !settings.is_empty() {
        let options = InjectOptions { audited: Some("settings"), ..InjectOptions::default() };
        engine.edits().inject(scope, &session, settings, options).await?;
    }
    match new_state {
        Some(SessionState::Closed) => engine.sessions().close(scope, &session).await?,
        Some(SessionState::Archived) => engine.sessions().archive(scope, &session).await?,
        Some(SessionState::Active | SessionState::Created) | None => {}
    }
    Ok(Json(engine.directory().summary(scope, &session).await?))
}

/// Whether only the owner may set this state. Any writer may close a session or reopen a closed one. The store lets
/// only the owner reopen an archived session.
fn needs_owner(state: SessionState) -> bool {
    matches!(state, SessionState::Archived)
}

fn check_patch(patch: &wire::SessionPatch, new_state: Option<SessionState>) -> Result<()> {
    let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > NAME_BYTES_MAX);
    if new_state == Some(SessionState::Created) {
        return Err(Problem::invalid("the state must be active, closed or archived; created cannot be set"));
    }
    if is_long(&patch.model) || patch.model.as_deref() == Some("") {
        return Err(Problem::invalid(format!("a model name must be 1 to {NAME_BYTES_MAX} bytes long")));
    }
    if let Some(level) = patch.thinking.as_deref().filter(|level| Thinking::from_name(level).is_none()) {
        return Err(Problem::invalid(format!(
            "thinking must be off, low, medium or high, not `{level:.64}`"
        )));
    }
    patch.title.as_deref().map(checked_title).transpose()?;
    Ok(())
}

/// Delete a session permanently.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 204, description = "The session was deleted")))]
async fn erase_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<StatusCode> {
    state.engine.sessions().erase(&caller.scope, &session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Close a session. A new message reopens it.
#[utoipa::path(post, path = "/v1/sessions/{session}/close", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn close_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<Summary>> {
    state.engine.sessions().close(&caller.scope, &session).await?;
    Ok(Json(state.engine.directory().summary(&caller.scope, &session).await?))
}

/// Archive a session, which makes it read-only.
#[utoipa::path(post, path = "/v1/sessions/{session}/archive", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn archive_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<Summary>> {
    state.engine.sessions().archive(&caller.scope, &session).await?;
    Ok(Json(state.engine.directory().summary(&caller.scope, &session).await?))
}
