//! Authorization for all stores. Every store method checks authorization before it returns a
//! session's content.

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, StoreError};

/// Checks that the caller has the needed right. A session that the caller cannot read is reported
/// as missing (I9).
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
