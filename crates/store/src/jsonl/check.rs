//! The `doctor` checks of a directory: unreadable files, unfinished appends, an outdated index, a
//! broken audit chain, damaged blobs. Only the index is repaired.

use sapwood_core::StoreError;
use sapwood_core::port::store::{Finding, Repair, Result};

use super::audit::read_chain;
use super::blob;
use super::layout::id_of_stem;
use super::tenant::TenantDir;

impl TenantDir {
    pub fn check(&mut self, repair: Repair) -> Result<Vec<Finding>> {
        self.evict_read();
        self.index.load(&self.layout)?;
        let mut findings = Vec::new();
        let mut is_stale = false;
        for (stem, _) in self.scan()? {
            match self.load(&stem, 0) {
                Ok(Some(session_log)) => {
                    is_stale |= self.check_cache(&stem, &session_log, repair, &mut findings)
                }
                Ok(None) => {}
                Err(StoreError::Damaged { place, what }) => findings.push(finding("damaged", place, what)),
                Err(error @ StoreError::TooNew { .. }) => {
                    findings.push(finding(
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
                findings.push(finding("torn", torn.display().to_string(), what));
            }
        }
        if is_stale && repair == Repair::Yes {
            self.index.rewrite(&self.layout)?;
        }
        self.check_audit(&mut findings)?;
        for error in blob::find_damaged(&self.layout)? {
            if let StoreError::Damaged { place, what } = error {
                findings.push(finding("blobs", place, what));
            }
        }
        let is_new = |warning: &Finding| !findings.iter().any(|finding| finding.rule == warning.rule);
        let new_warnings: Vec<Finding> =
            self.warnings.iter().filter(|warning| is_new(warning)).cloned().collect();
        findings.extend(new_warnings);
        Ok(findings)
    }

    /// Checks the index's summary of a log, and corrects it in memory. Returns whether it was wrong.
    fn check_cache(
        &mut self,
        stem: &str,
        session_log: &super::session_log::SessionLog,
        repair: Repair,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let len = session_log.disk.as_ref().map_or(0, |disk| disk.len);
        let is_wrong =
            self.index.get(stem, len).is_some_and(|summary| !summary.matches_fold(&session_log.log.summary));
        if is_wrong {
            let session = id_of_stem(stem).map(|id| id.to_string()).unwrap_or_default();
            let what = format!("the index's summary of session {session} does not match its log");
            let repaired = repair == Repair::Yes;
            findings.push(Finding {
                repaired,
                ..finding("cache", self.layout.index().display().to_string(), what)
            });
            self.index.put(stem, len, &session_log.log.summary);
        }
        is_wrong
    }

    fn check_audit(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let place = self.layout.audit().display().to_string();
        match read_chain(&self.layout) {
            Ok(chain) => {
                if let Some(number) = chain.first_break() {
                    let what = format!("line {number} does not match the hash of the line before it");
                    findings.push(finding("audit", place, what));
                }
                Ok(())
            }
            Err(StoreError::Damaged { place, what }) => {
                findings.push(finding("audit", place, what));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn finding(rule: &'static str, place: String, what: String) -> Finding {
    Finding { rule, place, what, repaired: false }
}
