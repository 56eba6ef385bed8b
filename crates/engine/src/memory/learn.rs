//! Learning from a session: when it is closed or archived, when it was idle for a while, or when somebody says so. A mark
//! in its log says how far it was learned from, so nothing is learned twice, and what was forgotten stays forgotten.

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

/// How long a model may take to put memories into words before the rules are used.
const MODEL_WAIT: Duration = Duration::from_secs(20);
/// How often learning looks at what is known again before it gives up.
const TRIES_MAX: u32 = 8;
/// Sessions of one page while idle ones are looked for, and pages at most.
const IDLE_ROWS: usize = 200;
const IDLE_PAGES_MAX: usize = 1_000;

/// What was learned from a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Learning {
    pub session: SessionId,
    pub kept: Vec<Kept>,
    pub how: Learned,
    /// Why the model's answer was not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// How many entries were looked at.
    pub entries: usize,
}

/// Sessions that were last used in this time, both ends excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleWindow {
    pub after: TimestampMs,
    pub before: TimestampMs,
}

/// What is new in a session.
struct News {
    summary: Summary,
    entries: Vec<Entry>,
    upto: Seq,
}

impl Engine {
    /// Learns from what is new in a session. It takes its owner.
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
        // Rules find the same again for nothing, so an empty session is not marked; a model is not asked twice.
        if !kept.is_empty() || asked_model {
            let learned = u32::try_from(learned).unwrap_or(u32::MAX);
            let mark = Mark { upto: news.upto, learned, how: how.clone(), fell_back: fell_back.clone() };
            self.append_mark(scope, &news, &mark).await?;
        }
        Ok(Learning { session: session.clone(), kept, how, fell_back, entries: news.entries.len() })
    }

    /// As the house, before a session ends: learning must not keep it from ending.
    pub(crate) async fn learn_at_end(&self, tenant: &TenantId, session: &SessionId) {
        if self.care.at_end == AtEnd::Leave {
            return;
        }
        if let Err(error) = self.learn_if_wanted(tenant, session).await {
            tracing::warn!(%session, %error, "a session could not be learned from");
        }
    }

    /// Learns from the sessions of a tenant that were last used in this time. Says how many taught something.
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
                    // It may have been erased or reopened meanwhile; the others are not to suffer.
                    Err(error) => tracing::warn!(session = %summary.id, %error, "not learned from"),
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

    /// What the session's own path has had since the last mark. What a fork shares was its source's to teach.
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

    /// With the model if there is one and it answers as asked; by rules otherwise, and then why.
    async fn candidates(&self, news: &News) -> (Vec<Candidate>, Learned, Option<String>) {
        let by_rules = || rules::extract(&news.entries, &news.summary.owner);
        let Some(name) = &self.care.model else { return (by_rules(), Learned::ByRules, None) };
        let Some(shown) = llm_extract::show(&news.entries, &news.summary.owner) else {
            return (by_rules(), Learned::ByRules, None);
        };
        match self.ask_model(name, &shown).await {
            Ok(found) => (found, Learned::ByModel(name.clone()), None),
            Err(why) => {
                tracing::warn!(session = %news.summary.id, why, "memories are learned by rules");
                (by_rules(), Learned::ByRules, Some(why))
            }
        }
    }

    async fn ask_model(&self, name: &str, shown: &llm_extract::Shown) -> Result<Vec<Candidate>, String> {
        let world = self.world().map_err(|error| error.to_string())?;
        let model = ModelSummariser::new(world.model, name);
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
                    // Another server learns from the same session, or somebody edits: look again.
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

    /// Beside the tree, at the time of the session's last use: that somebody learned from it is no use of it.
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
    /// The id follows from what was said and where, so that two servers that learn at once learn one thing.
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

/// What a hook hears of a memory.
fn told_of(kept: &Kept) -> serde_json::Value {
    let memory = &kept.memory;
    let mut told = serde_json::json!({ "memory": memory.id, "kind": memory.kind, "text": memory.text });
    let outcome = serde_json::to_value(kept.outcome).unwrap_or_default();
    told["outcome"] = outcome["outcome"].clone();
    told
}

/// Whoever keeps the house acts for the owner: what is learned belongs to the session's owner, whoever ended it.
fn house(tenant: &TenantId) -> Scope {
    Scope::operator(tenant.clone(), Principal::System)
}

fn is_idle(summary: &Summary, window: IdleWindow) -> bool {
    summary.state == SessionState::Active
        && summary.open_turn.is_none()
        && summary.updated_at > window.after
        && summary.updated_at < window.before
}
