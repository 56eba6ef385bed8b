//! Verify the hashes of all entries of a store, and compare its logs with heads that were kept elsewhere.
//!
//! Hashes show that a log was changed. They cannot show that the whole store is an older copy of itself: only a head that was
//! kept elsewhere can.

use sapwood_core::entry::proof::{LogHead, Verifier};
use sapwood_core::port::store::{Finding, ListFilter};
use sapwood_core::{Scope, Seq, SessionId};
use serde::Serialize;

use crate::{Engine, EngineError, Result};

/// Entries and sessions per page.
const PAGE_ROWS: usize = 500;
/// Maximum number of findings reported per session.
const FINDINGS_PER_SESSION_MAX: usize = 20;

/// The end of a session's log, as `NUMBER:HASH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionHead {
    pub session: SessionId,
    pub head: String,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    pub sessions: u64,
    pub entries: u64,
    /// Entries from before entries had hashes.
    pub unproven: u64,
    pub findings: Vec<Finding>,
    /// The head of each session without unproven entries.
    pub heads: Vec<SessionHead>,
}

/// Verifies sessions one after another.
#[derive(Debug, Default)]
pub struct HashCheck {
    /// Heads that no session has matched yet.
    missing: Vec<LogHead>,
    found: Verification,
}

impl HashCheck {
    /// Require that some session contains each of these heads.
    pub fn new(from: Vec<LogHead>) -> Self {
        Self { missing: from, found: Verification::default() }
    }

    /// Verify one session. Damage is reported as a finding.
    pub async fn verify_session(
        &mut self,
        engine: &Engine,
        scope: &Scope,
        session: &SessionId,
    ) -> Result<()> {
        let mut verifier = Verifier::new(session);
        let (mut after, mut count) = (Seq::ZERO, 0);
        loop {
            let page = match engine.store.read_proofs(scope, session, after, PAGE_ROWS).await {
                Ok(page) => page,
                Err(error) => {
                    self.report("readable", session, format!("after seq {after}: {error}"));
                    return Ok(());
                }
            };
            let Some(last) = page.last() else { break };
            after = last.meta.seq;
            for entry in &page {
                self.found.entries += 1;
                if let Err(mismatch) = verifier.check(entry)
                    && count < FINDINGS_PER_SESSION_MAX
                {
                    count += 1;
                    self.report("hash", session, mismatch.to_string());
                }
                if !self.missing.is_empty() {
                    let head = verifier.head();
                    self.missing.retain(|missing| head != Some(*missing));
                }
            }
        }
        self.found.sessions += 1;
        self.found.unproven += verifier.unproven();
        let head =
            verifier.head().map(|head| SessionHead { session: session.clone(), head: head.to_string() });
        self.found.heads.extend(head);
        Ok(())
    }

    fn report(&mut self, rule: &'static str, session: &SessionId, what: String) {
        self.found.findings.push(Finding {
            rule,
            place: format!("session {session}"),
            what,
            repaired: false,
        });
    }

    /// The result. A head that no session contains is a finding.
    pub fn finish(mut self) -> Verification {
        for missing in self.missing {
            let place = format!("head {missing}");
            let what = "no session has this head: the store is older than the head, the session was changed or erased, \
                        or it has entries without hashes";
            let what = what.to_owned();
            self.found.findings.push(Finding { rule: "head", place, what, repaired: false });
        }
        self.found
    }
}

/// Verify every session that the caller may see.
pub async fn verify_hashes(engine: &Engine, scope: &Scope) -> Result<Verification> {
    let mut check = HashCheck::default();
    let mut filter = ListFilter { limit: PAGE_ROWS, ..ListFilter::default() };
    loop {
        let page = engine.store.list(scope, &filter).await?;
        for summary in &page.items {
            check.verify_session(engine, scope, &summary.id).await?;
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => break,
        }
    }
    let mut verification = check.finish();
    verification.findings.extend(engine.store.unreadable(scope).await.map_err(EngineError::from)?);
    Ok(verification)
}
