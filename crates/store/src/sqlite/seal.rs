//! Checksums of the pages, see [`sapwood_page_checksum`]. A new file has them from its first page. A file of an earlier
//! version is rewritten by `sapwood doctor --seal`; until then nothing proves that a page is what was written.

use rusqlite::Connection;
use sapwood_core::port::store::{Checksums, Finding, Repair, Result};
use sapwood_page_checksum::{find_damaged_pages, page, reserve_bytes, reserved_bytes};

use super::connection::StoreConnection;
use super::error::AtPath;
use super::reader::in_snapshot;
use super::recovery::examine_log;
use crate::database::{FINDINGS_MAX, NamedDatabase};

/// Reserves space for checksums in a file that has no pages yet.
pub(super) fn prepare_new(conn: &Connection) {
    // An encrypted file already reserves more bytes, for a message authentication code.
    if reserved_bytes(conn) == 0 {
        reserve_bytes(conn);
    }
}

/// Returns how the store detects changed pages.
pub(super) fn checksums_of(conn: &Connection) -> Checksums {
    match reserved_bytes(conn) {
        0 => Checksums::Unproven,
        bytes if bytes == i32::from(page::RESERVED_BYTES) => Checksums::Pages,
        _ => Checksums::Encrypted,
    }
}

/// Rewrites the whole file with checksums, in one transaction. The file is unchanged if it fails. It needs free disk space
/// for two copies: one in the directory for temporary files, one in the write-ahead log.
///
/// A build with encryption leaves the file as it is: SQLCipher refuses to rewrite a file without a key whose pages reserve
/// bytes.
pub(super) fn seal(db: &StoreConnection) -> Result<Checksums> {
    if checksums_of(&db.conn) != Checksums::Unproven || cfg!(feature = "encryption") {
        return Ok(checksums_of(&db.conn));
    }
    let problems = check_structure(db)?;
    if let Some(problem) = problems.first() {
        return Err(db.damaged(format!("it was not sealed, because it is damaged: {}", problem.what)));
    }
    db.conn.flush_prepared_statement_cache();
    // The copy may be larger than the memory.
    db.conn.pragma_update(None, "temp_store", "FILE").at(&db.path)?;
    reserve_bytes(&db.conn);
    let rewritten = db.conn.execute_batch("VACUUM").at(&db.path);
    db.conn.pragma_update(None, "temp_store", "MEMORY").at(&db.path)?;
    rewritten?;
    db.clear_caches();
    // If another process reads the file, its own checkpoints copy the pages later.
    db.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).at(&db.path)?;
    Ok(checksums_of(&db.conn))
}

/// Verifies every page, including pages that are not in use, and the structure of the file.
pub(super) fn check_pages(db: &StoreConnection) -> Result<Vec<Finding>> {
    let damaged = in_snapshot(db, |db| {
        // The first read begins the snapshot, which keeps the write-ahead log from restarting.
        let _: i64 = db.query_value("SELECT count(*) FROM sqlite_schema", [])?;
        // The newest versions of these pages are in the write-ahead log.
        let logged = examine_log(&db.path).map(|state| state.pages).unwrap_or_default();
        Ok(find_damaged_pages(&db.conn, &logged, FINDINGS_MAX))
    })?;
    let damaged = damaged.unwrap_or_default();
    if damaged.is_empty() {
        return check_structure(db);
    }
    let describe =
        |number| db.finding("file", format!("page {number} does not match its checksum"), Repair::No);
    Ok(damaged.into_iter().map(describe).collect())
}

fn check_structure(db: &StoreConnection) -> Result<Vec<Finding>> {
    let mut select = db.conn.prepare("PRAGMA integrity_check(20)").at(&db.path)?;
    let lines: Vec<String> =
        select.query_map([], |row| row.get(0)).and_then(Iterator::collect).at(&db.path)?;
    let problems = lines.into_iter().filter(|line| line != "ok");
    Ok(problems.map(|line| db.finding("file", line, Repair::No)).collect())
}
