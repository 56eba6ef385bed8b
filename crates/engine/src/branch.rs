//! Leave a branch: move the leaf to another entry and, optionally, add a summary of the abandoned branch. The caller, a
//! hook or a model writes the summary.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_core::compact::details::merge;
use sapwood_core::compact::summarise::{branch_request, read_answer, story_chunks};
use sapwood_core::compact::{Archive, CompactOptions, Cut, SizeLimit, truncate};
use sapwood_core::entry::{Body, BranchSummary, Entry, LeafMoved};
use sapwood_core::port::hook::{HookName, event_text};
use sapwood_core::port::store::{Appended, Until};
use sapwood_core::port::summariser::Summariser;
use sapwood_core::project::context::{Context, Message, messages_of};
use sapwood_core::{EntryId, Scope, SessionId};
use serde_json::json;

use crate::edits::Edits;
use crate::hook::{EventLocation, HookDecision, text_of};
use crate::summarise::MeteredSummariser;
use crate::{EngineError, Result};

/// Maximum number of entries of an abandoned branch that are summarized. Older entries are left out.
const BRANCH_ENTRIES_MAX: u32 = 10_000;

/// The summary of the abandoned branch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LeaveWith {
    /// No summary.
    #[default]
    Nothing,
    /// The caller's summary.
    Text(String),
    /// A summary written by this model or, if `None`, by the model that answers next.
    ModelSummary { model: Option<String> },
}

impl Edits<'_> {
    /// Move the leaf to an entry. A summary of the abandoned branch, if given, becomes the new leaf.
    pub async fn branch(
        self,
        scope: &Scope,
        session: &SessionId,
        to: EntryId,
        summary: Option<String>,
    ) -> Result<Appended> {
        let leave = summary.map_or(LeaveWith::Nothing, LeaveWith::Text);
        self.leave_branch(scope, session, to, leave).await
    }

    /// Like [`Edits::branch`], with the choice of who writes the summary. A hook gets the text of the branch and may
    /// supply another summary. If the model fails, the session is unchanged.
    pub async fn leave_branch(
        self,
        scope: &Scope,
        session: &SessionId,
        to: EntryId,
        leave: LeaveWith,
    ) -> Result<Appended> {
        let given = match &leave {
            LeaveWith::Text(text) => Some(text.clone()),
            LeaveWith::Nothing | LeaveWith::ModelSummary { .. } => None,
        };
        if given.as_ref().is_some_and(|summary| summary.trim().is_empty()) {
            return Err(EngineError::Invalid { what: "the summary", why: "it is empty".to_owned() });
        }
        let needs_branch = matches!(leave, LeaveWith::ModelSummary { .. })
            || self.engine.hooks().has(HookName::BeforeBranch);
        let left = if needs_branch { self.left_messages(scope, session, to).await? } else { Vec::new() };
        let about = || json!({"to": to, "summary": given, "text": event_text(&transcript(&left))});
        let at = EventLocation::new(scope, session);
        let asked = self.engine.hooks().ask(HookName::BeforeBranch, at, about).await?;
        let from_hook = match &asked {
            HookDecision::Changed(data) => text_of(data, "summary"),
            HookDecision::Continue | HookDecision::Supplied { .. } => None,
        };
        let summary = match (from_hook, leave) {
            (Some(text), _) => Some(BranchSummary { from_hook: true, ..BranchSummary::new(text) }),
            (None, LeaveWith::ModelSummary { model }) => {
                Some(self.summarise_branch(scope, session, left, model).await?)
            }
            (None, LeaveWith::Text(text)) if asked == HookDecision::Continue => {
                Some(BranchSummary::new(text))
            }
            (None, _) => None,
        };
        let branched = self.move_leaf(scope, session, to, summary).await?;
        let data = || json!({"to": to, "seq": branched.head.seq});
        self.engine.hooks().fire(HookName::AfterBranch, scope, session, None, data).await;
        Ok(branched)
    }

    async fn move_leaf(
        self,
        scope: &Scope,
        session: &SessionId,
        to: EntryId,
        summary: Option<BranchSummary>,
    ) -> Result<Appended> {
        let branched = self.engine.log().decide(scope, session, "branch", |engine, current| {
            let summary = summary.clone();
            async move {
                let from = match current.head.leaf {
                    Some(leaf) if summary.is_some() => {
                        Some(engine.store.read_entry(scope, session, leaf).await?.meta.id)
                    }
                    _ => None,
                };
                let moved = Body::LeafMoved(LeafMoved { to: Some(to) });
                let summary = summary.map(|summary| Body::BranchSummary(BranchSummary { from, ..summary }));
                Ok(std::iter::once(moved).chain(summary).collect())
            }
        });
        branched.await
    }

    /// The messages on the current path that are not on the path to `to`.
    async fn left_messages(self, scope: &Scope, session: &SessionId, to: EntryId) -> Result<Vec<Message>> {
        let read = |at| self.engine.store.read_path(scope, session, at, Until::Entries(BRANCH_ENTRIES_MAX));
        let current = read(None).await?.entries;
        let target = self.engine.store.find_entries(scope, session, &to.to_string()).await?;
        let staying: HashSet<EntryId> = match target.first() {
            Some(target) => {
                read(Some(target.meta.seq)).await?.entries.iter().map(|entry| entry.meta.id).collect()
            }
            None => HashSet::new(),
        };
        let shared = current.iter().rposition(|entry| staying.contains(&entry.meta.id));
        let left: Vec<Entry> = current.into_iter().skip(shared.map_or(0, |at| at + 1)).collect();
        Ok(messages_of(left))
    }

    async fn summarise_branch(
        self,
        scope: &Scope,
        session: &SessionId,
        left: Vec<Message>,
        model: Option<String>,
    ) -> Result<BranchSummary> {
        if left.is_empty() {
            let why = "the branch has no messages after this entry".to_owned();
            return Err(EngineError::Invalid { what: "the branch to summarize", why });
        }
        let summariser = self.engine.compaction().summariser_of(scope, session, model).await?;
        let meter = MeteredSummariser::new(Arc::new(summariser));
        let (context, options) = (branch_context(left), CompactOptions::default());
        let archive =
            Archive::at(&context, Cut { start: 0, cut: context.messages.len(), split: None }, &options);
        let mut text = String::new();
        for chunk in story_chunks(&archive) {
            let written = meter.write(branch_request(&archive, &text, &chunk)).await;
            text = written.map_err(|source| EngineError::Summariser { source })?.text;
        }
        let details = merge(archive.details.clone(), read_answer(&text).1);
        if text.trim().is_empty() {
            text = truncate(&archive, SizeLimit::Half).past();
        }
        let summary = BranchSummary::new(text.trim());
        Ok(BranchSummary { details, written_by: meter.bill(), ..summary })
    }
}

/// A context that consists of a branch's messages.
fn branch_context(messages: Vec<Message>) -> Context {
    Context {
        system: None,
        model: None,
        thinking: "off".to_owned(),
        skills: Vec::new(),
        session: None,
        messages,
        tokens: 0,
        compaction: None,
        reported: None,
    }
}

/// The messages as text, one per line, for hooks.
fn transcript(messages: &[Message]) -> String {
    let lines = messages.iter().map(|message| format!("{}: {}", message.role.as_str(), message.text()));
    lines.collect::<Vec<_>>().join("\n")
}
