//! Learn memories from a session: when it is closed or archived, after an idle time, or on request. A checkpoint in
//! the session's log records the last processed entry, so that nothing is learned twice and forgotten memories stay
//! forgotten.

use std::time::Duration;

use sapwood_core::agent::{Agent, Learn};
use sapwood_core::entry::{Entry, SessionState};
use sapwood_core::id::MemoryId;
use sapwood_core::memory::{Candidate, ENTRIES_MAX, MemoryCheckpoint, llm_extract, rules};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::memory::{Belongs, Learned, MemorySource, Standing, Whose};
use sapwood_core::port::store::{Append, ListFilter, StoreError, Until};
use sapwood_core::port::summariser::{Summariser, SummaryRequest};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Draft, Kind, Principal, Right, Scope, Seq, SessionId, TenantId, TimestampMs};
use serde::Serialize;

use super::Memories;
use super::config::AtEnd;
use super::write::{MemoryOutcome, NewMemory, StoredMemory};
use crate::summarise::ModelSummariser;
use crate::{Engine, EngineError, Result};

/// Timeout for extraction by a model. If it expires, the rules are used.
const MODEL_WAIT: Duration = Duration::from_secs(20);
/// Maximum number of retries after a conflict.
const TRIES_MAX: u32 = 8;
/// Page size and maximum number of pages when searching for idle sessions.
const IDLE_ROWS: usize = 200;
const IDLE_PAGES_MAX: usize = 1_000;

/// The result of learning from a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Learning {
    /// The session.
    pub session: SessionId,
    /// The extracted memories, including those that were already known.
    pub kept: Vec<StoredMemory>,
    /// How they were extracted.
    pub how: Learned,
    /// Why the model's answer was not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// How many entries were read.
    pub entries: usize,
}

/// Sessions that were last used in this time range, both ends excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleWindow {
    pub after: TimestampMs,
    pub before: TimestampMs,
}

/// The entries of a session that were not processed yet.
struct UnprocessedEntries {
    summary: Summary,
    entries: Vec<Entry>,
    upto: Seq,
}

impl Memories<'_> {
    /// Learn from the new entries of a session. The caller must be its owner or an operator.
    pub async fn learn(self, scope: &Scope, session: &SessionId) -> Result<Learning> {
        self.engine.directory().check_right(scope, session, Right::Own).await?;
        let unprocessed = self.unprocessed_entries(scope, session).await?;
        let (candidates, how, fell_back) = self.candidates(scope, &unprocessed).await;
        let kept = self.store_candidates(scope, &unprocessed, candidates, &how).await?;
        for one in kept.iter().filter(|one| one.outcome != MemoryOutcome::Known) {
            self.engine.hooks().fire(HookName::OnMemory, scope, session, None, || memory_event(one)).await;
        }
        let learned = kept.iter().filter(|kept| kept.outcome != MemoryOutcome::Known).count();
        let asked_model = how != Learned::ByRules || fell_back.is_some();
        // The rules return the same result again at no cost, so an empty result needs no checkpoint. A model must not
        // be called twice, so its result always needs one.
        if !kept.is_empty() || asked_model {
            let learned = u32::try_from(learned).unwrap_or(u32::MAX);
            let mark = MemoryCheckpoint {
                upto: unprocessed.upto,
                learned,
                how: how.clone(),
                fell_back: fell_back.clone(),
            };
            append_mark(self.engine, scope, &unprocessed, &mark).await?;
        }
        Ok(Learning { session: session.clone(), kept, how, fell_back, entries: unprocessed.entries.len() })
    }

    /// Learn as the system before a session ends. A failure must not prevent the session from ending.
    pub(crate) async fn learn_at_end(self, tenant: &TenantId, session: &SessionId) {
        if self.engine.config.memory.at_end == AtEnd::Leave {
            return;
        }
        if let Err(error) = self.learn_if_enabled(tenant, session).await {
            tracing::warn!(%session, %error, "failed to learn from a session");
        }
    }

    /// Learn from the sessions of a tenant that were last used in this time range. Returns how many sessions
    /// yielded memories.
    pub async fn learn_from_idle(self, tenant: &TenantId, window: IdleWindow) -> Result<usize> {
        let scope = system_scope(tenant);
        let mut filter = ListFilter { limit: IDLE_ROWS, ..ListFilter::default() };
        let mut sessions_learned = 0;
        for _ in 0..IDLE_PAGES_MAX {
            let page = self.engine.store.list(&scope, &filter).await?;
            let is_past = page.items.last().is_none_or(|last| last.updated_at <= window.after);
            let idle = page.items.into_iter().filter(|summary| is_idle(summary, window));
            for summary in idle {
                match self.learn_if_enabled(tenant, &summary.id).await {
                    Ok(learning) => {
                        sessions_learned += usize::from(learning.is_some_and(|one| !one.kept.is_empty()))
                    }
                    // The session may have been erased or reopened; continue with the other sessions.
                    Err(error) => {
                        tracing::warn!(session = %summary.id, %error, "failed to learn from a session")
                    }
                }
            }
            filter.cursor = page.next;
            if is_past || filter.cursor.is_none() {
                break;
            }
        }
        Ok(sessions_learned)
    }

    async fn learn_if_enabled(self, tenant: &TenantId, session: &SessionId) -> Result<Option<Learning>> {
        let scope = system_scope(tenant);
        let agent: Agent = self.engine.configuration().agent_of(&scope, session).await?;
        if agent.memory.unwrap_or_default().learn == Learn::No {
            return Ok(None);
        }
        self.learn(&scope, session).await.map(Some)
    }

    /// The entries on the path since the latest checkpoint, without inherited entries. Inherited entries are processed in
    /// the fork's source.
    async fn unprocessed_entries(self, scope: &Scope, session: &SessionId) -> Result<UnprocessedEntries> {
        let summary = self.engine.store.summary(scope, session).await?;
        if summary.state == SessionState::Archived {
            return Err(StoreError::Archived { session: session.clone() }.into());
        }
        let mut after = Seq(summary.inherited);
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::MemoryLearned], |entry| {
                after = MemoryCheckpoint::of(&entry.body).map_or(after, |mark| after.max(mark.upto));
            })
            .await?;
        let new = summary.head.seq.0.saturating_sub(after.0).min(ENTRIES_MAX);
        let slice = self.engine.store.read_path(scope, session, None, Until::Entries(new)).await?;
        let upto = slice.head.seq;
        let entries = slice.entries.into_iter().filter(|entry| entry.meta.seq > after).collect();
        Ok(UnprocessedEntries { summary, entries, upto })
    }

    /// Extract candidates with the configured model, or by rules if there is none. If the model fails or its answer is
    /// invalid, falls back to rules and returns the reason.
    async fn candidates(
        self,
        scope: &Scope,
        unprocessed: &UnprocessedEntries,
    ) -> (Vec<Candidate>, Learned, Option<String>) {
        let by_rules = || rules::extract(&unprocessed.entries, &unprocessed.summary.owner);
        let Some(name) = &self.engine.config.memory.model else {
            return (by_rules(), Learned::ByRules, None);
        };
        let Some(shown) = llm_extract::number_lines(&unprocessed.entries, &unprocessed.summary.owner) else {
            return (by_rules(), Learned::ByRules, None);
        };
        match ask_model(self.engine, scope, name, &shown).await {
            Ok(found) => (found, Learned::ByModel(name.clone()), None),
            Err(why) => {
                tracing::warn!(session = %unprocessed.summary.id, why, "falling back to rules for learning memories");
                (by_rules(), Learned::ByRules, Some(why))
            }
        }
    }

    async fn store_candidates(
        self,
        scope: &Scope,
        unprocessed: &UnprocessedEntries,
        candidates: Vec<Candidate>,
        how: &Learned,
    ) -> Result<Vec<StoredMemory>> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let belongs = Belongs::To(unprocessed.summary.owner.clone());
        let whose = || Whose::Only(belongs.clone());
        let mut known = self.all(scope, whose(), Standing::Current).await?;
        let mut kept = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let new = unprocessed.new_memory(&candidate, belongs.clone(), how.clone());
            let mut tries = 0;
            kept.push(loop {
                match self.store_candidate(scope, &candidate, &new, &mut known).await {
                    // Another server is learning from the same session, or a user edited a memory: retry.
                    Err(EngineError::Store(StoreError::MemoryConflict { .. })) if tries < TRIES_MAX => {
                        tries += 1;
                        known = self.all(scope, whose(), Standing::Current).await?;
                    }
                    written => break written?,
                }
            });
        }
        Ok(kept)
    }
}

impl UnprocessedEntries {
    /// Build a new memory. Its id is derived from the source and the text, so that two servers learning at once
    /// create one memory.
    fn new_memory(&self, candidate: &Candidate, belongs: Belongs, learned: Learned) -> NewMemory {
        let first = candidate.entries.first();
        let entry = self.entries.iter().find(|entry| Some(&entry.meta.id) == first);
        let at = entry.map_or(self.summary.updated_at, |entry| entry.meta.at);
        let session = self.summary.id.clone();
        let key =
            format!("{session}\n{}\n{}", first.map(ToString::to_string).unwrap_or_default(), candidate.text);
        let hash = *BlobHash::of(key.as_bytes()).as_bytes();
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash[..16]);
        NewMemory {
            id: MemoryId::mint(at, u128::from_be_bytes(bits)),
            belongs,
            learned,
            source: Some(MemorySource { session, entries: candidate.entries.clone() }),
        }
    }
}

async fn ask_model(
    engine: &Engine,
    scope: &Scope,
    name: &str,
    shown: &llm_extract::NumberedTranscript,
) -> Result<Vec<Candidate>, String> {
    let backends = engine.backends_for(scope).map_err(|error| error.to_string())?;
    let model = ModelSummariser::new(backends.model, name);
    let request = SummaryRequest { system: llm_extract::SYSTEM.to_owned(), text: shown.text.clone() };
    let answer = tokio::time::timeout(MODEL_WAIT, model.write(request)).await;
    let answer = answer.map_err(|_| format!("{name} did not answer within {} s", MODEL_WAIT.as_secs()))?;
    llm_extract::parse_answer(shown, &answer.map_err(|error| error.to_string())?.text)
}

/// Append the checkpoint outside the tree, dated at the session's last use: learning does not count as
/// use.
async fn append_mark(
    engine: &Engine,
    scope: &Scope,
    unprocessed: &UnprocessedEntries,
    mark: &MemoryCheckpoint,
) -> Result<()> {
    let session = &unprocessed.summary.id;
    let draft = Draft::new(unprocessed.summary.updated_at, mark.to_body());
    let mut append = Append::new(session.clone(), engine.clock.now(), vec![draft]);
    append.idempotency_key = Some(format!("sapwood.memory:{}", mark.upto));
    engine.log().append(scope, append).await?;
    Ok(())
}

/// The data of a memory event for hooks.
fn memory_event(kept: &StoredMemory) -> serde_json::Value {
    let memory = &kept.memory;
    let mut event = serde_json::json!({ "memory": memory.id, "kind": memory.kind, "text": memory.text });
    let outcome = serde_json::to_value(kept.outcome).unwrap_or_default();
    event["outcome"] = outcome["outcome"].clone();
    event
}

/// The system's scope. Memories belong to the session's owner, no matter who ended the session.
fn system_scope(tenant: &TenantId) -> Scope {
    Scope::operator(tenant.clone(), Principal::System)
}

fn is_idle(summary: &Summary, window: IdleWindow) -> bool {
    summary.state == SessionState::Active
        && summary.open_turn.is_none()
        && summary.updated_at > window.after
        && summary.updated_at < window.before
}
