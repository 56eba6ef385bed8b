//! An upload of one blob. Each chunk is written in its own transaction.

use async_trait::async_trait;
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope};
use uuid::Uuid;

use super::blob;
use super::connection::{Mode, StoreConnection};
use super::{PgStore, writing};
use crate::blob_chunks::{BlobChunk, BlobEnd, UploadResult};
use crate::blob_upload::UploadTarget;
use crate::compression::pack;

pub(super) struct PgUpload<'s> {
    store: &'s PgStore,
    scope: Scope,
    /// The id of the chunks of an unfinished upload, or `None` before the first chunk.
    cut: Option<Uuid>,
}

impl<'s> PgUpload<'s> {
    pub fn new(store: &'s PgStore, scope: Scope) -> Self {
        Self { store, scope, cut: None }
    }
}

#[async_trait]
impl UploadTarget for PgUpload<'_> {
    async fn put(&mut self, hash: BlobHash, bytes: Vec<u8>) -> Result<()> {
        let (scope, packed) = (&self.scope, pack(bytes));
        writing!(self.store, scope, db => blob::put(&db, scope, hash, &packed).await)
    }

    async fn add_chunk(&mut self, number: u32, chunk: Vec<u8>) -> Result<()> {
        if self.cut.is_none() {
            // A failure is harmless: abandoned chunks only waste disk space, and the next upload retries.
            let _ = self.store.sweep_uploads().await;
        }
        let cut = *self.cut.get_or_insert_with(Uuid::new_v4);
        let chunk = BlobChunk::of(chunk);
        writing!(self.store, self.scope, db => blob::add_chunk(&db, cut, number, &chunk).await)
    }

    async fn finish(&mut self, number: u32, BlobEnd { hash, bytes, rest }: BlobEnd) -> Result<()> {
        let cut = *self.cut.get_or_insert_with(Uuid::new_v4);
        let (scope, last) = (&self.scope, BlobChunk::of(rest));
        let result = writing!(self.store, scope, db => {
            blob::finish(&db, scope, cut, (hash, bytes), (number, &last)).await
        })?;
        if result == UploadResult::Created {
            self.cut = None;
        }
        Ok(())
    }
}

/// Deletes the chunks of an unfinished upload. If that fails, they are deleted when they expire.
impl Drop for PgUpload<'_> {
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
