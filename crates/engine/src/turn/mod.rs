//! Running turns. [`run`] has the one loop: append, then act, until the turn has ended. [`send`] has the verbs that start,
//! resume and talk to a turn; [`call_model`] and [`run_tool`] act; [`builtin_tools`] are the tools that work on the log;
//! [`take_over`] carries on what other processes left.

mod auto_compact;
mod builtin_tools;
mod call_model;
mod handoff;
mod hooks;
mod request;
mod run;
mod run_tool;
mod send;
mod status;
mod take_over;
mod turn_context;

pub use send::{
    IfRunning, OnWait, Opening, PendingApproval, Running, SendOptions, Sent, StartOptions, TurnReport,
};
pub use status::TurnLook;
pub use take_over::Keeper;
pub(crate) use turn_context::settings_of;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::agent::{Agent, ChainLink};
use sapwood_core::flow::Assignment;
use sapwood_core::port::model::{Reply, Signature, Thinking};
use sapwood_core::port::skill::SkillCard;
use sapwood_core::port::tool::{ToolSpec, Toolbox};
use sapwood_core::pressure::Level;
use sapwood_core::turn::Rules;
use sapwood_core::{Body, EntryId, Scope, Seq, SessionId, TurnId};

use crate::Engine;
use crate::backends::Backends;
use crate::fragments::{Fragment, News};

/// Attempts for a model that no chain says more about.
const ATTEMPTS_DEFAULT: u32 = 3;

/// What every part of a running turn needs, shared by what runs side by side.
pub(crate) struct TurnContext {
    engine: Engine,
    world: Backends,
    scope: Scope,
    session: SessionId,
    turn: TurnId,
    agent: Agent,
    chain: Vec<ChainLink>,
    toolbox: Arc<dyn Toolbox>,
    /// The toolbox's, our own, and the caller's.
    specs: Vec<ToolSpec>,
    /// The skills that are active, as the model is told about them.
    skills: Vec<SkillCard>,
    /// In the place of the session's system prompt.
    instructions: Option<String>,
    thinking: Option<Thinking>,
    fence: u64,
    /// Open for as long as the stage is.
    span: tracing::Span,
    trace_id: String,
    /// The node of a flow that the session is at.
    post: Option<Assignment>,
    /// Entries that put the session's configuration in force on the path, and what the caller is told about them.
    changes: Vec<Body>,
    notice: Option<String>,
    now: Mutex<Now>,
}

/// What changes while the turn runs.
#[derive(Default)]
struct Now {
    /// The answer that streams, or streamed last, and the model it comes from.
    reply: Reply,
    model: String,
    /// What vendors want to see again within the turn.
    signatures: HashMap<EntryId, BTreeMap<usize, Signature>>,
    head: Seq,
    is_budget_waived: bool,
    /// The level of pressure that was told last.
    level: Option<Level>,
    has_made_room: bool,
    /// What the model said last.
    said: String,
    /// The words of a turn that has just begun, until its first call.
    begins_with: Option<String>,
    /// Pieces of the reply that streams that were told.
    told: u32,
}

impl TurnContext {
    /// Looks at or changes what changes. Never held over an await: the closure cannot.
    fn with_now<T>(&self, look: impl FnOnce(&mut Now) -> T) -> T {
        look(&mut self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, news: News) {
        let is_piece = news.is_piece();
        let (after, place) = self.with_now(|now| {
            let place = is_piece.then_some(now.told);
            now.told += u32::from(is_piece);
            (now.head, place)
        });
        let (at, session) = (self.engine.clock.now(), self.session.clone());
        let fragment = Fragment { news, session, at, after, turn: Some(self.turn), place };
        self.engine.live.tell(&self.scope.tenant, fragment);
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
            post: self.post.clone(),
        }
    }
}
