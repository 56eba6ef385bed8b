//! Memories: facts from earlier sessions that later sessions use. `docs/spec/memory.md` describes them.

pub use sapwood_core::port::embedder::{Embedder, EmbedderError};
pub use sapwood_core::port::memory::{
    Belongs, Embedding, Learned, Memory, MemoryFilter, MemoryKind, MemorySource, Standing, Whose,
};
pub use sapwood_engine::memory::{
    AtEnd, Learning, MemoryConfig, MemoryEdit, MemoryOutcome, RecalledMemory, Recollection, StoredMemory,
    UserMemory,
};

use crate::{MemoryId, Result, Sapwood, SessionId};

/// Operations on memories.
impl Sapwood {
    /// Store a fact for later sessions of this user. A known fact is strengthened; a contradicted fact is
    /// superseded.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{MemoryEdit, MemoryKind, Sapwood};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let stored = sapwood.remember("Our staging database is heron", MemoryKind::Fact).await?;
    /// let found = sapwood.recollect("which database do we use for staging", 3).await?;
    /// assert_eq!(found[0].memory.id, stored.memory.id);
    ///
    /// let edit = MemoryEdit { text: Some("Our staging database is egret".into()), ..MemoryEdit::default() };
    /// sapwood.edit_memory(stored.memory.id, edit).await?;
    /// assert_eq!(sapwood.memories().await?[0].text, "Our staging database is egret");
    /// assert_eq!(sapwood.forget(stored.memory.id).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remember(&self, text: impl Into<String>, kind: MemoryKind) -> Result<StoredMemory> {
        let written = UserMemory { text: text.into(), kind, belongs: None };
        self.engine.memories().remember(&self.scope, written).await
    }

    /// The newest memories of this user and the tenant, at most 100. Example: [`remember`](Sapwood::remember).
    pub async fn memories(&self) -> Result<Vec<Memory>> {
        let filter =
            MemoryFilter { whose: Whose::For(self.scope.principal.clone()), ..MemoryFilter::default() };
        Ok(self.engine.memories().list(&self.scope, &filter).await?.items)
    }

    /// The memories that match a question, best first. Example: [`remember`](Sapwood::remember).
    pub async fn recollect(&self, question: &str, limit: usize) -> Result<Vec<RecalledMemory>> {
        let whose = Whose::For(self.scope.principal.clone());
        Ok(self.engine.memories().recollect(&self.scope, question, whose, limit).await?.found)
    }

    /// Change a memory's text, its kind, or to whom it belongs. Example: [`remember`](Sapwood::remember).
    pub async fn edit_memory(&self, memory: MemoryId, edit: MemoryEdit) -> Result<Memory> {
        self.engine.memories().edit(&self.scope, memory, edit).await
    }

    /// Delete a memory permanently, with the memories it superseded. Returns how many were deleted. Example:
    /// [`remember`](Sapwood::remember).
    pub async fn forget(&self, memory: MemoryId) -> Result<usize> {
        self.engine.memories().forget(&self.scope, memory).await
    }

    /// Extract memories from the new entries of a session. By default, closing or archiving a session does the same.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// sapwood.inject(&session, vec![user_text("Remember: we deploy on Tuesdays.")]).await?;
    /// let learning = sapwood.learn(&session).await?;
    /// println!("{learning:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn learn(&self, session: &SessionId) -> Result<Learning> {
        self.engine.memories().learn(&self.scope, session).await
    }
}
