//! Sessions as wholes: make, list, look, rename, close, archive, erase.

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::agent::Narrowing;
use sapwood::core::entry::{ModelChanged, SessionState, ThinkingChanged};
use sapwood::core::port::store::{Created, ListFilter, SearchQuery};
use sapwood::core::project::summary::Summary;
use sapwood::engine::read::parse_state;
use sapwood::engine::turn::StartOptions;
use sapwood::engine::write::InjectOptions;
use sapwood::{OpenOptions, Principal, SessionId};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::members::member;
use super::rows;
use crate::door::Caller;
use crate::extract::{At, Body, Maybe, Params};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

const ROWS_MAX: u32 = 500;
/// Hits that are looked through for the sessions they are in.
const HITS_MAX: usize = 500;
/// Pages of the store that one request looks through for a row that fits.
const PAGES_LOOKED_MAX: usize = 40;
/// Pages that are looked through for a title.
const TITLED_PAGES_MAX: usize = 4;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_sessions, create_session))
        .routes(routes!(get_session, patch_session, erase_session))
        .routes(routes!(close_session))
        .routes(routes!(archive_session))
}

/// A page of a list, as it is sent.
#[derive(Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// Your sessions and those shared with you, newest first.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(wire::ListSessions),
    responses((status = 200, body = wire::Sessions)))]
async fn list_sessions(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ListSessions>,
) -> Result<Json<Page<Summary>>> {
    let limit = rows(query.limit, ROWS_MAX)?;
    let wanted = Wanted::of(&query)?;
    if let Some(words) = query.q {
        let mut found = find_sessions(&state, &caller, words, limit, query.cursor).await?;
        found.items.retain(|summary| wanted.includes(summary));
        return Ok(Json(found));
    }
    let mut filter = ListFilter {
        state: wanted.state,
        cwd: query.cwd,
        cursor: query.cursor,
        limit,
        ..ListFilter::default()
    };
    // What the store does not narrow down is looked through here, page by page, up to the first that has something.
    for _ in 0..PAGES_LOOKED_MAX {
        let page = state.engine.list(&caller.scope, &filter).await?;
        let items: Vec<Summary> = page.items.into_iter().filter(|summary| wanted.includes(summary)).collect();
        if !items.is_empty() || page.next.is_none() {
            return Ok(Json(Page { items, next: page.next }));
        }
        filter.cursor = page.next;
    }
    Ok(Json(Page { items: Vec::new(), next: filter.cursor }))
}

/// What a list is narrowed to.
struct Wanted {
    state: Option<SessionState>,
    cwd: Option<String>,
    agent: Option<String>,
    owner: Option<Principal>,
    since: Option<i64>,
    until: Option<i64>,
}

impl Wanted {
    fn of(query: &wire::ListSessions) -> Result<Self> {
        Ok(Self {
            state: query.state.as_deref().map(parse_state).transpose()?,
            cwd: query.cwd.clone(),
            agent: query.agent.clone(),
            owner: query.owner.as_deref().map(member).transpose()?,
            since: query.since,
            until: query.until,
        })
    }

    fn includes(&self, summary: &Summary) -> bool {
        let at = summary.updated_at.0;
        self.state.is_none_or(|state| summary.state == state)
            && (self.cwd.is_none() || summary.cwd == self.cwd)
            && (self.agent.is_none() || summary.agent == self.agent)
            && self.owner.as_ref().is_none_or(|owner| summary.owner == *owner)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }
}

/// The newest sessions that are called so, for as many as are looked at.
async fn titled_sessions(state: &State, caller: &Caller, text: &str) -> Result<Vec<Summary>> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().map(|word| word.trim_matches(['*', '"'])).collect();
    let is_called = |summary: &Summary| {
        let name = format!("{} {}", summary.title.as_deref().unwrap_or_default(), summary.id).to_lowercase();
        words.iter().all(|word| name.contains(word))
    };
    let mut filter = ListFilter { limit: ROWS_MAX as usize, ..ListFilter::default() };
    let mut found = Vec::new();
    for _ in 0..TITLED_PAGES_MAX {
        let page = state.engine.list(&caller.scope, &filter).await?;
        found.extend(page.items.into_iter().filter(is_called));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The sessions that are called so, and those of the newest hits, each once.
async fn find_sessions(
    state: &State,
    caller: &Caller,
    text: String,
    limit: usize,
    cursor: Option<String>,
) -> Result<Page<Summary>> {
    let mut items = if cursor.is_none() { titled_sessions(state, caller, &text).await? } else { Vec::new() };
    items.truncate(limit);
    let query = SearchQuery { text, session: None, limit: HITS_MAX, cursor };
    let hits = state.engine.search(&caller.scope, &query).await?;
    for hit in hits.items {
        if items.len() < limit && items.iter().all(|summary| summary.id != hit.session) {
            items.push(state.engine.summary(&caller.scope, &hit.session).await?);
        }
    }
    Ok(Page { items, next: hits.next })
}

/// Opens a session. An id of yours that exists is left as it is.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = Option<wire::NewSession>,
    responses((status = 201, body = wire::Session), (status = 200, body = wire::Session, description = "It existed")))]
async fn create_session(
    Shared(state): Shared<State>,
    caller: Caller,
    Maybe(new): Maybe<wire::NewSession>,
) -> Result<(StatusCode, Json<Summary>)> {
    if new.cwd.is_some() && !caller.is_operator() {
        return Err(Problem::invalid("cwd names a directory of the server, and only its operator may"));
    }
    if new.agent.is_none() && new.needs_agent() {
        return Err(Problem::invalid("variables, tools, fs_scope and approvals need an agent"));
    }
    let narrowing = Narrowing {
        tools: new.tools,
        fs_scope: named("fs_scope", new.fs_scope)?,
        approvals: named("approvals", new.approvals)?,
    };
    let id = new.id.map(|id| id.parse()).transpose()?;
    let open = OpenOptions { id, title: new.title, agent: None, cwd: new.cwd };
    let (id, created) = match new.agent {
        Some(agent) => {
            let agent = state.agent(&agent)?.clone();
            let options = StartOptions { open, agent, narrowing, variables: new.variables };
            state.engine.start(&caller.scope, options).await?
        }
        None => state.engine.open(&caller.scope, open).await?,
    };
    let status = if created == Created::New { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(state.engine.summary(&caller.scope, &id).await?)))
}

/// One of the words that an agent's file would use.
fn named<T: serde::de::DeserializeOwned>(key: &str, word: Option<String>) -> Result<Option<T>> {
    let read = |word: String| serde_json::from_value(serde_json::Value::from(word));
    word.map(read).transpose().map_err(|error| Problem::invalid(format!("{key}: {error}")))
}

/// What a session is, without its content.
#[utoipa::path(get, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn get_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<Json<Summary>> {
    Ok(Json(state.engine.summary(&caller.scope, &session).await?))
}

/// Renames a session, or lets it end or go on.
#[utoipa::path(patch, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    request_body = wire::SessionPatch, responses((status = 200, body = wire::Session)))]
async fn patch_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Body(patch): Body<wire::SessionPatch>,
) -> Result<Json<Summary>> {
    let (engine, scope) = (&state.engine, &caller.scope);
    let wanted = patch.state.as_deref().map(parse_state).transpose()?;
    if let Some(title) = &patch.title {
        engine.rename(scope, &session, title).await?;
    }
    let model = patch.model.map(|model| ModelChanged { model }.into());
    let thinking = patch.thinking.map(|level| ThinkingChanged { level }.into());
    let settings: Vec<_> = model.into_iter().chain(thinking).collect();
    if !settings.is_empty() {
        engine.inject(scope, &session, settings, InjectOptions::default()).await?;
    }
    match wanted {
        None => {}
        Some(SessionState::Closed) => engine.close(scope, &session).await?,
        Some(SessionState::Archived) => engine.archive(scope, &session).await?,
        Some(SessionState::Active) => engine.reopen(scope, &session).await?,
        Some(SessionState::Created) => {
            return Err(Problem::invalid(
                "a session cannot become created: it can be active, closed or archived",
            ));
        }
    }
    Ok(Json(engine.summary(scope, &session).await?))
}

/// Really deletes a session.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = String, Path)),
    responses((status = 204, description = "It is gone")))]
async fn erase_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<StatusCode> {
    state.engine.erase(&caller.scope, &session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a session for now; a new message opens it again.
#[utoipa::path(post, path = "/v1/sessions/{session}/close", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn close_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<Json<Summary>> {
    state.engine.close(&caller.scope, &session).await?;
    Ok(Json(state.engine.summary(&caller.scope, &session).await?))
}

/// Makes a session read-only.
#[utoipa::path(post, path = "/v1/sessions/{session}/archive", tag = "sessions", params(("session" = String, Path)),
    responses((status = 200, body = wire::Session)))]
async fn archive_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<Json<Summary>> {
    state.engine.archive(&caller.scope, &session).await?;
    Ok(Json(state.engine.summary(&caller.scope, &session).await?))
}
