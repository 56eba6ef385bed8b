//! Routes for projections of a session. Each projection is a pure function of the log.

use axum::body::Body as HttpBody;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sapwood::core::entry::SessionContext;
use sapwood::core::project::ledger::LedgerLine;
use sapwood::core::project::timeline::TimelinePoint;
use sapwood::engine::context_reader::ContextRead;
use sapwood::engine::pressure::ContextTokens;
use sapwood::engine::views::{Ancestry, Archive, UsageReport};
use sapwood::{Context, Seq, SessionId};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::long_documents::{ContextDocument, CountedMessage, Counting, TreeDocument};
use super::rows;
use crate::auth::Caller;
use crate::chunked::{LongRead, body_of};
use crate::extract::{AuditedPath, Params};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::projection::ProjectionPermit;
use crate::state::State;
use crate::wire;

/// Maximum number of nodes in a page of the tree.
const TREE_NODES_MAX: u32 = 10_000;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(get_context))
        .routes(routes!(get_pressure))
        .routes(routes!(get_timeline))
        .routes(routes!(get_tree))
        .routes(routes!(get_ledger))
        .routes(routes!(get_usage))
        .routes(routes!(get_archives))
        .routes(routes!(get_ancestry))
}

/// A list that is not paged.
#[derive(Serialize)]
pub struct Items<T> {
    pub items: Vec<T>,
}

/// Get the context that a model would receive.
#[utoipa::path(get, path = "/v1/sessions/{session}/context", tag = "projections",
    params(("session" = String, Path), wire::ContextAt), responses((status = 200, body = wire::Context)))]
async fn get_context(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    Params(query): Params<wire::ContextAt>,
    _permit: ProjectionPermit,
) -> Result<Response> {
    let at = match &query.at {
        Some(at) => Some(state.engine.directory().find_entry(&caller.scope, &session, at).await?.meta.seq),
        None => None,
    };
    match state.engine.views().read_context(&caller.scope, &session, at).await? {
        ContextRead::Short(context) => {
            let counted = query.count.then(|| state.engine.compaction().count_context(&context));
            Ok(Json(CountedContext::of(*context, counted)).into_response())
        }
        ContextRead::Long(reader) => {
            let counting = if query.count { Counting::Exact } else { Counting::Estimate };
            let read = LongRead::new(&state, &caller);
            json_response(body_of(ContextDocument::new(read, *reader, counting)).await?)
        }
    }
}

fn json_response(body: HttpBody) -> Result<Response> {
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A context, with token counts per message if requested.
#[derive(Serialize)]
struct CountedContext {
    system: Option<String>,
    model: Option<String>,
    thinking: String,
    skills: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<SessionContext>,
    messages: Vec<CountedMessage>,
    tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_tokens: Option<u64>,
}

impl CountedContext {
    fn of(context: Context, counted: Option<ContextTokens>) -> Self {
        let each = |index: usize| counted.as_ref().and_then(|counted| counted.messages.get(index).copied());
        let messages = context.messages.into_iter().enumerate();
        Self {
            system: context.system,
            model: context.model,
            thinking: context.thinking,
            skills: context.skills,
            context: context.session,
            messages: messages.map(|(at, message)| CountedMessage { message, tokens: each(at) }).collect(),
            tokens: counted.as_ref().map_or(context.tokens, ContextTokens::total),
            system_tokens: counted.as_ref().map(|counted| counted.system),
        }
    }
}

/// Get the context usage.
#[utoipa::path(get, path = "/v1/sessions/{session}/pressure", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Pressure)))]
async fn get_pressure(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    _permit: ProjectionPermit,
) -> Result<Json<wire::Pressure>> {
    let found = state.engine.compaction().pressure_of(&caller.scope, &session).await?;
    Ok(Json(wire::Pressure {
        level: found.map(|pressure| pressure.level.as_str().to_owned()),
        used_tokens: found.map(|pressure| pressure.used_tokens),
        budget_tokens: found.map(|pressure| pressure.budget_tokens),
    }))
}

/// List the context usage over time: answers and compactions.
#[utoipa::path(get, path = "/v1/sessions/{session}/timeline", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Timeline)))]
async fn get_timeline(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    _permit: ProjectionPermit,
) -> Result<Json<Items<TimelinePoint>>> {
    Ok(Json(Items { items: state.engine.views().timeline(&caller.scope, &session).await? }))
}

/// Get the entries of the tree with their children: all, or a page.
#[utoipa::path(get, path = "/v1/sessions/{session}/tree", tag = "projections",
    params(("session" = String, Path), wire::TreePage), responses((status = 200, body = wire::Tree)))]
async fn get_tree(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    Params(query): Params<wire::TreePage>,
    permit: ProjectionPermit,
) -> Result<Response> {
    let limit = query.limit.map_or(Ok(usize::MAX), |limit| rows(Some(limit), TREE_NODES_MAX))?;
    let after = Seq(query.after.unwrap_or(0));
    let reader = state.engine.views().read_tree(&caller.scope, &session, after).await?;
    let body = body_of(TreeDocument::new(LongRead::new(&state, &caller), reader, limit)).await?;
    json_response(permit.hold_for(body))
}

/// List the rounds: the intended action, its result, and the model's confidence.
#[utoipa::path(get, path = "/v1/sessions/{session}/ledger", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Ledger)))]
async fn get_ledger(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    _permit: ProjectionPermit,
) -> Result<Json<Items<LedgerLine>>> {
    Ok(Json(Items { items: state.engine.views().ledger(&caller.scope, &session).await? }))
}

/// Get tokens and cost, per model and in total.
#[utoipa::path(get, path = "/v1/sessions/{session}/usage", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Usage)))]
async fn get_usage(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<UsageReport>> {
    Ok(Json(state.engine.views().usage(&caller.scope, &session).await?))
}

/// List the compactions and what they replaced.
#[utoipa::path(get, path = "/v1/sessions/{session}/archives", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Archives)))]
async fn get_archives(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    _permit: ProjectionPermit,
) -> Result<Json<Items<Archive>>> {
    Ok(Json(Items { items: state.engine.views().archives(&caller.scope, &session).await? }))
}

/// Get the session that this one was forked from, and the forks of this one.
#[utoipa::path(get, path = "/v1/sessions/{session}/ancestry", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Ancestry)))]
async fn get_ancestry(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Ancestry>> {
    let unknown = || Problem::new("session.not_found", format!("no session `{session}`"));
    state.engine.views().ancestry(&caller.scope, &session).await?.map(Json).ok_or_else(unknown)
}
