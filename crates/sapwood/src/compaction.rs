//! Compaction replaces older messages of a context with a summary. `docs/spec/compaction.md` describes the strategies.

pub use sapwood_core::compact::{
    Archive, Callbacks, CompactOptions, CompressCallback, Cut, Detail, Digest, Keep, MaskCallback, Method,
    OptionError, ToolOutput as MaskedOutput,
};
pub use sapwood_core::entry::{Details, Shortened, Strategy, Trigger, WrittenBy};
pub use sapwood_core::port::summariser::{
    BeforeCompact, CompactHook, Compactor, Summariser, SummariserError, SummaryRequest, WrittenSummary,
};
pub use sapwood_engine::compact::{Compacted, Compacting, IfLarger, Writing};
