//! Import sessions.
//!
//! A file is only as trustworthy as the importing user. Only an owner may extend an existing session, memberships
//! in the file are not granted, and only an operator may write entries of other users (ADR 0030).
//!
//! [`ForeignImport`] imports another program's file, and [`OwnImport`] a file in Sapwood's format. Both read lines,
//! pass batches to an intake ([`Intake`], [`OwnIntake`](own_intake)), and return an [`ImportReport`] per session. The
//! intakes compare the file with the stored session and pass new entries to the [`ImportWriter`].

mod foreign;
mod intake;
mod options;
mod own;
mod own_intake;
mod report;
mod siblings;
mod writer;

pub use foreign::{ForeignImport, StepReader};
pub use intake::{Intake, IntakeResult};
pub use options::{ImportOptions, Mode};
pub use own::OwnImport;
pub use report::{ImportReport, ReportedProblem};
pub use siblings::SiblingSessions;
pub use writer::{BATCH_BYTES, BATCH_ENTRIES, ImportWriter};

use sapwood_core::Scope;
use sapwood_core::port::store::{Expect, NewSession};
use sapwood_formats::import::Format;

use crate::{Result, service};

service! {
    /// Imports of sessions.
    pub struct Imports;
    imports
}

impl Imports<'_> {
    /// Start importing entries. An existing session is extended if the caller owns it and its head matches `expect`.
    pub async fn begin(self, scope: &Scope, new: NewSession, expect: Expect) -> Result<ImportWriter> {
        ImportWriter::begin(self.engine, scope, new, expect).await
    }

    /// Start importing the steps of another program's file, read by the caller.
    pub fn begin_intake(self, scope: &Scope, format: Format, mode: Mode) -> Intake {
        Intake::new(self.engine, scope, format, ImportOptions::new(mode))
    }

    /// Start importing another program's file. `name` names the session if the file contains no id. Fails for Sapwood's
    /// own format.
    pub fn begin_foreign(
        self,
        scope: &Scope,
        format: Format,
        name: &str,
        options: ImportOptions,
    ) -> Result<ForeignImport> {
        ForeignImport::begin(self.engine, scope, format, name, options)
    }

    /// Start importing a file in Sapwood's format.
    pub fn begin_own(self, scope: &Scope, options: ImportOptions) -> OwnImport {
        OwnImport::begin(self.engine, scope, options)
    }
}
