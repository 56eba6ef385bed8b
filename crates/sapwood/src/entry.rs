//! Entries: everything that a session's log can contain. `docs/spec/log-format.md` specifies them.

pub use sapwood_core::content::{BlobRef, Json, Part, Reasoning, Text, ToolCall};
pub use sapwood_core::entry::codec::CodecError;
pub use sapwood_core::entry::{
    Action, ActionKind, ApprovalAnswer, ApprovalAnswered, ApprovalAsked, ArtifactPut, ArtifactUse,
    AssistantMessage, Body, BranchSummary, CancelAsked, Compaction, ContextChanged, CustomInfo,
    CustomMessage, Draft, Entry, Exported, Graft, GraftWhat, InputQueued, InputTaken, Kind, Label, LeafMoved,
    MemberChanged, Meta, ModelChanged, Origin, Outcome, Queue, Record, Round, RoundResult, RoundStatus,
    SessionNamed, SessionState, SkillsChanged, Stance, StateChanged, Stop, SystemNote, ThinkingChanged,
    ToolResult, TurnEnded, TurnStarted, Usage, UserMessage,
};
pub use sapwood_core::{BlobHash, EntryId, Seq, TimestampMs, TurnId};

/// A user message.
pub fn user_text(text: impl Into<String>) -> Body {
    Body::UserMessage(UserMessage { parts: vec![Part::text(text)], origin: None })
}
