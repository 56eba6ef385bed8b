//! Routes that move a session's leaf or change its context.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::Right;
use sapwood::core::compact::{CompactOptions, Method};
use sapwood::core::entry::Trigger;
use sapwood::engine::branch::LeaveWith;
use sapwood::engine::compact::{Compacting, IfLarger, PRUNE_KEEP_LAST, Pruning, Writing};
use sapwood::engine::config_changes::ForkChanges;
use sapwood::{ForkAt, OpenOptions, Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::appended;
use crate::auth::Caller;
use crate::extract::{Body, OptionalBody, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::session_config::{check_directory, narrowing};
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(branch_session))
        .routes(routes!(fork_session))
        .routes(routes!(label_entry))
        .routes(routes!(reset_session))
        .routes(routes!(trim_session))
        .routes(routes!(prune_session))
        .routes(routes!(compact_session))
        .routes(routes!(uncompact_session))
}

/// Move the leaf to an entry, which becomes the parent of the next entry.
#[utoipa::path(post, path = "/v1/sessions/{session}/branch", tag = "tree", params(("session" = String, Path)),
    request_body = wire::Branch, responses((status = 200, body = wire::Appended)))]
async fn branch_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(branch): Body<wire::Branch>,
) -> Result<Json<wire::Appended>> {
    let to = state.engine.directory().find_entry(&caller.scope, &session, &branch.entry.text()).await?;
    let leave = match (branch.summary, branch.summarize) {
        (Some(_), true) => return Err(Problem::invalid("summary and summarize cannot be combined")),
        (Some(text), false) => LeaveWith::Text(text),
        (None, true) => LeaveWith::ModelSummary { model: None },
        (None, false) => LeaveWith::Nothing,
    };
    let done = state.engine.edits().leave_branch(&caller.scope, &session, to.meta.id, leave).await?;
    Ok(Json(appended(&done)))
}

/// Fork a session. The fork shares the path without copying it.
#[utoipa::path(post, path = "/v1/sessions/{session}/fork", tag = "tree", params(("session" = String, Path)),
    request_body = Option<wire::Fork>, responses((status = 201, body = wire::Created)))]
async fn fork_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    OptionalBody(fork): OptionalBody<wire::Fork>,
) -> Result<(StatusCode, Json<wire::Created>)> {
    let at = match (&fork.at, fork.keep_first) {
        (Some(_), Some(_)) => return Err(Problem::invalid("at and keep_first cannot be combined")),
        (Some(at), None) => ForkAt::Entry(
            state.engine.directory().find_entry(&caller.scope, &session, &at.text()).await?.meta.seq,
        ),
        (None, Some(count)) => ForkAt::KeepFirst(count),
        (None, None) => ForkAt::Leaf,
    };
    let id = fork.id.map(|id| id.parse()).transpose()?;
    check_directory(&caller, fork.cwd.as_ref())?;
    let narrowing = narrowing(fork.tools, fork.fs_scope, fork.approvals)?;
    let options = OpenOptions { id, title: fork.title, cwd: fork.cwd.clone(), ..OpenOptions::default() };
    let changes = ForkChanges { narrowing, cwd: fork.cwd, git_ref: None };
    let id = state.engine.sessions().fork_with(&caller.scope, &session, at, options, changes).await?;
    Ok((StatusCode::CREATED, Json(wire::Created { id: id.to_string() })))
}

/// Set or remove the label of an entry.
#[utoipa::path(post, path = "/v1/sessions/{session}/label", tag = "tree", params(("session" = String, Path)),
    request_body = wire::Label, responses((status = 200, body = wire::Appended)))]
async fn label_entry(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(label): Body<wire::Label>,
) -> Result<Json<wire::Appended>> {
    let target = state.engine.directory().find_entry(&caller.scope, &session, &label.entry.text()).await?;
    let done = state.engine.edits().label(&caller.scope, &session, target.meta.id, label.text).await?;
    Ok(Json(appended(&done)))
}

/// Remove all messages so far from the context.
#[utoipa::path(post, path = "/v1/sessions/{session}/reset", tag = "tree", params(("session" = String, Path)),
    responses((status = 200, body = wire::Appended)))]
async fn reset_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<wire::Appended>> {
    Ok(Json(appended(&state.engine.edits().reset(&caller.scope, &session).await?)))
}

/// Keep only the last messages in the context.
#[utoipa::path(post, path = "/v1/sessions/{session}/trim", tag = "tree", params(("session" = String, Path)),
    request_body = wire::Trim, responses((status = 200, body = wire::Trimmed)))]
async fn trim_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(trim): Body<wire::Trim>,
) -> Result<Json<wire::Trimmed>> {
    let kept = state.engine.edits().trim(&caller.scope, &session, trim.keep_last as usize).await?;
    Ok(Json(wire::Trimmed { kept: u32::try_from(kept).unwrap_or(u32::MAX) }))
}

/// Remove old messages from the context of an inactive session. The log keeps them.
#[utoipa::path(post, path = "/v1/sessions/{session}/prune", tag = "tree", params(("session" = String, Path)),
    request_body = wire::Prune, responses((status = 200, body = wire::Pruned)))]
async fn prune_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(prune): Body<wire::Prune>,
) -> Result<Json<wire::Pruned>> {
    state.engine.directory().check_right(&caller.scope, &session, Right::Write).await?;
    let pruning = Pruning {
        inactive_for_ms: i64::try_from(prune.inactive_for_ms).unwrap_or(i64::MAX),
        keep_last: prune.keep_last.map_or(PRUNE_KEEP_LAST, |count| count as usize),
        writing: if prune.dry_run { Writing::DryRun } else { Writing::Write },
    };
    let pruned = state.engine.compaction().prune(&caller.scope, &session, pruning).await?;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Json(wire::Pruned {
        kept: count(pruned.kept),
        archived: count(pruned.removed),
        idle_ms: pruned.idle_ms,
        tokens_before: pruned.tokens_before,
        tokens_after: pruned.tokens_after,
    }))
}

/// Replace older messages of the context with a summary. The log keeps them.
#[utoipa::path(post, path = "/v1/sessions/{session}/compact", tag = "tree", params(("session" = String, Path)),
    request_body = Option<wire::Compact>, responses((status = 200, body = wire::Compacted)))]
async fn compact_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    OptionalBody(mut request): OptionalBody<serde_json::Map<String, serde_json::Value>>,
) -> Result<Json<wire::Compacted>> {
    let if_larger = match request.remove("force") {
        None | Some(serde_json::Value::Bool(false)) => IfLarger::Refuse,
        Some(serde_json::Value::Bool(true)) => IfLarger::Write,
        Some(_) => return Err(Problem::invalid("force must be true or false")),
    };
    let options = CompactOptions::from_json(&request.into()).map_err(sapwood::Error::from)?;
    let needs_model =
        [Some(options.compact_strategy), options.hard_limit_strategy].contains(&Some(Method::Llm));
    let mut how = Compacting::new(options, Trigger::Manual);
    how.if_larger = if_larger;
    if needs_model {
        let summariser = state.engine.compaction().summariser_of(&caller.scope, &session, None).await?;
        how.summariser = Some(Arc::new(summariser));
    }
    let done = state.engine.compaction().compact(&caller.scope, &session, how).await?;
    if let Some(reason) = done.cancelled {
        return Err(Problem::new("hook.refused", format!("a hook refused the compaction: {reason}")));
    }
    if let Some(larger) = done.larger {
        let before = done.tokens_before;
        let detail =
            format!("the context would grow from {before} to {larger} tokens; set force to compact anyway");
        return Err(Problem::new("compact.not_smaller", detail));
    }
    Ok(Json(wire::Compacted {
        kept: done.kept as u64,
        archived: done.archived as u64,
        tokens_before: done.tokens_before,
        tokens_after: done.tokens_after,
        entry: done.entry.map(|(seq, id)| wire::EntryKey { seq: seq.0, id: id.to_string() }),
    }))
}

/// Undo the latest compaction, or the given one.
#[utoipa::path(post, path = "/v1/sessions/{session}/uncompact", tag = "tree", params(("session" = String, Path)),
    request_body = Option<wire::Uncompact>, responses((status = 200, body = wire::Session)))]
async fn uncompact_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    OptionalBody(request): OptionalBody<wire::Uncompact>,
) -> Result<Json<sapwood::core::project::summary::Summary>> {
    let at: Option<Seq> = match &request.entry {
        Some(entry) => {
            Some(state.engine.directory().find_entry(&caller.scope, &session, &entry.text()).await?.meta.seq)
        }
        None => None,
    };
    state.engine.compaction().uncompact(&caller.scope, &session, at).await?;
    Ok(Json(state.engine.directory().summary(&caller.scope, &session).await?))
}
