//! A blob upload. A blob that fits into one chunk is written at the end. Each chunk of a larger
//! blob is written in its own transaction.

use async_trait::async_trait;
use sapwood_core::port::store::{BlobSink, Result};
use sapwood_core::{BlobHash, Scope};
use uuid::Uuid;

use super::blob::{self, UploadResult};
use super::connection::{Mode, StoreConnection};
use super::{PgStore, writing};
use crate::blob_chunks::{BlobChunk, BlobChunker, BlobEnd};
use crate::compression::pack;

pub(super) struct BlobUpload<'s> {
    store: &'s PgStore,
    scope: Scope,
    chunker: BlobChunker,
    /// The id of the stored chunks, or `None` until the first chunk is stored.
    cut: Option<Uuid>,
}

impl<'s> BlobUpload<'s> {
    pub fn new(store: &'s PgStore, scope: Scope) -> Self {
        Self { store, scope, chunker: BlobChunker::new(), cut: None }
    }

    async fn add(&mut self, chunk: Vec<u8>) -> Result<()> {
        if self.cut.is_none() {
            // A failure is harmless: abandoned chunks only waste disk space, and the next upload retries.
            let _ = self.store.sweep_uploads().await;
        }
        let cut = *self.cut.get_or_insert_with(Uuid::new_v4);
        let (number, chunk) = (self.chunker.chunks - 1, BlobChunk::of(chunk));
        writing!(self.store, self.scope, db => blob::add_chunk(&db, cut, number, &chunk).await)
    }
}

#[async_trait]
impl BlobSink for BlobUpload<'_> {
    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if let Some(chunk) = self.chunker.take(&mut bytes)? {
                self.add(chunk).await?;
                self.chunker.confirm_stored();
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<BlobHash> {
        let BlobEnd { hash, bytes, rest } = self.chunker.end()?;
        let (store, scope, number) = (self.store, &self.scope, self.chunker.chunks);
        match self.cut {
            None => {
                let packed = pack(rest);
                writing!(store, scope, db => blob::put(&db, scope, hash, &packed).await)?;
            }
            Some(cut) => {
                let last = BlobChunk::of(rest);
                let result = writing!(store, scope, db => {
                    blob::finish(&db, scope, cut, (hash, bytes), (number, &last)).await
                })?;
                if result == UploadResult::Created {
                    self.cut = None;
                }
            }
        }
        Ok(hash)
    }
}

/// Deletes the chunks of an unfinished upload. If that fails, they are deleted when they expire.
impl Drop for BlobUpload<'_> {
    fn drop(&mut self) {
        let Some(cut) = self.cut else { return };
        let (pool, place) = (self.store.pool.clone(), self.store.server.place.clone());
        let tenant = self.scope.tenant.clone();
        self.store.runtime.handle().spawn(async move {
            let Ok(db) = StoreConnection::open(&pool, &place, &tenant, Mode::Write).await else { return };
            match blob::drop_cut(&db, cut).await {
                Ok(()) => drop(db.commit().await),
                Err(_) => db.roll_back().await,
            }
        });
    }
}
