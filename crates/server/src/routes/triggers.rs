//! Routes for triggers: list and fire. To fire a trigger, a caller with a key needs write access to the trigger's log.
//! A caller without a key signs the request with the trigger's secret; an unknown trigger and a wrong signature return
//! the same error.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use sapwood::SystemClock;
use sapwood::core::BlobHash;
use sapwood::core::port::clock::Clock;
use sapwood::core::trigger::PAYLOAD_BYTES_MAX;
use sapwood::effects::hook::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, verify};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{PathParams, header_text, read_body};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::{ServedTrigger, State};
use crate::wire;

/// The path to fire a trigger. Callers without a key sign the request.
pub const FIRE: &str = "/v1/triggers/{name}";
const KEY_HEADER: &str = "idempotency-key";

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_triggers)).routes(routes!(fire_trigger))
}

/// List the triggers whose log you can read.
#[utoipa::path(get, path = "/v1/triggers", tag = "triggers", responses((status = 200, body = wire::TriggerList)))]
async fn list_triggers(Shared(state): Shared<State>, caller: Caller) -> Result<Json<wire::TriggerList>> {
    let mut items = Vec::new();
    for served in state.triggers() {
        let installed = &served.installed;
        if !may_fire(&state, &caller, served).await? {
            continue;
        }
        let log_state = state.engine.triggers().state(installed).await?;
        items.push(wire::Trigger {
            name: installed.trigger.name.clone(),
            kind: installed.source.name().to_owned(),
            next_at: installed.next_at(SystemClock.now()).map(|at| at.0),
            waiting: log_state.waiting().count() as u64,
            running: log_state.running().count() as u64,
            last: log_state.last,
        });
    }
    Ok(Json(wire::TriggerList { items }))
}

/// Whether the caller can see the trigger's log.
async fn may_fire(state: &State, caller: &Caller, served: &ServedTrigger) -> Result<bool> {
    let log = served.installed.log_id()?;
    Ok(served.installed.scope.tenant == caller.scope.tenant
        && state.engine.directory().exists(&caller.scope, &log).await?)
}

/// A request to fire a trigger.
struct FireRequest {
    caller: Option<Caller>,
    headers: HeaderMap,
    body: Bytes,
}

impl FromRequest<State> for FireRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &State) -> Result<Self> {
        let caller = request.extensions().get::<Caller>().cloned();
        let headers = request.headers().clone();
        let body = read_body(request, "the payload", PAYLOAD_BYTES_MAX).await?;
        Ok(Self { caller, headers, body })
    }
}

/// Fire a trigger, which sends its input to a session as configured. The same `Idempotency-Key`, or the same signature,
/// fires only once.
#[utoipa::path(post, path = FIRE, tag = "triggers", params(("name" = String, Path)),
    request_body = Option<serde_json::Value>, responses((status = 202, body = wire::Fired)))]
async fn fire_trigger(
    Shared(state): Shared<State>,
    PathParams(name): PathParams<String>,
    request: FireRequest,
) -> Result<(StatusCode, Json<wire::Fired>)> {
    let given = header_text(&request.headers, KEY_HEADER)?.map(str::to_owned);
    let found = state.triggers().iter().find(|served| served.installed.trigger.name == name);
    let (scope, key) = match &request.caller {
        Some(caller) => (caller.scope.clone(), given),
        None => {
            let served = found.ok_or_else(Problem::invalid_credential)?;
            let signature = check_signature(served, &request)?;
            (served.installed.scope.clone(), Some(given.unwrap_or(signature)))
        }
    };
    let unknown = || Problem::new("trigger.not_found", format!("no trigger `{name:.64}`"));
    let served = found.filter(|served| served.installed.scope.tenant == scope.tenant).ok_or_else(unknown)?;
    let payload = payload_of(&request.body)?;
    let name = &served.installed.trigger.name;
    let firing = state.engine.triggers().fire(&scope, name, key.as_deref(), payload).await?;
    Ok((StatusCode::ACCEPTED, Json(wire::Fired { trigger: name.clone(), firing: firing.0 })))
}

/// Verifies the signature. Returns its hash, which serves as the idempotency key.
fn check_signature(served: &ServedTrigger, request: &FireRequest) -> Result<String> {
    let secret = served.secret.as_ref().ok_or_else(Problem::invalid_credential)?;
    let signature =
        header_text(&request.headers, SIGNATURE_HEADER)?.ok_or_else(Problem::invalid_credential)?;
    let timestamp =
        header_text(&request.headers, TIMESTAMP_HEADER)?.ok_or_else(Problem::invalid_credential)?;
    verify(secret, timestamp, signature, &request.body, SystemClock.now().0)
        .map_err(|_| Problem::invalid_credential())?;
    Ok(BlobHash::of(signature.as_bytes()).to_string())
}

fn payload_of(body: &[u8]) -> Result<Value> {
    if body.trim_ascii().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| Problem::new("input.json", format!("{error:.200}")))
}
