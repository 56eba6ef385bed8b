//! An uploaded file. Its format is detected from the first bytes. The file is then imported in chunks, or as a whole if
//! the format requires it. Buffered bytes count toward the upload quota.

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use sapwood::engine::import::BATCH_BYTES as WRITTEN_BYTES;
use sapwood::formats::import::detect::PEEK_BYTES;
use sapwood::formats::import::{Format, LINE_BYTES_MAX};

use crate::auth::Caller;
use crate::extract::Incoming;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::upload_quota::QuotaGuard;

pub struct Upload<'a> {
    state: &'a State,
    incoming: Incoming,
    /// Bytes that are received but not yet consumed.
    head: BytesMut,
    held: QuotaGuard<'a>,
    came_bytes: usize,
    /// Bytes received since the previous [`Upload::settle`].
    unsettled_bytes: usize,
    /// Why the upload was interrupted, if it was. Reported after the received bytes are consumed.
    broken: Option<Problem>,
}

impl<'a> Upload<'a> {
    pub async fn open(state: &'a State, caller: &Caller, request: Request) -> Result<Self> {
        let incoming = Incoming::of(request, "a file", state.settings.upload_bytes_max).await?;
        let (head, held) = (BytesMut::new(), state.room.enter(&caller.scope));
        Ok(Self { state, incoming, head, held, came_bytes: 0, unsettled_bytes: 0, broken: None })
    }

    /// Reads enough bytes to detect the format.
    pub async fn look(&mut self) {
        while self.head.len() < PEEK_BYTES && self.read_on().await {}
    }

    /// Returns the bytes for format detection: the beginning of the file, or a shorter file completely.
    pub fn beginning(&self) -> &[u8] {
        &self.head[..self.head.len().min(PEEK_BYTES)]
    }

    /// Takes the error if the upload was interrupted during format detection.
    pub fn take_broken(&mut self) -> Option<Problem> {
        self.broken.take()
    }

    /// Whether the file is one document. Reads the whole first line, which may be longer than the sniffed prefix.
    pub async fn is_document(&mut self, format: Format) -> bool {
        if !format.is_document(b"") {
            return false;
        }
        // Scans every byte only once, even if the chunks are small.
        let (mut begin, mut looked_bytes) = (None, 0);
        loop {
            let unseen = &self.head[looked_bytes..];
            begin = begin.or_else(|| {
                unseen.iter().position(|byte| !byte.is_ascii_whitespace()).map(|at| looked_bytes + at)
            });
            let unseen = &self.head[begin.map_or(self.head.len(), |begin| begin.max(looked_bytes))..];
            let end =
                unseen.iter().position(|byte| *byte == b'\n').map(|at| self.head.len() - unseen.len() + at);
            looked_bytes = self.head.len();
            let line = begin.map(|begin| begin..end.unwrap_or(looked_bytes));
            let is_long = line.as_ref().is_some_and(|line| line.len() > LINE_BYTES_MAX);
            if end.is_some() || is_long || !self.read_on().await {
                return format.is_document(line.map_or(&[], |line| &self.head[line]));
            }
        }
    }

    /// Reads the whole file.
    pub async fn read_all(&mut self) -> Result<Bytes> {
        while self.read_on().await {}
        self.broken.take().map_or_else(|| Ok(self.head.split().freeze()), Err)
    }

    /// Returns the next bytes, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.head.is_empty() && !self.read_on().await {
            return self.broken.take().map_or(Ok(None), Err);
        }
        Ok(Some(self.head.split().freeze()))
    }

    pub fn unsettled_bytes(&self) -> usize {
        self.unsettled_bytes
    }

    /// Releases the quota for stored bytes. `held_bytes` and the bytes batched for the next append still count.
    pub fn settle(&mut self, held_bytes: usize) {
        self.unsettled_bytes = 0;
        let gathered_bytes = self.came_bytes.min(WRITTEN_BYTES);
        self.held.shrink_to(self.head.len() + held_bytes + gathered_bytes);
    }

    /// Reads and discards the rest of the upload: the client may write its whole body before it reads the response.
    pub async fn drop_rest(&mut self) {
        self.head.clear();
        self.held.shrink_to(0);
        self.incoming.drop_rest().await;
    }

    /// Reads more bytes. Returns false at the end or on an error.
    async fn read_on(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let came = self.incoming.next(self.state.settings.request_time_max).await;
        let held = came.and_then(|came| came.map(|bytes| self.hold(&bytes)).transpose());
        held.unwrap_or_else(|problem| {
            self.broken = Some(problem);
            None
        })
        .is_some()
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<()> {
        self.held.grow(bytes.len())?;
        self.came_bytes += bytes.len();
        self.unsettled_bytes += bytes.len();
        self.head.extend_from_slice(bytes);
        Ok(())
    }
}
