//! A blob upload. A blob that fits into one chunk is written at the end. Each chunk of a larger
//! blob is a separate short write, so that a slow or failed upload never blocks other writers.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::store::{BlobSink, Result};
use sapwood_core::{BlobHash, Scope};
use tokio::runtime::Handle;

use super::blob::{self, ChunkSet, Cleanup};
use super::writer::Writer;
use crate::blob_chunks::{BlobChunk, BlobChunker, BlobEnd};
use crate::compression::pack;

pub(super) struct BlobUpload {
    writer: Arc<Writer>,
    scope: Scope,
    chunker: BlobChunker,
    /// Identifies the stored chunks, if there are any.
    cut: Option<ChunkSet>,
}

impl BlobUpload {
    pub fn new(writer: Arc<Writer>, scope: Scope) -> Self {
        Self { writer, scope, chunker: BlobChunker::new(), cut: None }
    }

    async fn add(&mut self, chunk: Vec<u8>) -> Result<()> {
        let cut = *self.cut.get_or_insert_with(ChunkSet::new);
        let (number, chunk) = (self.chunker.chunks - 1, BlobChunk::of(chunk));
        self.writer.write(move |db| blob::add_chunk(db, cut, number, &chunk)).await
    }
}

#[async_trait]
impl BlobSink for BlobUpload {
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
        let (scope, number) = (self.scope.clone(), self.chunker.chunks);
        match self.cut {
            None => {
                let packed = pack(rest);
                self.writer.write(move |db| blob::put(db, &scope, hash, &packed)).await?;
            }
            Some(cut) => {
                let last = BlobChunk::of(rest);
                let end = move |db: &_| blob::finish(db, &scope, cut, (hash, bytes), (number, &last));
                if self.writer.write(end).await? == Cleanup::Done {
                    self.cut = None;
                }
            }
        }
        Ok(hash)
    }
}

/// Deletes the chunks of an unfinished upload one at a time. If that fails, they are deleted when
/// they expire.
impl Drop for BlobUpload {
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
