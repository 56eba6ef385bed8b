//! Read a blob in order, one chunk at a time, so that a copied, exported or served blob is never fully in
//! memory.

use std::sync::Arc;

use sapwood_core::port::store::{BLOB_CHUNK_BYTES_MAX, StoreError};
use sapwood_core::{BlobHash, Scope, Store};

use crate::Result;
use crate::views::Views;

/// Reads a blob, or a range of it, sequentially.
pub struct BlobReader {
    store: Arc<dyn Store>,
    scope: Scope,
    blob: BlobHash,
    at: u64,
    end: u64,
}

impl Views<'_> {
    /// Open a blob for chunked reading. Fails if the caller may not read it.
    pub async fn open_blob(self, scope: &Scope, blob: BlobHash) -> Result<BlobReader> {
        BlobReader::open(&self.engine.store, scope, blob).await
    }
}

impl BlobReader {
    pub async fn open(store: &Arc<dyn Store>, scope: &Scope, blob: BlobHash) -> Result<Self> {
        let end = store.blob_size(scope, blob).await?;
        Ok(Self { store: Arc::clone(store), scope: scope.clone(), blob, at: 0, end })
    }

    /// Limit reading to the bytes from `from` up to, but excluding, `end`.
    pub fn within(mut self, from: u64, end: u64) -> Self {
        self.end = end.min(self.end);
        self.at = from.min(self.end);
        self
    }

    /// The number of unread bytes.
    pub fn remaining(&self) -> u64 {
        self.end - self.at
    }

    /// The next bytes, up to the end of a stored chunk; `None` at the end of the blob or range.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let chunk_bytes = BLOB_CHUNK_BYTES_MAX as u64;
        let limit = self.remaining().min(chunk_bytes - self.at % chunk_bytes);
        if limit == 0 {
            return Ok(None);
        }
        let bytes = self.store.read_blob(&self.scope, self.blob, self.at, limit as usize).await?;
        if bytes.is_empty() {
            let what = format!("it ends at {} instead of {}", self.at, self.end);
            return Err(StoreError::Damaged { place: format!("blob {}", self.blob), what }.into());
        }
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// The next bytes, at most `limit`.
    pub async fn next_up_to(&mut self, limit: usize) -> Result<Vec<u8>> {
        let (end, stop) = (self.end, self.end.min(self.at.saturating_add(limit as u64)));
        self.end = stop;
        let mut bytes = Vec::with_capacity(self.remaining() as usize);
        while let Some(chunk) = self.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        self.end = end;
        Ok(bytes)
    }
}
