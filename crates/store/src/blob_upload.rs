//! A blob upload. A blob that fits into one chunk is written at the end. Each chunk of a larger blob
//! is a separate short write, so that a slow or failed upload never blocks other writers.

use async_trait::async_trait;
use sapwood_core::BlobHash;
use sapwood_core::port::store::{BlobSink, Result};

use crate::blob_chunks::{BlobChunker, BlobEnd};

/// The part of an upload that depends on the store. Dropping it deletes the chunks of an unfinished
/// upload.
#[async_trait]
pub(crate) trait UploadTarget: Send {
    /// Stores a blob of one chunk.
    async fn put(&mut self, hash: BlobHash, bytes: Vec<u8>) -> Result<()>;

    /// Stores the next chunk of a larger blob. Chunks are numbered from zero.
    async fn add_chunk(&mut self, number: u32, chunk: Vec<u8>) -> Result<()>;

    /// Creates a blob from the stored chunks and the last chunk.
    async fn finish(&mut self, number: u32, end: BlobEnd) -> Result<()>;
}

pub(crate) struct BlobUpload<T> {
    chunker: BlobChunker,
    target: T,
}

impl<T: UploadTarget> BlobUpload<T> {
    pub fn new(target: T) -> Self {
        Self { chunker: BlobChunker::new(), target }
    }
}

#[async_trait]
impl<T: UploadTarget> BlobSink for BlobUpload<T> {
    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if let Some(chunk) = self.chunker.take(&mut bytes)? {
                self.target.add_chunk(self.chunker.chunks - 1, chunk).await?;
                self.chunker.confirm_stored();
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<BlobHash> {
        let end = self.chunker.end()?;
        let hash = end.hash;
        match self.chunker.chunks {
            0 => self.target.put(hash, end.rest).await?,
            number => self.target.finish(number, end).await?,
        }
        Ok(hash)
    }
}
