//! Copies the data of a tenant that is not part of a session: API keys, memories and the audit log.

use sapwood_core::port::keys::ApiKey;
use sapwood_core::port::memory::{Memory, MemoryFilter, Standing};
use sapwood_core::port::records::RecordKind;
use sapwood_core::port::store::{AuditAction, AuditLine, AuditNote, Store};
use sapwood_core::{Scope, StoreError, TimestampMs};

use super::{Migration, PAGE_ROWS};
use crate::Result;

impl Migration {
    /// Register the tenant in the target, for a tenant without sessions.
    pub(super) async fn copy_tenant_record(&self, scope: &Scope) -> Result<()> {
        if self.to.list_tenants().await?.contains(&scope.tenant) {
            return Ok(());
        }
        let first = self.from.read_audit(scope, None, 0, 1).await?;
        let at = first.first().map_or(TimestampMs(0), |line| line.at);
        Ok(self.to.put_tenant(scope, at).await?)
    }

    pub(super) async fn copy_keys(&mut self, scope: &Scope) -> Result<()> {
        let keys: Vec<ApiKey> = self.from.list_keys(scope).await?;
        for key in keys {
            let is_same = self.to.find_key(key.hash).await?.is_some_and(|existing| existing == key);
            if !is_same {
                self.to.put_key(scope, key).await?;
                self.total.keys += 1;
            }
        }
        Ok(())
    }

    /// Legal holds, retention and allowances. The spending of the current day is not copied.
    pub(super) async fn copy_records(&self, scope: &Scope) -> Result<()> {
        for kind in RecordKind::ALL {
            let known = self.to.list_records(scope, kind).await?;
            for record in self.from.list_records(scope, kind).await? {
                if known.contains(&record) {
                    continue;
                }
                let detail = Some(format!("migrated {} {}", kind.as_str(), record.name));
                let note = AuditNote { action: AuditAction::TenantChange, session: None, detail };
                let now = TimestampMs(0);
                self.to.put_record(scope, kind, &record.name, Some(record.value), note, now).await?;
            }
        }
        Ok(())
    }

    /// Memories keep their ids, owners, authors and sources; their version counters restart.
    pub(super) async fn copy_memories(&mut self, scope: &Scope) -> Result<()> {
        for memory in memories_of(&*self.from, scope).await? {
            match self.to.get_memory(scope, memory.id).await {
                Ok(_) => continue,
                Err(StoreError::NoMemory { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let by = Scope::operator(scope.tenant.clone(), memory.by.clone());
            let (created, updated) = (memory.created_at, memory.updated_at);
            self.to.put_memory(&by, memory.clone(), 0, created).await?;
            if updated != created {
                self.to.put_memory(&by, memory, 1, updated).await?;
            }
            self.total.memories += 1;
        }
        Ok(())
    }

    /// Copy the audit log with a new hash chain, unless the target's audit log has diverged. Actions that the
    /// migration itself audits are ignored on both sides.
    pub(super) async fn copy_audit(&mut self, scope: &Scope) -> Result<()> {
        let is_copied = |line: &AuditLine| {
            !matches!(
                line.action,
                AuditAction::Create
                    | AuditAction::Fork
                    | AuditAction::KeyChange
                    | AuditAction::MemoryChange
                    | AuditAction::TenantChange
            )
        };
        let source: Vec<AuditLine> =
            audit_of(&*self.from, scope).await?.into_iter().filter(is_copied).collect();
        let target: Vec<AuditLine> =
            audit_of(&*self.to, scope).await?.into_iter().filter(is_copied).collect();
        let is_same = |(one, two): (&AuditLine, &AuditLine)| {
            (&one.by, one.at, one.action, &one.session, &one.detail)
                == (&two.by, two.at, two.action, &two.session, &two.detail)
        };
        if target.len() > source.len() || !source.iter().zip(&target).all(is_same) {
            return Ok(());
        }
        for line in source.into_iter().skip(target.len()) {
            let by = Scope::operator(scope.tenant.clone(), line.by);
            let note = AuditNote { action: line.action, session: line.session, detail: line.detail };
            self.to.write_audit(&by, note, line.at).await?;
            self.total.audit_lines += 1;
        }
        Ok(())
    }
}

/// Read all memories of a tenant.
pub(super) async fn memories_of(store: &dyn Store, scope: &Scope) -> Result<Vec<Memory>> {
    let mut filter = MemoryFilter { standing: Standing::Any, limit: PAGE_ROWS, ..MemoryFilter::default() };
    let mut memories = Vec::new();
    loop {
        let page = store.list_memories(scope, &filter).await?;
        memories.extend(page.items);
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(memories),
        }
    }
}

/// Read the whole audit log of a tenant.
pub(super) async fn audit_of(store: &dyn Store, scope: &Scope) -> Result<Vec<AuditLine>> {
    let mut lines: Vec<AuditLine> = Vec::new();
    loop {
        let after = lines.last().map_or(0, |line| line.number);
        let page = store.read_audit(scope, None, after, PAGE_ROWS).await?;
        let is_last = page.len() < PAGE_ROWS;
        lines.extend(page);
        if is_last {
            return Ok(lines);
        }
    }
}
