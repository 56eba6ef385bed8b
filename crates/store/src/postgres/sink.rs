//! A blob that is being put. What fits into one piece is one write at the end; of a larger one, each piece is a transaction of
//! its own.

use async_trait::async_trait;
use sapwood_core::port::store::{BlobSink, Result};
use sapwood_core::{BlobHash, Scope};
use uuid::Uuid;

use super::blob::{self, Left};
use super::desk::{Desk, Mode};
use super::{PgStore, writing};
use crate::pack::pack;
use crate::pieces::{Cutter, End, Piece};

pub(super) struct Sink<'s> {
    store: &'s PgStore,
    scope: Scope,
    cutter: Cutter,
    /// Where the pieces are, if there are any.
    cut: Option<Uuid>,
}

impl<'s> Sink<'s> {
    pub fn new(store: &'s PgStore, scope: Scope) -> Self {
        Self { store, scope, cutter: Cutter::new(), cut: None }
    }

    async fn add(&mut self, piece: Vec<u8>) -> Result<()> {
        if self.cut.is_none() {
            // Only room is at stake, and the next upload tries again.
            let _ = self.store.sweep_uploads().await;
        }
        let cut = *self.cut.get_or_insert_with(Uuid::new_v4);
        let (number, piece) = (self.cutter.pieces - 1, Piece::of(piece));
        writing!(self.store, self.scope, desk => blob::add_piece(&desk, cut, number, &piece).await)
    }
}

#[async_trait]
impl BlobSink for Sink<'_> {
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
                writing!(store, scope, desk => blob::put(&desk, scope, hash, &packed).await)?;
            }
            Some(cut) => {
                let last = Piece::of(rest);
                let left = writing!(store, scope, desk => {
                    blob::finish(&desk, scope, cut, (hash, bytes), (number, &last)).await
                })?;
                if left == Left::Nothing {
                    self.cut = None;
                }
            }
        }
        Ok(hash)
    }
}

/// Takes away what was not finished. What is left if that fails is taken away when it is old.
impl Drop for Sink<'_> {
    fn drop(&mut self) {
        let Some(cut) = self.cut else { return };
        let (pool, place) = (self.store.pool.clone(), self.store.server.place.clone());
        let tenant = self.scope.tenant.clone();
        self.store.home.handle().spawn(async move {
            let Ok(desk) = Desk::open(&pool, &place, &tenant, Mode::Write).await else { return };
            match blob::drop_cut(&desk, cut).await {
                Ok(()) => drop(desk.commit().await),
                Err(_) => desk.roll_back().await,
            }
        });
    }
}
