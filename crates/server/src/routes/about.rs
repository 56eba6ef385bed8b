//! Routes about the server itself: liveness, readiness, metrics and the OpenAPI document.

use std::sync::LazyLock;

use axum::extract::State as Shared;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::document;
use crate::problem::{Problem, Result};
use crate::state::State;

pub const HEALTH: &str = "/healthz";
pub const READINESS: &str = "/readyz";
pub const METRICS: &str = "/metrics";

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string_pretty(&document()).unwrap_or_else(|error| error.to_string()));

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(get_health))
        .routes(routes!(get_readiness))
        .routes(routes!(get_metrics))
        .routes(routes!(get_document))
}

/// Check whether the process is alive.
#[utoipa::path(get, path = HEALTH, tag = "server", responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_health() -> &'static str {
    "ok\n"
}

/// Check whether the server is ready: its store can be read and written, and it is not shutting down.
#[utoipa::path(get, path = READINESS, tag = "server", responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_readiness(Shared(state): Shared<State>) -> Result<&'static str> {
    if state.is_draining_or_stopping() {
        return Err(Problem::new("server.stopping", "the server is shutting down"));
    }
    state.readiness.check(&state.engine).await?;
    Ok("ready\n")
}

/// Get the metrics in Prometheus' text format.
#[utoipa::path(get, path = METRICS, tag = "server", responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_metrics(Shared(state): Shared<State>, headers: HeaderMap) -> Result<Response> {
    // If authentication is required, it is also required for the metrics.
    if state.auth.is_locked().await? {
        state.auth.admit(&axum::http::Method::GET, &headers).await?;
    }
    let text = state.metrics.render(state.turns_running(), state.admission.counters());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// Get this OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((status = 200, body = serde_json::Value)))]
async fn get_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}
