//! The items of a conversation: the entries on the path to the session's leaf. Deleting an item creates a branch
//! without the item: the leaf moves to the preceding entry, and the later entries are appended again with new ids. The
//! log keeps the original entries.

use axum::extract::State as Shared;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sapwood::SessionId;
use sapwood::core::entry::codec::CodecError;
use sapwood::core::entry::{AssistantMessage, Body as EntryBody, LeafMoved};
use sapwood::core::port::store::Appended;
use sapwood::core::{Entry, Kind, StoreError};
use sapwood::engine::edits::InjectOptions;
use sapwood::formats::responses::ItemId;
use sapwood::formats::responses::items::{BLOB_SCHEME, Item, Items};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::conversations::show;
use super::new_items::{read_new_items, store_blobs};
use crate::auth::Caller;
use crate::extract::{Body, Params, PathParams, header_text};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire::openai as wire;

const ROWS_DEFAULT: u32 = 20;
const ROWS_MAX: u32 = 100;
/// A page ends when its media exceed this size.
const PAGE_MEDIA_BYTES: usize = 16 << 20;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_items, create_items)).routes(routes!(get_item, delete_item))
}

/// Add items to a conversation. Either all are added or none.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/items", tag = "openai",
    params(("conversation" = String, Path)), request_body = wire::NewItems,
    responses((status = 200, body = wire::ItemList)))]
async fn create_items(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    headers: HeaderMap,
    Body(new): Body<wire::NewItems>,
) -> Result<Json<wire::ItemList>> {
    let incoming = read_new_items(new.items)?;
    if incoming.bodies.is_empty() {
        state.engine.directory().check_right(&caller.scope, &session, sapwood::core::Right::Write).await?;
        return Ok(Json(list_of(Vec::new(), false)));
    }
    let options = InjectOptions {
        idempotency_key: header_text(&headers, "idempotency-key")?.map(str::to_owned),
        audited: Some("items"),
        ..InjectOptions::default()
    };
    // Check the right to write before blobs are stored.
    state.engine.directory().check_right(&caller.scope, &session, sapwood::core::Right::Write).await?;
    store_blobs(&state, &caller, incoming.blobs).await?;
    let done = state.engine.edits().inject(&caller.scope, &session, incoming.bodies, options).await?;
    let mut items = Items::default();
    read_appended(&state, &caller, &session, &done).await?.iter().for_each(|entry| items.apply(entry));
    let items = embed_all(&state, &caller, items.list).await?;
    Ok(Json(list_of(items, false)))
}

/// Reads the entries that this request, or the first request with the same idempotency key, has appended.
async fn read_appended(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    done: &Appended,
) -> Result<Vec<Entry>> {
    let mut entries = Vec::with_capacity(done.entries.len());
    for (seq, _) in &done.entries {
        let record = state.engine.store().read_entry(&caller.scope, session, *seq).await?;
        let damaged = |error: CodecError| Problem::new("store.damaged", error.to_string());
        entries.push(record.into_entry().map_err(damaged)?);
    }
    Ok(entries)
}

/// List a conversation's items, newest first by default.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/items", tag = "openai",
    params(("conversation" = String, Path), wire::ListItems), responses((status = 200, body = wire::ItemList)))]
async fn list_items(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Params(query): Params<wire::ListItems>,
) -> Result<Json<wire::ItemList>> {
    let all = path_items(&state, &caller, &session).await?;
    let (page, has_more) = page_of(all.list, &query)?;
    Ok(Json(embed_page(&state, &caller, page, has_more).await?))
}

/// Get an item.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/items/{item}", tag = "openai",
    params(("conversation" = String, Path), ("item" = String, Path)), responses((status = 200, body = wire::Item)))]
async fn get_item(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams((session, item)): PathParams<(SessionId, String)>,
) -> Result<Json<Value>> {
    let all = path_items(&state, &caller, &session).await?;
    let found = find_item(&all.list, &session, &item)?.clone();
    Ok(Json(embed_all(&state, &caller, vec![found]).await?.pop().unwrap_or_default()))
}

/// Delete an item. The conversation continues on a branch without it.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/items/{item}", tag = "openai",
    params(("conversation" = String, Path), ("item" = String, Path)),
    responses((status = 200, body = wire::Conversation)))]
async fn delete_item(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams((session, item)): PathParams<(SessionId, String)>,
) -> Result<Json<wire::Conversation>> {
    let (engine, scope) = (&state.engine, &caller.scope);
    engine.directory().check_right(scope, &session, sapwood::core::Right::Write).await?;
    let head = engine.directory().summary(scope, &session).await?.head.seq;
    let path = engine.views().path(scope, &session, None).await?;
    let bodies = without_item(&session, &path, &item)?;
    let audited = Some("item deleted");
    let options = InjectOptions { expected_head: Some(head), audited, ..InjectOptions::default() };
    engine.edits().inject(scope, &session, bodies, options).await?;
    show(&state, &caller, &session).await
}

/// Returns the entries of a branch without the item: a move of the leaf, the other parts of the item's entry, and copies
/// of all later entries.
fn without_item(session: &SessionId, path: &[Entry], item: &str) -> Result<Vec<EntryBody>> {
    let mut items = Items::default();
    path.iter().for_each(|entry| items.apply(entry));
    let found = find_item(&items.list, session, item)?;
    let at = path.iter().position(|entry| entry.meta.id == found.entry).unwrap_or(0);
    let before = at.checked_sub(1).map(|before| path[before].meta.id);
    let mut bodies: Vec<EntryBody> = vec![LeafMoved { to: before }.into()];
    if let EntryBody::AssistantMessage(answer) = &path[at].body {
        let mut parts = answer.parts.clone();
        parts.drain(found.parts.clone());
        if !parts.is_empty() {
            bodies.push(AssistantMessage { parts, ..answer.clone() }.into());
        }
    }
    for entry in &path[at + 1..] {
        if matches!(entry.meta.kind, Kind::Compaction | Kind::BranchSummary | Kind::Graft) {
            let why = "later entries refer to this item: a compaction, a branch summary or a graft";
            return Err(Problem::new("entry.misplaced", why));
        }
        bodies.push(entry.body.clone());
    }
    Ok(bodies)
}

async fn path_items(state: &State, caller: &Caller, session: &SessionId) -> Result<Items> {
    state.audit_read(caller, session).await?;
    let mut items = Items::default();
    state
        .engine
        .views()
        .path(&caller.scope, session, None)
        .await?
        .iter()
        .for_each(|entry| items.apply(entry));
    Ok(items)
}

fn find_item<'i>(items: &'i [Item], session: &SessionId, id: &str) -> Result<&'i Item> {
    let wanted = ItemId::parse(id);
    let found = items.iter().find(|item| Some(item.id) == wanted);
    found.ok_or_else(|| {
        Problem::new("entry.not_found", format!("conversation `{session}` has no item `{id:.80}`"))
    })
}

/// Returns a page of items in the requested order.
pub fn page_of(mut items: Vec<Item>, query: &wire::ListItems) -> Result<(Vec<Item>, bool)> {
    let limit = match query.limit.unwrap_or(ROWS_DEFAULT) {
        limit if limit == 0 || limit > ROWS_MAX => {
            return Err(Problem::invalid(format!("limit must be from 1 to {ROWS_MAX}, not {limit}")));
        }
        limit => limit as usize,
    };
    if query.order.unwrap_or_default() == wire::Order::Desc {
        items.reverse();
    }
    let begin = match &query.after {
        None => 0,
        Some(after) => {
            let wanted = ItemId::parse(after);
            let found = items.iter().position(|item| Some(item.id) == wanted);
            let unknown = || Problem::new("entry.not_found", format!("no item `{after:.80}` in this list"));
            found.ok_or_else(unknown)? + 1
        }
    };
    let has_more = items.len() > begin + limit;
    Ok((items.into_iter().skip(begin).take(limit).collect(), has_more))
}

pub fn list_of(values: Vec<Value>, has_more: bool) -> wire::ItemList {
    let data: Vec<wire::Item> =
        values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect();
    wire::ItemList {
        object: "list".to_owned(),
        first_id: data.first().map(|item| item.id.clone()),
        last_id: data.last().map(|item| item.id.clone()),
        data,
        has_more,
    }
}

/// Embeds the media of a page. The page ends early if the media are large, but has at least one item.
pub async fn embed_page(
    state: &State,
    caller: &Caller,
    page: Vec<Item>,
    has_more: bool,
) -> Result<wire::ItemList> {
    let (requested, mut bytes, mut values) = (page.len(), 0, Vec::new());
    for item in page {
        let embedded = embed_all(state, caller, vec![item]).await?;
        bytes += embedded.iter().map(media_bytes).sum::<usize>();
        values.extend(embedded);
        if bytes >= PAGE_MEDIA_BYTES {
            break;
        }
    }
    let is_cut = values.len() < requested;
    Ok(list_of(values, has_more || is_cut))
}

/// Returns the size of an item's media.
fn media_bytes(value: &Value) -> usize {
    let parts = ["content", "output"].into_iter().filter_map(|list| value.get(list)?.as_array()).flatten();
    let urls = parts
        .flat_map(|part| ["image_url", "file_data"].into_iter().filter_map(|key| part.get(key)?.as_str()));
    urls.map(str::len).sum()
}

pub async fn embed_all(state: &State, caller: &Caller, items: Vec<Item>) -> Result<Vec<Value>> {
    let mut values = Vec::with_capacity(items.len());
    for mut item in items {
        for list in ["content", "output"] {
            let parts = item.value.get_mut(list).and_then(Value::as_array_mut);
            for part in parts.into_iter().flatten() {
                embed(state, caller, part).await?;
            }
        }
        values.push(item.value);
    }
    Ok(values)
}

/// Replaces blob references with data URLs, as OpenAI's clients expect.
async fn embed(state: &State, caller: &Caller, part: &mut Value) -> Result<()> {
    for key in ["image_url", "file_data"] {
        let Some(named) = part.get(key).and_then(Value::as_str).and_then(|url| url.strip_prefix(BLOB_SCHEME))
        else {
            continue;
        };
        // A client may have sent such a URL as text, so references to unknown blobs stay unchanged.
        let Some((Ok(hash), mime)) = named.split_once(';').map(|(hash, mime)| (hash.parse(), mime)) else {
            continue;
        };
        let bytes = match state.engine.store().get_blob(&caller.scope, hash).await {
            Err(StoreError::NoBlob { .. }) => continue,
            bytes => bytes?,
        };
        part[key] = json!(format!("data:{mime};base64,{}", STANDARD.encode(bytes)));
    }
    Ok(())
}
