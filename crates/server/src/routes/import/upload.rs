//! An uploaded file. Its format is detected from the first bytes. The file is then imported in chunks, or as a whole if
//! the format requires it. Buffered bytes count toward the upload quota.

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use sapwood::engine::import::BATCH_BYTES as WRITTEN_BYTES;
use sapwood::formats::import::detect::PEEK_BYTES;
use sapwood::formats::import::{Format, LINE_BYTES_MAX};

use crate::auth::Caller;
use crate::byte_quota::QuotaGuard;
use crate::extract::IncomingBody;
use crate::problem::{Problem, Result};
use crate::share::Holder;
use crate::state::State;

pub struct Upload<'a> {
    state: &'a State,
    incoming: IncomingBody,
    /// Bytes that are received but not yet consumed.
    head: BytesMut,
    quota: QuotaGuard,
    received_bytes: usize,
    /// Why the upload was interrupted, if it was. Reported after the received bytes are consumed.
    failure: Option<Problem>,
}

impl<'a> Upload<'a> {
    pub async fn open(state: &'a State, caller: &Caller, request: Request) -> Result<Self> {
        let incoming = IncomingBody::of(request, "a file", state.settings.upload_bytes_max).await?;
        let quota = state.upload_quota.guard(Holder::principal(&caller.scope));
        let head = BytesMut::new();
        Ok(Self { state, incoming, head, quota, received_bytes: 0, failure: None })
    }

    /// Reads enough bytes to detect the format.
    pub async fn read_prefix(&mut self) {
        while self.head.len() < PEEK_BYTES && self.read_more().await {}
    }

    /// Returns the bytes for format detection: the beginning of the file, or a shorter file completely.
    pub fn beginning(&self) -> &[u8] {
        &self.head[..self.head.len().min(PEEK_BYTES)]
    }

    /// Takes the error if the upload was interrupted during format detection.
    pub fn take_failure(&mut self) -> Option<Problem> {
        self.failure.take()
    }

    /// Whether the file is one document. Reads the whole first line, which may be longer than the detection prefix.
    pub async fn is_document(&mut self, format: Format) -> bool {
        if !format.is_document(b"") {
            return false;
        }
        // Scans every byte only once, even if the chunks are small.
        let (mut begin, mut scanned_bytes) = (None, 0);
        loop {
            let unscanned = &self.head[scanned_bytes..];
            begin = begin.or_else(|| {
                unscanned.iter().position(|byte| !byte.is_ascii_whitespace()).map(|at| scanned_bytes + at)
            });
            let unscanned = &self.head[begin.map_or(self.head.len(), |begin| begin.max(scanned_bytes))..];
            let end = unscanned
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|at| self.head.len() - unscanned.len() + at);
            scanned_bytes = self.head.len();
            let line = begin.map(|begin| begin..end.unwrap_or(scanned_bytes));
            let is_long = line.as_ref().is_some_and(|line| line.len() > LINE_BYTES_MAX);
            if end.is_some() || is_long || !self.read_more().await {
                return format.is_document(line.map_or(&[], |line| &self.head[line]));
            }
        }
    }

    /// Reads the whole file.
    pub async fn read_all(&mut self) -> Result<Bytes> {
        while self.read_more().await {}
        self.failure.take().map_or_else(|| Ok(self.head.split().freeze()), Err)
    }

    /// Returns the next bytes, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.head.is_empty() && !self.read_more().await {
            return self.failure.take().map_or(Ok(None), Err);
        }
        Ok(Some(self.head.split().freeze()))
    }

    /// Releases the quota for stored bytes. `held_bytes` and the bytes batched for the next append still count.
    pub fn release_stored(&mut self, held_bytes: usize) {
        let batched_bytes = self.received_bytes.min(WRITTEN_BYTES);
        self.quota.shrink_to(self.head.len() + held_bytes + batched_bytes);
    }

    /// Reads and discards the rest of the upload: the client may write its whole body before it reads the response.
    pub async fn discard_rest(&mut self) {
        self.head.clear();
        self.quota.shrink_to(0);
        self.incoming.discard_rest().await;
    }

    /// Reads more bytes. Returns false at the end or on an error.
    async fn read_more(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let received = self.incoming.next(self.state.settings.request_time_max).await;
        let buffered = received.and_then(|received| received.map(|bytes| self.buffer(&bytes)).transpose());
        buffered
            .unwrap_or_else(|problem| {
                self.failure = Some(problem);
                None
            })
            .is_some()
    }

    fn buffer(&mut self, bytes: &[u8]) -> Result<()> {
        self.quota.grow(bytes.len())?;
        self.received_bytes += bytes.len();
        self.head.extend_from_slice(bytes);
        Ok(())
    }
}
