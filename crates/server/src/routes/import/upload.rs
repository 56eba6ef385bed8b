//! A file as it comes: looked at first, then taken in piece by piece, or whole where it must be. What is held of it counts in
//! the server's room.

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
    /// Its beginning, until somebody takes it.
    head: BytesMut,
    held: QuotaGuard<'a>,
    came_bytes: usize,
    /// What came since it was last said that everything is settled.
    unsettled_bytes: usize,
    /// Why nothing more comes, if that is not its end. Told once what came before was taken.
    broken: Option<Problem>,
}

impl<'a> Upload<'a> {
    pub async fn open(state: &'a State, caller: &Caller, request: Request) -> Result<Self> {
        let incoming = Incoming::of(request, "a file", state.settings.upload_bytes_max).await?;
        let (head, held) = (BytesMut::new(), state.room.enter(&caller.scope));
        Ok(Self { state, incoming, head, held, came_bytes: 0, unsettled_bytes: 0, broken: None })
    }

    /// Reads as much as is looked at to tell what it is.
    pub async fn look(&mut self) {
        while self.head.len() < PEEK_BYTES && self.read_on().await {}
    }

    /// What is looked at: the beginning, or all there is if that is less.
    pub fn beginning(&self) -> &[u8] {
        &self.head[..self.head.len().min(PEEK_BYTES)]
    }

    /// Why less than what is looked at has come, if that is not all there is.
    pub fn take_broken(&mut self) -> Option<Problem> {
        self.broken.take()
    }

    /// Whether it is one document, by the whole of its first line, which may be longer than what is looked at.
    pub async fn is_document(&mut self, format: Format) -> bool {
        if !format.is_document(b"") {
            return false;
        }
        // Each byte is looked at once, however small the pieces are that it comes in.
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

    /// All of it.
    pub async fn read_all(&mut self) -> Result<Bytes> {
        while self.read_on().await {}
        self.broken.take().map_or_else(|| Ok(self.head.split().freeze()), Err)
    }

    /// The bytes that come next; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.head.is_empty() && !self.read_on().await {
            return self.broken.take().map_or(Ok(None), Err);
        }
        Ok(Some(self.head.split().freeze()))
    }

    pub fn unsettled_bytes(&self) -> usize {
        self.unsettled_bytes
    }

    /// Everything that was taken is on its way into the store, but for so many bytes. What is gathered there for the next
    /// append still counts.
    pub fn settle(&mut self, held_bytes: usize) {
        self.unsettled_bytes = 0;
        let gathered_bytes = self.came_bytes.min(WRITTEN_BYTES);
        self.held.shrink_to(self.head.len() + held_bytes + gathered_bytes);
    }

    /// The rest is of no interest, and is taken all the same: its sender may be writing before it reads the answer.
    pub async fn drop_rest(&mut self) {
        self.head.clear();
        self.held.shrink_to(0);
        self.incoming.drop_rest().await;
    }

    /// Whether more came.
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
