//! Sessions: open, read, list, search, branch, fork, compact and close them.

use sapwood_core::entry::Entry;
use sapwood_engine::edits::InjectOptions;

pub use sapwood_core::authority::Authority;
pub use sapwood_core::entry::SessionState;
pub use sapwood_core::port::store::{Hit, ListFilter, ListOrder, Page, SearchQuery};
pub use sapwood_core::project::context::{Answers, Context, LatestCompaction, Message, Reported, Role};
pub use sapwood_core::project::context_state::ContextState;
pub use sapwood_core::project::summary::{Lineage, Origin, QueuedInput, Summary};
pub use sapwood_core::project::usage::{Spend, Total};
pub use sapwood_core::session_config::{ConfigEntries, SessionConfig};
pub use sapwood_core::tree::Head;
pub use sapwood_engine::config_changes::{ConfigChange, ForkChanges};
pub use sapwood_engine::sessions::{ForkAt, OpenOptions};
pub use sapwood_engine::views::{Ancestry, Snapshot};

use crate::{Body, Compacted, Compacting, EntryId, Result, Sapwood, SessionId};

/// Operations on sessions.
impl Sapwood {
    /// Open a session without an agent. Idempotent: an existing id is opened unchanged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{OpenOptions, Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let options = OpenOptions { id: Some("notes".parse()?), ..OpenOptions::default() };
    /// let session = sapwood.open_session(options).await?;
    /// sapwood.inject(&session, vec![user_text("Hello!")]).await?;
    ///
    /// assert!(sapwood.exists(&session).await?);
    /// assert_eq!(sapwood.length(&session).await?, 1);
    /// assert_eq!(sapwood.context(&session).await?.messages[0].text(), "Hello!");
    /// assert_eq!(sapwood.snapshot(&session).await?.expect("it exists").summary.id, session);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_session(&self, options: OpenOptions) -> Result<SessionId> {
        Ok(self.engine.sessions().open(&self.scope, options).await?.0)
    }

    /// Whether a session exists and the caller can see it. Example: [`open_session`](Sapwood::open_session).
    pub async fn exists(&self, session: &SessionId) -> Result<bool> {
        self.engine.directory().exists(&self.scope, session).await
    }

    /// The session's summary and context; `None` for an unknown id. Example: [`open_session`](Sapwood::open_session).
    pub async fn snapshot(&self, session: &SessionId) -> Result<Option<Snapshot>> {
        self.engine.views().snapshot(&self.scope, session).await
    }

    /// The context that a model would receive. Example: [`open_session`](Sapwood::open_session).
    pub async fn context(&self, session: &SessionId) -> Result<Context> {
        self.engine.views().context(&self.scope, session, None).await
    }

    /// Number of messages in the context. Example: [`open_session`](Sapwood::open_session).
    pub async fn length(&self, session: &SessionId) -> Result<usize> {
        self.engine.views().length(&self.scope, session).await
    }

    /// Append messages without a model. Returns after the store has acknowledged them. Example:
    /// [`open_session`](Sapwood::open_session).
    pub async fn inject(&self, session: &SessionId, bodies: Vec<Body>) -> Result<()> {
        self.engine.edits().inject(&self.scope, session, bodies, InjectOptions::default()).await?;
        Ok(())
    }

    /// One page of the sessions that the caller can see, newest first unless the filter sets another order.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::session::{ListFilter, SearchQuery};
    /// use sapwood::{Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// sapwood.inject(&session, vec![user_text("The harbour is deep.")]).await?;
    ///
    /// let page = sapwood.list(&ListFilter { limit: 10, ..ListFilter::default() }).await?;
    /// assert_eq!(page.items[0].id, session);
    /// let query = SearchQuery { text: "harbour".into(), limit: 10, ..SearchQuery::default() };
    /// assert_eq!(sapwood.search(&query).await?.items[0].session, session);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, filter: &ListFilter) -> Result<Page<Summary>> {
        self.engine.directory().list(&self.scope, filter).await
    }

    /// Search the text of all sessions that the caller can see, newest first. Example: [`list`](Sapwood::list).
    pub async fn search(&self, query: &SearchQuery) -> Result<Page<Hit>> {
        self.engine.directory().search(&self.scope, query).await
    }

    /// The entries on the path to the leaf, oldest first. Example: [`branch`](Sapwood::branch).
    pub async fn path(&self, session: &SessionId) -> Result<Vec<Entry>> {
        self.engine.views().path(&self.scope, session, None).await
    }

    /// Move the leaf to an earlier entry. Later entries leave the context but stay in the log.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// sapwood.inject(&session, vec![user_text("one"), user_text("two")]).await?;
    /// let first = sapwood.path(&session).await?[0].meta.id;
    /// sapwood.branch(&session, first).await?;
    /// assert_eq!(sapwood.length(&session).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn branch(&self, session: &SessionId, to: EntryId) -> Result<()> {
        self.engine.edits().branch(&self.scope, session, to, None).await?;
        Ok(())
    }

    /// Create a session that shares the path of another one without copying it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{ForkAt, Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// sapwood.inject(&session, vec![user_text("one"), user_text("two")]).await?;
    ///
    /// let fork = sapwood.fork(&session, ForkAt::Leaf, Default::default()).await?;
    /// sapwood.inject(&fork, vec![user_text("three")]).await?;
    /// let short = sapwood.fork_at(&session, 1).await?;
    ///
    /// assert_eq!((sapwood.length(&fork).await?, sapwood.length(&short).await?), (3, 1));
    /// assert_eq!(sapwood.ancestry(&fork).await?.expect("it exists").parent, Some(session));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fork(&self, source: &SessionId, at: ForkAt, options: OpenOptions) -> Result<SessionId> {
        self.engine.sessions().fork(&self.scope, source, at, options).await
    }

    /// Fork a session, sharing its first `keep_first` messages. Example: [`fork`](Sapwood::fork).
    pub async fn fork_at(&self, source: &SessionId, keep_first: u32) -> Result<SessionId> {
        self.fork(source, ForkAt::KeepFirst(keep_first), OpenOptions::default()).await
    }

    /// A session's ancestors and children; `None` for an unknown id. Example: [`fork`](Sapwood::fork).
    pub async fn ancestry(&self, session: &SessionId) -> Result<Option<Ancestry>> {
        self.engine.views().ancestry(&self.scope, session).await
    }

    /// Remove all current messages from the context. Example: [`compact`](Sapwood::compact).
    pub async fn reset(&self, session: &SessionId) -> Result<()> {
        self.engine.edits().reset(&self.scope, session).await?;
        Ok(())
    }

    /// Keep only the last `keep_last` messages in the context. Returns how many are left. Example:
    /// [`compact`](Sapwood::compact).
    pub async fn trim(&self, session: &SessionId, keep_last: usize) -> Result<usize> {
        self.engine.edits().trim(&self.scope, session, keep_last).await
    }

    /// Replace older messages of the context with a summary.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::compaction::{CompactOptions, Compacting, Trigger};
    /// use sapwood::{Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// let messages = (0..20).map(|n| user_text(format!("message {n} {}", "and so on ".repeat(20))));
    /// sapwood.inject(&session, messages.collect()).await?;
    ///
    /// let options = CompactOptions { keep_last: Some(6), ..CompactOptions::default() };
    /// let compacted = sapwood.compact(&session, Compacting::new(options, Trigger::Manual)).await?;
    /// assert_eq!(compacted.archived, 14);
    ///
    /// assert_eq!(sapwood.trim(&session, 2).await?, 2);
    /// sapwood.reset(&session).await?;
    /// assert_eq!(sapwood.length(&session).await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn compact(&self, session: &SessionId, how: Compacting) -> Result<Compacted> {
        self.engine.compaction().compact(&self.scope, session, how).await
    }

    /// Close a session and, unless this is disabled, extract memories from it. The next message reopens it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Sapwood, user_text};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.open_session(Default::default()).await?;
    /// sapwood.close(&session).await?;
    /// sapwood.archive(&session).await?;
    /// let refused = sapwood.inject(&session, vec![user_text("too late")]).await.unwrap_err();
    /// assert_eq!(refused.code(), "session.archived");
    /// sapwood.erase(&session).await?;
    /// assert!(!sapwood.exists(&session).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self, session: &SessionId) -> Result<()> {
        self.engine.sessions().close(&self.scope, session).await
    }

    /// Make a session read-only and, unless this is disabled, extract memories from it. Refused while a turn runs.
    /// Example: [`close`](Sapwood::close).
    pub async fn archive(&self, session: &SessionId) -> Result<()> {
        self.engine.sessions().archive(&self.scope, session).await
    }

    /// Delete a session permanently. Entries that forks need stay with the forks. Example: [`close`](Sapwood::close).
    pub async fn erase(&self, session: &SessionId) -> Result<()> {
        self.engine.sessions().erase(&self.scope, session).await
    }
}
