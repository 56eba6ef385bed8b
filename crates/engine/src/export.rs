//! Taking a session out: what exporters need of the store, and the mark that an export leaves.

use std::collections::HashMap;

use sapwood_core::entry::{Draft, Entry, Exported};
use sapwood_core::port::store::{Append, StoreError, Until};
use sapwood_core::{BlobHash, Scope, SessionId};

use crate::{Engine, EngineError, Result};

/// Most bytes of media that one page or document carries.
pub const MEDIA_BYTES_MAX: usize = 64 << 20;

impl Engine {
    /// The active path from its root, oldest first.
    pub async fn whole_path(&self, scope: &Scope, session: &SessionId) -> Result<Vec<Entry>> {
        Ok(self.store.read_path(scope, session, None, Until::Root).await?.entries)
    }

    /// The media that entries name, up to a limit; what is over it, or gone, is left out.
    pub async fn media_of(
        &self,
        scope: &Scope,
        blobs: impl IntoIterator<Item = BlobHash>,
    ) -> Result<HashMap<BlobHash, Vec<u8>>> {
        let (mut found, mut bytes) = (HashMap::new(), 0);
        for blob in blobs {
            if found.contains_key(&blob) {
                continue;
            }
            match self.store.get_blob(scope, blob).await {
                Ok(media) if bytes + media.len() <= MEDIA_BYTES_MAX => {
                    bytes += media.len();
                    found.insert(blob, media);
                }
                Ok(_) | Err(StoreError::NoBlob { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Tells whoever follows the session that it was exported. Who may only read leaves no mark in it, and an archived
    /// session takes none; the audit has its line all the same.
    pub async fn mark_export(
        &self,
        scope: &Scope,
        session: &SessionId,
        format: &str,
        entries: u32,
    ) -> Result<()> {
        let now = self.clock.now();
        let draft = Draft::new(now, Exported { format: format.to_owned(), entries });
        match self.append(scope, Append::new(session.clone(), now, vec![draft])).await {
            Ok(_) | Err(EngineError::Store(StoreError::Denied { .. } | StoreError::Archived { .. })) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
