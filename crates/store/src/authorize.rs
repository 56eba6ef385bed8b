//! The store's door. Every method of every store comes through here before it looks at a session's content.

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, StoreError};

/// Lets a caller of the session's own tenant in, or answers as if the session were not there (I9).
pub fn authorize(scope: &Scope, summary: &Summary, needed: Right) -> Result<()> {
    match scope.role_in(&summary.owner, &summary.members) {
        None => Err(StoreError::NoSession { session: summary.id.clone() }),
        Some(role) if role.allows(needed) => Ok(()),
        Some(_) => Err(StoreError::Denied {
            session: summary.id.clone(),
            principal: scope.principal.clone(),
            needed,
        }),
    }
}
