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
pub use options::{ImportOptions, Mode, SettingsFilter};
pub use own::OwnImport;
pub use report::{ImportReport, ReportedProblem};
pub use siblings::SiblingSessions;
pub use writer::{BATCH_BYTES, BATCH_ENTRIES, ImportWriter};
