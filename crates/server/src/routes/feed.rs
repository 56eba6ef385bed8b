//! The feed of a session as one document that is sent while the log is read. For a slow client, the server keeps at
//! most one page of the log in memory, not the whole feed.

use std::collections::VecDeque;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sapwood::core::Record;
use sapwood::core::project::feed::{Feed, FeedItem};
use sapwood::core::project::path_marks::PathMarks;
use sapwood::core::tree::Head;
use sapwood::{Seq, SessionId};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::chunked::{ChunkSource, JsonChunk, LongRead, PageSize, body_of};
use crate::extract::{AuditedPath, Params};
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;
use crate::state::State;
use crate::wire;

/// Log bytes to read while a tool call waits for its outcome. After that, the call is sent without an outcome, and sent
/// again when the outcome is known.
const HELD_BYTES_MAX: usize = 1 << 20;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(get_feed))
}

/// Get the feed that an operator watches. An item replaces an earlier item with the same id.
#[utoipa::path(get, path = "/v1/sessions/{session}/feed", tag = "projections",
    params(("session" = String, Path), wire::FeedAfter), responses((status = 200, body = wire::Feed)))]
async fn get_feed(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
    Params(query): Params<wire::FeedAfter>,
) -> Result<Response> {
    let head = state.engine.directory().summary(&caller.scope, &session).await?.head;
    let after = Seq(query.after.unwrap_or(0));
    let body = body_of(FeedDocument::new(&state, &caller, session, head, after)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A feed that is being written.
struct FeedDocument {
    read: LongRead,
    session: SessionId,
    after: Seq,
    /// The end of the log and its leaf when the request arrived.
    head: Head,
    records: VecDeque<Record>,
    page_size: PageSize,
    feed: Feed,
    marks: PathMarks,
    held_bytes: usize,
    stage: FeedStage,
    chunk: JsonChunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedStage {
    Begin,
    Items,
    Over,
}

impl ChunkSource for FeedDocument {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.stage == FeedStage::Begin {
            self.chunk.text("{\"items\":[");
            self.stage = FeedStage::Items;
        }
        while self.stage == FeedStage::Items && !self.chunk.is_full() {
            match self.next_record().await? {
                Some(record) => self.apply(record)?,
                None => self.finish(),
            }
        }
        Ok(self.chunk.take())
    }

    fn release(&mut self) {
        (self.records, self.page_size) = (VecDeque::new(), PageSize::default());
    }

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}

impl FeedDocument {
    fn new(state: &State, caller: &Caller, session: SessionId, head: Head, after: Seq) -> Self {
        Self {
            read: LongRead::new(state, caller),
            session,
            after,
            head,
            records: VecDeque::new(),
            page_size: PageSize::default(),
            feed: Feed::default(),
            marks: PathMarks::default(),
            held_bytes: 0,
            stage: FeedStage::Begin,
            chunk: JsonChunk::default(),
        }
    }

    async fn next_record(&mut self) -> Result<Option<Record>> {
        if self.records.is_empty() {
            let limit = self.page_size.next(self.head.seq.0.saturating_sub(self.after.0) as usize);
            if limit > 0 {
                self.read.recheck().await?;
                let (store, scope) = (self.read.state.engine.store(), &self.read.caller.scope);
                self.records = store.read_after(scope, &self.session, self.after, limit).await?.into();
            }
        }
        Ok(self.records.pop_front())
    }

    fn apply(&mut self, record: Record) -> Result<()> {
        self.after = record.meta.seq;
        self.held_bytes += record.body.len();
        let entry = record.into_entry().map_err(|error| Problem::new("store.damaged", error.to_string()))?;
        self.feed.apply(&entry);
        self.marks.add(&entry.meta);
        let settled = match self.held_bytes > HELD_BYTES_MAX {
            true => self.feed.take_items(),
            false => self.feed.take_settled(),
        };
        if self.feed.items.is_empty() {
            self.held_bytes = 0;
        }
        self.write(&settled);
        Ok(())
    }

    fn finish(&mut self) {
        let rest = self.feed.take_items();
        self.write(&rest);
        let off_path = json!(self.marks.off_path(self.head.leaf));
        let (seq, open_turn) = (self.head.seq, json!(self.feed.open_turn));
        let rest = format!(r#"],"seq":{seq},"open_turn":{open_turn},"off_path":{off_path}}}"#);
        self.chunk.text(&rest);
        self.stage = FeedStage::Over;
    }

    fn write(&mut self, items: &[FeedItem]) {
        items.iter().for_each(|item| self.chunk.item(item));
    }
}
