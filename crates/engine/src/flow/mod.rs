//! Running flows. A run is a session whose log holds the run's events; each role works in a session of its own. [`run`] has
//! the loop: append, then visit, until nothing is left to do; [`visit`] makes one visit; [`facts`] finds again what a role's
//! session knows of its node; [`view`] shows a run; [`mirror`] keeps the files of its roles up to date.
//!
//! 1. A run has one runner: it holds the lease of the run's session, and its fence makes one that lost it harmless.
//! 2. A visit is begun by one append to the role's session, under that session's lease, and only if its log has none of the
//!    same key. So whoever comes after a crash, or at the same time, goes on with it and does not begin it again.
//! 3. What came of a visit is read from the role's session, never remembered.

mod facts;
mod mirror;
mod run;
mod view;
mod visit;

pub use mirror::{Mirror, RoleFileSink};
pub use run::{FlowReport, RunningFlow, StartFlow};
pub use view::{EdgeView, NodeView, RunList, RunRow, RunStatus, RunView};

use sapwood_core::flow::RunEvent;
use sapwood_core::{Kind, Scope, SessionId};

use crate::{Engine, EngineError, Result};

/// How the ids of runs begin.
pub const RUN_PREFIX: &str = "flow-";
/// What stands between a run and a role in the id of a role's session.
pub const ROLE_MARK: &str = "__";

impl Engine {
    /// The events of a run. A session without any is none.
    pub(crate) async fn run_events(&self, scope: &Scope, run: &SessionId) -> Result<Vec<RunEvent>> {
        let mut events = Vec::new();
        self.each_of_kinds(scope, run, &[Kind::CustomInfo], |entry| {
            events.extend(RunEvent::of_body(&entry.body));
        })
        .await?;
        match events.first() {
            Some(RunEvent::Started { .. }) => Ok(events),
            _ => Err(EngineError::NoFlow { session: run.clone() }),
        }
    }

    /// The run whose role a session is, if it is one: who answers its question carries the run on.
    pub async fn run_of(&self, scope: &Scope, session: &SessionId) -> Result<Option<SessionId>> {
        let post = self.post_of(scope, session).await?;
        Ok(post.and_then(|post| post.run.parse().ok()))
    }
}
