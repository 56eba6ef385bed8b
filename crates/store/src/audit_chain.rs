//! The hash chain of a tenant's audit log.

use sapwood_core::port::store::{AuditLine, AuditNote};
use sapwood_core::{Principal, TimestampMs};

/// The end of a chain: the number and the hash of its last line.
#[derive(Debug, Clone, Default)]
pub struct AuditChain {
    pub number: u64,
    pub hash: String,
}

impl AuditChain {
    pub fn after(last: Option<&AuditLine>) -> Self {
        last.map(|line| Self { number: line.number, hash: line.hash.clone() }).unwrap_or_default()
    }

    /// Returns the next line and moves the end of the chain to it.
    pub fn add(&mut self, by: Principal, note: AuditNote, now: TimestampMs) -> AuditLine {
        self.number += 1;
        let line = AuditLine::chained(self.number, now, by, note, &self.hash);
        self.hash.clone_from(&line.hash);
        line
    }
}
