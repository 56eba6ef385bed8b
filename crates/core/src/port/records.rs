//! Small records of a tenant beside the log: legal holds, retention, allowances, and the spending of each day. All servers
//! of a store share them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::audit::AuditNote;
use super::store_error::Result;
use crate::id::TimestampMs;
use crate::scope::Scope;

/// Maximum number of records of one kind per tenant.
pub const RECORDS_MAX: usize = 100_000;
/// Maximum size of a record's name and of its value.
pub const RECORD_NAME_BYTES_MAX: usize = 512;
/// Maximum size of a record's value.
pub const RECORD_VALUE_BYTES_MAX: usize = 16 << 10;
/// Days of spending that a store keeps.
pub const SPENDING_DAYS_KEPT: u32 = 62;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A legal hold on a session or a user.
    Hold,
    /// How long the tenant keeps inactive sessions.
    Retention,
    /// A session whose erasure was announced.
    Notice,
    /// The models that a key, a user or the tenant may use, and how much per day.
    Allowance,
}

impl RecordKind {
    /// All kinds.
    pub const ALL: [RecordKind; 4] =
        [RecordKind::Hold, RecordKind::Retention, RecordKind::Notice, RecordKind::Allowance];

    /// The name that stores use.
    pub fn as_str(self) -> &'static str {
        match self {
            RecordKind::Hold => "hold",
            RecordKind::Retention => "retention",
            RecordKind::Notice => "notice",
            RecordKind::Allowance => "allowance",
        }
    }
}

/// A record of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// What the record is about.
    pub kind: RecordKind,
    /// The name, which is unique among the records of its kind.
    pub name: String,
    /// The value, as JSON text.
    pub value: String,
}

/// Tokens and cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Tokens of the input and the output.
    pub tokens: u64,
    /// The cost in billionths of a US dollar.
    pub nano_usd: u64,
}

impl Spent {
    /// The sum of both.
    pub fn plus(self, other: Spent) -> Spent {
        Spent {
            tokens: self.tokens.saturating_add(other.tokens),
            nano_usd: self.nano_usd.saturating_add(other.nano_usd),
        }
    }
}

/// Storage of a tenant's records. The caller checks who may change them.
#[async_trait]
pub trait Records: Send + Sync {
    /// Store a record and an audit line, or delete the record if `value` is `None`.
    async fn put_record(
        &self,
        scope: &Scope,
        kind: RecordKind,
        name: &str,
        value: Option<String>,
        audit: AuditNote,
        now: TimestampMs,
    ) -> Result<()>;
    /// All records of a kind, by name.
    async fn list_records(&self, scope: &Scope, kind: RecordKind) -> Result<Vec<TenantRecord>>;
    /// Add to what each of these holders has spent on a day, in one transaction. Days are counted since 1970.
    async fn add_spent(&self, scope: &Scope, day: u32, holders: &[String], spent: Spent) -> Result<()>;
    /// What a holder has spent on a day.
    async fn spent(&self, scope: &Scope, day: u32, holder: &str) -> Result<Spent>;
}
