//! The blob port: bytes outside the log, written and read in chunks, so that no caller needs a large blob in memory.
//! The store checks read access for every chunk (I9).

use async_trait::async_trait;

use crate::id::BlobHash;
use crate::port::store_error::{Result, StoreError};
use crate::scope::Scope;

/// Maximum size of a blob.
pub const BLOB_BYTES_MAX: usize = 256 << 20;
/// Maximum number of bytes per read. Stores split larger blobs into chunks of this size.
pub const BLOB_CHUNK_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a blob that [`Blobs::get_blob`] returns whole.
pub const WHOLE_BLOB_BYTES_MAX: usize = 64 << 20;

/// Storage of blobs. A blob can be read by the principal that put it, by readers of a session that references
/// it, and by operators. For other callers it does not exist.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// Begin the upload of a blob.
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>>;
    /// The size of a blob in bytes.
    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64>;
    /// Read bytes starting at `from`: at most `limit`, at most [`BLOB_CHUNK_BYTES_MAX`], and at most up to the blob's
    /// end. Corrupted bytes are never returned.
    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>>;

    /// Put a blob from memory.
    async fn put_blob(&self, scope: &Scope, bytes: Vec<u8>) -> Result<BlobHash> {
        let mut sink = self.begin_blob(scope).await?;
        sink.write(&bytes).await?;
        sink.finish().await
    }

    /// Read a whole blob into memory.
    async fn get_blob(&self, scope: &Scope, blob: BlobHash) -> Result<Vec<u8>> {
        let size = usize::try_from(self.blob_size(scope, blob).await?).unwrap_or(usize::MAX);
        if size > WHOLE_BLOB_BYTES_MAX {
            return Err(StoreError::TooLarge {
                what: "the size of a blob that is read into memory at once, in bytes,",
                limit: WHOLE_BLOB_BYTES_MAX,
            });
        }
        let mut bytes = Vec::with_capacity(size);
        while bytes.len() < size {
            let chunk = self.read_blob(scope, blob, bytes.len() as u64, size - bytes.len()).await?;
            if chunk.is_empty() {
                break;
            }
            bytes.extend_from_slice(&chunk);
        }
        if BlobHash::of(&bytes) != blob {
            let what = "its bytes do not match its hash".to_owned();
            return Err(StoreError::Damaged { place: format!("blob {blob}"), what });
        }
        Ok(bytes)
    }
}

/// An upload of a blob. The blob is invisible until the upload is finished. Dropping an upload discards it.
#[async_trait]
pub trait BlobSink: Send {
    /// Append bytes of any length.
    async fn write(&mut self, bytes: &[u8]) -> Result<()>;
    /// Finish the upload. Returns after the blob is durable (I3). Identical bytes are stored as one blob.
    async fn finish(self: Box<Self>) -> Result<BlobHash>;
}
