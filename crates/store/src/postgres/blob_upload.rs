//! A blob upload. A blob that fits into one piece is written at the end. Each piece of a larger
//! blob is written in its own transaction.

use async_trait::async_trait;
use sapwood_core::port::store::{BlobSink, Result};
use sapwood_core::{BlobHash, Scope};
use uuid::Uuid;

use super::blob::{self, Left};
use super::connection::{Mode, StoreConnection};
use super::{PgStore, writing};
use crate::blob_chunks::{Cutter, End, Piece};
use crate::compression::pack;

pub(super) struct BlobUpload<'s> {
    store: &'s PgStore,
    scope: Scope,
    cutter: Cutter,
    /// Identifies the stored pieces, if there are any.
    cut: Option<Uuid>,
}

impl<'s> BlobUpload<'s> {
    pub fn new(store: &'s PgStore, scope: Scope) -> Self {
        Self { store, scope, cutter: Cutter::new(), cut: None }
    }

    async fn add(&mut self, piece: Vec<u8>) -> Result<()> {
        if self.cut.is_none() {
            // Abandoned pieces only waste disk space, and the next upload retries.
            let _ = self.store.sweep_uploads().await;
        }
        let cut = *self.cut.get_or_insert_with(Uuid::new_v4);
        let (number, piece) = (self.cutter.pieces - 1, Piece::of(piece));
        writing!(self.store, self.scope, db => blob::add_piece(&db, cut, number, &piece).await)
    }
}

#[async_trait]
impl BlobSink for BlobUpload<'_> {
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
        let (store, scope, number) = (self.store, &self.scope, self.cutter.pieces);
        match self.cut {
            None => {
                let packed = pack(rest);
                writing!(store, scope, db => blob::put(&db, scope, hash, &packed).await)?;
            }
            Some(cut) => {
                let last = Piece::of(rest);
                let left = writing!(store, scope, db => {
                    blob::finish(&db, scope, cut, (hash, bytes), (number, &last)).await
                })?;
                if left == Left::Nothing {
                    self.cut = None;
                }
            }
        }
        Ok(hash)
    }
}

/// Deletes the pieces of an unfinished upload. If that fails, they are deleted when they expire.
impl Drop for BlobUpload<'_> {
    fn drop(&mut self) {
        let Some(cut) = self.cut else { return };
        let (pool, place) = (self.store.pool.clone(), self.store.server.place.clone());
        let tenant = self.scope.tenant.clone();
        self.store.home.handle().spawn(async move {
            let Ok(db) = StoreConnection::open(&pool, &place, &tenant, Mode::Write).await else { return };
            match blob::drop_cut(&db, cut).await {
                Ok(()) => drop(db.commit().await),
                Err(_) => db.roll_back().await,
            }
        });
    }
}
