//! Run turns. [`run`] contains the loop: append entries, then perform effects, until the turn ends. [`send`] starts and
//! resumes turns, [`control`] cancels, steers and answers them from any process, and [`turn_log`] finds their entries.
//! [`call_model`] and [`run_tool`] perform the effects; [`approvals`] manages the questions that wait for people;
//! [`builtin_tools`] are the tools that work on sessions; [`take_over`] resumes turns of dead processes.

mod approval_task;
mod approvals;
mod auto_compact;
mod builtin_tools;
mod call_model;
mod control;
mod handoff;
mod hooks;
mod input_tools;
mod request;
mod run;
mod run_tool;
mod send;
mod take_over;
mod tool_spec;
mod turn_context;
mod turn_log;

pub use approval_task::ApprovalTask;
pub use approvals::{APPROVALS_PAGE_MAX, AnswerLink, Approvals, LinkOptions};
pub use control::{PendingApproval, QUEUED_INPUTS_MAX, TurnControl, TurnSnapshot};
pub use run::OnWait;
pub use send::{IfRunning, Opening, Running, SendOptions, Sent, TurnReport, Turns};
pub use take_over::TakeoverTask;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::agent::{Agent, ChainLink};
use sapwood_core::entry::ConfigSource;
use sapwood_core::flow::Assignment;
use sapwood_core::port::model::{Reply, Signature, Thinking};
use sapwood_core::port::skill::SkillCard;
use sapwood_core::port::tool::{ToolSpec, Toolbox};
use sapwood_core::pressure::Level;
use sapwood_core::turn::Rules;
use sapwood_core::{Body, EntryId, Scope, Seq, SessionId, TurnId};

use crate::Engine;
use crate::backends::Backends;
use crate::fragments::{Fragment, FragmentKind};

/// Shared state of a running turn, used by its concurrent tasks.
pub(crate) struct TurnContext {
    engine: Engine,
    backends: Backends,
    scope: Scope,
    session: SessionId,
    turn: TurnId,
    agent: Agent,
    chain: Vec<ChainLink>,
    toolbox: Arc<dyn Toolbox>,
    /// Tools of the toolbox, built-in tools, and tools of the caller.
    specs: Vec<ToolSpec>,
    /// Cards of the active skills, as shown to the model.
    skills: Vec<SkillCard>,
    /// Replaces the session's system prompt.
    instructions: Option<String>,
    thinking: Option<Thinking>,
    fence: u64,
    /// The trace span of the turn, open until this context is dropped.
    span: tracing::Span,
    trace_id: String,
    /// The flow node that the session is working on.
    assignment: Option<Assignment>,
    /// Entries at the start of the turn: they apply the session's configuration on the path, and announce its inputs.
    changes: Vec<Body>,
    /// See [`Running::notice`].
    notice: Option<String>,
    /// What the fork's ancestors have used of the limits.
    inherited: Option<ConfigSource>,
    /// Maximum number of tokens in the context, if the owner has set one.
    token_budget: Option<u64>,
    progress: Mutex<TurnProgress>,
}

/// Mutable state of a running turn.
#[derive(Default)]
struct TurnProgress {
    /// The current or latest streamed answer, and its model.
    reply: Reply,
    model: String,
    /// Signatures that providers require in later requests of the turn.
    signatures: HashMap<EntryId, BTreeMap<usize, Signature>>,
    head: Seq,
    is_budget_waived: bool,
    /// The latest pressure level that was reported to followers and hooks.
    level: Level,
    /// The latest pressure level in the log.
    recorded_level: Level,
    /// Whether a compaction was already tried for the next answer.
    has_tried_compaction: bool,
    /// The latest text from the model.
    latest_text: String,
    /// The input of a new turn, until its first model call.
    initial_input: Option<String>,
    /// Number of chunks of the current reply sent as fragments.
    chunks_sent: u32,
}

impl TurnContext {
    /// Access the mutable state. The closure cannot await, so the lock is never held across an await.
    fn with_progress<T>(&self, access: impl FnOnce(&mut TurnProgress) -> T) -> T {
        access(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn send_fragment(&self, kind: FragmentKind) {
        let is_chunk = kind.is_reply_chunk();
        let (after, index) = self.with_progress(|progress| {
            let index = is_chunk.then_some(progress.chunks_sent);
            progress.chunks_sent += u32::from(is_chunk);
            (progress.head, index)
        });
        let (at, session) = (self.engine.clock.now(), self.session.clone());
        let fragment = Fragment { kind, session, at, after, turn: Some(self.turn), index };
        self.engine.fragments.send(&self.scope.tenant, fragment);
    }

    fn rules(&self) -> Rules {
        Rules {
            session: self.session.clone(),
            turn: self.turn,
            limits: self.agent.limits,
            approvals: self.agent.approvals,
            fs_scope: self.agent.fs_scope,
            confidence: self.agent.confidence,
            tools: self.specs.clone(),
            trace_id: Some(self.trace_id.clone()),
            assignment: self.assignment.clone(),
        }
    }
}
