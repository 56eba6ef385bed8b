//! A blob upload. A blob that fits into one piece is written at the end. Each piece of a larger
//! blob is a separate short write, so that a slow or failed upload never blocks other writers.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::store::{BlobSink, Result};
use sapwood_core::{BlobHash, Scope};
use tokio::runtime::Handle;

use super::blob::{self, Cut, Left};
use super::writer::Writer;
use crate::blob_chunks::{Cutter, End, Piece};
use crate::compression::pack;

pub(super) struct BlobUpload {
    writer: Arc<Writer>,
    scope: Scope,
    cutter: Cutter,
    /// Identifies the stored pieces, if there are any.
    cut: Option<Cut>,
}

impl BlobUpload {
    pub fn new(writer: Arc<Writer>, scope: Scope) -> Self {
        Self { writer, scope, cutter: Cutter::new(), cut: None }
    }

    async fn add(&mut self, piece: Vec<u8>) -> Result<()> {
        let cut = *self.cut.get_or_insert_with(Cut::new);
        let (number, piece) = (self.cutter.pieces - 1, Piece::of(piece));
        self.writer.write(move |db| blob::add_piece(db, cut, number, &piece)).await
    }
}

#[async_trait]
impl BlobSink for BlobUpload {
    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if let Some(piece) = self.cutter.take(&mut bytes)? {
                self.add(piece).await?;
                self.cutter.kept();
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<BlobHash> {
        let End { hash, bytes, rest } = self.cutter.end()?;
        let (scope, number) = (self.scope.clone(), self.cutter.pieces);
        match self.cut {
            None => {
                let packed = pack(rest);
                self.writer.write(move |db| blob::put(db, &scope, hash, &packed)).await?;
            }
            Some(cut) => {
                let last = Piece::of(rest);
                let end = move |db: &_| blob::finish(db, &scope, cut, (hash, bytes), (number, &last));
                if self.writer.write(end).await? == Left::Nothing {
                    self.cut = None;
                }
            }
        }
        Ok(hash)
    }
}

/// Deletes the pieces of an unfinished upload one at a time. If that fails, they are deleted when
/// they expire.
impl Drop for BlobUpload {
    fn drop(&mut self) {
        let Some(cut) = self.cut else { return };
        let writer = Arc::clone(&self.writer);
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    while let Ok(Left::More) = writer.write(move |db| blob::drop_piece(db, cut)).await {}
                });
            }
            Err(_) => {
                let step = || writer.alone(|db| db.in_transaction(|| blob::drop_piece(db, cut)));
                while let Ok(Left::More) = step() {}
            }
        }
    }
}
