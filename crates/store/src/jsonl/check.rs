//! The `doctor` checks of a directory: damaged lines, unreadable files, unfinished appends, an
//! outdated index, a broken audit chain, damaged blobs. A repair restores what a checksum proves, and
//! rebuilds derived data.

use std::path::Path;

use sapwood_core::StoreError;
use sapwood_core::port::store::{Finding, Repair, Result};

use super::audit::read_whole;
use super::disk::{self, LockKind};
use super::layout::id_of_stem;
use super::repair::{check_file, line_files};
use super::session_log::SessionLog;
use super::tenant::TenantDir;
use super::{blob, head_file, memories};

impl TenantDir {
    pub fn check(&mut self, repair: Repair) -> Result<Vec<Finding>> {
        self.evict_read();
        let mut findings = self.check_lines(repair)?;
        self.index.load(&self.layout)?;
        let mut is_stale = self.check_index_lines(repair, &mut findings);
        for (stem, _) in self.scan()? {
            if let Some(session_log) = self.load_or_report(&stem, repair, &mut findings)? {
                is_stale |= self.check_cache(&stem, &session_log, repair, &mut findings);
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
        self.check_audit(repair, &mut findings)?;
        findings.extend(memories::check(&self.layout, repair, self.options.durability)?);
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

    /// Checks every line of every file. A repair replaces files, so no other process may append meanwhile.
    fn check_lines(&mut self, repair: Repair) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let lock_file = if repair == Repair::Yes { Some(self.lock_file()?) } else { None };
        let lock = |file| disk::lock(file, LockKind::Exclusive, &self.layout.lock());
        let _store_lock = lock_file.as_deref().map(lock).transpose()?;
        for path in line_files(&self.layout)? {
            findings.extend(check_file(&path, repair, self.options.durability)?);
        }
        Ok(findings)
    }

    fn check_index_lines(&self, repair: Repair, findings: &mut Vec<Finding>) -> bool {
        let bad_lines = self.index.bad_lines;
        if bad_lines > 0 {
            let what = format!("{bad_lines} lines of the index are damaged");
            let place = self.layout.index().display().to_string();
            findings.push(Finding { repaired: repair == Repair::Yes, ..finding("cache", place, what) });
        }
        bad_lines > 0
    }

    /// Reads a log. Damage is reported, unless the check of the lines has reported it.
    fn load_or_report(
        &mut self,
        stem: &str,
        repair: Repair,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<SessionLog>> {
        let log = self.layout.log(stem);
        match self.load(stem, 0) {
            Err(StoreError::Damaged { what, .. })
                if head_file::is_lost_end(&what) && repair == Repair::Yes =>
            {
                let aside = head_file::set_aside(&log)?;
                let what =
                    format!("{what}; this could not be repaired, and is recorded in {}", aside.display());
                findings.push(finding("damaged", log.display().to_string(), what));
                self.load_or_report(stem, Repair::No, findings)
            }
            Err(StoreError::Damaged { place, what }) => {
                if !findings.iter().any(|finding| finding.place == place) {
                    findings.push(finding("damaged", place, what));
                }
                Ok(None)
            }
            Err(error @ StoreError::TooNew { .. }) => {
                findings.push(finding("too_new", log.display().to_string(), error.to_string()));
                Ok(None)
            }
            loaded => loaded,
        }
    }

    /// Checks the index's summary of a log, and corrects it in memory. Returns whether it was wrong.
    fn check_cache(
        &mut self,
        stem: &str,
        session_log: &SessionLog,
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

    fn check_audit(&self, repair: Repair, findings: &mut Vec<Finding>) -> Result<()> {
        let place = self.layout.audit().display().to_string();
        match read_whole(&self.layout, &self.lease_clock.read().boot) {
            Ok(chain) => {
                if let Some(number) = chain.first_break() {
                    let what = format!("line {number} does not match the hash of the line before it");
                    findings.push(finding("audit", place, what));
                }
                Ok(())
            }
            Err(StoreError::Damaged { place, what }) => {
                if !findings.iter().any(|finding| finding.place == place) {
                    findings.push(finding("audit", place, what));
                    accept_lost_end(&self.layout.audit(), repair)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Sets the head of a file aside, so that its other lines can be used. The loss was reported.
pub fn accept_lost_end(path: &Path, repair: Repair) -> Result<()> {
    if repair == Repair::Yes && head_file::path_beside(path).exists() {
        head_file::set_aside(path)?;
    }
    Ok(())
}

pub fn finding(rule: &'static str, place: String, what: String) -> Finding {
    Finding { rule, place, what, repaired: false }
}
