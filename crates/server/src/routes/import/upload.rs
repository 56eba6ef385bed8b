//! A file as it comes: looked at first, then taken in piece by piece, or whole where it must be. What is held of it counts in
//! the server's room.

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use sapwood::engine::import::BATCH_BYTES as WRITTEN_BYTES;
use sapwood::formats::import::detect::PEEK_BYTES;
use sapwood::formats::import::{Format, LINE_BYTES_MAX};

use crate::extract::Incoming;
use crate::problem::Result;
use crate::room::Held;
use crate::state::State;

pub struct Upload<'a> {
    state: &'a State,
    incoming: Incoming,
    /// Its beginning, until somebody takes it.
    head: BytesMut,
    held: Held<'a>,
    came_bytes: usize,
    /// What came since it was last said that everything is settled.
    unsettled_bytes: usize,
}

impl<'a> Upload<'a> {
    /// Reads as much as is looked at to tell what it is.
    pub async fn open(state: &'a State, request: Request) -> Result<Self> {
        let incoming = Incoming::of(request, "a file", state.settings.upload_bytes_max).await?;
        let (head, held) = (BytesMut::new(), state.room.enter());
        let mut upload = Self { state, incoming, head, held, came_bytes: 0, unsettled_bytes: 0 };
        while upload.head.len() < PEEK_BYTES && upload.read_on().await? {}
        Ok(upload)
    }

    /// What is looked at: the beginning, or all there is if that is less.
    pub fn beginning(&self) -> &[u8] {
        &self.head[..self.head.len().min(PEEK_BYTES)]
    }

    /// Whether it is one document, by the whole of its first line, which may be longer than what is looked at.
    pub async fn is_document(&mut self, format: Format) -> Result<bool> {
        if !format.is_document(b"") {
            return Ok(false);
        }
        let mut looked_bytes = 0;
        loop {
            let begin = self.head.iter().position(|byte| !byte.is_ascii_whitespace());
            let begin = begin.unwrap_or(self.head.len());
            let unseen = &self.head[looked_bytes.max(begin)..];
            let end = unseen.iter().position(|byte| *byte == b'\n').map(|at| looked_bytes.max(begin) + at);
            looked_bytes = self.head.len();
            let is_long = looked_bytes - begin > LINE_BYTES_MAX;
            if end.is_some() || is_long || !self.read_on().await? {
                return Ok(format.is_document(&self.head[begin..end.unwrap_or(looked_bytes)]));
            }
        }
    }

    /// All of it.
    pub async fn read_all(&mut self) -> Result<Bytes> {
        while self.read_on().await? {}
        Ok(self.head.split().freeze())
    }

    /// The bytes that come next; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.head.is_empty() && !self.read_on().await? {
            return Ok(None);
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

    async fn read_on(&mut self) -> Result<bool> {
        let Some(bytes) = self.incoming.next(self.state.settings.request_time_max).await? else {
            return Ok(false);
        };
        self.held.grow(bytes.len())?;
        self.came_bytes += bytes.len();
        self.unsettled_bytes += bytes.len();
        self.head.extend_from_slice(&bytes);
        Ok(true)
    }
}
