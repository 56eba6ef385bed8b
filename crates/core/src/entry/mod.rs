//! Entries: the immutable records of a session's log. There is one file per family of bodies. [`codec`] encodes and
//! decodes bodies, and [`upcast`] upgrades bodies of older versions.
//!
//! A body is either in the tree and becomes the new leaf, or outside the tree. Of the bodies outside the tree, only
//! `leaf_moved` changes the leaf. The table below is the only definition of the kinds, of which bodies are in the tree,
//! and of the events of each kind.

pub mod codec;
mod configuration;
mod downcast;
mod engine_records;
pub mod jsonl;
mod message;
pub mod proof;
mod session_entries;
mod setting;
mod summary;
mod turn;
mod upcast;

pub use configuration::{ConfigSource, Configured, ContextSet, LimitsChanged, Selection, SessionContext};
pub use downcast::encode_in;
pub use engine_records::{
    EngineRecord, FlowAssigned, FlowEvent, HookRan, MemoryLearned, PressureChanged, TriggerEvent, TurnTerms,
    UsageReported,
};
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
    Action, ActionKind, ApprovalAnswer, ApprovalAnswered, ApprovalAsked, ApprovalDeadlines, CancelAsked,
    InputQueued, InputTaken, Outcome, Queue, Round, RoundResult, RoundStatus, TurnEnded, TurnStarted,
};
pub use upcast::{LOG_VERSION, LOG_VERSION_MIN};

use crate::content::{Part, joined_text};
use crate::id::{BlobHash, EntryId, Seq, TimestampMs, TurnId};
use crate::scope::Principal;

/// Whether a body becomes the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stance {
    /// The entry is attached to the tree and becomes the leaf.
    InTree,
    /// The entry is only in the log. The leaf stays unchanged, unless the entry is a `leaf_moved`.
    OutsideTree,
}

macro_rules! bodies {
    ($($code:literal $variant:ident $name:literal $stance:ident [$($event:literal),*];)*) => {
        /// The kind of an entry. The numbers are stored on disk: never reuse one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = concat!("`", $name, "`: see [`", stringify!($variant), "`].")] $variant = $code,)*
        }

        /// The content of an entry.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body {
            $(#[doc = concat!("`", $name, "`.")] $variant($variant),)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }
            /// The kind with this name; `None` if it is unknown.
            pub fn from_name(name: &str) -> Option<Kind> {
                match name { $($name => Some(Kind::$variant),)* _ => None }
            }
            /// The number that stores write to disk.
            pub fn code(self) -> u8 {
                self as u8
            }
            /// The kind with this number; `None` if it is unknown.
            pub fn from_code(code: u8) -> Option<Kind> {
                match code { $($code => Some(Kind::$variant),)* _ => None }
            }
            /// The names of the events of this kind of entry. Usually there is one; otherwise the body determines which
            /// one it is.
            pub fn events(self) -> &'static [&'static str] {
                match self { $(Kind::$variant => &[$($event),*],)* }
            }
            /// Whether entries of this kind are part of the tree.
            pub fn stance(self) -> Stance {
                match self { $(Kind::$variant => Stance::$stance,)* }
            }
        }

        impl Body {
            /// The kind of this body.
            pub fn kind(&self) -> Kind {
                match self { $(Body::$variant(_) => Kind::$variant,)* }
            }
            fn write_fields(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
                match self { $(Body::$variant(body) => serde_json::to_writer(out, body),)* }
            }
            fn read_fields(kind: Kind, json: &[u8]) -> serde_json::Result<Body> {
                match kind { $(Kind::$variant => serde_json::from_slice(json).map(Body::$variant),)* }
            }
            /// The schema of each kind's fields. The schemas that they reference are added to `referenced`.
            #[cfg(feature = "openapi")]
            pub(crate) fn field_schemas(
                referenced: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>,
            ) -> Vec<(Kind, utoipa::openapi::RefOr<utoipa::openapi::Schema>)> {
                $(<$variant as utoipa::ToSchema>::schemas(referenced);)*
                vec![$((Kind::$variant, <$variant as utoipa::PartialSchema>::schema()),)*]
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
    1  UserMessage      "user_message"      InTree      ["session:message"];
    2  AssistantMessage "assistant_message" InTree      ["agent:message"];
    3  ToolResult       "tool_result"       InTree      ["agent:tool_result"];
    4  SystemNote       "system_note"       InTree      ["session:message"];
    5  CustomMessage    "custom_message"    InTree      ["session:message"];
    6  Compaction       "compaction"        InTree      ["session:compacted", "session:trimmed"];
    7  BranchSummary    "branch_summary"    InTree      ["session:branched"];
    8  ModelChanged     "model_changed"     InTree      ["session:settings_changed"];
    9  ThinkingChanged  "thinking_changed"  InTree      ["session:settings_changed"];
    10 SkillsChanged    "skills_changed"    InTree      ["session:settings_changed"];
    11 ContextChanged   "context_changed"   InTree      ["session:settings_changed"];
    12 Graft            "graft"             InTree      ["session:grafted"];
    32 LeafMoved        "leaf_moved"        OutsideTree ["session:branched"];
    33 Label            "label"             OutsideTree ["session:labelled"];
    34 SessionNamed     "session_named"     OutsideTree ["session:renamed"];
    35 CustomInfo       "custom_info"       OutsideTree ["session:info"];
    36 TurnStarted      "turn_started"      OutsideTree ["session:turn_started"];
    37 TurnEnded        "turn_ended"        OutsideTree ["session:turn_completed", "session:cancelled"];
    38 Round            "round"             OutsideTree ["cost:updated"];
    39 ApprovalAsked    "approval_asked"    OutsideTree ["agent:approval_requested"];
    40 ApprovalAnswered "approval_answered" OutsideTree ["agent:approval_answered"];
    41 ArtifactPut      "artifact_put"      OutsideTree ["session:artifact"];
    42 MemberChanged    "member_changed"    OutsideTree ["session:shared"];
    43 StateChanged     "state_changed"     OutsideTree ["session:reopened", "session:closed", "session:archived"];
    44 Exported         "exported"          OutsideTree ["session:exported"];
    45 InputQueued      "input_queued"      OutsideTree ["session:queued"];
    46 InputTaken       "input_taken"       OutsideTree ["session:dequeued"];
    47 CancelAsked      "cancel_asked"      OutsideTree ["session:cancel_asked"];
    48 TurnTerms        "turn_terms"        OutsideTree ["session:info"];
    49 UsageReported    "usage_reported"    OutsideTree ["session:info"];
    50 PressureChanged  "pressure_changed"  OutsideTree ["session:pressure"];
    51 FlowEvent        "flow_event"        OutsideTree ["flow:event"];
    52 FlowAssigned     "flow_assigned"     OutsideTree ["flow:entered"];
    53 HookRan          "hook_ran"          OutsideTree ["session:info"];
    54 TriggerEvent     "trigger_event"     OutsideTree ["session:info"];
    55 MemoryLearned    "memory_learned"    OutsideTree ["session:info"];
    56 Configured       "configured"        OutsideTree ["session:started"];
    57 ContextSet       "context_set"       OutsideTree ["session:context_changed"];
    58 LimitsChanged    "limits_changed"    OutsideTree ["session:settings_changed"];
}

impl Kind {
    /// Whether the entry counts towards a session's number of messages.
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

    /// Whether the entry may change the settings. An assistant message may, because it records the model that answered.
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
    /// The parts of a message or of queued input; empty for other bodies.
    pub fn parts(&self) -> &[Part] {
        match self {
            Body::UserMessage(body) => &body.parts,
            Body::AssistantMessage(body) => &body.parts,
            Body::ToolResult(body) => &body.parts,
            Body::CustomMessage(body) => &body.parts,
            Body::InputQueued(body) => &body.parts,
            _ => &[],
        }
    }

    /// The readable text of this body in one string; empty if the body has no text.
    pub fn text(&self) -> String {
        match self {
            Body::SystemNote(body) => body.text.clone(),
            Body::Compaction(body) => body.summary.clone().unwrap_or_default(),
            Body::BranchSummary(body) => body.summary.clone(),
            Body::SessionNamed(body) => body.title.clone(),
            other => joined_text(other.parts()),
        }
    }

    /// The text for full-text search: the body's text, and the names and inputs of its tool calls.
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

    /// All blobs that this body references. An append is refused unless the store contains all of them.
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

/// The metadata of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The position in the log.
    pub seq: Seq,
    /// The id, which increases with the position.
    pub id: EntryId,
    /// The parent entry. For a body outside the tree, the leaf at the time of writing.
    pub parent: Option<Seq>,
    /// When the entry was written. For an imported entry this is the time at its origin.
    pub at: TimestampMs,
    /// The principal that wrote the entry. An import keeps the original author.
    pub by: Principal,
    /// The turn that the entry is part of.
    pub turn: Option<TurnId>,
    /// The kind of the body.
    pub kind: Kind,
}

/// An entry as stores return it. The body is still encoded, so that it can be sent unchanged or decoded when needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The entry's metadata.
    pub meta: Meta,
    /// The format version of the body.
    pub version: u32,
    /// The body as JSON.
    pub body: Vec<u8>,
}

/// A decoded entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The entry's metadata.
    pub meta: Meta,
    /// The content.
    pub body: Body,
}

/// An entry that is not in a log yet. The log assigns its seq and parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Minted by the store if absent. An import supplies the ids, which must increase (I13).
    pub id: Option<EntryId>,
    /// When the entry was created. An import keeps the original time.
    pub at: TimestampMs,
    /// The author, if not the caller: an import keeps the original author.
    pub by: Option<Principal>,
    /// The turn that the entry is part of.
    pub turn: Option<TurnId>,
    /// The content.
    pub body: Body,
}

impl Draft {
    /// A draft outside any turn. The store assigns its id, and the caller is its author.
    pub fn new(at: TimestampMs, body: impl Into<Body>) -> Self {
        Self { id: None, at, by: None, turn: None, body: body.into() }
    }
    /// Make the entry part of a turn.
    pub fn in_turn(mut self, turn: TurnId) -> Self {
        self.turn = Some(turn);
        self
    }
}

impl Record {
    /// Decode the body.
    pub fn decode(&self) -> Result<Body, codec::CodecError> {
        codec::decode(self.version, self.meta.kind, &self.body)
    }
    /// Decode the body, and return the whole entry.
    pub fn into_entry(self) -> Result<Entry, codec::CodecError> {
        self.decode().map(|body| Entry::of(self.meta, body))
    }
    /// Convert the record to the current format version. Stores return every record in this form.
    pub fn upgraded(self) -> Result<Record, codec::CodecError> {
        if !upcast::differs(self.version, self.meta.kind) {
            return Ok(Record { version: LOG_VERSION, ..self });
        }
        Ok(self.into_entry()?.to_record())
    }
}

impl Entry {
    /// An entry with this body. An older format may have stored the body under another kind.
    pub fn of(meta: Meta, body: Body) -> Self {
        Self { meta: Meta { kind: body.kind(), ..meta }, body }
    }
    /// Encode the entry in the current format version.
    pub fn to_record(&self) -> Record {
        Record { meta: self.meta.clone(), version: LOG_VERSION, body: codec::encode(&self.body) }
    }
}
