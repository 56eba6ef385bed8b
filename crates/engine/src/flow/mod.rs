//! Run flows. A run is a session whose log contains the run's events; each role works in a separate session.
//! [`run`] contains the loop: append events, then visit nodes, until the run ends or waits for answers.
//! [`visit`] performs one visit; [`position`] recovers a role's assignment from its session; [`view`] shows a run;
//! [`role_file_writer`] keeps the role files up to date.
//!
//! 1. A run has one runner, which holds the lease of the run's session. The lease's fence rejects writes from a
//!    runner that lost the lease.
//! 2. A visit starts with one append to the role's session, under that session's lease, and only if the log
//!    has no visit with the same key. A second process, concurrent or after a crash, therefore continues
//!    the visit instead of starting it again.
//! 3. The result of a visit is always read from the role's session, never from the state of the process.

mod position;
mod role_file_writer;
mod run;
mod view;
mod visit;

pub use role_file_writer::{Mirror, RoleFileSink};
pub use run::{FlowReport, RunningFlow, StartFlow};
pub use view::{EdgeView, NodeView, ResultView, RunList, RunRow, RunStatus, RunView};

use sapwood_core::flow::{RunEvent, RunState};
use sapwood_core::{Entry, Kind, Scope, SessionId};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::{EngineError, Result, service};

/// Prefix of run ids.
pub const RUN_PREFIX: &str = "flow-";
/// Separator between the run and the role in the id of a role's session.
pub const ROLE_SEPARATOR: &str = "__";

service! {
    /// Flows of roles.
    pub struct Flows;
    flows
}

impl Flows<'_> {
    /// The events of a run. A session without events is not a run.
    pub(crate) async fn run_events(self, scope: &Scope, run: &SessionId) -> Result<Vec<RunEvent>> {
        let mut entries = Vec::new();
        self.engine.log().each_of_kinds(scope, run, &[Kind::FlowEvent], |entry| entries.push(entry)).await?;
        let decode = |entry: &Entry| RunEvent::of_body(&entry.body);
        let events: Vec<RunEvent> = run_blocking(|| entries.iter().filter_map(decode).collect());
        match events.first() {
            Some(RunEvent::Started { .. }) => Ok(events),
            _ => Err(EngineError::NoFlow { session: run.clone() }),
        }
    }

    /// The current state of a run.
    pub(crate) async fn run_state(self, scope: &Scope, run: &SessionId) -> Result<RunState> {
        let events = self.run_events(scope, run).await?;
        Ok(run_blocking(|| RunState::fold(run.as_str(), &events)))
    }

    /// The run that a role's session belongs to. Answering a question in that session resumes the run.
    pub async fn run_of(self, scope: &Scope, session: &SessionId) -> Result<Option<SessionId>> {
        let assignment = self.assignment_of(scope, session).await?;
        Ok(assignment.and_then(|assignment| assignment.run.parse().ok()))
    }
}

/// Run a computation that is slow for large flows. A multi-threaded runtime moves other tasks off this thread
/// first.
pub(crate) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
