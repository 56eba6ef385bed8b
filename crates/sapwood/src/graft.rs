//! Grafts: results of another session, included by reference. `docs/spec/grafts.md` describes them.

use std::sync::Arc;

pub use sapwood_core::entry::{Graft, GraftWhat};
pub use sapwood_engine::graft::{GraftState, GraftView, Grafted};

use crate::{Result, Sapwood, Seq, SessionId};

/// Operations on grafts.
impl Sapwood {
    /// Graft an artifact, a digest or a range of rounds of another session, by reference.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Agent, GraftState, GraftWhat, Sapwood};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let source = sapwood.start(Agent::default()).await?;
    /// sapwood.send(&source, "Which harbour is deepest?").await?;
    ///
    /// let session = sapwood.open_session(Default::default()).await?;
    /// let graft = sapwood.graft(&session, &source, GraftWhat::Digest).await?;
    /// assert_eq!(sapwood.grafts(&session).await?[0].state, GraftState::Readable);
    /// assert!(sapwood.read_graft(&session, graft.seq).await?.text.contains("harbour"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn graft(&self, session: &SessionId, source: &SessionId, what: GraftWhat) -> Result<GraftView> {
        self.engine.grafts().add(&self.scope, session, source, what).await
    }

    /// The grafts of a session, oldest first. Example: [`graft`](Sapwood::graft).
    pub async fn grafts(&self, session: &SessionId) -> Result<Vec<GraftView>> {
        self.engine.grafts().list(&self.scope, session).await
    }

    /// Read a graft's content. Fails if the content is withheld. Example: [`graft`](Sapwood::graft).
    pub async fn read_graft(&self, session: &SessionId, seq: Seq) -> Result<Arc<Grafted>> {
        Ok(self.engine.grafts().read(&self.scope, session, seq).await?.1)
    }
}
