//! Entries: the immutable records of a session's log. One file per family of bodies; [`codec`] turns a body into its
//! bytes and back; [`upcast`] reads what older versions wrote.
//!
//! A body either hangs in the tree and becomes the new leaf, or stands beside the tree and leaves the leaf alone. The
//! table below is the one place that says which.

pub mod codec;
pub mod jsonl;
mod message;
mod session_entries;
mod setting;
mod summary;
mod turn;
mod upcast;

pub use message::{
    AssistantMessage, CustomMessage, Origin, Stop, SystemNote, ToolResult, Usage, UserMessage,
};
pub use session_entries::{
    ArtifactPut, ArtifactUse, CustomInfo, Exported, Graft, GraftWhat, Label, LeafMoved, MemberChanged,
    SessionNamed, SessionState, StateChanged, TITLE_CHARS_MAX, fit_title,
};
pub use setting::{ContextChanged, ModelChanged, SkillsChanged, ThinkingChanged};
pub use summary::{BranchSummary, Compaction, Details, Shortened, Strategy, Trigger, WrittenBy};
pub use turn::{
    Action, ActionKind, ApprovalAnswer, ApprovalAnswered, ApprovalAsked, CancelAsked, InputQueued,
    InputTaken, Outcome, Queue, Round, RoundResult, RoundStatus, TurnEnded, TurnStarted,
};
pub use upcast::LOG_VERSION;

use crate::content::{Part, joined_text};
use crate::id::{BlobHash, EntryId, Seq, TimestampMs, TurnId};
use crate::scope::Principal;

/// Whether a body becomes the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stance {
    InTree,
    Beside,
}

macro_rules! bodies {
    ($($code:literal $variant:ident $name:literal $stance:ident;)*) => {
        /// What an entry is, without its content. The numbers are on disk: never reuse one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($variant = $code,)* }

        /// What an entry says.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body { $($variant($variant),)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }
            pub fn from_name(name: &str) -> Option<Kind> {
                match name { $($name => Some(Kind::$variant),)* _ => None }
            }
            pub fn code(self) -> u8 {
                self as u8
            }
            pub fn from_code(code: u8) -> Option<Kind> {
                match code { $($code => Some(Kind::$variant),)* _ => None }
            }
            pub fn stance(self) -> Stance {
                match self { $(Kind::$variant => Stance::$stance,)* }
            }
        }

        impl Body {
            pub fn kind(&self) -> Kind {
                match self { $(Body::$variant(_) => Kind::$variant,)* }
            }
            fn write_fields(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
                match self { $(Body::$variant(body) => serde_json::to_writer(out, body),)* }
            }
            fn read_fields(kind: Kind, json: &[u8]) -> serde_json::Result<Body> {
                match kind { $(Kind::$variant => serde_json::from_slice(json).map(Body::$variant),)* }
            }
        }

        $(impl From<$variant> for Body {
            fn from(body: $variant) -> Body {
                Body::$variant(body)
            }
        })*
    };
}

bodies! {
    1  UserMessage      "user_message"      InTree;
    2  AssistantMessage "assistant_message" InTree;
    3  ToolResult       "tool_result"       InTree;
    4  SystemNote       "system_note"       InTree;
    5  CustomMessage    "custom_message"    InTree;
    6  Compaction       "compaction"        InTree;
    7  BranchSummary    "branch_summary"    InTree;
    8  ModelChanged     "model_changed"     InTree;
    9  ThinkingChanged  "thinking_changed"  InTree;
    10 SkillsChanged    "skills_changed"    InTree;
    11 ContextChanged   "context_changed"   InTree;
    12 Graft            "graft"             InTree;
    32 LeafMoved        "leaf_moved"        Beside;
    33 Label            "label"             Beside;
    34 SessionNamed     "session_named"     Beside;
    35 CustomInfo       "custom_info"       Beside;
    36 TurnStarted      "turn_started"      Beside;
    37 TurnEnded        "turn_ended"        Beside;
    38 Round            "round"             Beside;
    39 ApprovalAsked    "approval_asked"    Beside;
    40 ApprovalAnswered "approval_answered" Beside;
    41 ArtifactPut      "artifact_put"      Beside;
    42 MemberChanged    "member_changed"    Beside;
    43 StateChanged     "state_changed"     Beside;
    44 Exported         "exported"          Beside;
    45 InputQueued      "input_queued"      Beside;
    46 InputTaken       "input_taken"       Beside;
    47 CancelAsked      "cancel_asked"      Beside;
}

impl Kind {
    /// Counts towards a session's length: what a person would call a message.
    pub fn is_message(self) -> bool {
        matches!(
            self,
            Kind::UserMessage
                | Kind::AssistantMessage
                | Kind::ToolResult
                | Kind::SystemNote
                | Kind::CustomMessage
                | Kind::BranchSummary
                | Kind::Graft
        )
    }

    /// Changes what the model is told about how to answer. An assistant message does: it names the model that served.
    pub fn may_change_settings(self) -> bool {
        matches!(
            self,
            Kind::ModelChanged
                | Kind::ThinkingChanged
                | Kind::SkillsChanged
                | Kind::ContextChanged
                | Kind::AssistantMessage
        )
    }
}

impl Body {
    /// The parts of a message body.
    pub fn parts(&self) -> &[Part] {
        match self {
            Body::UserMessage(body) => &body.parts,
            Body::AssistantMessage(body) => &body.parts,
            Body::ToolResult(body) => &body.parts,
            Body::CustomMessage(body) => &body.parts,
            Body::InputQueued(body) => &body.parts,
            Body::SystemNote(_)
            | Body::Compaction(_)
            | Body::BranchSummary(_)
            | Body::ModelChanged(_)
            | Body::ThinkingChanged(_)
            | Body::SkillsChanged(_)
            | Body::ContextChanged(_)
            | Body::Graft(_)
            | Body::LeafMoved(_)
            | Body::Label(_)
            | Body::SessionNamed(_)
            | Body::CustomInfo(_)
            | Body::TurnStarted(_)
            | Body::TurnEnded(_)
            | Body::Round(_)
            | Body::ApprovalAsked(_)
            | Body::ApprovalAnswered(_)
            | Body::ArtifactPut(_)
            | Body::MemberChanged(_)
            | Body::StateChanged(_)
            | Body::Exported(_)
            | Body::InputTaken(_)
            | Body::CancelAsked(_) => &[],
        }
    }

    /// What a person reads in this body, in one string; empty where there is nothing to read.
    pub fn text(&self) -> String {
        match self {
            Body::SystemNote(body) => body.text.clone(),
            Body::Compaction(body) => body.summary.clone().unwrap_or_default(),
            Body::BranchSummary(body) => body.summary.clone(),
            Body::SessionNamed(body) => body.title.clone(),
            other => joined_text(other.parts()),
        }
    }

    /// What full-text search should find this entry by: its text, and what its tools were asked.
    pub fn search_text(&self) -> String {
        let mut text = self.text();
        for call in self.parts().iter().filter_map(Part::as_tool_call) {
            text.push('\n');
            text.push_str(&call.name);
            text.push(' ');
            text.push_str(call.input.get());
        }
        text
    }

    /// Every blob this body refers to; an append is refused unless all of them are in the store.
    pub fn blobs(&self) -> Vec<BlobHash> {
        let media = self.parts().iter().filter_map(|part| match part {
            Part::Media(media) => Some(media.blob),
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => None,
        });
        let mut blobs: Vec<BlobHash> = media.collect();
        match self {
            Body::ToolResult(body) => blobs.extend(body.full.as_ref().map(|full| full.blob)),
            Body::ArtifactPut(body) => blobs.push(body.content.blob),
            Body::UserMessage(body) => {
                blobs.extend(body.origin.iter().flat_map(|origin| origin.attachments.iter().map(|a| a.blob)));
            }
            _ => {}
        }
        blobs
    }
}

/// Everything about an entry but what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub seq: Seq,
    pub id: EntryId,
    /// The entry this one hangs from; for a body beside the tree, the leaf when it was written.
    pub parent: Option<Seq>,
    pub at: TimestampMs,
    pub by: Principal,
    pub turn: Option<TurnId>,
    pub kind: Kind,
}

/// An entry as stores hand it out: the body is still bytes, so that it can go out as it is or be read when needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub meta: Meta,
    pub version: u32,
    pub body: Vec<u8>,
}

/// An entry, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub meta: Meta,
    pub body: Body,
}

/// An entry that is not in a log yet. The log gives it its seq and parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Minted by the store when absent; an import brings its own, which must grow (I13).
    pub id: Option<EntryId>,
    pub at: TimestampMs,
    /// Who wrote it, if not the caller: an import keeps the original author.
    pub by: Option<Principal>,
    pub turn: Option<TurnId>,
    pub body: Body,
}

impl Draft {
    pub fn new(at: TimestampMs, body: impl Into<Body>) -> Self {
        Self { id: None, at, by: None, turn: None, body: body.into() }
    }
    pub fn in_turn(mut self, turn: TurnId) -> Self {
        self.turn = Some(turn);
        self
    }
}

impl Record {
    pub fn decode(&self) -> Result<Body, codec::CodecError> {
        codec::decode(self.version, self.meta.kind, &self.body)
    }
    pub fn into_entry(self) -> Result<Entry, codec::CodecError> {
        let body = self.decode()?;
        Ok(Entry { meta: self.meta, body })
    }
}

impl Entry {
    pub fn to_record(&self) -> Record {
        Record { meta: self.meta.clone(), version: LOG_VERSION, body: codec::encode(&self.body) }
    }
}
