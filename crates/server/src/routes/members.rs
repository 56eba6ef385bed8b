//! Routes for the members of a session.

use axum::extract::State as Shared;
use sapwood::core::Role;
use sapwood::core::project::summary::Summary;
use sapwood::{Principal, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, PathParams};
use crate::json::Json;
use crate::problem::Result;
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_members, share_session))
}

/// List the owner and the members that the session is shared with.
#[utoipa::path(get, path = "/v1/sessions/{session}/members", tag = "members", params(("session" = String, Path)),
    responses((status = 200, body = wire::Members)))]
async fn list_members(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<wire::Members>> {
    Ok(Json(members_of(&state.engine.directory().summary(&caller.scope, &session).await?)))
}

/// Set or remove a member's role.
#[utoipa::path(post, path = "/v1/sessions/{session}/members", tag = "members", params(("session" = String, Path)),
    request_body = wire::Share, responses((status = 200, body = wire::Members)))]
async fn share_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(share): Body<wire::Share>,
) -> Result<Json<wire::Members>> {
    let role = share.role.map(|role| match role {
        wire::ShareRole::Reader => Role::Reader,
        wire::ShareRole::Collaborator => Role::Collaborator,
    });
    state.engine.sessions().share(&caller.scope, &session, parse_member(&share.member)?, role).await?;
    Ok(Json(members_of(&state.engine.directory().summary(&caller.scope, &session).await?)))
}

/// Parses a member. A name without a prefix is a user.
pub fn parse_member(text: &str) -> Result<Principal> {
    Ok(match text.split_once(':') {
        Some(("user" | "agent", _)) => text.parse()?,
        _ => Principal::User(text.parse()?),
    })
}

fn members_of(summary: &Summary) -> wire::Members {
    let owner = std::iter::once((&summary.owner, &Role::Owner));
    let item = |(member, role): (&Principal, &Role)| wire::Member {
        member: member.to_string(),
        role: role_name(*role).to_owned(),
    };
    wire::Members { items: owner.chain(&summary.members).map(item).collect() }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Collaborator => "collaborator",
        Role::Owner => "owner",
    }
}
