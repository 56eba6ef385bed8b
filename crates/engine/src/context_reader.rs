//! Reads a context of any length message by message. Short contexts are built as a whole.

use std::collections::{HashMap, HashSet, VecDeque};

use sapwood_core::entry::{Body, Entry, Kind, Outcome, SessionContext};
use sapwood_core::port::store::{PathSlice, Until};
use sapwood_core::project::context::{Context, Message};
use sapwood_core::project::context_stream::{ContextMessages, ContextPlan, NextMessage};
use sapwood_core::project::path_runs::PathRuns;
use sapwood_core::tokens::Count;
use sapwood_core::{Scope, Seq, SessionId, TurnId};

use crate::graft::{GRAFTS_SHOWN_MAX, ShownGraft};
use crate::path_reader::{PathReader, PathStart, walk};
use crate::tokens::EXACT_BYTES_MAX;
use crate::views::Views;
use crate::{Engine, Result};

/// Contexts of at most this many entries are built as a whole.
const SHORT_ENTRIES_MAX: usize = 512;

/// A context, read in the way that fits its length.
pub enum ContextRead {
    Short(Box<Context>),
    Long(Box<ContextReader>),
}

/// Everything in a context except its messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextHead {
    pub system: Option<String>,
    pub model: Option<String>,
    pub thinking: String,
    pub skills: Vec<String>,
    pub session: Option<SessionContext>,
}

/// A long context. Its messages equal those of [`Views::context`].
pub struct ContextReader {
    engine: Engine,
    pub head: ContextHead,
    reader: PathReader,
    messages: ContextMessages,
    next: VecDeque<NextMessage>,
    grafts: HashMap<Seq, ShownGraft>,
    is_over: bool,
    /// Bytes that may still be counted with the model's tokenizer. Further bytes are estimated.
    exact_bytes: usize,
}

impl Views<'_> {
    /// The context that a model would receive at the leaf, or at another entry.
    pub async fn read_context(
        self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<ContextRead> {
        let head = self.engine.store.summary(scope, session).await?.head;
        let is_short_log = head.seq.0 as usize <= SHORT_ENTRIES_MAX;
        if is_short_log || self.has_short_context(scope, session, at).await? {
            return Ok(ContextRead::Short(Box::new(self.context(scope, session, at).await?)));
        }
        Ok(ContextRead::Long(Box::new(self.open_context(scope, session, at).await?)))
    }

    async fn has_short_context(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<bool> {
        let walked = walk(self.engine, scope, session, at, PathStart::Context, SHORT_ENTRIES_MAX).await?;
        Ok(walked.len() <= SHORT_ENTRIES_MAX)
    }

    /// Read the path of a long context once, and prepare to return its messages.
    pub async fn open_context(
        self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<ContextReader> {
        let engine = self.engine;
        let walked = walk(engine, scope, session, at, PathStart::Context, usize::MAX).await?;
        let until = Until::Entries(u32::from(!walked.is_empty()));
        let first = walked.last().copied();
        let slice = engine.configuration().read_path(scope, session, first, until).await?;
        let failed = self.failed_turns(scope, session, above(&slice)).await?;
        let mut plan = ContextPlan::new(slice.settings_before, failed, slice.inherited, GRAFTS_SHOWN_MAX);
        let mut reader = PathReader::new(engine, scope, session, PathRuns::of_walk(walked));
        while let Some(entry) = reader.next().await? {
            plan.add(&entry);
        }
        reader.restart();
        let mut grafts = HashMap::new();
        for (seq, graft) in plan.grafts() {
            grafts.insert(*seq, engine.grafts().show(scope, graft).await?);
        }
        let config = engine.configuration().config(scope, session, &slice.config_entries, at).await?;
        let (settings, messages) = plan.finish(config.as_ref());
        let head = ContextHead {
            system: settings.system_prompt(),
            thinking: settings.thinking_level().to_owned(),
            model: settings.model,
            skills: settings.skills.unwrap_or_default(),
            session: config.map(|config| config.context),
        };
        Ok(ContextReader {
            engine: engine.clone(),
            head,
            reader,
            messages,
            next: VecDeque::new(),
            grafts,
            is_over: false,
            exact_bytes: EXACT_BYTES_MAX,
        })
    }

    /// The turns that began after an entry and failed.
    async fn failed_turns(self, scope: &Scope, session: &SessionId, after: Seq) -> Result<HashSet<TurnId>> {
        let (log, mut failed) = (self.engine.log(), HashSet::new());
        let is_failed =
            |entry: &Entry| matches!(&entry.body, Body::TurnEnded(end) if end.outcome == Outcome::Failed);
        let add = |entry: Entry| failed.extend(entry.meta.turn.filter(|_| is_failed(&entry)));
        log.each_of_kinds_after(scope, session, &[Kind::TurnEnded], after, add).await?;
        if failed.is_empty() {
            return Ok(failed);
        }
        let mut began = HashSet::new();
        let add = |entry: Entry| began.extend(entry.meta.turn.filter(|turn| failed.contains(turn)));
        log.each_of_kinds_after(scope, session, &[Kind::TurnStarted], after, add).await?;
        Ok(began)
    }
}

/// The parent of the first entry.
fn above(slice: &PathSlice) -> Seq {
    slice.entries.first().and_then(|first| first.meta.parent).unwrap_or_default()
}

impl ContextReader {
    /// The next message.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        if let Some(summary) = self.messages.take_summary() {
            return Ok(Some(summary));
        }
        while self.next.is_empty() && !self.is_over {
            match self.reader.next().await? {
                Some(entry) => self.messages.add(entry, &mut self.next),
                None => {
                    self.messages.finish(&mut self.next);
                    self.is_over = true;
                }
            }
        }
        let message = match self.next.pop_front() {
            Some(NextMessage::Ready(message)) => Some(message),
            Some(NextMessage::Elsewhere { seq, tool }) => {
                self.messages.moved_result(self.reader.entry(seq).await?, &tool)
            }
            None => None,
        };
        Ok(message.map(|message| self.with_graft(message)))
    }

    fn with_graft(&mut self, mut message: Message) -> Message {
        if let Some(shown) = message.entry.and_then(|(seq, _)| self.grafts.remove(&seq)) {
            shown.apply(&mut message);
        }
        message
    }

    /// Count a message with the model's tokenizer.
    pub fn count(&mut self, message: &Message) -> u64 {
        self.counted(|counter| counter.message(message))
    }

    /// Count the system prompt with the model's tokenizer.
    pub fn count_system(&mut self) -> u64 {
        let system = self.head.system.clone();
        system.map_or(0, |system| self.counted(|counter| counter.text(&system)))
    }

    fn counted(&mut self, count: impl FnOnce(&crate::tokens::Counter<'_>) -> u64) -> u64 {
        let tokens = self.engine.tokens.clone();
        let counter = tokens.counter_up_to(self.head.model.as_deref(), self.exact_bytes);
        let counted = count(&counter);
        self.exact_bytes = counter.exact_bytes_left();
        counted
    }

    /// Drop the page in memory. The next call reads it again.
    pub fn release(&mut self) {
        self.reader.release();
    }
}
