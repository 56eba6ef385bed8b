//! The data of a person or of a tenant: legal holds, erasure and retention. Only operators may use it. Content is erased,
//! and the audit log keeps the fact.

mod erasure;
mod holds;
mod retention;
mod retention_task;

pub use erasure::{DataInventory, DataSubject, ErasureReport, OtherForks};
pub use holds::{Hold, HoldTarget, PlacedHold};
pub use retention::{RetentionNotice, RetentionPolicy, RetentionReport, SessionNotice};
pub use retention_task::RetentionTask;

use sapwood_core::Scope;
use sapwood_core::scope::Reach;

use crate::{EngineError, Result, service};

service! {
    /// Legal holds, erasure and retention of a person's or a tenant's data.
    pub struct PersonalData;
    personal_data
}

fn check_operator(scope: &Scope, what: &'static str) -> Result<()> {
    match scope.reach {
        Reach::Tenant => Ok(()),
        Reach::Own => Err(EngineError::OperatorRequired { what }),
    }
}
