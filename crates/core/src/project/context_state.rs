//! The state of a context: whether it is the whole path, or what shortened it.

use crate::entry::Strategy;

/// What the latest compaction on the path did to the context. A context without a compaction has no such state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextState {
    /// A summary replaced older messages.
    Compacted,
    /// Older messages were removed at the caller's request.
    Trimmed,
    /// Older messages were removed because the session was inactive.
    Pruned,
}

impl ContextState {
    /// The state after a compaction with this strategy.
    pub fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Prune => Self::Pruned,
            Strategy::Trim => Self::Trimmed,
            Strategy::Truncate
            | Strategy::ObservationMask
            | Strategy::Llm
            | Strategy::Custom
            | Strategy::Imported => Self::Compacted,
        }
    }

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compacted => "compacted",
            Self::Trimmed => "trimmed",
            Self::Pruned => "pruned",
        }
    }

    /// The state with this name; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Compacted, Self::Trimmed, Self::Pruned].into_iter().find(|state| state.as_str() == name)
    }
}
