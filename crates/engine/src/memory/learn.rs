//! Learn memories from a session: when it is closed or archived, after an idle time, or on request. A mark in the
//! session's log records the last processed entry, so that nothing is learned twice and forgotten memories stay
//! forgotten.

use std::time::Duration;

use sapwood_core::agent::{Agent, Learn};
use sapwood_core::entry::{Entry, SessionState};
use sapwood_core::id::MemoryId;
use sapwood_core::memory::{Candidate, ENTRIES_MAX, Mark, llm_extract, rules};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::memory::{Belongs, Learned, Source, Standing, Whose};
use sapwood_core::port::store::{Append, ListFilter, StoreError, Until};
use sapwood_core::port::summariser::{Request, Summariser};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Draft, Kind, Principal, Right, Scope, Seq, SessionId, TenantId, TimestampMs};
use serde::Serialize;

use super::write::{Kept, NewMemory};
use super::{AtEnd, Outcome};
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
    pub session: SessionId,
    pub kept: Vec<Kept>,
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
struct News {
    summary: Summary,
    entries: Vec<Entry>,
    upto: Seq,
}

impl Engine {
    /// Learn from the new entries of a session. The caller must be its owner.
    pub async fn learn(&self, scope: &Scope, session: &SessionId) -> Result<Learning> {
        self.check_right(scope, session, Right::Own).await?;
        let news = self.news_of(scope, session).await?;
        let (candidates, how, fell_back) = self.candidates(&news).await;
        let kept = self.keep_all(scope, &news, candidates, &how).await?;
        for one in kept.iter().filter(|one| one.outcome != Outcome::Known) {
            self.fire(HookName::OnMemory, scope, session, None, || told_of(one)).await;
        }
        let learned = kept.iter().filter(|kept| kept.outcome != Outcome::Known).count();
        let asked_model = how != Learned::ByRules || fell_back.is_some();
        // Rules return the same result again at no cost, so an empty result needs no mark. A model is not called
        // twice.
        if !kept.is_empty() || asked_model {
            let learned = u32::try_from(learned).unwrap_or(u32::MAX);
            let mark = Mark { upto: news.upto, learned, how: how.clone(), fell_back: fell_back.clone() };
            self.append_mark(scope, &news, &mark).await?;
        }
        Ok(Learning { session: session.clone(), kept, how, fell_back, entries: news.entries.len() })
    }

    /// Learn as the system before a session ends. A failure must not prevent the end.
    pub(crate) async fn learn_at_end(&self, tenant: &TenantId, session: &SessionId) {
        if self.care.at_end == AtEnd::Leave {
            return;
        }
        if let Err(error) = self.learn_if_wanted(tenant, session).await {
            tracing::warn!(%session, %error, "failed to learn from a session");
        }
    }

    /// Learn from the sessions of a tenant that were last used in this time range. Returns how many sessions
    /// yielded memories.
    pub async fn learn_from_idle(&self, tenant: &TenantId, window: IdleWindow) -> Result<usize> {
        let house = house(tenant);
        let mut filter = ListFilter { limit: IDLE_ROWS, ..ListFilter::default() };
        let mut taught = 0;
        for _ in 0..IDLE_PAGES_MAX {
            let page = self.store.list(&house, &filter).await?;
            let is_past = page.items.last().is_none_or(|last| last.updated_at <= window.after);
            let idle = page.items.into_iter().filter(|summary| is_idle(summary, window));
            for summary in idle {
                match self.learn_if_wanted(tenant, &summary.id).await {
                    Ok(learning) => taught += usize::from(learning.is_some_and(|one| !one.kept.is_empty())),
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
        Ok(taught)
    }

    async fn learn_if_wanted(&self, tenant: &TenantId, session: &SessionId) -> Result<Option<Learning>> {
        let house = house(tenant);
        let agent: Agent = self.agent_of(&house, session).await?;
        if agent.memory.unwrap_or_default().learn == Learn::No {
            return Ok(None);
        }
        self.learn(&house, session).await.map(Some)
    }

    /// The entries on the path since the latest mark, without inherited entries. Inherited entries are processed in
    /// the fork's source.
    async fn news_of(&self, scope: &Scope, session: &SessionId) -> Result<News> {
        let summary = self.store.summary(scope, session).await?;
        if summary.state == SessionState::Archived {
            return Err(StoreError::Archived { session: session.clone() }.into());
        }
        let mut after = Seq(summary.inherited);
        self.each_of_kinds(scope, session, &[Kind::CustomInfo], |entry| {
            after = Mark::of(&entry.body).map_or(after, |mark| after.max(mark.upto));
        })
        .await?;
        let new = summary.head.seq.0.saturating_sub(after.0).min(ENTRIES_MAX);
        let slice = self.store.read_path(scope, session, None, Until::Entries(new)).await?;
        let upto = slice.head.seq;
        let entries = slice.entries.into_iter().filter(|entry| entry.meta.seq > after).collect();
        Ok(News { summary, entries, upto })
    }

    /// Extract candidates with the model. Falls back to rules, with the reason, if there is no model or its
    /// answer is invalid.
    async fn candidates(&self, news: &News) -> (Vec<Candidate>, Learned, Option<String>) {
        let by_rules = || rules::extract(&news.entries, &news.summary.owner);
        let Some(name) = &self.care.model else { return (by_rules(), Learned::ByRules, None) };
        let Some(shown) = llm_extract::show(&news.entries, &news.summary.owner) else {
            return (by_rules(), Learned::ByRules, None);
        };
        match self.ask_model(name, &shown).await {
            Ok(found) => (found, Learned::ByModel(name.clone()), None),
            Err(why) => {
                tracing::warn!(session = %news.summary.id, why, "falling back to rules for learning memories");
                (by_rules(), Learned::ByRules, Some(why))
            }
        }
    }

    async fn ask_model(&self, name: &str, shown: &llm_extract::Shown) -> Result<Vec<Candidate>, String> {
        let backends = self.backends().map_err(|error| error.to_string())?;
        let model = ModelSummariser::new(backends.model, name);
        let request = Request { system: llm_extract::SYSTEM.to_owned(), text: shown.text.clone() };
        let answer = tokio::time::timeout(MODEL_WAIT, model.write(request)).await;
        let answer = answer.map_err(|_| format!("{name} did not answer in {} s", MODEL_WAIT.as_secs()))?;
        llm_extract::read(shown, &answer.map_err(|error| error.to_string())?.text)
    }

    async fn keep_all(
        &self,
        scope: &Scope,
        news: &News,
        candidates: Vec<Candidate>,
        how: &Learned,
    ) -> Result<Vec<Kept>> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let belongs = Belongs::To(news.summary.owner.clone());
        let whose = || Whose::Only(belongs.clone());
        let mut known = self.all_memories(scope, whose(), Standing::Current).await?;
        let mut kept = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let new = news.new_memory(&candidate, belongs.clone(), how.clone());
            let mut tries = 0;
            kept.push(loop {
                match self.keep_candidate(scope, &candidate, &new, &mut known).await {
                    // Another server is learning from the same session, or a user edited a memory: retry.
                    Err(EngineError::Store(StoreError::MemoryConflict { .. })) if tries < TRIES_MAX => {
                        tries += 1;
                        known = self.all_memories(scope, whose(), Standing::Current).await?;
                    }
                    written => break written?,
                }
            });
        }
        Ok(kept)
    }

    /// Append the mark outside the tree, dated at the session's last use, because learning does not count as
    /// use.
    async fn append_mark(&self, scope: &Scope, news: &News, mark: &Mark) -> Result<()> {
        let session = &news.summary.id;
        let draft = Draft::new(news.summary.updated_at, mark.to_body());
        let mut append = Append::new(session.clone(), self.clock.now(), vec![draft]);
        append.idempotency_key = Some(format!("sapwood.memory:{}", mark.upto));
        self.append(scope, append).await?;
        Ok(())
    }
}

impl News {
    /// Build a new memory. Its id is derived from the source and the text, so that two servers learning at once
    /// create one memory.
    fn new_memory(&self, candidate: &Candidate, belongs: Belongs, learned: Learned) -> NewMemory {
        let first = candidate.entries.first();
        let said = self.entries.iter().find(|entry| Some(&entry.meta.id) == first);
        let at = said.map_or(self.summary.updated_at, |entry| entry.meta.at);
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
            source: Some(Source { session, entries: candidate.entries.clone() }),
        }
    }
}

/// The data of a memory event for hooks.
fn told_of(kept: &Kept) -> serde_json::Value {
    let memory = &kept.memory;
    let mut told = serde_json::json!({ "memory": memory.id, "kind": memory.kind, "text": memory.text });
    let outcome = serde_json::to_value(kept.outcome).unwrap_or_default();
    told["outcome"] = outcome["outcome"].clone();
    told
}

/// The system's scope. Memories belong to the session's owner, no matter who ended the session.
fn house(tenant: &TenantId) -> Scope {
    Scope::operator(tenant.clone(), Principal::System)
}

fn is_idle(summary: &Summary, window: IdleWindow) -> bool {
    summary.state == SessionState::Active
        && summary.open_turn.is_none()
        && summary.updated_at > window.after
        && summary.updated_at < window.before
}
