//! API keys: `keys.jsonl` in the store's root directory, for all tenants. One line per change; the
//! last line with an id is its current state.

use std::io::Write;

use async_trait::async_trait;
use sapwood_core::port::keys::{ApiKey, Keys};
use sapwood_core::port::store::{Audit, Finding, Repair, Result};
use sapwood_core::{BlobHash, Scope, StoreError, TenantId, TimestampMs};

use super::JsonlStore;
use super::check::{accept_lost_end, finding};
use super::disk::{self, At, sync};
use super::layout::Layout;
use super::{head_file, sealed_lines};
use crate::permissions;
use crate::validate::{key_note, revoke_key, shows_key, tenant_note};

impl JsonlStore {
    fn keys_path(&self) -> std::path::PathBuf {
        self.root.join("keys.jsonl")
    }

    /// Returns the current state of every key, oldest first. An incomplete last line was never
    /// acknowledged.
    fn read_keys(&self) -> Result<Vec<ApiKey>> {
        let path = self.keys_path();
        let head = head_file::read(&path, &self.lease_clock.read().boot)?;
        let Some(file) = disk::open_if_exists(&path)? else { return Ok(Vec::new()) };
        let bytes = disk::read_if_exists(&path)?.unwrap_or_default();
        let read = sealed_lines::read::<ApiKey>(&path, &bytes)?;
        head_file::check(head.as_ref(), &path, &file, read.whole)?;
        let mut keys: Vec<ApiKey> = Vec::new();
        for key in read.into_values() {
            match keys.iter_mut().find(|existing| existing.id == key.id) {
                Some(existing) => *existing = key,
                None => keys.push(key),
            }
        }
        Ok(keys)
    }

    /// Checks that no line is missing at the end. A repair accepts a lost end after it is reported.
    pub(super) fn check_keys(&self, repair: Repair, findings: &mut Vec<Finding>) -> Result<()> {
        match self.read_keys() {
            Ok(_) => Ok(()),
            Err(StoreError::Damaged { place, what }) => {
                if !findings.iter().any(|finding| finding.place == place) {
                    findings.push(finding("damaged", place, what));
                    accept_lost_end(&self.keys_path(), repair)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Runs `change` on the current keys under the lock, and appends the key that it returns.
    fn change_key(&self, change: impl FnOnce(Vec<ApiKey>) -> Result<ApiKey>) -> Result<ApiKey> {
        let path = self.keys_path();
        permissions::create_dir(&self.root).at(&self.root)?;
        let mut file = disk::open_locked(&path)?;
        let whole = disk::read_if_exists(&path)?.unwrap_or_default();
        let end = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if end < whole.len() {
            file.set_len(end as u64).at(&path)?;
        }
        let key = change(self.read_keys()?)?;
        file.write_all(&sealed_lines::to_line(&key)).at(&path)?;
        sync(&file, &path, self.options.durability)?;
        disk::sync_dir(&path, self.options.durability)?;
        let len = file.metadata().at(&path)?.len();
        head_file::write(&path, &file, len, self.options.durability, &self.lease_clock.read().boot);
        Ok(key)
    }
}

#[async_trait]
impl Keys for JsonlStore {
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()> {
        let key = self.change_key(|_| Ok(ApiKey { tenant: scope.tenant.clone(), ..key }))?;
        self.write_audit(scope, key_note("created", &key), key.created_at).await
    }

    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>> {
        Ok(self.read_keys()?.into_iter().filter(|key| shows_key(scope, key)).collect())
    }

    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey> {
        let key = self
            .change_key(|keys| revoke_key(keys.into_iter().filter(|key| shows_key(scope, key)), id, now))?;
        self.write_audit(scope, key_note("revoked", &key), now).await?;
        Ok(key)
    }

    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>> {
        Ok(self.read_keys()?.into_iter().find(|key| key.hash == hash))
    }

    async fn has_keys(&self) -> Result<bool> {
        Ok(!self.read_keys()?.is_empty())
    }

    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()> {
        let dir = Layout::of(&self.root, &scope.tenant).dir;
        permissions::create_dir(&dir).at(&dir)?;
        self.write_audit(scope, tenant_note(), now).await
    }

    async fn list_tenants(&self) -> Result<Vec<TenantId>> {
        let mut tenants: Vec<TenantId> = self.root.is_dir().then(TenantId::local).into_iter().collect();
        let dir = self.root.join("tenants");
        if dir.is_dir() {
            for found in std::fs::read_dir(&dir).at(&dir)? {
                let name = found.at(&dir)?.file_name();
                tenants.extend(name.to_str().and_then(|name| name.parse().ok()));
            }
        }
        tenants.sort();
        Ok(tenants)
    }
}
