//! The list of contents of a backup: a table in a SQLite file that a running store does not use. It is written after the
//! store was closed, so a file with the list is complete.

use std::path::Path;

use rusqlite::{OptionalExtension, params};
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::connection::{Mode, StoreConnection};
use super::error::AtPath;
use crate::Key;

/// One item of a backup: its tenant, its name, its size and the hash of its content.
pub type ContentsRow = (String, String, u64, String);

/// Writes the list into a closed store file. Afterwards the backup is one file, without a write-ahead log.
pub fn write_contents(path: &Path, key: Option<&Key>, rows: &[ContentsRow]) -> Result<()> {
    let db = StoreConnection::open(path, Mode::Write, key)?;
    db.in_transaction(|| {
        db.conn
            .execute_batch(
                "DROP TABLE IF EXISTS backup;
                 CREATE TABLE backup (tenant TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL,
                                      hash TEXT NOT NULL, PRIMARY KEY (tenant, name)) WITHOUT ROWID",
            )
            .at(path)?;
        for (tenant, name, count, hash) in rows {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            let sql = "INSERT INTO backup VALUES (?1, ?2, ?3, ?4)";
            db.execute(sql, params![tenant, name, count, hash])?;
        }
        Ok(())
    })?;
    db.conn.pragma_update(None, "journal_mode", "DELETE").at(path)?;
    drop(db);
    let io = |source| StoreError::Io { place: path.display().to_string(), source };
    std::fs::File::open(path).and_then(|file| file.sync_all()).map_err(io)
}

/// Reads the list. `None` if the file is a store, but not a backup.
pub fn read_contents(path: &Path, key: Option<&Key>) -> Result<Option<Vec<ContentsRow>>> {
    let db = StoreConnection::open(path, Mode::Read, key)?;
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'backup'";
    if db.conn.query_row(sql, [], |_| Ok(())).optional().at(path)?.is_none() {
        return Ok(None);
    }
    let mut select = db.prepare("SELECT tenant, name, count, hash FROM backup ORDER BY tenant, name")?;
    let read = |row: &rusqlite::Row<'_>| {
        let count: i64 = row.get(2)?;
        Ok((row.get(0)?, row.get(1)?, u64::try_from(count).unwrap_or(0), row.get(3)?))
    };
    let rows = select.query_map([], read).and_then(Iterator::collect).at(path)?;
    Ok(Some(rows))
}
