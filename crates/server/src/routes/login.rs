//! Routes for the caller's identity and the console's cookie sign-in.

use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Caller, credential};
use crate::json::Json;
use crate::problem::Result;
use crate::state::State;
use crate::{cookie, wire};

pub const LOGIN: &str = "/v1/login";

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(get_me)).routes(routes!(sign_in, sign_out))
}

/// Get the authenticated caller.
#[utoipa::path(get, path = "/v1/me", tag = "login", responses((status = 200, body = wire::Me)))]
async fn get_me(Shared(state): Shared<State>, caller: Caller) -> Result<Json<wire::Me>> {
    me_of(&state, &caller).await.map(Json)
}

/// Sign in to the console: store the key or token of this request in a cookie.
#[utoipa::path(post, path = LOGIN, tag = "login", responses((status = 200, body = wire::Me)))]
async fn sign_in(Shared(state): Shared<State>, caller: Caller, headers: HeaderMap) -> Result<Response> {
    let mut response = Json(me_of(&state, &caller).await?).into_response();
    if let Some(credential) = credential(&headers)? {
        response.headers_mut().insert(header::SET_COOKIE, cookie::set_cookie(credential, &headers)?);
    }
    Ok(response)
}

/// Sign out: delete the cookie.
#[utoipa::path(delete, path = LOGIN, tag = "login",
    responses((status = 204, description = "The cookie was deleted")))]
async fn sign_out(_: Caller) -> Response {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie::delete_cookie())]).into_response()
}

async fn me_of(state: &State, caller: &Caller) -> Result<wire::Me> {
    Ok(wire::Me {
        principal: caller.scope.principal.to_string(),
        tenant: caller.scope.tenant.to_string(),
        operator: caller.is_operator(),
        may_write: caller.check(sapwood::core::Right::Write).is_ok(),
        proof: caller.proof_name().to_owned(),
        store: if caller.is_operator() { Some(state.engine.store().describe()) } else { None },
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}
