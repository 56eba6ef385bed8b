//! API keys of the in-memory store. They are lost when the process ends.

use async_trait::async_trait;
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::Result;
use sapwood_core::{BlobHash, Scope, TenantId, TimestampMs};

use super::MemoryStore;
use crate::validate::{key_note, revoke_key, shows_key, tenant_note};

#[async_trait]
impl Keys for MemoryStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        let mut state = self.lock();
        let now = key.created_at;
        state.tenant(scope).write_audit(scope, key_note("created", &key), now);
        state.keys.push(ApiKey { tenant: scope.tenant.clone(), ..key });
        Ok(())
    }

    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        Ok(self.lock().keys.iter().filter(|key| shows_key(scope, key)).cloned().collect())
    }

    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        let mut state = self.lock();
        let visible = state.keys.iter_mut().filter(|key| shows_key(scope, key));
        let key = revoke_key(visible, id, now)?.clone();
        state.tenant(scope).write_audit(scope, key_note("revoked", &key), now);
        Ok(key)
    }

    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        Ok(self.lock().keys.iter().find(|key| key.hash == hash).cloned())
    }

    async fn has_keys(&self) -> Result<bool> {
        Ok(!self.lock().keys.is_empty())
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        self.lock().tenant(scope).write_audit(scope, tenant_note(), now);
        Ok(())
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        let mut tenants: Vec<TenantId> = self.lock().tenants.keys().cloned().collect();
        tenants.sort();
        Ok(tenants)
    }
}
