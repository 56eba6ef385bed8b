//! Records of the in-memory store. They are lost when the process ends.

use async_trait::async_trait;
use sapwood_core::port::records::{RecordKind, Records, Spent, TenantRecord};
use sapwood_core::port::store::{AuditNote, Result};
use sapwood_core::{Scope, TimestampMs};

use super::MemoryStore;

#[async_trait]
impl Records for MemoryStore {
    async fn put_record(
        &self,
        scope: &Scope,
        kind: RecordKind,
        name: &str,
        value: Option<String>,
        audit: AuditNote,
        now: TimestampMs,
    ) -> Result<()> {
        let mut state = self.lock();
        let tenant = state.tenant(scope);
        tenant.records.put(kind, name, value)?;
        tenant.write_audit(scope, audit, now);
        Ok(())
    }

    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>> {
        Ok(self.lock().tenant(scope).records.list(kind))
    }

    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()> {
        self.lock().tenant(scope).records.add_spent(day, holders, spent);
        Ok(())
    }

    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent> {
        Ok(self.lock().tenant(scope).records.spent(day, holder))
    }
}
