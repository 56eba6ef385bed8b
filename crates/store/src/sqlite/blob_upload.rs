//! An upload of one blob. Its chunks are written separately.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope};
use tokio::runtime::Handle;

use super::blob::{self, ChunkSet, Cleanup};
use super::writer::Writer;
use crate::blob_chunks::{BlobChunk, BlobEnd, UploadResult};
use crate::blob_upload::UploadTarget;
use crate::compression::pack;

pub(super) struct SqliteUpload {
    writer: Arc<Writer>,
    scope: Scope,
    /// Identifies the stored chunks, if there are any.
    cut: Option<ChunkSet>,
}

impl SqliteUpload {
    pub fn new(writer: Arc<Writer>, scope: Scope) -> Self {
        Self { writer, scope, cut: None }
    }
}

#[async_trait]
impl UploadTarget for SqliteUpload {
    async fn put(&mut self, hash: BlobHash, bytes: Vec<u8>) -> Result<()> {
        let (scope, packed) = (self.scope.clone(), pack(bytes));
        self.writer.write(move |db| blob::put(db, &scope, hash, &packed)).await
    }

    async fn add_chunk(&mut self, number: u32, chunk: Vec<u8>) -> Result<()> {
        let cut = *self.cut.get_or_insert_with(ChunkSet::new);
        let chunk = BlobChunk::of(chunk);
        self.writer.write(move |db| blob::add_chunk(db, cut, number, &chunk)).await
    }

    async fn finish(&mut self, number: u32, BlobEnd { hash, bytes, rest }: BlobEnd) -> Result<()> {
        let cut = *self.cut.get_or_insert_with(ChunkSet::new);
        let (scope, last) = (self.scope.clone(), BlobChunk::of(rest));
        let end = move |db: &_| blob::finish(db, &scope, cut, (hash, bytes), (number, &last));
        if self.writer.write(end).await? == UploadResult::Created {
            self.cut = None;
        }
        Ok(())
    }
}

/// Deletes the chunks of an unfinished upload one at a time. If that fails, they are deleted when
/// they expire.
impl Drop for SqliteUpload {
    fn drop(&mut self) {
        let Some(cut) = self.cut else { return };
        let writer = Arc::clone(&self.writer);
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    while let Ok(Cleanup::More) = writer.write(move |db| blob::drop_chunk(db, cut)).await {}
                });
            }
            Err(_) => {
                let step = || writer.run_exclusive(|db| db.in_transaction(|| blob::drop_chunk(db, cut)));
                while let Ok(Cleanup::More) = step() {}
            }
        }
    }
}
