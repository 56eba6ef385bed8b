//! Routes for the log: reading pages, and appending messages without a model.

use std::collections::VecDeque;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sapwood::core::Record;
use sapwood::core::entry::Meta;
use sapwood::core::port::store::is_full_page;
use sapwood::engine::edits::InjectOptions;
use sapwood::formats::{MessageIn, read_message_with_media};
use sapwood::{Seq, SessionId};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{appended, rows};
use crate::auth::Caller;
use crate::chunked::{ChunkSource, JsonChunk, LongRead, body_of};
use crate::extract::{AuditedPath, Params, PathParams, RawJson, header_text};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;
use crate::state::State;
use crate::wire;

const ROWS_MAX: u32 = 1_000;
/// Maximum number of messages per request.
const MESSAGES_MAX: usize = 1_000;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_entries, inject_entries))
}

#[derive(Serialize)]
struct EntryRow {
    seq: Seq,
    id: sapwood::EntryId,
    parent: Option<Seq>,
    at: sapwood::core::TimestampMs,
    by: sapwood::Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<sapwood::core::TurnId>,
    kind: &'static str,
    body: Box<RawValue>,
}

/// A page of entries that is being written.
struct EntryPage {
    read: LongRead,
    session: SessionId,
    after: Seq,
    /// The last entry of the page.
    end: Seq,
    next: Option<Seq>,
    records: VecDeque<Record>,
    stage: PageStage,
    chunk: JsonChunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageStage {
    Begin,
    Items,
    Over,
}

impl ChunkSource for EntryPage {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.stage == PageStage::Begin {
            self.chunk.text("{\"items\":[");
            self.stage = PageStage::Items;
        }
        while self.stage == PageStage::Items && !self.chunk.is_full() {
            if self.records.is_empty() && self.after < self.end {
                self.read_again().await?;
            }
            match self.records.pop_front() {
                Some(record) => {
                    self.after = record.meta.seq;
                    self.chunk.item(&entry_of(&self.session, record)?);
                }
                None => {
                    self.chunk.text(&format!("],\"next\":{}}}", json!(self.next)));
                    self.stage = PageStage::Over;
                }
            }
        }
        Ok(self.chunk.take())
    }

    fn release(&mut self) {
        self.records = VecDeque::new();
    }

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}

impl EntryPage {
    /// Reads the rest of a page that was released.
    async fn read_again(&mut self) -> Result<()> {
        self.read.recheck().await?;
        let (store, scope) = (self.read.state.engine.store(), &self.read.caller.scope);
        let limit = (self.end.0 - self.after.0) as usize;
        self.records = store.read_after(scope, &self.session, self.after, limit).await?.into();
        // Without the entry the page cannot be completed.
        if self.records.is_empty() {
            return Err(Problem::new("session.not_found", format!("no session `{}`", self.session)));
        }
        Ok(())
    }
}

/// List a session's log in order, including entries outside the tree.
#[utoipa::path(get, path = "/v1/sessions/{session}/entries", tag = "entries",
    params(("session" = String, Path), wire::ListEntries), responses((status = 200, body = wire::Entries)))]
async fn list_entries(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    Params(query): Params<wire::ListEntries>,
) -> Result<Response> {
    let limit = rows(query.limit, ROWS_MAX)?;
    let after = Seq(query.after.unwrap_or(0));
    let records = state.engine.store().read_after(&caller.scope, &session, after, limit).await?;
    let next = records.last().filter(|_| is_full_page(&records, limit)).map(|record| record.meta.seq);
    let body = body_of(EntryPage {
        read: LongRead::new(&state, &caller),
        session,
        after,
        end: records.last().map_or(after, |record| record.meta.seq),
        next,
        records: records.into(),
        stage: PageStage::Begin,
        chunk: JsonChunk::default(),
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], body.await?).into_response())
}

fn entry_of(session: &SessionId, record: Record) -> Result<EntryRow> {
    let damaged = |error: String| {
        let location = format!("entry {} of session {session}", record.meta.seq);
        Problem::new("store.damaged", format!("{location}: {error}"))
    };
    let text = String::from_utf8(record.body).map_err(|error| damaged(error.to_string()))?;
    let body = RawValue::from_string(text).map_err(|error| damaged(error.to_string()))?;
    let Meta { seq, id, parent, at, by, turn, kind } = record.meta;
    Ok(EntryRow { seq, id, parent, at, by, turn, kind: kind.as_str(), body })
}

/// Append messages without calling a model. Either all are appended or none.
#[utoipa::path(post, path = "/v1/sessions/{session}/entries", tag = "entries",
    params(("session" = String, Path), wire::InjectParams,
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the first result again")),
    request_body = wire::Injected, responses((status = 201, body = wire::Appended)))]
async fn inject_entries(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Params(query): Params<wire::InjectParams>,
    headers: HeaderMap,
    RawJson(bytes): RawJson,
) -> Result<(StatusCode, Json<wire::Appended>)> {
    let MessageIn { bodies, media } = message_of(&bytes)?;
    state.engine.edits().put_media(&caller.scope, &session, media).await?;
    let options = InjectOptions {
        expected_head: query.expected_head.map(Seq),
        idempotency_key: header_text(&headers, "idempotency-key")?.map(str::to_owned),
        audited: Some("inject"),
    };
    let done = state.engine.edits().inject(&caller.scope, &session, bodies, options).await?;
    Ok((StatusCode::CREATED, Json(appended(&done))))
}

/// Reads one message, or an array of messages, which are combined.
fn message_of(bytes: &[u8]) -> Result<MessageIn> {
    let not_json = |error: serde_json::Error| Problem::new("input.json", error.to_string());
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return read_message_with_media(bytes).or_else(|error| {
            // Malformed JSON is reported with the same error as on other routes.
            serde_json::from_slice::<IgnoredAny>(bytes).map_err(not_json)?;
            Err(error.into())
        });
    }
    let messages: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(not_json)?;
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        return Err(Problem::invalid(format!("the array must have 1 to {MESSAGES_MAX} messages")));
    }
    let mut all = MessageIn::default();
    for message in messages {
        let MessageIn { bodies, media } = read_message_with_media(message.get().as_bytes())?;
        all.bodies.extend(bodies);
        all.media.extend(media);
    }
    Ok(all)
}
