//! Routes for grafts: content of another session, included by reference, and the digest of content that can be grafted.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::Right;
use sapwood::core::project::rounds::PathRound;
use sapwood::engine::graft::GraftView;
use sapwood::{GraftWhat, SessionId};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use super::session_id;
use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_grafts, make_graft))
        .routes(routes!(get_graft))
        .routes(routes!(get_digest))
}

/// A graft with its content.
#[derive(Serialize)]
struct GraftContent {
    #[serde(flatten)]
    graft: GraftView,
    text: String,
    /// Only set for an artifact. Clients download its bytes from the source session.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<sapwood::core::BlobRef>,
}

/// List the session's grafts, and whether you may read them.
#[utoipa::path(get, path = "/v1/sessions/{session}/grafts", tag = "grafts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Grafts)))]
async fn list_grafts(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Items<GraftView>>> {
    Ok(Json(Items { items: state.engine.grafts().list(&caller.scope, &session).await? }))
}

/// Graft an artifact, rounds or a digest of another session. You need read access to that session.
#[utoipa::path(post, path = "/v1/sessions/{session}/grafts", tag = "grafts", params(("session" = String, Path)),
    request_body = wire::NewGraft, responses((status = 201, body = wire::Graft)))]
async fn make_graft(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(new): Body<wire::NewGraft>,
) -> Result<(StatusCode, Json<GraftView>)> {
    state.engine.directory().check_right(&caller.scope, &session, Right::Write).await?;
    let source = session_id(&new.source)?;
    let what = match (new.artifact, new.rounds) {
        (Some(name), None) => GraftWhat::Artifact { name },
        (None, Some(rounds)) => GraftWhat::Rounds { first: rounds.first, last: rounds.last },
        (None, None) => GraftWhat::Digest,
        (Some(_), Some(_)) => {
            return Err(Problem::invalid(
                "artifact and rounds cannot be combined: give one, or neither for a digest",
            ));
        }
    };
    state.audit_read(&caller, &source).await?;
    let view = state.engine.grafts().add(&caller.scope, &session, &source, what).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// Get a graft with its content.
#[utoipa::path(get, path = "/v1/sessions/{session}/grafts/{graft}", tag = "grafts",
    params(("session" = String, Path), ("graft" = String, Path)),
    responses((status = 200, body = wire::GraftContent)))]
async fn get_graft(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath((session, graft)): AuditedPath<(SessionId, String)>,
) -> Result<Json<GraftContent>> {
    let seq = state.engine.directory().find_entry(&caller.scope, &session, &graft).await?.meta.seq;
    let (graft, grafted) = state.engine.grafts().read(&caller.scope, &session, seq).await?;
    state.audit_read(&caller, &graft.graft.source).await?;
    let (text, content) = (grafted.text.clone(), grafted.artifact.clone());
    Ok(Json(GraftContent { graft, text, content }))
}

/// List the session's rounds and artifacts, which can be grafted.
#[utoipa::path(get, path = "/v1/sessions/{session}/digest", tag = "grafts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Digest)))]
async fn get_digest(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Items<PathRound>>> {
    Ok(Json(Items { items: state.engine.grafts().digest(&caller.scope, &session).await? }))
}
