//! The events that a run writes to its session, as versioned `flow_event` entries. The run's state is the fold of its
//! events.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::graph::Flow;
use crate::entry::{Body, EngineRecord, FlowEvent};
use crate::id::BlobHash;

/// The format version of the events.
pub const RUN_VERSION: u32 = 1;
/// Maximum size of an artifact's text in an event or note, in bytes. The blob has the full text.
pub const ARTIFACT_TEXT_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// The first event. It contains the complete flow.
    Started {
        flow: Box<Flow>,
        input: String,
        /// Whether the improvement pass runs after the forward pass.
        #[serde(default)]
        improve: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        /// The folder of role files, for a process that resumes the run on this machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mirror: Option<String>,
    },
    /// A visit was planned. The role's session records its start.
    Entered {
        node: String,
        visit: u32,
        attempt: u32,
        session: String,
        received: Vec<Received>,
    },
    /// The visit waits for a person's answer.
    Waits {
        node: String,
        visit: u32,
        attempt: u32,
        approvals: Vec<String>,
    },
    Handed {
        node: String,
        visit: u32,
        attempt: u32,
        handed: Handed,
    },
    Failed {
        node: String,
        visit: u32,
        attempt: u32,
        code: String,
        message: String,
    },
    /// A failed run was resumed, and the visit is retried.
    Retried {
        node: String,
        visit: u32,
        attempt: u32,
    },
    /// The forward pass has ended, and the improvement pass starts.
    Improving,
    /// A client requested cancellation. The process that executes the run reads this event.
    CancelAsked,
    Ended {
        outcome: RunOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// No node failed, and no node waits for further input.
    Completed,
    /// A node failed, or waits for input that no node will send (`flow.stalled`).
    Failed,
    /// A caller cancelled the run.
    Cancelled,
}

impl RunOutcome {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RunOutcome::Completed => "completed",
            RunOutcome::Failed => "failed",
            RunOutcome::Cancelled => "cancelled",
        }
    }
}

/// An artifact that was sent over an edge.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Artifact {
    pub name: String,
    /// The beginning of the text, or all of it if it is short.
    pub text: String,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<BlobHash>,
}

impl Artifact {
    pub fn of_text(name: impl Into<String>, text: &str) -> Self {
        let end = text.floor_char_boundary(ARTIFACT_TEXT_BYTES_MAX);
        Self { name: name.into(), text: text[..end].to_owned(), bytes: text.len() as u64, blob: None }
    }

    pub fn is_cut(&self) -> bool {
        (self.text.len() as u64) < self.bytes
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Received {
    pub from: String,
    pub artifact: Artifact,
}

/// The result of a successful visit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Handed {
    /// The target nodes and their artifacts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<(String, Artifact)>,
    /// Why the work ends at this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// What the role waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// The role's last answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub said: String,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    event: T,
}

impl RunEvent {
    pub fn to_body(&self) -> Body {
        versioned::<FlowEvent>(self)
    }

    /// Decode an entry; `None` for other entries and unknown versions.
    pub fn of_body(body: &Body) -> Option<Self> {
        read_versioned::<FlowEvent, _>(body)
    }
}

pub(super) fn versioned<R: EngineRecord>(event: &impl Serialize) -> Body {
    R::of(&Versioned { v: RUN_VERSION, event }).into()
}

pub(super) fn read_versioned<R: EngineRecord, T: DeserializeOwned>(body: &Body) -> Option<T> {
    let read: Versioned<T> = R::read(body)?;
    (read.v == RUN_VERSION).then_some(read.event)
}
