//! The feed of a session as one document that is sent while the log is read. For a slow client, the server keeps one
//! page of the log in memory, not the whole feed.

use std::collections::VecDeque;
use std::time::Instant;

use axum::body::Body;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use sapwood::core::Record;
use sapwood::core::project::feed::{Feed, FeedItem};
use sapwood::core::project::path_marks::PathMarks;
use sapwood::core::tree::Head;
use sapwood::{Seq, SessionId};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{AuditedPath, Params};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Entries per store read. The store also limits the bytes per read.
const PAGE_RECORDS: usize = 500;
/// Minimum size of a sent chunk, except for the last chunk.
const SENT_BYTES_MIN: usize = 64 << 10;
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
    let mut document = FeedDocument::new(&state, caller, session, head);
    document.after = Seq(query.after.unwrap_or(0));
    // An error in the first chunk can still be sent as a problem response.
    let first = document.next().await?.unwrap_or_default();
    let body = match document.stage {
        FeedStage::Over => Body::from(first),
        FeedStage::Begin | FeedStage::Items => {
            Body::from_stream(stream::iter([Ok(first)]).chain(stream_rest(document)))
        }
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A feed that is being written.
struct FeedDocument {
    state: State,
    caller: Caller,
    /// When the caller's credential was last checked.
    checked_at: Instant,
    session: SessionId,
    after: Seq,
    /// The end of the log and its leaf when the request arrived.
    head: Head,
    records: VecDeque<Record>,
    feed: Feed,
    marks: PathMarks,
    held_bytes: usize,
    stage: FeedStage,
    is_empty: bool,
    written: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedStage {
    Begin,
    Items,
    Over,
}

impl FeedDocument {
    fn new(state: &State, caller: Caller, session: SessionId, head: Head) -> Self {
        Self {
            state: state.clone(),
            caller,
            checked_at: Instant::now(),
            session,
            after: Seq::ZERO,
            head,
            records: VecDeque::new(),
            feed: Feed::default(),
            marks: PathMarks::default(),
            held_bytes: 0,
            stage: FeedStage::Begin,
            is_empty: true,
            written: Vec::new(),
        }
    }

    /// Returns the next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.stage == FeedStage::Begin {
            self.written.extend_from_slice(b"{\"items\":[");
            self.stage = FeedStage::Items;
        }
        while self.stage == FeedStage::Items && self.written.len() < SENT_BYTES_MIN {
            match self.next_record().await? {
                Some(record) => self.apply(record)?,
                None => self.finish(),
            }
        }
        Ok(Some(Bytes::from(std::mem::take(&mut self.written))).filter(|chunk| !chunk.is_empty()))
    }

    async fn next_record(&mut self) -> Result<Option<Record>> {
        if self.records.is_empty() {
            let limit = PAGE_RECORDS.min(self.head.seq.0.saturating_sub(self.after.0) as usize);
            if limit > 0 {
                self.recheck().await?;
                let store = self.state.engine.store();
                self.records =
                    store.read_after(&self.caller.scope, &self.session, self.after, limit).await?.into();
            }
        }
        Ok(self.records.pop_front())
    }

    /// Checks the caller's key again at heartbeat intervals: the key may be revoked during a slow download.
    async fn recheck(&mut self) -> Result<()> {
        if self.checked_at.elapsed() >= self.state.settings.heartbeat {
            self.state.auth.recheck(&self.caller).await?;
            self.checked_at = Instant::now();
        }
        Ok(())
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
        self.written.extend_from_slice(rest.as_bytes());
        self.stage = FeedStage::Over;
    }

    fn write(&mut self, items: &[FeedItem]) {
        for item in items {
            if !std::mem::take(&mut self.is_empty) {
                self.written.push(b',');
            }
            serde_json::to_writer(&mut self.written, item).expect("feed items serialize to JSON");
        }
    }
}

/// Streams the rest of the feed. An error aborts the connection, so that clients do not accept a partial feed.
fn stream_rest(document: FeedDocument) -> impl futures_core::Stream<Item = std::io::Result<Bytes>> {
    stream::unfold(Some(document), |document| async move {
        let mut document = document?;
        match document.next().await {
            Ok(Some(chunk)) => Some((Ok(chunk), Some(document))),
            Ok(None) => None,
            Err(problem) => {
                problem.log(document.caller.request);
                Some((Err(std::io::Error::other(problem.code)), None))
            }
        }
    })
}
