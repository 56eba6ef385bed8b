//! Routes for projections of a session. Each projection is a pure function of the log.

use axum::extract::State as Shared;
use sapwood::core::entry::SessionContext;
use sapwood::core::project::context::Message;
use sapwood::core::project::ledger::LedgerLine;
use sapwood::core::project::outline::Outline;
use sapwood::core::project::timeline::TimelinePoint;
use sapwood::engine::pressure::ContextTokens;
use sapwood::engine::views::{Ancestry, Archive, UsageReport};
use sapwood::{Context, SessionId};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{AuditedPath, Params};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

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
) -> Result<Json<CountedContext>> {
    let at = match &query.at {
        Some(at) => Some(state.engine.directory().find_entry(&caller.scope, &session, at).await?.meta.seq),
        None => None,
    };
    let context = state.engine.views().context(&caller.scope, &session, at).await?;
    let counted = query.count.then(|| state.engine.compaction().count_context(&context));
    Ok(Json(CountedContext::of(context, counted)))
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

#[derive(Serialize)]
struct CountedMessage {
    #[serde(flatten)]
    message: Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
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
) -> Result<Json<Items<TimelinePoint>>> {
    Ok(Json(Items { items: state.engine.views().timeline(&caller.scope, &session).await? }))
}

/// Get every entry of the tree with its children.
#[utoipa::path(get, path = "/v1/sessions/{session}/tree", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Tree)))]
async fn get_tree(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Outline>> {
    Ok(Json(state.engine.views().tree(&caller.scope, &session).await?))
}

/// List the rounds: the intended action, its result, and the model's confidence.
#[utoipa::path(get, path = "/v1/sessions/{session}/ledger", tag = "projections", params(("session" = String, Path)),
    responses((status = 200, body = wire::Ledger)))]
async fn get_ledger(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
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
