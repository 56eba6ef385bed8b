//! The options of a compaction and its result.

use std::sync::Arc;

use sapwood_core::compact::{Callbacks, CompactOptions, Method, OptionError};
use sapwood_core::entry::{Compaction, Trigger};
use sapwood_core::port::summariser::{CompactHook, Compactor, Summariser};
use sapwood_core::project::context::Context;
use sapwood_core::{EntryId, Seq, TurnId};

use crate::{EngineError, Result};

/// Whether the operation writes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writing {
    /// Append the result to the session.
    #[default]
    Write,
    /// Only report what would be written.
    DryRun,
}

/// What to do with a compaction that would not shrink the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfLarger {
    /// Write nothing.
    #[default]
    Refuse,
    /// Write it.
    Write,
}

/// Options of one compaction.
#[derive(Clone)]
pub struct Compacting {
    /// What to keep, and how to replace the rest.
    pub options: CompactOptions,
    /// What caused the compaction, for the log.
    pub trigger: Trigger,
    /// Writes the summary for the strategy `llm`.
    pub summariser: Option<Arc<dyn Summariser>>,
    /// Writes the summary for the strategy `custom`.
    pub custom_compactor: Option<Arc<dyn Compactor>>,
    /// Closures that replace parts of a strategy.
    pub callbacks: Callbacks,
    /// Called before the compaction, which it may cancel or summarize itself, and after it.
    pub hook: Option<Arc<dyn CompactHook>>,
    /// Fence of the lease that the caller holds.
    pub fence: Option<u64>,
    /// The running turn that the compaction is part of, if any.
    pub turn: Option<TurnId>,
    /// Whether anything is written.
    pub writing: Writing,
    /// What to do if the context would not shrink.
    pub if_larger: IfLarger,
    /// Facts appended verbatim to the summary. If `None`, a flow role's session uses the facts of its role.
    pub standing: Option<String>,
}

impl Compacting {
    /// A compaction without a summariser, callbacks or hooks.
    pub fn new(options: CompactOptions, trigger: Trigger) -> Self {
        Self {
            options,
            trigger,
            summariser: None,
            custom_compactor: None,
            callbacks: Callbacks::default(),
            hook: None,
            fence: None,
            turn: None,
            writing: Writing::Write,
            if_larger: IfLarger::Refuse,
            standing: None,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let options = self.options.clone().checked()?;
        for (key, method) in [
            ("compact_strategy", Some(options.compact_strategy)),
            ("hard_limit_strategy", options.hard_limit_strategy),
        ] {
            match method {
                Some(Method::Llm) if self.summariser.is_none() => {
                    return Err(EngineError::NoSummariser { key });
                }
                Some(Method::Custom) if self.custom_compactor.is_none() => {
                    let why = "custom needs a custom_compactor, which only the Rust API supports";
                    return Err(OptionError::new(key, why).into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The result of a compaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Compacted {
    /// Messages now in the context.
    pub kept: usize,
    /// Messages removed from the context.
    pub archived: usize,
    /// Tokens of the context before the compaction.
    pub tokens_before: u64,
    /// Tokens of the context after the compaction.
    pub tokens_after: u64,
    /// The compaction that was written, or would be in a dry run; `None` if nothing was compacted.
    pub compaction: Option<Compaction>,
    /// The compaction's entry; `None` if nothing was written.
    pub entry: Option<(Seq, EntryId)>,
    /// The hook's reason for cancelling the compaction.
    pub cancelled: Option<String>,
    /// The tokens that the compacted context would have, if that is why nothing was written.
    pub larger: Option<u64>,
}

impl Compacted {
    pub(super) fn nothing(context: &Context, tokens: u64) -> Self {
        Self {
            kept: context.messages.len(),
            archived: 0,
            tokens_before: tokens,
            tokens_after: tokens,
            compaction: None,
            entry: None,
            cancelled: None,
            larger: None,
        }
    }
}
