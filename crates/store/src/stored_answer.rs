//! The stored answer to an idempotency key.

use sapwood_core::port::store::{Append, Appended, Result};
use sapwood_core::tree::Head;
use sapwood_core::{EntryId, Seq};
use serde::{Deserialize, Serialize};

use crate::validate::check_request;

#[derive(Serialize, Deserialize)]
pub struct StoredAnswer {
    head: Head,
    pub entries: Vec<(Seq, EntryId)>,
    /// The hash of the request, if the caller supplied one. Answers stored by older versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

impl StoredAnswer {
    pub fn of(answer: &Appended, request: Option<String>) -> Self {
        Self { head: answer.head, entries: answer.entries.clone(), request }
    }

    /// Returns the answer. Fails if the append is a different request with the same key.
    pub fn for_retry(&self, append: &Append) -> Result<Appended> {
        check_request(append, self.request.as_deref())?;
        Ok(Appended { head: self.head, entries: self.entries.clone() })
    }
}
