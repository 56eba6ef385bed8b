//! Scopes: the caller's tenant, principal and reach. Every store method that acts for a caller requires one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use crate::id::{IdError, TenantId, UserName};

/// The actor: a user, an agent or the system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Principal {
    /// A person, or a program that acts with a user's key.
    User(UserName),
    /// An agent.
    Agent(UserName),
    /// Sapwood itself, or the local operator.
    System,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::User(name) => write!(f, "user:{name}"),
            Principal::Agent(name) => write!(f, "agent:{name}"),
            Principal::System => f.write_str("system"),
        }
    }
}

impl FromStr for Principal {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.split_once(':') {
            Some(("user", name)) => Ok(Principal::User(name.parse()?)),
            Some(("agent", name)) => Ok(Principal::Agent(name.parse()?)),
            None if text == "system" => Ok(Principal::System),
            _ => Err(IdError {
                what: "principal",
                text: text.chars().take(64).collect(),
                why: "it is not user:NAME, agent:NAME or system",
            }),
        }
    }
}

impl TryFrom<String> for Principal {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A principal's role in one session, in order of increasing rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May read and follow.
    Reader,
    /// May also write: append, branch, fork and run turns.
    Collaborator,
    /// May also share, archive, reopen and erase.
    Owner,
}

/// The right that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Read and follow.
    Read,
    /// Append, branch, fork, call tools.
    Write,
    /// Share, archive, reopen, erase, import into.
    Own,
}

impl Right {
    /// The lowest role with this right, for error messages.
    pub fn required_role(self) -> &'static str {
        match self {
            Right::Read => "a reader",
            Right::Write => "a collaborator",
            Right::Own => "the owner",
        }
    }
}

impl Role {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Reader => "reader",
            Role::Collaborator => "collaborator",
            Role::Owner => "owner",
        }
    }

    /// Whether the role includes this right.
    pub fn allows(self, right: Right) -> bool {
        let needed = match right {
            Right::Read => Role::Reader,
            Right::Write => Role::Collaborator,
            Right::Own => Role::Owner,
        };
        self >= needed
    }
}

/// The reach of a scope within its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Sessions that the principal owns or that were shared with it. The default for all callers but the operator.
    Own,
    /// Every session of the tenant. For operators, the owner of a local store and the engine's maintenance
    /// tasks.
    Tenant,
}

/// The verified tenant, principal and reach of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The tenant.
    pub tenant: TenantId,
    /// The principal that acts.
    pub principal: Principal,
    /// Which sessions of the tenant the caller can see.
    pub reach: Reach,
}

/// The principals that a session was shared with.
pub type Members = BTreeMap<Principal, Role>;

impl Scope {
    /// The scope of a user, who can see only owned and shared sessions.
    pub fn user(tenant: TenantId, user: UserName) -> Self {
        Self { tenant, principal: Principal::User(user), reach: Reach::Own }
    }

    /// The scope of an operator, who has the owner's rights in all sessions of the tenant.
    pub fn operator(tenant: TenantId, principal: Principal) -> Self {
        Self { tenant, principal, reach: Reach::Tenant }
    }

    /// The caller's role in a session of its own tenant. For `None`, the session must be reported as not found (I9).
    pub fn role_in(&self, owner: &Principal, members: &Members) -> Option<Role> {
        if self.reach == Reach::Tenant || *owner == self.principal {
            return Some(Role::Owner);
        }
        members.get(&self.principal).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Principal {
        Principal::User(name.parse().unwrap())
    }

    #[test]
    fn a_session_is_invisible_to_others_until_it_is_shared() {
        let bob = Scope::user(TenantId::local(), "bob".parse().unwrap());
        let mut members = Members::new();
        assert_eq!(bob.role_in(&user("alice"), &members), None);
        members.insert(user("bob"), Role::Reader);
        assert_eq!(bob.role_in(&user("alice"), &members), Some(Role::Reader));
        assert_eq!(bob.role_in(&user("bob"), &Members::new()), Some(Role::Owner));
    }

    #[test]
    fn each_role_allows_what_the_weaker_ones_do() {
        assert!(Role::Reader.allows(Right::Read) && !Role::Reader.allows(Right::Write));
        assert!(Role::Collaborator.allows(Right::Write) && !Role::Collaborator.allows(Right::Own));
        assert!(Role::Owner.allows(Right::Own));
    }
}
