//! Responses of any length that are sent in chunks while they are read from the store. A task reads ahead by one chunk.
//! While a client does not read, the task drops its page of the log and reads it again later, so that stalled clients
//! hold a few chunks each.

use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::auth::Caller;
use crate::problem::Result;
use crate::request_id::RequestId;
use crate::state::State;

/// Minimum size of a chunk, except for the last one.
pub const CHUNK_BYTES_MIN: usize = 8 << 10;
/// Entries of the first and of the largest store read.
const PAGE_RECORDS_MIN: usize = 32;
const PAGE_RECORDS_MAX: usize = 128;
/// Time after which a client that does not read counts as stalled.
const STALL_TIME: Duration = Duration::from_millis(500);

/// A document that is produced in chunks.
pub trait ChunkSource: Send + 'static {
    /// Returns the next chunk, or `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send;
    /// Drops what can be read again.
    fn release(&mut self);
    /// Returns the request, for the log.
    fn request(&self) -> RequestId;
}

/// Returns the body of a document. An error in the first two chunks is still sent as a problem. A later error aborts
/// the connection, so that clients do not accept a partial document.
pub async fn body_of(mut source: impl ChunkSource) -> Result<Body> {
    let Some(first) = source.next().await? else { return Ok(Body::empty()) };
    let Some(second) = source.next().await? else { return Ok(Body::from(first)) };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(send_all(source, [first, second], sender));
    let rest = stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Message::Chunk(chunk)) => Some((Ok(chunk), Some(receiver))),
            Some(Message::End) => None,
            Some(Message::Failed(code)) => Some((Err(std::io::Error::other(code)), None)),
            // The task ended without a message, because it panicked.
            None => Some((Err(std::io::Error::other("server.panicked")), None)),
        }
    });
    Ok(Body::from_stream(rest))
}

enum Message {
    Chunk(Bytes),
    End,
    Failed(&'static str),
}

/// Sends the chunks until the end, an error, or until the client has disconnected.
async fn send_all(mut source: impl ChunkSource, first: [Bytes; 2], sender: mpsc::Sender<Message>) {
    for chunk in first {
        if sender.send(Message::Chunk(chunk)).await.is_err() {
            return;
        }
    }
    loop {
        let permit = match tokio::time::timeout(STALL_TIME, sender.reserve()).await {
            Ok(permit) => permit,
            Err(_) => {
                source.release();
                sender.reserve().await
            }
        };
        let Ok(permit) = permit else { return };
        match source.next().await {
            Ok(Some(chunk)) => permit.send(Message::Chunk(chunk)),
            Ok(None) => return permit.send(Message::End),
            Err(problem) => {
                problem.log(source.request());
                return permit.send(Message::Failed(problem.code));
            }
        }
    }
}

/// Entries per store read. The first read is small, because most stalled clients never get further.
pub struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        Self(PAGE_RECORDS_MIN)
    }
}

impl PageSize {
    /// Returns the size of the next page, at most `limit`.
    pub fn next(&mut self, limit: usize) -> usize {
        let size = self.0;
        self.0 = (size * 2).min(PAGE_RECORDS_MAX);
        size.min(limit)
    }
}

/// The caller of a long response. Its key is checked again while the response is sent.
pub struct LongRead {
    pub state: State,
    pub caller: Caller,
    checked_at: Instant,
}

impl LongRead {
    pub fn new(state: &State, caller: &Caller) -> Self {
        Self { state: state.clone(), caller: caller.clone(), checked_at: Instant::now() }
    }

    /// Checks the caller's key again at heartbeat intervals: the key may be revoked during a slow download.
    pub async fn recheck(&mut self) -> Result<()> {
        if self.checked_at.elapsed() >= self.state.settings.heartbeat {
            self.state.auth.recheck(&self.caller).await?;
            self.checked_at = Instant::now();
        }
        Ok(())
    }
}

/// The bytes of a JSON document that are not sent yet.
#[derive(Default)]
pub struct JsonChunk {
    written: Vec<u8>,
    has_items: bool,
}

impl JsonChunk {
    pub fn text(&mut self, text: &str) {
        self.written.extend_from_slice(text.as_bytes());
    }

    /// Writes the next item of the document's list.
    pub fn item(&mut self, item: &impl Serialize) {
        if std::mem::replace(&mut self.has_items, true) {
            self.written.push(b',');
        }
        serde_json::to_writer(&mut self.written, item).expect("wire types serialize to JSON");
    }

    pub fn is_full(&self) -> bool {
        self.written.len() >= CHUNK_BYTES_MIN
    }

    /// Takes the written bytes in a buffer of exactly their size.
    pub fn take(&mut self) -> Option<Bytes> {
        let chunk = (!self.written.is_empty()).then(|| Bytes::copy_from_slice(&self.written));
        self.written = Vec::new();
        chunk
    }
}
