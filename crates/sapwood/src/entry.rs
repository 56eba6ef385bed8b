//! Entries: everything that a session's log can contain. `docs/spec/log-format.md` specifies them.

pub use sapwood_core::content::{BlobRef, Json, Part, Reasoning, Text, ToolCall};
pub use sapwood_core::entry::codec::CodecError;
pub use sapwood_core::entry::{
    Action, ActionKind, ApprovalAnswer, ApprovalAnswered, ApprovalAsked, ApprovalDeadlines, ArtifactPut,
    ArtifactUse, AssistantMessage, Body, BranchSummary, CancelAsked, Compaction, ConfigSource, Configured,
    ContextChanged, ContextSet, CustomInfo, CustomMessage, Draft, EngineRecord, Entry, Exported,
    FlowAssigned, FlowEvent, Graft, GraftWhat, HookRan, InputQueued, InputTaken, Kind, Label, LeafMoved,
    LimitsChanged, MemberChanged, MemoryLearned, Meta, ModelChanged, Origin, Outcome, PressureChanged, Queue,
    Record, Round, RoundResult, RoundStatus, Selection, SessionContext, SessionNamed, SessionState,
    SkillsChanged, Stance, StateChanged, Stop, SystemNote, ThinkingChanged, ToolResult, TriggerEvent,
    TurnEnded, TurnStarted, TurnTerms, Usage, UsageReported, UserMessage,
};
pub use sapwood_core::{BlobHash, EntryId, Seq, TimestampMs, TurnId};

/// A user message.
pub fn user_text(text: impl Into<String>) -> Body {
    Body::UserMessage(UserMessage { parts: vec![Part::text(text)], origin: None })
}
