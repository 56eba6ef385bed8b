//! Responses: turns that are started with items and per-response settings.

use std::time::Duration;

use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use sapwood::Seq;
use sapwood::core::Json as CoreJson;
use sapwood::core::entry::Kind;
use sapwood::core::port::model::Thinking;
use sapwood::core::turn::{CallersTool, Terms};
use sapwood::engine::turn::{OnWait, Opening, Running};
use sapwood::formats::responses::ResponseId;
use sapwood::formats::responses::items::{Item, Items, output_of};
use sapwood::formats::responses::read::read_input;
use sapwood::formats::responses::response::{RequestParams, deletion, response_of};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::check_metadata;
use super::follow::{ResponseStream, read_response, respond_when_complete};
use super::items::{embed_page, page_of};
use super::new_items::store_blobs;
use super::target::{AGENT, ResponseTarget, UnstoredSession, find_response};
use crate::auth::Caller;
use crate::extract::{Body, Params, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sse::SessionStream;
use crate::state::{Inner, State};
use crate::wire::openai as wire;

/// Maximum number of functions per response.
const TOOLS_MAX: usize = 128;
/// Maximum time that a cancel request waits for the end of the turn, and its polling interval.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(5);
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(25);

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(create_response))
        .routes(routes!(get_response, delete_response))
        .routes(routes!(cancel_response))
        .routes(routes!(list_input_items))
}

/// Create a response: in a conversation, after another response, or standalone.
#[utoipa::path(post, path = "/v1/responses", tag = "openai", request_body = wire::NewResponse,
    responses((status = 200, content((wire::ResponseShown = "application/json"), (crate::wire::StreamEvent = "text/event-stream")))))]
async fn create_response(
    Shared(state): Shared<State>,
    caller: Caller,
    Body(new): Body<wire::NewResponse>,
) -> Result<Response> {
    if state.is_stopping() {
        return Err(Problem::new("server.stopping", "the server is shutting down"));
    }
    let (opening, blobs) = opening_of(&state, &new)?;
    let is_stored = new.store.unwrap_or(true);
    let is_background = new.background.unwrap_or(false);
    if is_background && !is_stored {
        return Err(Problem::invalid("a background response must be stored"));
    }
    let target = ResponseTarget::find(&state, &caller, &new).await?;
    let stored = store_blobs(&state, &caller, blobs).await;
    target.erase_on_error(&state, &caller, stored).await?;
    let (source, running) = begin(&state, &caller, target, opening).await?;
    let id = ResponseId { turn: running.turn, session: running.session.clone() };
    let (notify_ended, ended) = oneshot::channel();
    let tracked = state.track_turn(running);
    let tracked = tokio::spawn(async move {
        let _ = tracked.await;
        let _ = notify_ended.send(());
    });
    let is_unstored = !is_stored && new.conversation.is_none();
    let unstored = is_unstored.then(|| UnstoredSession::new(&state, &caller.scope, &id.session, tracked));
    if new.stream.unwrap_or(false) {
        let response_stream =
            ResponseStream::on(source, &state, &caller, &id, None).await?.with_unstored(unstored);
        return Ok(response_stream.into_response(id.turn));
    }
    if is_background {
        return Ok(Json(read_response(&state, &caller, &id).await?).into_response());
    }
    drop(source);
    respond_when_complete(&state, &caller, id, ended, unstored).await
}

/// Starts the turn. Falls back to a fork if a concurrent request continues from the same entry.
async fn begin(
    state: &State,
    caller: &Caller,
    target: ResponseTarget,
    opening: Opening,
) -> Result<(SessionStream, Running)> {
    match begin_at(state, caller, &target, opening.clone()).await {
        Err(problem) if target.can_fork() && matches!(problem.code, "session.conflict" | "turn.running") => {
            let fork = target.forked(state, caller).await?;
            begin_at(state, caller, &fork, opening).await
        }
        started => started,
    }
}

async fn begin_at(
    state: &State,
    caller: &Caller,
    target: &ResponseTarget,
    opening: Opening,
) -> Result<(SessionStream, Running)> {
    let started = try_begin_at(state, caller, target, opening).await;
    target.erase_on_error(state, caller, started).await
}

async fn try_begin_at(
    state: &State,
    caller: &Caller,
    target: &ResponseTarget,
    opening: Opening,
) -> Result<(SessionStream, Running)> {
    // Subscribe first, so that no fragment is missed.
    let head = state.engine.directory().summary(&caller.scope, &target.session).await?.head.seq;
    let source = SessionStream::open(state, caller, &target.session, head).await?;
    let opening = Opening { expected_leaf: target.expected_leaf, ..opening };
    let running =
        state.engine.turns().send_opening(&caller.scope, &target.session, opening, OnWait::Leave).await?;
    Ok((source, running))
}

/// Converts the request to a turn's opening: its items, its settings, and the fields that the response echoes.
fn opening_of(state: &State, new: &wire::NewResponse) -> Result<(Opening, Vec<Vec<u8>>)> {
    let metadata = new.metadata.clone().unwrap_or_default();
    check_metadata(&metadata)?;
    check_supported(new)?;
    let incoming = read_input(&new.input)?;
    if incoming.bodies.is_empty() {
        return Err(Problem::invalid("input is empty"));
    }
    let tools = new.tools.clone().unwrap_or_default();
    let offered = match new.tool_choice.as_ref().and_then(Value::as_str) {
        Some("none") => Vec::new(),
        _ => callers_tools(&tools)?,
    };
    let terms = Terms {
        model: choose_model(state, new.model.as_deref())?,
        instructions: new.instructions.clone(),
        thinking: thinking_of(new),
        temperature: new.temperature.map(|temperature| temperature as f32),
        output_tokens_max: new.max_output_tokens,
        tools: offered,
    };
    let mark = RequestParams {
        conversation: new.conversation.is_some(),
        previous_response_id: new.previous_response_id.clone(),
        store: new.store.unwrap_or(true),
        background: new.background.unwrap_or(false),
        model: new.model.clone().unwrap_or_default(),
        instructions: new.instructions.clone(),
        metadata: json!(metadata),
        tools: Value::Array(tools),
        tool_choice: new.tool_choice.clone().unwrap_or_else(|| json!("auto")),
        parallel_tool_calls: new.parallel_tool_calls.unwrap_or(true),
        reasoning: json!(new.reasoning),
        temperature: new.temperature,
        top_p: new.top_p,
        max_output_tokens: new.max_output_tokens,
        truncation: json!(new.truncation.as_deref().unwrap_or("disabled")),
        user: json!(new.user),
    };
    let opening =
        Opening { bodies: incoming.bodies, terms, mark: Some(mark.to_info()), ..Opening::default() };
    Ok((opening, incoming.blobs))
}

/// Rejects values out of range, and unsupported options that would change the answer.
fn check_supported(new: &wire::NewResponse) -> Result<()> {
    let unsupported =
        |what: &str| Err(Problem::new("input.unsupported", format!("{what} is not supported here")));
    let format = new.text.as_ref().and_then(|text| text.get("format")).map(|format| &format["type"]);
    if format.is_some_and(|kind| kind != "text") {
        return unsupported("a text format other than `text`");
    }
    if new.prompt.is_some() {
        return unsupported("prompt");
    }
    match new.tool_choice.as_ref() {
        None | Some(Value::Null) => {}
        Some(Value::String(choice)) if choice == "auto" || choice == "none" => {}
        Some(_) => return unsupported("a tool_choice other than `auto` or `none`"),
    }
    let temperature = new.temperature.unwrap_or_default();
    if !(0.0..=2.0).contains(&temperature) {
        return Err(Problem::invalid("temperature must be from 0 to 2"));
    }
    if !(0.0..=1.0).contains(&new.top_p.unwrap_or_default()) {
        return Err(Problem::invalid("top_p must be from 0 to 1"));
    }
    if new.max_output_tokens == Some(0) {
        return Err(Problem::invalid("max_output_tokens must be at least 1"));
    }
    Ok(())
}

fn callers_tools(tools: &[Value]) -> Result<Vec<CallersTool>> {
    if tools.len() > TOOLS_MAX {
        return Err(Problem::invalid(format!("at most {TOOLS_MAX} tools are allowed")));
    }
    let mut read: Vec<CallersTool> = Vec::with_capacity(tools.len());
    for (number, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" {
            let kind: String = tool["type"].as_str().unwrap_or("unnamed").chars().take(64).collect();
            let what = format!("tools[{number}] has type `{kind}`: only functions are supported here");
            return Err(Problem::new("input.unsupported", what));
        }
        let name = tool["name"].as_str().filter(|name| is_tool_name(name));
        let name = name.ok_or_else(|| {
            Problem::invalid(format!("tools[{number}].name must be 1 to 64 letters, digits, _ or -"))
        })?;
        if read.iter().any(|known| known.name == name) {
            return Err(Problem::invalid(format!(
                "tools[{number}] has the same name as another tool: `{name}`"
            )));
        }
        let schema = match &tool["parameters"] {
            Value::Null => json!({ "type": "object", "properties": {} }),
            schema @ Value::Object(_) => schema.clone(),
            _ => return Err(Problem::invalid(format!("tools[{number}].parameters must be an object"))),
        };
        read.push(CallersTool {
            name: name.to_owned(),
            description: tool["description"].as_str().unwrap_or_default().to_owned(),
            input_schema: CoreJson::from_value(&schema),
        });
    }
    Ok(read)
}

fn is_tool_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_fine)
}

fn thinking_of(new: &wire::NewResponse) -> Option<Thinking> {
    match new.reasoning.as_ref()?.get("effort")?.as_str()? {
        "none" => Some(Thinking::Off),
        "xhigh" => Some(Thinking::High),
        effort => Thinking::from_name(effort),
    }
}

/// Returns the model to call. Clients can choose only listed scripted models, because the name of one may be a file path.
fn choose_model(state: &State, requested: Option<&str>) -> Result<Option<String>> {
    let Some(requested) = requested.filter(|requested| !requested.is_empty()) else { return Ok(None) };
    let names = state.engine.configuration().models()?;
    if names.iter().any(|name| name == requested) {
        return Ok(Some(requested.to_owned()));
    }
    let is_offered = |provider: &str| {
        names.iter().any(|name| name.split_once('/').is_some_and(|(known, _)| known == provider))
    };
    match requested.split_once('/') {
        Some((provider, _)) if is_offered(provider) && provider != "scripted" => {
            Ok(Some(requested.to_owned()))
        }
        Some(_) => Err(Problem::new("model.not_found", format!("no model `{requested:.80}` on this server"))),
        None if is_offered("openai") => Ok(Some(format!("openai/{requested}"))),
        None => choose_bare_model(state, requested).map(Some),
    }
}

/// Returns the model for a name without a provider, as OpenAI's clients send it, on a server without OpenAI's models. The
/// operator's `openai_model` answers for names that cannot be called here. No other model answers instead.
fn choose_bare_model(state: &State, requested: &str) -> Result<String> {
    match (state.engine.configuration().callable_model(requested), &state.settings.openai_model) {
        (Ok(model), _) => Ok(model),
        (Err(_), Some(model)) => Ok(model.clone()),
        (Err(error), None) => Err(error.into()),
    }
}

/// Get a response, or its events.
#[utoipa::path(get, path = "/v1/responses/{response}", tag = "openai",
    params(("response" = String, Path), wire::GetResponse),
    responses((status = 200, content((wire::ResponseShown = "application/json"), (crate::wire::StreamEvent = "text/event-stream")))))]
async fn get_response(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(response): PathParams<String>,
    Params(query): Params<wire::GetResponse>,
) -> Result<Response> {
    let (id, entries) = find_response(&state, &caller, &response).await?;
    state.audit_read(&caller, &id.session).await?;
    if !query.stream.unwrap_or(false) {
        return Ok(Json(response_of(&id, &entries)).into_response());
    }
    let first = entries.first().map_or(0, |entry| entry.meta.seq.0);
    let from = Seq(first.saturating_sub(1));
    let response_stream = ResponseStream::open(&state, &caller, &id, from, query.starting_after).await?;
    Ok(response_stream.into_response(id.turn))
}

/// Delete a response. A standalone response is erased. A response among others is hidden, because the log is
/// append-only.
#[utoipa::path(delete, path = "/v1/responses/{response}", tag = "openai", params(("response" = String, Path)),
    responses((status = 200, body = wire::Deleted)))]
async fn delete_response(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(response): PathParams<String>,
) -> Result<Json<wire::Deleted>> {
    let (id, entries) = find_response(&state, &caller, &response).await?;
    let summary = state.engine.directory().summary(&caller.scope, &id.session).await?;
    let is_standalone = summary.agent.as_deref() == Some(AGENT) && summary.turns == 1;
    if is_standalone && !RequestParams::of(&entries).conversation {
        state.engine.sessions().erase(&caller.scope, &id.session).await?;
    } else {
        let what = "response deleted";
        state
            .engine
            .turn_control()
            .note_in_turn(&caller.scope, &id.session, id.turn, deletion(), what)
            .await?;
    }
    Ok(Json(wire::Deleted { id: response, object: "response".to_owned(), deleted: true }))
}

/// Cancel a response. A finished response stays unchanged.
#[utoipa::path(post, path = "/v1/responses/{response}/cancel", tag = "openai", params(("response" = String, Path)),
    responses((status = 200, body = wire::ResponseShown)))]
async fn cancel_response(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(response): PathParams<String>,
) -> Result<Json<Value>> {
    let (id, entries) = find_response(&state, &caller, &response).await?;
    state.engine.directory().check_right(&caller.scope, &id.session, sapwood::core::Right::Write).await?;
    if entries.iter().any(|entry| entry.meta.kind == Kind::TurnEnded) {
        return Ok(Json(response_of(&id, &entries)));
    }
    match state.engine.turn_control().cancel_turn(&caller.scope, &id.session, id.turn).await {
        Err(error) if error.code() == "turn.ended" => {
            return Ok(Json(read_response(&state, &caller, &id).await?));
        }
        requested => requested?,
    }
    Inner::spawn_resume(&state, caller.scope.clone(), id.session.clone());
    let until = tokio::time::Instant::now() + CANCEL_TIME_MAX;
    loop {
        let shown = read_response(&state, &caller, &id).await?;
        if shown["status"] != "in_progress" || tokio::time::Instant::now() > until {
            return Ok(Json(shown));
        }
        tokio::time::sleep(CANCEL_POLL_INTERVAL).await;
    }
}

/// List the input items of a response.
#[utoipa::path(get, path = "/v1/responses/{response}/input_items", tag = "openai",
    params(("response" = String, Path), wire::ListItems), responses((status = 200, body = wire::ItemList)))]
async fn list_input_items(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(response): PathParams<String>,
    Params(query): Params<wire::ListItems>,
) -> Result<Json<wire::ItemList>> {
    let (id, entries) = find_response(&state, &caller, &response).await?;
    state.audit_read(&caller, &id.session).await?;
    let mut items = Items::default();
    entries.iter().filter(|entry| output_of(entry).is_none()).for_each(|entry| items.apply(entry));
    let (page, has_more): (Vec<Item>, bool) = page_of(items.list, &query)?;
    Ok(Json(embed_page(&state, &caller, page, has_more).await?))
}
