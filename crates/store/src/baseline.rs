//! Measures the maximum insert rate of SQLite on this machine, for comparison by `sapwood bench`:
//! one table, one text column, no index, no search, no history. Only the benchmark uses this
//! module.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::Durability;

/// Inserts `bodies` into a new file, `per_commit` rows per transaction, and returns the elapsed
/// time.
pub fn plain_inserts(
    path: &Path,
    bodies: &[Vec<u8>],
    per_commit: usize,
    durability: Durability,
) -> Result<Duration, String> {
    insert_all(path, bodies, per_commit, durability).map_err(|error| error.to_string())
}

fn insert_all(
    path: &Path,
    bodies: &[Vec<u8>],
    per_commit: usize,
    durability: Durability,
) -> rusqlite::Result<Duration> {
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT)")?;
    let start = Instant::now();
    for batch in bodies.chunks(per_commit.max(1)) {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached("INSERT INTO t(body) VALUES (?1)")?;
            for body in batch {
                insert.execute([String::from_utf8_lossy(body)])?;
            }
        }
        transaction.commit()?;
    }
    Ok(start.elapsed())
}

/// Checkpoints and truncates the WAL, so that the size of the database file is the total size.
pub fn checkpoint(path: &Path) -> Result<(), String> {
    let truncate = |connection: Connection| connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    Connection::open(path).and_then(truncate).map_err(|error| error.to_string())
}

/// Returns the bytes of all pages in use. A file does not shrink when pages become free; SQLite
/// reuses them first.
pub fn used_bytes(path: &Path) -> Result<u64, String> {
    let count = |connection: &Connection, name: &str| {
        connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map(|count| count.max(0) as u64)
    };
    let used = |connection: Connection| {
        let pages = count(&connection, "page_count")?.saturating_sub(count(&connection, "freelist_count")?);
        Ok(pages * count(&connection, "page_size")?)
    };
    Connection::open(path).and_then(used).map_err(|error| error.to_string())
}
