//! API keys and tenants: access control for the server. A key is 256 random bits that are shown once; a store
//! keeps their hash and the key's rights. Finding a key by its hash requires no scope, because the key
//! determines the scope.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store_error::Result;
use crate::id::{BlobHash, TenantId, TimestampMs, UserName};
use crate::scope::{Principal, Reach, Scope};

/// Maximum number of keys per tenant.
pub const KEYS_MAX: usize = 100_000;

/// A right of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// Read and follow the sessions that the key's user may see.
    Read,
    /// Change the sessions that the key's user may change.
    Write,
    /// See and change every session of the tenant.
    Operate,
}

impl Grant {
    /// The right with this name: `read`, `write` or `operate`. `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "read" => Some(Grant::Read),
            "write" => Some(Grant::Write),
            "operate" => Some(Grant::Operate),
            _ => None,
        }
    }
}

/// A stored key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The public id of the key.
    pub id: String,
    /// The tenant that the key belongs to.
    pub tenant: TenantId,
    /// The user that the key acts for.
    pub user: UserName,
    /// The hash of the secret.
    pub hash: BlobHash,
    /// A name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The rights of the key.
    pub grants: Vec<Grant>,
    /// When the key was created.
    pub created_at: TimestampMs,
    /// When the key stops being valid. `None`: the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<TimestampMs>,
    /// When the key was revoked; `None` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<TimestampMs>,
}

impl ApiKey {
    /// Whether the key is neither revoked nor expired.
    pub fn is_valid(&self, now: TimestampMs) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    /// Whether the key lists this right.
    pub fn allows(&self, grant: Grant) -> bool {
        self.grants.contains(&grant)
    }

    /// The scope that the key grants.
    pub fn scope(&self) -> Scope {
        let reach = if self.allows(Grant::Operate) { Reach::Tenant } else { Reach::Own };
        Scope { tenant: self.tenant.clone(), principal: Principal::User(self.user.clone()), reach }
    }
}

/// Storage of keys. Changes are recorded in the tenant's audit log in the same transaction.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Store a key of the scope's tenant.
    async fn put_key(&self, scope: &Scope, key: ApiKey) -> Result<()>;
    /// List keys of the scope's tenant, oldest first: all keys for an operator, otherwise only the caller's.
    async fn list_keys(&self, scope: &Scope) -> Result<Vec<ApiKey>>;
    /// Revoke a key permanently. Another principal's key is not found, unless the caller is an operator.
    async fn revoke_key(&self, scope: &Scope, id: &str, now: TimestampMs) -> Result<ApiKey>;
    /// Find a key by its hash, including revoked and expired keys. The caller checks whether it is still valid.
    async fn find_key(&self, hash: BlobHash) -> Result<Option<ApiKey>>;
    /// Whether a key was ever created in any tenant. From then on, the server requires a credential for every request.
    async fn has_keys(&self) -> Result<bool>;
    /// Register the scope's tenant.
    async fn put_tenant(&self, scope: &Scope, now: TimestampMs) -> Result<()>;
    /// All tenants of the store.
    async fn list_tenants(&self) -> Result<Vec<TenantId>>;
}
