//! API keys and tenants: who may come in through the server's door. A key is 256 random bits that are shown once; a store
//! keeps their hash and what the key may do. Finding a key by its hash is the one call without a scope, because it is
//! what gives one.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store::Result;
use crate::id::{BlobHash, TenantId, TimestampMs, UserName};
use crate::scope::{Principal, Reach, Scope};

/// Most keys of one tenant.
pub const KEYS_MAX: usize = 100_000;

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// Read and follow what its user may see.
    Read,
    /// Change it, as far as its user may.
    Write,
    /// See and change every session of the tenant.
    Operate,
}

impl Grant {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "read" => Some(Grant::Read),
            "write" => Some(Grant::Write),
            "operate" => Some(Grant::Operate),
            _ => None,
        }
    }
}

/// A key as it is kept. Its secret is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Public, to name it by.
    pub id: String,
    pub tenant: TenantId,
    pub user: UserName,
    /// Of the secret.
    pub hash: BlobHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub grants: Vec<Grant>,
    pub created_at: TimestampMs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<TimestampMs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<TimestampMs>,
}

impl ApiKey {
    pub fn is_valid(&self, now: TimestampMs) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    pub fn allows(&self, grant: Grant) -> bool {
        self.grants.contains(&grant)
    }

    /// Whom the key lets in, and how far.
    pub fn scope(&self) -> Scope {
        let reach = if self.allows(Grant::Operate) { Reach::Tenant } else { Reach::Own };
        Scope { tenant: self.tenant.clone(), principal: Principal::User(self.user.clone()), reach }
    }
}

/// Who may come in. Changes are written into the tenant's audit with them.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Keeps a key of the scope's own tenant.
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()>;
    /// The keys of the scope's tenant, oldest first: all of them for an operator, and one's own for others.
    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>>;
    /// Ends a key for good. A key of somebody else's is not found.
    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey>;
    /// Whatever became of it: whoever asks looks whether it is still valid.
    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>>;
    /// Whether there ever was one, in any tenant: then nobody comes in without.
    async fn has_keys(&self) -> Result<bool>;
    /// Makes the scope's tenant known.
    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()>;
    async fn list_tenants(&self) -> Result<Vec<TenantId>>;
}
