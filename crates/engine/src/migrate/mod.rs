//! Copy all data from one store to another, of any store type. The source's logs are only read, and the source may be in
//! use: entries added in the meantime are copied by another pass or by running the migration again. If the target already
//! has part of the data, only the rest is copied, so an interrupted migration can be run again.
//!
//! Entries keep their numbers, ids, times, authors, turns and salts, and therefore their hashes; forks share the same
//! entries in the target as in the source. Each session is then compared on both sides: its log, owner, creation time and
//! authority record, and the path of its context. Leases and stored idempotency results are not copied: they belong to
//! callers of the old store.

mod inventory;
mod tenant_data;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sapwood_core::entry::proof::StoredEntry;
use sapwood_core::port::store::{Append, Expect, Finding, Fork, NewSession, Store, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::{
    Authority, BlobHash, Draft, Entry, Principal, Record, Scope, Seq, SessionId, StoreError, TenantId,
};
use serde::Serialize;

use crate::blob::BlobReader;
use crate::import::{BATCH_BYTES, BATCH_ENTRIES};
use crate::{EngineError, Result};
pub use inventory::{Item, inventory};
use inventory::{decode_entry, hash_of};

/// Page size for lists and logs.
const PAGE_ROWS: usize = 1_000;
/// Maximum number of passes over the source for entries that were added in the meantime.
const PASSES_MAX: u32 = 10;
/// Maximum length of a fork chain.
const FORKS_MAX: usize = 4_096;

/// Whether a migration writes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Copy,
    /// Only report what would be copied.
    DryRun,
}

/// The result for one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MigratedSession {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Entries in the source.
    pub entries: u32,
    /// Entries that the target did not have.
    pub added: u32,
    /// Hash over all entries; equal on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Why the session could not be copied, or how the two sides differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether a session still exists in the source after it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existence {
    Exists,
    Erased,
}

/// The totals of a migration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MigrationTotal {
    pub tenants: u64,
    pub sessions: u64,
    pub entries: u64,
    pub added: u64,
    pub blobs: u64,
    pub keys: u64,
    pub memories: u64,
    pub audit_lines: u64,
    pub problems: u64,
    pub passes: u32,
    /// Sessions of the source that cannot be read. They also count as problems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Finding>,
}

/// A migration from one store to another.
pub struct Migration {
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
    mode: Mode,
    /// Copy only this tenant.
    only: Option<TenantId>,
    total: MigrationTotal,
    /// Entries added to each session so far.
    added: HashMap<(TenantId, SessionId), u32>,
    /// Blobs that this migration has copied.
    copied_blobs: HashSet<(TenantId, BlobHash)>,
}

/// A callback that receives the result of each session.
pub type OnSession<'t> = &'t mut dyn FnMut(&MigratedSession);

impl Migration {
    pub fn new(from: Arc<dyn Store>, to: Arc<dyn Store>, mode: Mode) -> Self {
        Self {
            from,
            to,
            mode,
            only: None,
            total: MigrationTotal::default(),
            added: HashMap::new(),
            copied_blobs: HashSet::new(),
        }
    }

    /// Copy only one tenant.
    pub fn only(mut self, tenant: TenantId) -> Self {
        self.only = Some(tenant);
        self
    }

    /// Copy everything and compare it. Fails with [`EngineError::FormatTooOld`] if the target writes an older log
    /// format than the source.
    pub async fn run(mut self, on_session: OnSession<'_>) -> Result<MigrationTotal> {
        if self.to.log_format().await? < self.from.log_format().await? {
            return Err(EngineError::FormatTooOld { what: "data of the current log format" });
        }
        let mut tenants = self.from.list_tenants().await?;
        tenants.retain(|tenant| self.only.as_ref().is_none_or(|only| only == tenant));
        self.total.tenants = tenants.len() as u64;
        for tenant in tenants {
            self.copy_tenant(&tenant, on_session).await?;
        }
        if self.mode == Mode::Copy {
            self.to.flush().await?;
        }
        Ok(self.total)
    }

    async fn copy_tenant(&mut self, tenant: &TenantId, on_session: OnSession<'_>) -> Result<()> {
        let scope = Scope::operator(tenant.clone(), Principal::System);
        let mut reports: HashMap<SessionId, MigratedSession> = HashMap::new();
        for pass in 1..=PASSES_MAX {
            self.total.passes = self.total.passes.max(pass);
            let sessions = self.list(&scope).await?;
            let has_grown = |id: &SessionId| {
                reports.get(id).is_none_or(|before| before.entries != sessions[id].head.seq.0)
            };
            let grown: Vec<SessionId> = sessions.keys().filter(|id| has_grown(id)).cloned().collect();
            if grown.is_empty() {
                break;
            }
            for id in grown {
                let result = self.copy_session(tenant, &id, &sessions).await;
                // A session that was erased in the meantime can also make the copy of its forks fail. They are copied
                // without it in the next pass.
                if result.is_err() && self.was_erased(&scope, &id, &sessions).await? {
                    continue;
                }
                let report = report_of(tenant, &sessions[&id], result)?;
                reports.insert(id, report);
            }
            if self.mode == Mode::DryRun {
                break;
            }
        }
        let left_out = self.from.unreadable(&scope).await?;
        self.total.problems += left_out.len() as u64;
        self.total.left_out.extend(left_out);
        for mut report in reports.into_values() {
            report.added = self.added.get(&(tenant.clone(), report.session.clone())).copied().unwrap_or(0);
            if self.finish(&scope, &mut report).await? == Existence::Exists {
                on_session(&report);
            }
        }
        if self.mode == Mode::Copy {
            self.copy_tenant_record(&scope).await?;
            self.copy_keys(&scope).await?;
            self.copy_memories(&scope).await?;
            self.copy_records(&scope).await?;
            self.copy_audit(&scope).await?;
        }
        Ok(())
    }

    /// Whether the session, or one that it was forked from, no longer exists in the source.
    async fn was_erased(
        &self,
        scope: &Scope,
        id: &SessionId,
        sessions: &HashMap<SessionId, Summary>,
    ) -> Result<bool> {
        let mut ids = vec![id.clone()];
        while let Some(parent) = ids.last().and_then(|id| sessions.get(id)?.parent.as_ref())
            && sessions.contains_key(&parent.session)
            && ids.len() < FORKS_MAX
        {
            ids.push(parent.session.clone());
        }
        Ok(self.from.heads(scope, &ids).await?.contains(&None))
    }

    /// Compare a session on both sides, and add it to the totals. A session that was erased in the source while it was
    /// copied is erased from the target.
    async fn finish(&mut self, scope: &Scope, report: &mut MigratedSession) -> Result<Existence> {
        let id = &report.session;
        let compared = match self.mode == Mode::Copy && report.problem.is_none() {
            true => Some(self.compare(scope, id).await),
            false => None,
        };
        if self.from.heads(scope, std::slice::from_ref(id)).await? == [None] {
            if self.mode == Mode::Copy && self.to.heads(scope, std::slice::from_ref(id)).await? != [None] {
                let erased_at = self.to.summary(scope, id).await?.updated_at;
                self.to.erase(scope, id, erased_at).await?;
            }
            return Ok(Existence::Erased);
        }
        match compared {
            Some(Ok((entries, hash))) => (report.entries, report.hash) = (entries, Some(hash)),
            Some(Err(EngineError::Invalid { why, .. })) => report.problem = Some(why),
            Some(Err(error)) => return Err(error),
            None => {}
        }
        self.total.sessions += 1;
        self.total.entries += u64::from(report.entries);
        self.total.added += u64::from(report.added);
        self.total.problems += u64::from(report.problem.is_some());
        Ok(Existence::Exists)
    }

    async fn list(&self, scope: &Scope) -> Result<HashMap<SessionId, Summary>> {
        let sessions = inventory::sessions_of(&*self.from, scope).await?;
        Ok(sessions.into_iter().map(|summary| (summary.id.clone(), summary)).collect())
    }

    /// Bring a session up to date in the target, after the sessions whose entries it shares.
    async fn copy_session(
        &mut self,
        tenant: &TenantId,
        id: &SessionId,
        sessions: &HashMap<SessionId, Summary>,
    ) -> Result<()> {
        let mut chain = vec![&sessions[id]];
        while let Some(summary) = chain.last().copied()
            && summary.inherited > 0
            && let Some(parent) = summary.parent.as_ref().and_then(|parent| sessions.get(&parent.session))
            && chain.len() < FORKS_MAX
        {
            chain.push(parent);
        }
        while let Some(summary) = chain.pop() {
            let added = self.copy(tenant, summary, sessions).await?;
            let sum = self.added.entry((tenant.clone(), summary.id.clone())).or_default();
            // A dry run may visit a session several times; count it once.
            *sum = if self.mode == Mode::DryRun { added } else { *sum + added };
        }
        Ok(())
    }

    async fn copy(
        &mut self,
        tenant: &TenantId,
        summary: &Summary,
        sessions: &HashMap<SessionId, Summary>,
    ) -> Result<u32> {
        // Act as the session's owner, who has all rights on the session.
        let scope = Scope::operator(tenant.clone(), summary.owner.clone());
        let target = match self.to.summary(&scope, &summary.id).await {
            Ok(target) => Some(target.head.seq),
            Err(StoreError::NoSession { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(head) = target else {
            if self.mode == Mode::DryRun {
                return Ok(summary.head.seq.0 - summary.inherited);
            }
            let authority = self.authority(&scope, summary).await?;
            let head = self.create_session(&scope, summary, &authority, sessions).await?;
            return self.copy_entries(&scope, &summary.id, &authority, head).await;
        };
        self.check_prefix(&scope, &summary.id, head).await?;
        if self.mode == Mode::DryRun {
            return Ok(summary.head.seq.0.saturating_sub(head.0));
        }
        let authority = self.authority(&scope, summary).await?;
        self.copy_entries(&scope, &summary.id, &authority, head).await
    }

    /// The authority to copy. Entries written by the source's engine also count as written by the target's engine,
    /// because only the operator of both stores can run a migration.
    async fn authority(&self, scope: &Scope, summary: &Summary) -> Result<Authority> {
        match &summary.authority {
            Some(authority) => Ok(authority.clone()),
            None => Ok(self.from.settle_authority(scope, &summary.id).await?),
        }
    }

    /// Create the session in the target, as a fork if its source still exists.
    async fn create_session(
        &self,
        scope: &Scope,
        summary: &Summary,
        authority: &Authority,
        sessions: &HashMap<SessionId, Summary>,
    ) -> Result<Seq> {
        let new = NewSession {
            id: summary.id.clone(),
            at: summary.created_at,
            now: summary.created_at,
            title: summary.title.clone(),
            agent: summary.agent.clone(),
            cwd: summary.cwd.clone(),
            parent: summary.parent.clone(),
            origin: summary.origin.clone(),
            source: authority.source_of(Seq::ZERO),
        };
        let source = summary.parent.as_ref().filter(|parent| {
            summary.inherited > 0 && sessions.contains_key(&parent.session) && parent.at.is_some()
        });
        if let Some(parent) = source
            && let Some(at) = parent.at
            && let [point] = self.to.find_entries(scope, &parent.session, &at.to_string()).await?.as_slice()
        {
            let (source, at) = (parent.session.clone(), Some(point.meta.seq));
            return Ok(self.to.fork(scope, Fork { source, at, new, drafts: Vec::new() }).await?.seq);
        }
        self.to.create(scope, new).await?;
        Ok(Seq::ZERO)
    }

    /// Check that the target's last entry has the same position in the source's log.
    async fn check_prefix(&self, scope: &Scope, id: &SessionId, head: Seq) -> Result<()> {
        if head == Seq::ZERO {
            return Ok(());
        }
        let target = self.to.read_entry(scope, id, head).await?;
        match self.from.read_entry(scope, id, head).await {
            Ok(source) if source.meta.id == target.meta.id => Ok(()),
            Ok(_) | Err(StoreError::NoEntry { .. }) => Err(EngineError::Invalid {
                what: "the target",
                why: format!("entry {head} of session {id} does not exist in the source"),
            }),
            Err(error) => Err(error.into()),
        }
    }

    async fn copy_entries(
        &mut self,
        scope: &Scope,
        id: &SessionId,
        authority: &Authority,
        mut head: Seq,
    ) -> Result<u32> {
        for model in authority.models() {
            self.to.grant_model(scope, id, model).await?;
        }
        let mut added = 0;
        loop {
            let stored = self.from.read_proofs(scope, id, head, BATCH_ENTRIES).await?;
            let (mut drafts, mut salts) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            let source = authority.source_of(head.next());
            for StoredEntry { meta, version, body, proof } in stored {
                let record = Record { meta, version, body };
                // A batch contains either entries that the store wrote itself or imported entries, never both.
                if authority.source_of(record.meta.seq) != source {
                    break;
                }
                bytes += record.body.len();
                let entry = decode_entry(id, record)?;
                self.copy_blobs(scope, &entry).await?;
                drafts.push(draft_of(entry));
                salts.push(proof.and_then(|proof| proof.salt()));
                if bytes > BATCH_BYTES {
                    break;
                }
            }
            if drafts.is_empty() {
                return Ok(added);
            }
            added += drafts.len() as u32;
            let now = drafts.last().map(|draft| draft.at).unwrap_or_default();
            let append =
                Append { expect: Expect::Head(head), source, salts, ..Append::new(id.clone(), now, drafts) };
            head = self.to.append(scope, append).await?.head.seq;
        }
    }

    async fn copy_blobs(&mut self, scope: &Scope, entry: &Entry) -> Result<()> {
        for blob in entry.body.blobs() {
            let key = (scope.tenant.clone(), blob);
            if self.copied_blobs.contains(&key) {
                continue;
            }
            self.copy_blob(scope, blob).await?;
            self.copied_blobs.insert(key);
            self.total.blobs += 1;
        }
        Ok(())
    }

    async fn copy_blob(&self, scope: &Scope, blob: BlobHash) -> Result<()> {
        let mut reader = BlobReader::open(&self.from, scope, blob).await?;
        let mut sink = self.to.begin_blob(scope).await?;
        while let Some(bytes) = reader.next().await? {
            sink.write(&bytes).await?;
        }
        match sink.finish().await? {
            copied if copied == blob => Ok(()),
            copied => Err(EngineError::Invalid {
                what: "the source",
                why: format!("the content of blob {blob} hashes to {copied}"),
            }),
        }
    }

    /// The length and hash of a session's log. Fails if the two sides differ in the log, the owner, the creation time, the
    /// authority record or the context path.
    async fn compare(&self, scope: &Scope, id: &SessionId) -> Result<(u32, String)> {
        let differs = |what: &str| EngineError::Invalid {
            what: "the target",
            why: format!("{what} of session {id} differs from the source"),
        };
        let length = self.to.summary(scope, id).await?.head.seq;
        let source = hash_of(&*self.from, scope, id, length).await?;
        let target = hash_of(&*self.to, scope, id, length).await?;
        if source != target {
            return Err(differs("the log"));
        }
        let (before, after) = (self.from.summary(scope, id).await?, self.to.summary(scope, id).await?);
        if before.owner != after.owner || before.created_at != after.created_at {
            return Err(differs("the owner or the creation time"));
        }
        // The source may have grown since; the next run then compares its new state.
        if before.head.seq == length {
            if before.authority.is_some() && before.authority != after.authority {
                return Err(differs("the authority record"));
            }
            let source = self.from.read_path(scope, id, None, Until::ContextStart).await?;
            let target = self.to.read_path(scope, id, None, Until::ContextStart).await?;
            if (source.entries, source.settings_before, source.ended_turns)
                != (target.entries, target.settings_before, target.ended_turns)
            {
                // The source may have grown after its summary was read.
                if self.from.summary(scope, id).await?.head.seq == length {
                    return Err(differs("the context"));
                }
            }
        }
        Ok((length.0, target))
    }
}

/// Report a session that cannot be copied and continue with the other sessions. A store failure aborts the migration.
fn report_of(tenant: &TenantId, summary: &Summary, result: Result<()>) -> Result<MigratedSession> {
    let problem = match result {
        Ok(()) => None,
        Err(
            error @ (EngineError::Invalid { .. }
            | EngineError::Unreadable { .. }
            | EngineError::Store(
                StoreError::Place(_) | StoreError::Damaged { .. } | StoreError::NoBlob { .. },
            )),
        ) => Some(error.to_string()),
        Err(error) => return Err(error),
    };
    Ok(MigratedSession {
        tenant: tenant.clone(),
        session: summary.id.clone(),
        entries: summary.head.seq.0,
        added: 0,
        hash: None,
        problem,
    })
}

fn draft_of(entry: Entry) -> Draft {
    let meta = entry.meta;
    Draft { id: Some(meta.id), at: meta.at, by: Some(meta.by), turn: meta.turn, body: entry.body }
}
