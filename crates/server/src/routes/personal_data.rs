//! Routes for operators: the data of a user, legal holds, and retention.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::core::id::UserName;
use sapwood::engine::compact::Writing;
use sapwood::engine::personal_data::{
    DataInventory, DataSubject, ErasureReport, HoldTarget, OtherForks, PlacedHold, RetentionPolicy,
    RetentionReport, SessionNotice,
};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use crate::auth::Caller;
use crate::extract::{Body, OptionalBody, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(get_user_data))
        .routes(routes!(erase_user))
        .routes(routes!(list_holds, place_hold))
        .routes(routes!(release_hold))
        .routes(routes!(get_retention, set_retention, remove_retention))
        .routes(routes!(run_retention))
}

/// List the data of a user. Only for operators.
#[utoipa::path(get, path = "/v1/users/{user}/data", tag = "personal data", params(("user" = String, Path)),
    responses((status = 200, body = wire::UserData)))]
async fn get_user_data(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(user): PathParams<String>,
) -> Result<Json<DataInventory>> {
    let subject = DataSubject::User(user_name(&user)?);
    Ok(Json(state.engine.personal_data().inventory(&caller.scope, &subject).await?))
}

/// Erase the sessions and memories of a user, and revoke the user's keys. Data under a legal hold is kept. Only for
/// operators.
#[utoipa::path(post, path = "/v1/users/{user}/erase", tag = "personal data", params(("user" = String, Path)),
    request_body = Option<wire::EraseUser>, responses((status = 200, body = wire::ErasedUser)))]
async fn erase_user(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(user): PathParams<String>,
    OptionalBody(request): OptionalBody<wire::EraseUser>,
) -> Result<Json<ErasureReport>> {
    let subject = DataSubject::User(user_name(&user)?);
    let forks = if request.forks { OtherForks::Erase } else { OtherForks::Keep };
    Ok(Json(state.engine.personal_data().erase(&caller.scope, &subject, forks).await?))
}

fn user_name(text: &str) -> Result<UserName> {
    Ok(text.parse().map_err(sapwood::Error::from)?)
}

fn target_of(text: &str) -> Result<HoldTarget> {
    Ok(text.parse().map_err(sapwood::Error::from)?)
}

/// List the legal holds. Only for operators.
#[utoipa::path(get, path = "/v1/holds", tag = "personal data", responses((status = 200, body = wire::Holds)))]
async fn list_holds(Shared(state): Shared<State>, caller: Caller) -> Result<Json<Items<PlacedHold>>> {
    Ok(Json(Items { items: state.engine.personal_data().holds(&caller.scope).await? }))
}

/// Place a legal hold on a session or a user. Only for operators.
#[utoipa::path(post, path = "/v1/holds", tag = "personal data", request_body = wire::NewHold,
    responses((status = 201, body = wire::Hold)))]
async fn place_hold(
    Shared(state): Shared<State>,
    caller: Caller,
    Body(hold): Body<wire::NewHold>,
) -> Result<(StatusCode, Json<PlacedHold>)> {
    let target = target_of(&hold.target)?;
    let placed = state.engine.personal_data().place_hold(&caller.scope, &target, hold.reason).await?;
    Ok((StatusCode::CREATED, Json(placed)))
}

/// Release a legal hold. Only for operators.
#[utoipa::path(delete, path = "/v1/holds/{target}", tag = "personal data", params(("target" = String, Path)),
    responses((status = 204)))]
async fn release_hold(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(target): PathParams<String>,
) -> Result<StatusCode> {
    let target = target_of(&target)?;
    match state.engine.personal_data().release_hold(&caller.scope, &target).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::new("hold.not_found", format!("there is no hold on {target}"))),
    }
}

/// The policy and the announced erasures.
#[derive(Serialize)]
struct Retention {
    policy: Option<RetentionPolicy>,
    notices: Vec<SessionNotice>,
}

/// Get how long inactive sessions are kept, and the announced erasures of sessions that you can read.
#[utoipa::path(get, path = "/v1/retention", tag = "personal data",
    responses((status = 200, body = wire::Retention)))]
async fn get_retention(Shared(state): Shared<State>, caller: Caller) -> Result<Json<Retention>> {
    let data = state.engine.personal_data();
    let (policy, notices) = (data.retention(&caller.scope).await?, data.notices(&caller.scope).await?);
    Ok(Json(Retention { policy, notices }))
}

/// Set how long inactive sessions are kept. Only for operators.
#[utoipa::path(put, path = "/v1/retention", tag = "personal data", request_body = wire::RetentionPolicy,
    responses((status = 200, body = wire::RetentionPolicy)))]
async fn set_retention(
    Shared(state): Shared<State>,
    caller: Caller,
    Body(policy): Body<wire::RetentionPolicy>,
) -> Result<Json<RetentionPolicy>> {
    let policy = RetentionPolicy { days: policy.days, notice_days: policy.notice_days };
    state.engine.personal_data().set_retention(&caller.scope, Some(policy)).await?;
    Ok(Json(policy))
}

/// Keep sessions forever. Only for operators.
#[utoipa::path(delete, path = "/v1/retention", tag = "personal data", responses((status = 204)))]
async fn remove_retention(Shared(state): Shared<State>, caller: Caller) -> Result<StatusCode> {
    state.engine.personal_data().set_retention(&caller.scope, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Announce inactive sessions, and erase those whose notice has ended. Only for operators.
#[utoipa::path(post, path = "/v1/retention/run", tag = "personal data",
    request_body = Option<wire::RunRetention>, responses((status = 200, body = wire::RetentionRun)))]
async fn run_retention(
    Shared(state): Shared<State>,
    caller: Caller,
    OptionalBody(request): OptionalBody<wire::RunRetention>,
) -> Result<Json<RetentionReport>> {
    let writing = if request.dry_run { Writing::DryRun } else { Writing::Write };
    Ok(Json(state.engine.personal_data().run_retention(&caller.scope, writing).await?))
}
