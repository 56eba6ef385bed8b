//! Changes to the file of a SQLite store that bypass the store, for tests. The checksums of the changed
//! pages are correct, as if an earlier version of the store had written them.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use sapwood_page_checksum::page::{self, PAGE_BYTES};

/// Opens the file of a store.
pub fn connect(path: &Path) -> Connection {
    assert!(sapwood_page_checksum::register());
    let conn = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), sapwood_page_checksum::NAME);
    let conn = conn.unwrap();
    conn.busy_timeout(Duration::from_secs(60)).unwrap();
    conn
}

/// Executes SQL statements.
pub fn execute(path: &Path, sql: &str) {
    connect(path).execute_batch(sql).unwrap();
}

/// Overwrites bytes of one page of a file that is not open.
pub fn patch(path: &Path, offset: usize, with: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset..offset + with.len()].copy_from_slice(with);
    let start = offset - offset % PAGE_BYTES;
    let page: &mut [u8; PAGE_BYTES] = (&mut bytes[start..start + PAGE_BYTES]).try_into().unwrap();
    page::stamp(page::number_at(offset as u64), page);
    std::fs::write(path, bytes).unwrap();
}

/// Rewrites the file of a closed store without checksums, as an earlier version would have written it.
pub fn remove_checksums(path: &Path) {
    let plain = path.with_extension("plain");
    let conn = Connection::open(&plain).unwrap();
    conn.execute("ATTACH ?1 AS sealed", [path.to_str().unwrap()]).unwrap();
    conn.execute_batch("PRAGMA page_size = 4096; PRAGMA journal_mode = WAL").unwrap();
    let mut select =
        conn.prepare("SELECT type, name, sql FROM sealed.sqlite_schema WHERE sql NOT NULL").unwrap();
    let objects: Vec<(String, String, String)> = select
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .and_then(Iterator::collect)
        .unwrap();
    drop(select);
    for (kind, name, sql) in objects {
        conn.execute_batch(&sql).unwrap();
        if kind == "table" {
            conn.execute_batch(&format!("INSERT INTO main.{name} SELECT * FROM sealed.{name}")).unwrap();
        }
    }
    for pragma in ["application_id", "user_version"] {
        let value: i64 = conn.query_row(&format!("PRAGMA sealed.{pragma}"), [], |row| row.get(0)).unwrap();
        conn.execute_batch(&format!("PRAGMA main.{pragma} = {value}")).unwrap();
    }
    conn.execute_batch("DETACH sealed").unwrap();
    conn.close().unwrap();
    std::fs::rename(plain, path).unwrap();
}
