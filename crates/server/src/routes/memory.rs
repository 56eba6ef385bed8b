//! Routes for memories: list, query, add, edit, delete, and learn from a session on demand.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::port::memory::Standing;
use sapwood::engine::memory::MemoryView;
use sapwood::{
    Belongs, MemoryEdit, MemoryFilter, MemoryId, MemoryKind, SessionId, StoredMemory, UserMemory, Whose,
};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::ListPage;
use super::{rows, session_id};
use crate::auth::Caller;
use crate::extract::{Body, Params, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

const ROWS_MAX: u32 = 500;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_memories, add_memory))
        .routes(routes!(get_memory, edit_memory, forget_memory))
        .routes(routes!(learn_session))
}

/// A memory, with its score if the request has a question.
#[derive(Serialize)]
struct ScoredMemory {
    #[serde(flatten)]
    memory: MemoryView,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

/// List your memories and the tenant's, newest first. With `q`, return those that answer the question, best first.
#[utoipa::path(get, path = "/v1/memory", tag = "memory", params(wire::MemoryQuery),
    responses((status = 200, body = wire::Memories)))]
async fn list_memories(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::MemoryQuery>,
) -> Result<Json<ListPage<ScoredMemory>>> {
    let limit = rows(query.limit, ROWS_MAX)?;
    let whose = Whose::For(caller.scope.principal.clone());
    if let Some(question) = &query.q {
        let recollection = state.engine.memories().recollect(&caller.scope, question, whose, limit).await?;
        let found = recollection.found.iter();
        let items = found
            .map(|found| ScoredMemory { memory: MemoryView::from(&found.memory), score: Some(found.score) });
        return Ok(Json(ListPage::new(items.collect(), None)));
    }
    let filter = MemoryFilter {
        whose,
        standing: if query.superseded.unwrap_or(false) { Standing::Any } else { Standing::Current },
        kind: query.kind.as_deref().map(kind_of).transpose()?,
        session: query.session.as_deref().map(session_id).transpose()?,
        text: query.words.unwrap_or_default(),
        limit,
        cursor: query.cursor,
    };
    let page = state.engine.memories().list(&caller.scope, &filter).await?;
    let items =
        page.items.iter().map(|memory| ScoredMemory { memory: MemoryView::from(memory), score: None });
    Ok(Json(ListPage::new(items.collect(), page.next)))
}

/// Add a memory. A known memory is left unchanged, and contradicted memories are superseded.
#[utoipa::path(post, path = "/v1/memory", tag = "memory", request_body = wire::NewMemory,
    responses((status = 201, body = wire::KeptMemory)))]
async fn add_memory(
    Shared(state): Shared<State>,
    caller: Caller,
    Body(new): Body<wire::NewMemory>,
) -> Result<(StatusCode, Json<wire::KeptMemory>)> {
    let kind = new.kind.as_deref().map(kind_of).transpose()?.unwrap_or(MemoryKind::Fact);
    let belongs = new.everybody.then_some(Belongs::Tenant);
    let kept =
        state.engine.memories().remember(&caller.scope, UserMemory { text: new.text, kind, belongs }).await?;
    Ok((StatusCode::CREATED, Json(kept_of(&kept))))
}

/// Get a memory and its origin.
#[utoipa::path(get, path = "/v1/memory/{memory}", tag = "memory", params(("memory" = String, Path)),
    responses((status = 200, body = wire::Memory)))]
async fn get_memory(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(memory): PathParams<String>,
) -> Result<Json<MemoryView>> {
    let memory = state.engine.memories().get(&caller.scope, memory_id(&memory)?).await?;
    Ok(Json(MemoryView::from(&memory)))
}

/// Change a memory's text, kind or owner.
#[utoipa::path(patch, path = "/v1/memory/{memory}", tag = "memory", params(("memory" = String, Path)),
    request_body = wire::MemoryPatch, responses((status = 200, body = wire::Memory)))]
async fn edit_memory(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(memory): PathParams<String>,
    Body(patch): Body<wire::MemoryPatch>,
) -> Result<Json<MemoryView>> {
    let belongs = patch.everybody.map(|everybody| match everybody {
        true => Belongs::Tenant,
        false => Belongs::To(caller.scope.principal.clone()),
    });
    let kind = patch.kind.as_deref().map(kind_of).transpose()?;
    let edit = MemoryEdit { text: patch.text, kind, belongs, expected: patch.expected_version };
    let edited = state.engine.memories().edit(&caller.scope, memory_id(&memory)?, edit).await?;
    Ok(Json(MemoryView::from(&edited)))
}

/// Delete a memory permanently, together with the memories it superseded.
#[utoipa::path(delete, path = "/v1/memory/{memory}", tag = "memory", params(("memory" = String, Path)),
    responses((status = 204)))]
async fn forget_memory(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(memory): PathParams<String>,
) -> Result<StatusCode> {
    state.engine.memories().forget(&caller.scope, memory_id(&memory)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Learn from the new entries of a session. Only its owner may do this.
#[utoipa::path(post, path = "/v1/sessions/{session}/memory", tag = "memory", params(("session" = String, Path)),
    responses((status = 200, body = wire::Learning)))]
async fn learn_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<wire::Learning>> {
    let learning = state.engine.memories().learn(&caller.scope, &session).await?;
    Ok(Json(wire::Learning {
        session: session.to_string(),
        how: serde_json::to_value(&learning.how).unwrap_or_default(),
        fell_back: learning.fell_back,
        entries: u32::try_from(learning.entries).unwrap_or(u32::MAX),
        kept: learning.kept.iter().map(kept_of).collect(),
    }))
}

fn kept_of(kept: &StoredMemory) -> wire::KeptMemory {
    let outcome = serde_json::to_value(kept.outcome).unwrap_or_default();
    wire::KeptMemory {
        memory: serde_json::to_value(MemoryView::from(&kept.memory)).unwrap_or_default(),
        outcome: outcome["outcome"].as_str().unwrap_or_default().to_owned(),
    }
}

fn kind_of(name: &str) -> Result<MemoryKind> {
    let unknown = || Problem::invalid("kind must be fact, preference, decision or error_pattern");
    MemoryKind::from_name(name).ok_or_else(unknown)
}

/// Parses a memory id. An invalid id is reported as an unknown memory.
fn memory_id(text: &str) -> Result<MemoryId> {
    text.parse().map_err(|_| Problem::new("memory.not_found", format!("no memory `{text:.64}`")))
}
