//! Routes for unmodified OpenAI clients: `/v1/conversations` and `/v1/responses`. A conversation is a session, an item
//! is an entry or a part of an entry, and a response is a turn. The conversions are in `sapwood_formats::responses`.
//! Rights, limits and audit work as on every other route; only the error format differs.

mod conversations;
mod follow;
mod items;
mod new_items;
mod responses;
mod target;

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use sapwood::core::agent::{Agent, Limits};
use sapwood::core::port::clock::Clock;
use sapwood::{SessionId, SystemClock};
use utoipa_axum::router::OpenApiRouter;

use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire::openai::{OpenAiError, OpenAiFault};

/// Limits on metadata: number of keys, and length of keys and values in characters.
const METADATA_KEYS_MAX: usize = 16;
const METADATA_KEY_CHARS_MAX: usize = 64;
const METADATA_VALUE_CHARS_MAX: usize = 512;
/// Effectively unlimited, because OpenAI's clients expect no limit.
const TURNS_MAX: u32 = 1_000_000;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().merge(conversations::routes()).merge(items::routes()).merge(responses::routes())
}

/// Converts a problem response to OpenAI's error format.
pub fn to_openai_error(response: Response) -> Response {
    let Some(problem) = response.extensions().get::<Problem>() else { return response };
    let (error, (mut head, _)) = (error_of(problem), response.into_parts());
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    head.headers.remove(header::CONTENT_LENGTH);
    let body = serde_json::to_vec(&error).unwrap_or_default();
    Response::from_parts(head, axum::body::Body::from(body))
}

pub fn error_of(problem: &Problem) -> OpenAiError {
    let kind = match problem.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let message = problem.detail.clone();
    OpenAiError {
        error: OpenAiFault { message, kind: kind.to_owned(), code: problem.code.to_owned(), param: None },
    }
}

fn mint_id() -> Result<SessionId> {
    let id = SessionId::mint(SystemClock.now(), SystemClock.random());
    Ok(format!("conv_{}", id.as_str().replace('-', "")).parse()?)
}

/// The agent of sessions created by these routes: only a model, without a system prompt or tools.
fn plain_agent(id: &str) -> Agent {
    Agent {
        id: id.to_owned(),
        tools: Vec::new(),
        system_prompt: None,
        limits: Limits { turns_max: Some(TURNS_MAX), ..Limits::default() },
        ..Agent::default()
    }
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<()> {
    let is_long = |text: &String, most: usize| text.chars().nth(most).is_some();
    if metadata.len() > METADATA_KEYS_MAX {
        return Err(Problem::invalid(format!("metadata has more than {METADATA_KEYS_MAX} keys")));
    }
    if metadata.keys().any(|key| is_long(key, METADATA_KEY_CHARS_MAX)) {
        return Err(Problem::invalid(format!(
            "metadata has a key of more than {METADATA_KEY_CHARS_MAX} characters"
        )));
    }
    if metadata.values().any(|value| is_long(value, METADATA_VALUE_CHARS_MAX)) {
        return Err(Problem::invalid(format!(
            "metadata has a value of more than {METADATA_VALUE_CHARS_MAX} characters"
        )));
    }
    Ok(())
}
