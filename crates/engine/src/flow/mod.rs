//! Running flows. A run is a session whose log holds the run's events; each role works in a session of its own. [`run`] has
//! the loop: append, then visit, until nothing is left to do; [`visit`] makes one visit; [`position`] finds again what a role's
//! session knows of its node; [`view`] shows a run; [`role_file_writer`] keeps the files of its roles up to date.
//!
//! 1. A run has one runner: it holds the lease of the run's session, and its fence makes one that lost it harmless.
//! 2. A visit is begun by one append to the role's session, under that session's lease, and only if its log has none of the
//!    same key. So whoever comes after a crash, or at the same time, goes on with it and does not begin it again.
//! 3. What came of a visit is read from the role's session, never remembered.

mod position;
mod role_file_writer;
mod run;
mod view;
mod visit;

pub use role_file_writer::{Mirror, RoleFileSink};
pub use run::{FlowReport, RunningFlow, StartFlow};
pub use view::{EdgeView, NodeView, RunList, RunRow, RunStatus, RunView};

use sapwood_core::flow::{RunEvent, RunState};
use sapwood_core::{Entry, Kind, Scope, SessionId};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{Engine, EngineError, Result};

/// How the ids of runs begin.
pub const RUN_PREFIX: &str = "flow-";
/// What stands between a run and a role in the id of a role's session.
pub const ROLE_MARK: &str = "__";

impl Engine {
    /// The events of a run. A session without any is none.
    pub(crate) async fn run_events(&self, scope: &Scope, run: &SessionId) -> Result<Vec<RunEvent>> {
        let mut entries = Vec::new();
        self.each_of_kinds(scope, run, &[Kind::CustomInfo], |entry| entries.push(entry)).await?;
        let read = |entry: &Entry| RunEvent::of_body(&entry.body);
        let events: Vec<RunEvent> = aside(|| entries.iter().filter_map(read).collect());
        match events.first() {
            Some(RunEvent::Started { .. }) => Ok(events),
            _ => Err(EngineError::NoFlow { session: run.clone() }),
        }
    }

    /// Where a run stands.
    pub(crate) async fn run_state(&self, scope: &Scope, run: &SessionId) -> Result<RunState> {
        let events = self.run_events(scope, run).await?;
        Ok(aside(|| RunState::fold(run.as_str(), &events)))
    }

    /// The run whose role a session is, if it is one: who answers its question carries the run on.
    pub async fn run_of(&self, scope: &Scope, session: &SessionId) -> Result<Option<SessionId>> {
        let post = self.post_of(scope, session).await?;
        Ok(post.and_then(|post| post.run.parse().ok()))
    }
}

/// Runs what takes a while for a flow of many nodes. On a runtime with several threads, other tasks move out of the way first.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
