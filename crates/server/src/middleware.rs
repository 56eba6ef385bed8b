//! The middleware around every request: request id, authentication, rate limit, admission, timeout, and panic handling.
//! Handlers only see authenticated callers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use sapwood::effects::hook::signature::SIGNATURE_HEADER;

use crate::admission::{Connection, Permit};
use crate::byte_quota::BodyBytes;
use crate::client_stream::ConnectionNotes;
use crate::extract::upload_time;
use crate::held_body::HeldBody;
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;
use crate::routes::{self, openai};
use crate::share::Holder;
use crate::state::State;
use crate::tracked_body::TrackedBody;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The router as a hyper service.
pub type Routes = TowerToHyperService<Router>;

/// Handles one request. Wraps the whole router instead of each route, which saves an allocation and a future per
/// request.
pub async fn handle_request(
    state: &State,
    routes: &Routes,
    connection: &Arc<Connection>,
    notes: &ConnectionNotes,
    request: Request,
) -> Response<HeldBody<Permit>> {
    let started = Instant::now();
    let id = state.next_request_id();
    let is_openai = routes::is_openai(request.uri().path());
    let (mut permit, admitted) = connection.begin(request.uri().path());
    let admitted = admitted.and_then(|()| check_framing(notes, &request));
    let (request, body_end) = TrackedBody::track(request);
    let handled_response = match admitted {
        Ok(()) => handle_with_timeout(state, routes, request, id, &mut permit).await,
        Err(problem) => Err(problem),
    };
    let mut response = handled_response.unwrap_or_else(Problem::into_response);
    if let Some(problem) = response.extensions().get::<Problem>() {
        problem.log(id);
        if !body_end.is_reached() {
            notes.expect_unread_body();
        }
        if problem.code == "server.full" || !body_end.is_reached() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    if is_openai {
        response = openai::to_openai_error(response);
    }
    state.metrics.count_request(response.status().as_u16(), started.elapsed());
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id.header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.map(|body| HeldBody::new(body, permit))
}

async fn handle_with_timeout(
    state: &State,
    routes: &Routes,
    request: Request,
    id: RequestId,
    permit: &mut Permit,
) -> Result<Response> {
    check_host(&request)?;
    let limit = time_limit_for(state, &request);
    let handled = AssertUnwindSafe(admit_and_route(state, routes, request, id, permit)).catch_unwind();
    match tokio::time::timeout(limit, handled).await {
        Ok(Ok(handled_response)) => handled_response,
        Ok(Err(panic)) => {
            state.metrics.panics.fetch_add(1, Ordering::Relaxed);
            let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Problem::new("server.panicked", what))
        }
        Err(_) => Err(Problem::late(limit)),
    }
}

async fn admit_and_route(
    state: &State,
    routes: &Routes,
    mut request: Request,
    id: RequestId,
    permit: &mut Permit,
) -> Result<Response> {
    let mut holder = None;
    if request.uri().path().starts_with(routes::API) && !is_signed(&request) {
        // A read-only key may sign in and out, because the server stores no sign-ins.
        let is_login = request.uri().path() == routes::LOGIN;
        let method = if is_login { &Method::GET } else { request.method() };
        let caller = state.auth.admit(method, request.headers()).await?.with_request(id);
        state.check_rate(&caller)?;
        permit.admit(&caller)?;
        holder = Some(Holder::principal(&caller.scope));
        request.extensions_mut().insert(caller);
    } else {
        permit.admit_unauthenticated()?;
    }
    if request.headers().contains_key(header::UPGRADE) {
        request.extensions_mut().insert(permit.lend());
    }
    // The bytes are released when the response is ready.
    let body_bytes = (!request.body().is_end_stream()).then(|| {
        let holder = holder.unwrap_or_else(|| permit.address().clone());
        BodyBytes::new(state.body_quota.guard(holder))
    });
    if let Some(body_bytes) = &body_bytes {
        request.extensions_mut().insert(body_bytes.clone());
    }
    match routes.call(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// Refuses a request whose end is ambiguous. A proxy might have found another end, and taken the rest for a request.
fn check_framing(notes: &ConnectionNotes, request: &Request) -> Result<()> {
    match notes.is_ambiguous(request) {
        true => Err(Problem::invalid("a request must not have both Content-Length and Transfer-Encoding")),
        false => Ok(()),
    }
}

/// Requires exactly one host name. If there were several, a proxy might have checked a different one.
fn check_host(request: &Request) -> Result<()> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let is_missing = host.is_none() && request.version() == Version::HTTP_11;
    let uri_host = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let differs = uri_host.zip(host).is_some_and(|(uri_host, host)| uri_host != host.as_bytes());
    if is_missing || second.is_some() || differs {
        return Err(Problem::invalid("a request must name exactly one host"));
    }
    Ok(())
}

/// Returns the time limit for a request. An upload gets the time limit for the largest upload; its rate is checked
/// while it is read.
fn time_limit_for(state: &State, request: &Request) -> Duration {
    let limit = state.settings.request_time_max;
    let is_upload = routes::is_upload(request.method(), request.uri().path());
    if is_upload { upload_time(limit, state.settings.upload_bytes_max as u64) } else { limit }
}

/// Whether the request is signed with a trigger's secret. The route verifies the signature.
fn is_signed(request: &Request) -> bool {
    request.method() == Method::POST
        && routes::matches(routes::FIRE, request.uri().path())
        && request.headers().contains_key(SIGNATURE_HEADER)
        && !request.headers().contains_key(header::AUTHORIZATION)
}
