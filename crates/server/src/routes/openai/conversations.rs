//! Conversations: sessions with metadata. Metadata is stored as entries outside the tree; the newest entry counts.

use std::collections::BTreeMap;

use axum::extract::State as Shared;
use sapwood::core::entry::{Body as EntryBody, CustomInfo};
use sapwood::core::{Json as CoreJson, Kind};
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::sessions::StartOptions;
use sapwood::formats::responses::read::Incoming;
use sapwood::{OpenOptions, Seq, SessionId};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::new_items::{read_new_items, store_blobs};
use super::target::erase_created;
use super::{check_metadata, mint_id, plain_agent};
use crate::auth::Caller;
use crate::extract::{Body, OptionalBody, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire::openai as wire;

/// The type of the entry that contains a conversation's metadata.
const METADATA: &str = "openai_metadata";
/// Custom entries per store read.
const PAGE_RECORDS: usize = 1_000;
/// The agent id of sessions that were created as conversations.
const AGENT: &str = "conversation";

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(create_conversation)).routes(routes!(
        get_conversation,
        update_conversation,
        delete_conversation
    ))
}

/// Create a conversation.
#[utoipa::path(post, path = "/v1/conversations", tag = "openai", request_body = Option<wire::NewConversation>,
    responses((status = 200, body = wire::Conversation)))]
async fn create_conversation(
    Shared(state): Shared<State>,
    caller: Caller,
    OptionalBody(new): OptionalBody<wire::NewConversation>,
) -> Result<Json<wire::Conversation>> {
    let metadata = new.metadata.unwrap_or_default();
    check_metadata(&metadata)?;
    let incoming = read_new_items(new.items.unwrap_or_default())?;
    let open = OpenOptions { id: Some(mint_id()?), ..OpenOptions::default() };
    let options = StartOptions { open, agent: plain_agent(AGENT), ..StartOptions::default() };
    let (session, _) = state.engine.sessions().start(&caller.scope, options).await?;
    if let Err(problem) = fill(&state, &caller, &session, incoming, &metadata).await {
        erase_created(&state, &caller.scope, &session).await;
        return Err(problem);
    }
    show(&state, &caller, &session).await
}

/// Appends the initial items and metadata.
async fn fill(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    incoming: Incoming,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    store_blobs(state, caller, incoming.blobs).await?;
    let mut bodies = incoming.bodies;
    if !metadata.is_empty() {
        bodies.push(metadata_info(metadata).into());
    }
    if !bodies.is_empty() {
        state.engine.edits().inject(&caller.scope, session, bodies, InjectOptions::default()).await?;
    }
    Ok(())
}

/// Get a conversation without its items.
#[utoipa::path(get, path = "/v1/conversations/{conversation}", tag = "openai", params(("conversation" = String, Path)),
    responses((status = 200, body = wire::Conversation)))]
async fn get_conversation(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<wire::Conversation>> {
    state.audit_read(&caller, &session).await?;
    show(&state, &caller, &session).await
}

/// Replace a conversation's metadata.
#[utoipa::path(post, path = "/v1/conversations/{conversation}", tag = "openai", params(("conversation" = String, Path)),
    request_body = wire::ConversationPatch, responses((status = 200, body = wire::Conversation)))]
async fn update_conversation(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Body(patch): Body<wire::ConversationPatch>,
) -> Result<Json<wire::Conversation>> {
    check_metadata(&patch.metadata)?;
    let bodies = vec![metadata_info(&patch.metadata).into()];
    let options = InjectOptions { audited: Some("metadata"), ..InjectOptions::default() };
    state.engine.edits().inject(&caller.scope, &session, bodies, options).await?;
    show(&state, &caller, &session).await
}

/// Delete a conversation and its items permanently.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}", tag = "openai",
    params(("conversation" = String, Path)), responses((status = 200, body = wire::Deleted)))]
async fn delete_conversation(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<wire::Deleted>> {
    state.engine.sessions().erase(&caller.scope, &session).await?;
    let (id, object) = (session.to_string(), "conversation.deleted".to_owned());
    Ok(Json(wire::Deleted { id, object, deleted: true }))
}

fn metadata_info(metadata: &BTreeMap<String, String>) -> CustomInfo {
    let data = serde_json::to_value(metadata).unwrap_or_default();
    CustomInfo { custom_type: METADATA.to_owned(), data: CoreJson::from_value(&data) }
}

pub async fn show(state: &State, caller: &Caller, session: &SessionId) -> Result<Json<wire::Conversation>> {
    let summary = state.engine.directory().summary(&caller.scope, session).await?;
    Ok(Json(wire::Conversation {
        id: session.to_string(),
        object: "conversation".to_owned(),
        created_at: summary.created_at.0 / 1_000,
        metadata: metadata_of(state, caller, session).await?,
    }))
}

async fn metadata_of(
    state: &State,
    caller: &Caller,
    session: &SessionId,
) -> Result<BTreeMap<String, String>> {
    let (mut after, mut newest) = (Seq::ZERO, Value::Null);
    loop {
        let kinds = [Kind::CustomInfo];
        let records =
            state.engine.store().read_kinds(&caller.scope, session, &kinds, after, PAGE_RECORDS).await?;
        let is_last = records.len() < PAGE_RECORDS;
        for record in records {
            after = record.meta.seq;
            let body = record.decode().map_err(|error| Problem::new("store.damaged", error.to_string()))?;
            match body {
                EntryBody::CustomInfo(info) if info.custom_type == METADATA => newest = info.data.to_value(),
                _ => {}
            }
        }
        if is_last {
            return Ok(serde_json::from_value(newest).unwrap_or_default());
        }
    }
}
