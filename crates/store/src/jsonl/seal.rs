//! Adds hashes to entries, and checksums to lines, that an earlier version wrote without them.
//!
//! A file is replaced as a whole: the old file stays until the new one is synced. Damaged files are reported and not changed.

use std::path::Path;
use std::sync::Arc;

use sapwood_core::StoreError;
use sapwood_core::entry::LOG_VERSION;
use sapwood_core::port::store::{Finding, Result, SealReport};

use super::disk::{self, LockKind, replace};
use super::erase::read_kept;
use super::file::LogFile;
use super::head_file;
use super::layout::id_of_stem;
use super::line_sum::{self, LineState};
use super::memories::end_line;
use super::repair::line_files;
use super::session_log::{KeptEntry, LateProofs, OpenedLog, SessionLog, erased_file};
use super::tenant::TenantDir;

impl TenantDir {
    pub fn seal(&mut self) -> Result<SealReport> {
        // Appends hold a shared lock on the store, and open a replaced file again.
        let lock_file = self.lock_file()?;
        let _store_lock = disk::lock(&lock_file, LockKind::Exclusive, &self.layout.lock())?;
        self.evict_read();
        let mut report = SealReport::default();
        for path in line_files(&self.layout)? {
            let bytes = disk::read_if_exists(&path)?.unwrap_or_default();
            let unproven = count_unproven(&bytes);
            if unproven == 0 {
                continue;
            }
            let sealed = match self.seal_file(&path, &bytes) {
                Ok(sealed) => sealed,
                Err(StoreError::Damaged { place, what }) => {
                    report.findings.push(Finding { rule: "damaged", place, what, repaired: false });
                    continue;
                }
                Err(error) => return Err(error),
            };
            report.entries += sealed;
            report.lines += unproven;
        }
        self.evict_read();
        Ok(report)
    }

    /// Seals a file. Returns the number of entries that got a hash.
    fn seal_file(&mut self, path: &Path, bytes: &[u8]) -> Result<u64> {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| id_of_stem(stem).is_some());
        let (sealed, entries) = match (stem, path.extension().and_then(|ending| ending.to_str())) {
            (Some(stem), Some("jsonl")) => match self.load(stem, 0)? {
                Some(session_log) => seal_log(session_log)?,
                None => return Ok(0),
            },
            (Some(stem), Some("erased")) => match self.seal_erased(stem)? {
                Some(sealed) => sealed,
                None => return Ok(0),
            },
            _ if path == self.layout.memories() => {
                let end = end_line(count_unproven(bytes) as usize);
                ([seal_lines(bytes), end].concat(), 0)
            }
            _ => (seal_lines(bytes), 0),
        };
        // A head of the old file would report the new one as replaced.
        disk::remove(&head_file::path_beside(path))?;
        disk::sync_dir(path, self.options.durability)?;
        replace(path, &sealed, self.options.durability)?;
        Ok(entries)
    }

    fn seal_erased(&mut self, stem: &str) -> Result<Option<(Vec<u8>, u64)>> {
        let Some(file) = LogFile::open(self.layout.erased(stem), stem)? else { return Ok(None) };
        let header = OpenedLog::read(file)?.header;
        let Some(rows) = self.rows_of(stem, sapwood_core::Seq::ZERO, 0)? else { return Ok(None) };
        let (mut proofs, mut entries) = (LateProofs::default(), 0);
        let mut kept = read_kept(&rows, &rows.own_seqs())?;
        for KeptEntry { record, proof, .. } in &mut kept {
            entries += u64::from(proof.is_none());
            *proof = Some(proofs.proof_of(&rows, record));
        }
        Ok(Some((erased_file(&header, &kept), entries)))
    }
}

/// Returns the sealed file of a log, and the number of entries that got a hash.
fn seal_log(mut session_log: SessionLog) -> Result<(Vec<u8>, u64)> {
    let rows = Arc::clone(session_log.log.rows());
    let is_unproven = |seq: &sapwood_core::Seq| session_log.log.proof_at(*seq).is_none();
    let entries = rows.own_seqs().iter().filter(|seq| is_unproven(seq)).count() as u64;
    // All lines are written in the current format.
    session_log.header.version = LOG_VERSION;
    Ok((session_log.to_file(None)?, entries))
}

/// Adds checksums to the JSON objects of a file. Lines that are not objects stay as they are.
fn seal_lines(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for raw in bytes.split_inclusive(|byte| *byte == b'\n') {
        let line = raw.trim_ascii();
        match line_sum::check(raw) == Ok(LineState::Unproven) && is_object(line) {
            true => out.extend(line_sum::to_line(line.to_vec())),
            false => out.extend_from_slice(raw),
        }
    }
    out
}

fn is_object(line: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

fn count_unproven(bytes: &[u8]) -> u64 {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| is_object(line));
    lines.filter(|line| line_sum::check(line) == Ok(LineState::Unproven)).count() as u64
}
