//! Answer links: a URL with which a person without an API key answers one question, once.
//!
//! The token in the URL contains a [`LinkClaim`] and its signature. A link gives the rights of the principal who created
//! it, restricted to one approval and to the listed answers, until it expires. It is used up as soon as the approval is
//! answered, because the first answer counts.

use serde::{Deserialize, Serialize};

use crate::entry::ApprovalAnswer;
use crate::id::{TenantId, TimestampMs};
use crate::scope::{Principal, Reach, Scope};

/// Longest time until a link expires, in seconds: 7 days.
pub const LINK_S_MAX: u32 = 7 * 86_400;
/// Default time until a link expires, in seconds.
pub const LINK_S_DEFAULT: u32 = 86_400;

/// What a link permits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkClaim {
    /// The tenant of the session.
    pub tenant: TenantId,
    /// The id of the approval, which contains the session's id.
    pub approval: String,
    /// The principal who created the link.
    pub by: Principal,
    /// Whether that principal was an operator of the tenant.
    pub operator: bool,
    /// When the link expires.
    pub expires_at: TimestampMs,
    /// The answers that the link allows.
    pub answers: Vec<ApprovalAnswer>,
}

impl LinkClaim {
    /// The scope in which the answer is given.
    pub fn scope(&self) -> Scope {
        let reach = if self.operator { Reach::Tenant } else { Reach::Own };
        Scope { tenant: self.tenant.clone(), principal: self.by.clone(), reach }
    }
}

/// Signs and verifies answer links with a key that all servers of a store share.
pub trait AnswerLinks: Send + Sync {
    /// The URL of a link.
    fn url(&self, claim: &LinkClaim) -> String;
    /// The claim of a token. `None` if the signature does not match.
    fn verify(&self, token: &str) -> Option<LinkClaim>;
}
