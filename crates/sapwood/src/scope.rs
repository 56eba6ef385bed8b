//! Scopes: the tenant, the principal and the reach of each call. Sessions outside the scope do not exist for the caller.

pub use sapwood_core::id::{TenantId, UserName};
pub use sapwood_core::scope::{Members, Principal, Reach, Right, Role, Scope};
