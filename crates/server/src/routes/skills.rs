//! Routes for the available skills and for the skills that are active in a session.

use axum::extract::State as Shared;
use sapwood::SessionId;
use sapwood::core::Right;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, PathParams};
use crate::json::Json;
use crate::problem::Result;
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_skills)).routes(routes!(get_skills, set_skills))
}

/// List the skills that sessions can use.
#[utoipa::path(get, path = "/v1/skills", tag = "skills", responses((status = 200, body = wire::SkillList)))]
async fn list_skills(Shared(state): Shared<State>, _: Caller) -> Json<wire::SkillList> {
    let cards = state.engine.skills().list().await.cards.into_iter();
    // Paths on the server's disk are not sent.
    let items = cards.map(|card| wire::Skill { name: card.name, description: card.description });
    Json(wire::SkillList { items: items.collect() })
}

/// List the skills that are active in a session.
#[utoipa::path(get, path = "/v1/sessions/{session}/skills", tag = "skills", params(("session" = String, Path)),
    responses((status = 200, body = wire::ActiveSkills)))]
async fn get_skills(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<wire::ActiveSkills>> {
    let active = state.engine.skills().active(&caller.scope, &session).await?;
    Ok(Json(wire::ActiveSkills { active }))
}

/// Set the active skills. Takes effect with the next turn.
#[utoipa::path(put, path = "/v1/sessions/{session}/skills", tag = "skills", params(("session" = String, Path)),
    request_body = wire::ActiveSkills, responses((status = 200, body = wire::ActiveSkills)))]
async fn set_skills(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(new): Body<wire::ActiveSkills>,
) -> Result<Json<wire::ActiveSkills>> {
    // Callers without write access get an error even if the skills would not change.
    state.engine.directory().check_right(&caller.scope, &session, Right::Write).await?;
    state.engine.skills().set(&caller.scope, &session, new.active).await?;
    let active = state.engine.skills().active(&caller.scope, &session).await?;
    Ok(Json(wire::ActiveSkills { active }))
}
