//! A connection and its caches. The pks of tenants and principals never change, so they are cached
//! until a transaction is rolled back.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Params};
use sapwood_core::port::store::Result;
use sapwood_core::{Principal, StoreError, TenantId};

use super::append_cache::AppendCache;
use super::error::{AtPath, BUSY_WAIT_MS};
use super::unindexed::UnindexedTexts;
use crate::Key;
use crate::database::NamedDatabase;
use sapwood_page_checksum::ACCEPT_TORN;

/// Maximum number of cached prepared statements per connection.
const STATEMENTS_MAX: usize = 64;
/// Page cache size of one connection.
const CACHE_KIB: i64 = 16 << 10;
/// Bytes of the file that are memory-mapped in [`Mode::ReadMapped`].
const MMAP_BYTES: i64 = 1 << 30;
/// A write-ahead log that has grown beyond this size is truncated to it.
const WAL_BYTES_KEPT: i64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Write,
    Read,
    /// Like [`Mode::Read`], with the file mapped into memory. For callers that read large parts of
    /// the file and reuse the connection.
    ReadMapped,
}

/// What to do with a write-ahead log in which committed transactions follow a bad frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TornLog {
    Refuse,
    /// Ignore these transactions.
    Accept,
}

pub(super) struct StoreConnection {
    pub conn: Connection,
    pub path: PathBuf,
    tenants: RefCell<HashMap<TenantId, i64>>,
    principals: RefCell<HashMap<i64, Principal>>,
    principal_pks: RefCell<HashMap<Principal, i64>>,
    /// Recently appended sessions; used on the writer's connection.
    pub append_cache: AppendCache,
    /// Recently appended texts that are not in the search index yet; used on the writer's
    /// connection.
    pub unindexed: UnindexedTexts,
}

impl StoreConnection {
    pub fn open(path: &Path, mode: Mode, key: Option<&Key>) -> Result<Self> {
        Self::open_with(path, mode, key, TornLog::Refuse)
    }

    /// Opens the first connection to the file, which may have to recover the write-ahead log.
    pub fn open_first(path: &Path, key: Option<&Key>, torn: TornLog) -> Result<Self> {
        Self::open_with(path, Mode::Write, key, torn)
    }

    fn open_with(path: &Path, mode: Mode, key: Option<&Key>, torn: TornLog) -> Result<Self> {
        let conn = connect(path, mode, key, torn)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        let db = Self {
            conn,
            path: path.to_owned(),
            tenants: RefCell::default(),
            principals: RefCell::default(),
            principal_pks: RefCell::default(),
            append_cache: AppendCache::default(),
            unindexed: UnindexedTexts::default(),
        };
        db.configure(mode).at(path)?;
        Ok(db)
    }

    fn configure(&self, mode: Mode) -> rusqlite::Result<()> {
        let conn = &self.conn;
        // Plan each statement once, not for every value: with partial indexes SQLite would
        // otherwise replan for each value.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        if mode == Mode::ReadMapped {
            conn.pragma_update(None, "mmap_size", MMAP_BYTES)?;
        }
        if mode == Mode::Write {
            conn.pragma_update(None, "foreign_keys", true)?;
            conn.pragma_update(None, "secure_delete", true)?;
            // Checkpoints are done in [`super::checkpoint`].
            conn.pragma_update(None, "wal_autocheckpoint", 0)?;
            conn.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
            // Commits are synced in [`super::sync`].
            conn.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Ok(())
    }

    /// Returns the tenant's pk, if the tenant has ever written data.
    pub fn tenant(&self, tenant: &TenantId) -> Result<Option<i64>> {
        if let Some(pk) = self.tenants.borrow().get(tenant) {
            return Ok(Some(*pk));
        }
        let pk: Option<i64> = self.query_opt("SELECT pk FROM tenants WHERE name = ?1", [tenant.as_str()])?;
        if let Some(pk) = pk {
            self.tenants.borrow_mut().insert(tenant.clone(), pk);
        }
        Ok(pk)
    }

    pub fn tenant_or_new(&self, tenant: &TenantId) -> Result<i64> {
        if let Some(pk) = self.tenant(tenant)? {
            return Ok(pk);
        }
        self.execute("INSERT INTO tenants (name) VALUES (?1)", [tenant.as_str()])?;
        // Not cached yet, because the transaction may be rolled back.
        Ok(self.conn.last_insert_rowid())
    }

    pub fn principal(&self, pk: i64) -> Result<Principal> {
        if let Some(principal) = self.principals.borrow().get(&pk) {
            return Ok(principal.clone());
        }
        let name: String = self.query_value("SELECT name FROM principals WHERE pk = ?1", [pk])?;
        let principal: Principal =
            name.parse().map_err(|error| self.damaged(format!("failed to parse principal {pk}: {error}")))?;
        self.principals.borrow_mut().insert(pk, principal.clone());
        Ok(principal)
    }

    pub fn principal_or_new(&self, principal: &Principal) -> Result<i64> {
        if let Some(pk) = self.principal_pks.borrow().get(principal) {
            return Ok(*pk);
        }
        let name = principal.to_string();
        if let Some(pk) = self.query_opt("SELECT pk FROM principals WHERE name = ?1", [&name])? {
            self.principal_pks.borrow_mut().insert(principal.clone(), pk);
            return Ok(pk);
        }
        self.execute("INSERT INTO principals (name) VALUES (?1)", [name])?;
        Ok(self.conn.last_insert_rowid())
    }

    /// Runs `work` in a separate transaction. Rolls back if `work` or the commit fails.
    pub fn in_transaction<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.conn.execute_batch("BEGIN IMMEDIATE").at(&self.path)?;
        let outcome = work().and_then(|done| self.conn.execute_batch("COMMIT").at(&self.path).map(|()| done));
        if outcome.is_err() {
            // SQLite may already have rolled back. Ignore the error of a second rollback.
            let _ = self.conn.execute_batch("ROLLBACK");
            self.clear_caches();
        }
        outcome
    }

    /// Clears the caches after a rollback, because they may contain rolled-back values.
    pub fn clear_caches(&self) {
        self.tenants.borrow_mut().clear();
        self.principals.borrow_mut().clear();
        self.principal_pks.borrow_mut().clear();
        self.append_cache.clear();
        self.unindexed.clear();
    }

    pub fn prepare(&self, sql: &str) -> Result<rusqlite::CachedStatement<'_>> {
        self.conn.prepare_cached(sql).at(&self.path)
    }

    pub fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.prepare(sql)?.execute(params).at(&self.path)
    }

    /// Returns the first column of the only row.
    pub fn query_value<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<T> {
        self.prepare(sql)?.query_row(params, |row| row.get(0)).at(&self.path)
    }

    /// Returns the first column of the first row, if there is a row.
    pub fn query_opt<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<Option<T>> {
        self.prepare(sql)?.query_row(params, |row| row.get(0)).optional().at(&self.path)
    }

    /// Returns the first column of all rows.
    pub fn query_all<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<Vec<T>> {
        self.prepare(sql)?.query_map(params, |row| row.get(0)).and_then(Iterator::collect).at(&self.path)
    }

    /// Clears the append cache and the unindexed texts if another connection has written, because it
    /// may have changed cached sessions or erased texts. Call it at the start of each transaction.
    pub fn refresh_caches(&self) -> Result<()> {
        if self.append_cache.refresh(self.query_value("PRAGMA data_version", [])?) {
            self.unindexed.clear();
        }
        Ok(())
    }
}

impl NamedDatabase for StoreConnection {
    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

fn connect(path: &Path, mode: Mode, key: Option<&Key>, torn: TornLog) -> Result<Connection> {
    let access = match mode {
        Mode::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        Mode::Read | Mode::ReadMapped => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let conn = match torn {
        TornLog::Refuse => open_checked(path, access),
        TornLog::Accept => {
            let uri = format!("file:{}?{ACCEPT_TORN}", escape(path));
            open_checked(Path::new(&uri), access | OpenFlags::SQLITE_OPEN_URI)
        }
    };
    let conn = conn.at(path)?;
    unlock(&conn, path, key)?;
    conn.busy_timeout(Duration::from_millis(BUSY_WAIT_MS)).at(path)?;
    match conn.pragma_query_value(None, "schema_version", |_| Ok(())) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) && is_read_only(path) => {
            connect_immutable(path, key)
        }
        opened => opened.at(path).map(|()| conn),
    }
}

/// Opens a file so that each page is verified when it is read.
pub(super) fn open_checked(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    sapwood_page_checksum::register();
    let access = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(path, access, sapwood_page_checksum::NAME)
}

/// Opens a file in a read-only location, where SQLite cannot create the index that it needs to read
/// a write-ahead log. A file without a write-ahead log is complete and can be opened as immutable.
fn connect_immutable(path: &Path, key: Option<&Key>) -> Result<Connection> {
    if has_wal(path) {
        let why = "its write-ahead log has not been checkpointed, and its directory is read-only".to_owned();
        return Err(StoreError::ReadOnly { place: path.display().to_string(), why });
    }
    let uri = format!("file:{}?immutable=1", escape(path));
    let access = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let conn = open_checked(Path::new(&uri), access).at(path)?;
    unlock(&conn, path, key)?;
    Ok(conn)
}

/// Returns whether there is a write-ahead log with content next to the file.
pub(super) fn has_wal(path: &Path) -> bool {
    std::fs::metadata(wal_path(path)).is_ok_and(|wal| wal.len() > 0)
}

pub(super) fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

fn is_read_only(path: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().append(true).open(path);
    opened.is_err_and(|error| {
        matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
    })
}

fn escape(path: &Path) -> String {
    let escape = |byte: &u8| match byte {
        b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.as_os_str().as_encoded_bytes().iter().map(escape).collect()
}

#[cfg(feature = "encryption")]
fn unlock(conn: &Connection, path: &Path, key: Option<&Key>) -> Result<()> {
    // A wrong key is returned as an error; do not log it to stderr as well.
    conn.execute_batch("PRAGMA cipher_log_level = NONE").at(path)?;
    match key {
        Some(key) => conn.pragma_update(None, "key", key.expose()).at(path),
        None => Ok(()),
    }
}

#[cfg(not(feature = "encryption"))]
fn unlock(_: &Connection, path: &Path, key: Option<&Key>) -> Result<()> {
    match key {
        None => Ok(()),
        Some(_) => Err(StoreError::Locked {
            place: path.display().to_string(),
            why: "this build does not support encryption; build Sapwood with --features encryption"
                .to_owned(),
        }),
    }
}

/// Converts a number to SQLite's integer type.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::audit::{LAST, OF_SESSION, OF_SESSION_BACK};
    use super::super::schema::migrate;
    use super::super::watch::HEAD;
    use super::*;

    fn new_file() -> (tempfile::TempDir, StoreConnection) {
        let dir = tempfile::tempdir().unwrap();
        let db = StoreConnection::open(&dir.path().join("x.db"), Mode::Write, None).unwrap();
        migrate(&db.conn, &db.path).unwrap();
        (dir, db)
    }

    #[test]
    fn lookups_never_scan_a_table() {
        let (_dir, db) = new_file();
        for sql in [
            HEAD,
            LAST,
            OF_SESSION,
            OF_SESSION_BACK,
            "SELECT id, body FROM log WHERE key = ?1",
            "SELECT id, key, body FROM log WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3",
            "SELECT key FROM placed WHERE key > ?1 AND key <= ?2 ORDER BY key DESC LIMIT 1",
        ] {
            let mut explain = db.conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let steps: Vec<String> =
                explain.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>().unwrap();
            let bad = |step: &String| step.contains("SCAN") || step.contains("TEMP B-TREE");
            assert!(!steps.is_empty() && !steps.iter().any(bad), "{sql}: {steps:#?}");
        }
    }

    #[test]
    fn a_statement_is_planned_once_for_all_values() {
        let (_dir, db) = new_file();
        for sql in [
            "SELECT id FROM log WHERE key = ?1",
            "SELECT line FROM audit WHERE key > ?1 AND key < ?1 + 9 ORDER BY key DESC LIMIT 1",
            "SELECT summary FROM sessions WHERE tenant = ?1 AND id = 'a'",
        ] {
            let mut select = db.prepare(sql).unwrap();
            for value in 0..3 {
                select.exists([value]).unwrap();
            }
            assert_eq!(select.get_status(StatementStatus::RePrepare), 0, "{sql}");
        }
    }
}
