//! The logic that the SQLite and the PostgreSQL store share, as functions and small state machines
//! over decoded rows. The modules of the two stores contain the SQL: they run the queries, blocking
//! or async, and pass the rows in. This module performs no I/O.

pub(crate) mod audit;
pub(crate) mod kinds;
pub(crate) mod path;
pub(crate) mod search;
pub(crate) mod session;
pub(crate) mod summary;

use sapwood_core::StoreError;
use sapwood_core::port::store::{Finding, Repair, Result};
use serde::de::DeserializeOwned;

use crate::validate;

/// Maximum number of findings of one kind. The first few are enough for a diagnosis.
pub(crate) const FINDINGS_MAX: usize = 20;

/// A database, as errors and findings name it.
pub(crate) trait NamedDatabase {
    /// Returns the path of the file or the address of the server.
    fn place(&self) -> String;

    fn damaged(&self, what: impl ToString) -> StoreError {
        validate::damaged(self.place(), what)
    }

    /// Parses the JSON of a stored row. `what` describes the row in the error message.
    fn parse<T: DeserializeOwned>(&self, what: &str, json: &str) -> Result<T> {
        serde_json::from_str(json).map_err(|error| self.damaged(format!("failed to parse {what}: {error}")))
    }

    fn finding(&self, rule: &'static str, what: String, repair: Repair) -> Finding {
        Finding { rule, place: self.place(), what, repaired: repair == Repair::Yes }
    }
}
