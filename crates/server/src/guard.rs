//! What stands before every request: an id for it, who is calling, how often they may, how long it may take, and what
//! a client hears if a handler panics. The routes below it only see callers that are proven.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::{Request, State as Shared};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use sapwood::effects::hook::signature::SIGNATURE_HEADER;

use crate::extract::upload_time;
use crate::problem::{Problem, Result};
use crate::routes::openai;
use crate::state::State;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Everything below this needs a caller.
const API: &str = "/v1";
const LOGIN: &str = "/v1/login";
/// Where bodies are streamed to.
const SESSIONS: &str = "/v1/sessions/";
const UPLOADS: [&str; 2] = ["/artifacts", "/inputs"];
const TRIGGERS: &str = "/v1/triggers/";

pub async fn guard(Shared(state): Shared<State>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let is_openai = openai::is_openai(request.uri().path());
    let mut response = match answer(&state, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    if is_openai {
        response = openai::dress_problem(response);
    }
    state.meters.count_request(response.status().as_u16(), began.elapsed());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&format!("{:016x}", state.next_request_id())) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn answer(state: &State, mut request: Request, next: Next) -> Result<Response> {
    if request.uri().path().starts_with(API) && !is_signed(&request) {
        // Whoever may only read may sign in and out all the same: it changes nothing here.
        let is_login = request.uri().path() == LOGIN;
        let method = if is_login { &Method::GET } else { request.method() };
        let caller = state.door.admit(method, request.headers()).await?;
        if !caller.is_local() {
            check_rate(state, &caller.scope)?;
        }
        request.extensions_mut().insert(caller);
    }
    let limit = time_for(state, &request);
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(limit, handled).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(panic)) => {
            state.meters.panics.fetch_add(1, Ordering::Relaxed);
            let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Problem::new("server.panicked", what))
        }
        Err(_) => Err(Problem::late(limit)),
    }
}

/// An upload has as long as the largest may take; whether it comes quickly enough is looked at on the way.
fn time_for(state: &State, request: &Request) -> Duration {
    let limit = state.settings.request_time_max;
    let path = request.uri().path();
    let is_upload = request.method() == Method::POST
        && path.starts_with(SESSIONS)
        && UPLOADS.iter().any(|end| path.ends_with(end));
    if is_upload { upload_time(limit, state.settings.upload_bytes_max as u64) } else { limit }
}

/// Whoever fires a trigger may prove it by the trigger's own secret; the route checks that.
fn is_signed(request: &Request) -> bool {
    request.method() == Method::POST
        && request.uri().path().starts_with(TRIGGERS)
        && request.headers().contains_key(SIGNATURE_HEADER)
        && !request.headers().contains_key(header::AUTHORIZATION)
}

fn check_rate(state: &State, scope: &sapwood::Scope) -> Result<()> {
    state.rates.take(scope, Instant::now()).map_err(|seconds| {
        state.meters.limited.fetch_add(1, Ordering::Relaxed);
        Problem::new("rate.limited", format!("too many requests: wait {seconds} s")).retry_after(seconds)
    })
}
