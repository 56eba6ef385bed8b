//! The `doctor` checks of a directory: unreadable files, truncated logs, a wrong cache, a broken
//! audit, damaged blobs. Only the cache is ever repaired.

use sapwood_core::StoreError;
use sapwood_core::port::store::{Finding, Repair, Result};

use super::audit::read_chain;
use super::blob;
use super::layout::id_of_stem;
use super::tenant::TenantDir;

impl TenantDir {
    pub fn check(&mut self, repair: Repair) -> Result<Vec<Finding>> {
        self.forget_read();
        self.index.load(&self.layout)?;
        let mut findings = Vec::new();
        let mut is_stale = false;
        for (stem, _) in self.scan()? {
            match self.load(&stem, 0) {
                Ok(Some(book)) => is_stale |= self.check_cache(&stem, &book, repair, &mut findings),
                Ok(None) => {}
                Err(StoreError::Damaged { place, what }) => findings.push(found("damaged", place, what)),
                Err(error @ StoreError::TooNew { .. }) => {
                    findings.push(found(
                        "too_new",
                        self.layout.log(&stem).display().to_string(),
                        error.to_string(),
                    ));
                }
                Err(error) => return Err(error),
            }
            let torn = self.layout.torn(&stem);
            if let Ok(metadata) = std::fs::metadata(&torn) {
                let what = format!("{} bytes of unfinished appends were cut off", metadata.len());
                findings.push(found("torn", torn.display().to_string(), what));
            }
        }
        if is_stale && repair == Repair::Yes {
            self.index.rewrite(&self.layout)?;
        }
        self.check_audit(&mut findings)?;
        for error in blob::find_damaged(&self.layout)? {
            if let StoreError::Damaged { place, what } = error {
                findings.push(found("blobs", place, what));
            }
        }
        let told = |warning: &Finding| !findings.iter().any(|finding| finding.rule == warning.rule);
        let untold: Vec<Finding> = self.warnings.iter().filter(|warning| told(warning)).cloned().collect();
        findings.extend(untold);
        Ok(findings)
    }

    /// Returns whether the index has a wrong summary for a log of this length.
    fn check_cache(
        &mut self,
        stem: &str,
        book: &super::session_log::SessionLog,
        repair: Repair,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let len = book.disk.as_ref().map_or(0, |disk| disk.len);
        let is_wrong = self.index.get(stem, len).is_some_and(|summary| *summary != book.log.summary);
        if is_wrong {
            let session = id_of_stem(stem).map(|id| id.to_string()).unwrap_or_default();
            let what = format!("the index's summary of session {session} does not match its log");
            let repaired = repair == Repair::Yes;
            findings.push(Finding {
                repaired,
                ..found("cache", self.layout.index().display().to_string(), what)
            });
            self.index.put(stem, len, &book.log.summary);
        }
        is_wrong
    }

    fn check_audit(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let place = self.layout.audit().display().to_string();
        match read_chain(&self.layout) {
            Ok(chain) => {
                if let Some(number) = chain.first_break() {
                    let what = format!("line {number} does not match the hash of the line before it");
                    findings.push(found("audit", place, what));
                }
                Ok(())
            }
            Err(StoreError::Damaged { place, what }) => {
                findings.push(found("audit", place, what));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn found(rule: &'static str, place: String, what: String) -> Finding {
    Finding { rule, place, what, repaired: false }
}
