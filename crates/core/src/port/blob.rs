//! Bytes beside the log: put and read in pieces, so that nobody has to hold a large one. Who may read one is decided by the
//! store, for every piece anew (I9).

use async_trait::async_trait;

use crate::id::BlobHash;
use crate::port::store::{Result, StoreError};
use crate::scope::Scope;

/// Largest blob.
pub const BLOB_BYTES_MAX: usize = 256 << 20;
/// Most bytes that are read at a time; stores keep larger blobs in pieces of this size.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Largest blob that [`Blobs::get_blob`] gives out whole.
pub const WHOLE_BLOB_BYTES_MAX: usize = 64 << 20;

/// A blob can be read by whoever put it, or may read a session that refers to it. To anybody else it is unknown.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// Begins to put a blob.
    async fn begin_blob<'s>(&'s self, scope: &Scope) -> Result<Box<dyn BlobSink + 's>>;
    async fn blob_size(&self, scope: &Scope, blob: BlobHash) -> Result<u64>;
    /// The bytes from `from` on: `limit` of them, but not more than [`PIECE_BYTES_MAX`] and none past the end. Bytes that are
    /// not what was put are never given out.
    async fn read_blob(&self, scope: &Scope, blob: BlobHash, from: u64, limit: usize) -> Result<Vec<u8>>;

    /// Puts bytes that are at hand.
    async fn put_blob(&self, scope: &Scope, bytes: Vec<u8>) -> Result<BlobHash> {
        let mut sink = self.begin_blob(scope).await?;
        sink.write(&bytes).await?;
        sink.finish().await
    }

    /// A whole blob, for whoever needs all of it at once and can hold it.
    async fn get_blob(&self, scope: &Scope, blob: BlobHash) -> Result<Vec<u8>> {
        let size = usize::try_from(self.blob_size(scope, blob).await?).unwrap_or(usize::MAX);
        if size > WHOLE_BLOB_BYTES_MAX {
            return Err(StoreError::TooLarge {
                what: "a blob that is read whole",
                limit: WHOLE_BLOB_BYTES_MAX,
            });
        }
        let mut bytes = Vec::with_capacity(size);
        while bytes.len() < size {
            let piece = self.read_blob(scope, blob, bytes.len() as u64, size - bytes.len()).await?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        if BlobHash::of(&bytes) != blob {
            let what = "it does not have the bytes its name says".to_owned();
            return Err(StoreError::Damaged { place: format!("blob {blob}"), what });
        }
        Ok(bytes)
    }
}

/// A blob that is being put. Nobody sees it before it is finished, and one that is dropped leaves nothing behind.
#[async_trait]
pub trait BlobSink: Send {
    /// The bytes that come next, as many as there are.
    async fn write(&mut self, bytes: &[u8]) -> Result<()>;
    /// Keeps what was written, and answers when it is durable (I3). The same bytes are one blob, however often they are put.
    async fn finish(self: Box<Self>) -> Result<BlobHash>;
}
