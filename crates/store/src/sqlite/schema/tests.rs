//! Tests that layouts are created, migrated and rejected, even while other processes access the
//! file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};

use super::*;

const OLD: SchemaLayout = SchemaLayout { newest: FIRST, steps: &[FIRST] };
const NOTED: SchemaLayout = SchemaLayout { newest: &[], steps: &[FIRST, NOTES] };
const NOTES: Script = &["CREATE TABLE notes (text TEXT); INSERT INTO notes SELECT name FROM counters;"];
const BROKEN: SchemaLayout =
    SchemaLayout { newest: &[], steps: &[FIRST, &["CREATE TABLE half (x)", "CREATE TABLE half (x)"]] };

fn file(dir: &tempfile::TempDir) -> (std::path::PathBuf, Connection) {
    let path = dir.path().join("x.db");
    let conn = Connection::open(&path).unwrap();
    (path, conn)
}

fn count(conn: &Connection, sql: &str) -> i64 {
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn version(conn: &Connection) -> u32 {
    let markers = read_markers(conn).unwrap();
    assert_eq!(markers.application, APPLICATION_ID);
    markers.version
}

/// Migrates the file through another connection, which does not wait for this one.
fn migrate_elsewhere(path: &Path, layout: SchemaLayout) -> Result<()> {
    let other = Connection::open(path).at(path)?;
    other.busy_timeout(Duration::ZERO).at(path)?;
    other.execute_batch("BEGIN IMMEDIATE").at(path)?;
    run_scripts(&other, path, layout)?;
    other.execute_batch("COMMIT").at(path)
}

/// Calls `act` once, when this connection prepares a statement that reads the table.
fn before_reading(conn: &mut Connection, table: &'static str, act: impl Fn() + Send + 'static) {
    let mut is_due = true;
    let hook = move |context: AuthContext<'_>| {
        let is_it = matches!(context.action, AuthAction::Read { table_name, .. } if table_name == table);
        if is_it && std::mem::take(&mut is_due) {
            act();
        }
        Authorization::Allow
    };
    conn.authorizer(Some(hook)).unwrap();
}

/// Calls `act` when this connection begins its second transaction: the first reads the markers, the
/// second writes.
fn before_writing(conn: &mut Connection, act: impl Fn() + Send + 'static) {
    let mut begun = 0;
    let hook = move |context: AuthContext<'_>| {
        if let AuthAction::Transaction { operation: TransactionOperation::Begin } = context.action {
            begun += 1;
            if begun == 2 {
                act();
            }
        }
        Authorization::Allow
    };
    conn.authorizer(Some(hook)).unwrap();
}

#[test]
fn a_file_that_another_process_creates_while_its_markers_are_read_is_accepted() {
    for journal in ["DELETE", "WAL"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut conn) = file(&dir);
        conn.pragma_update(None, "journal_mode", journal).unwrap();
        let (reached, hooked) = (Arc::new(AtomicBool::new(false)), path.clone());
        let note = reached.clone();
        before_reading(&mut conn, "sqlite_schema", move || {
            // With a rollback journal this connection blocks the other one's commit; with a
            // write-ahead log it does not.
            let migrated = migrate_elsewhere(&hooked, LAYOUT);
            note.store(migrated.is_ok() || journal == "DELETE", Ordering::SeqCst);
        });
        migrate(&conn, &path).unwrap_or_else(|error| panic!("{journal}: {error}"));
        assert!(reached.load(Ordering::SeqCst), "{journal}: the hook did not run");
        assert_eq!(version(&conn), LAYOUT.version());
    }
}

#[test]
fn a_file_that_a_newer_build_migrates_while_we_wait_for_the_lock_stays_newer() {
    const NEXT: SchemaLayout = SchemaLayout { newest: &[], steps: &[FIRST, NOTES] };
    const NEWER: SchemaLayout =
        SchemaLayout { newest: &[], steps: &[FIRST, NOTES, &["CREATE TABLE newer (x)"]] };
    let dir = tempfile::tempdir().unwrap();
    let (path, mut conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    let hooked = path.clone();
    before_writing(&mut conn, move || migrate_elsewhere(&hooked, NEWER).unwrap());
    let refused = migrate_to(&conn, &path, NEXT).unwrap_err();
    assert!(matches!(refused, StoreError::TooNew { found: 3, known: 2, .. }), "{refused}");
    assert_eq!(version(&conn), 3);
}

#[test]
fn an_older_file_is_migrated_once_and_keeps_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    conn.execute("INSERT INTO tenants (name) VALUES ('kept')", []).unwrap();
    for _ in 0..2 {
        migrate_to(&conn, &path, NOTED).unwrap();
    }
    assert_eq!(version(&conn), 2);
    assert_eq!(count(&conn, "SELECT count(*) FROM tenants WHERE name = 'kept'"), 1);
    assert_eq!(count(&conn, "SELECT count(*) FROM notes"), 1, "the step ran once");
}

const OLD_ROWS: &str = "
    INSERT INTO tenants (pk, name) VALUES (1, 'local'), (2, 'other');
    INSERT INTO sessions (pk, tenant, id, listed_at) VALUES (1, 1, 'a', 0), (2, 1, 'b', 0);
    INSERT INTO docs (doc, key) VALUES (1, 1 << 32 | 1), (2, 2 << 32 | 2), (3, 1 << 32 | 3);
    INSERT INTO entries (key, id, at, by, kind, doc, version, packing, body) VALUES
      (1 << 32 | 1, x'01', 0, 1, 1, 1, 1, 0, 'a1'), (1 << 32 | 2, x'02', 0, 1, 9, NULL, 1, 0, 'a2'),
      (1 << 32 | 3, x'03', 0, 1, 1, 3, 1, 0, 'a3'), (2 << 32 | 1, x'04', 0, 1, 9, NULL, 1, 0, 'b1'),
      (2 << 32 | 2, x'05', 0, 1, 1, 2, 1, 0, 'b2');
    INSERT INTO texts (rowid, text) VALUES (1, 'one'), (2, 'two'), (3, 'three');
    UPDATE counters SET value = 3 WHERE name = 'indexed';
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
    INSERT INTO audit SELECT 1, n, CASE WHEN n % 2 THEN 'a' END, n FROM numbers;
    INSERT INTO audit VALUES (2, 1, 'a', 1);";

#[test]
fn old_entries_are_numbered_in_text_order_and_indexed_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    conn.execute_batch(OLD_ROWS).unwrap();
    migrate(&conn, &path).unwrap();
    let mut select = conn.prepare("SELECT CAST(body AS TEXT) FROM entries ORDER BY arrival").unwrap();
    let bodies: Vec<String> = select.query_map([], |row| row.get(0)).and_then(Iterator::collect).unwrap();
    assert_eq!(bodies, ["b1", "a1", "a2", "b2", "a3"]);
    assert_eq!(count(&conn, "SELECT value FROM counters WHERE name = 'indexed'"), 0);
    assert_eq!(count(&conn, "SELECT count(*) FROM segments"), 0, "the index is rebuilt later");
    let mut select = conn.prepare("SELECT CAST(body AS TEXT) FROM log ORDER BY key").unwrap();
    let bodies: Vec<String> = select.query_map([], |row| row.get(0)).and_then(Iterator::collect).unwrap();
    assert_eq!(bodies, ["a1", "a2", "a3", "b1", "b2"], "each entry is found by its session and seq");
    assert_eq!(count(&conn, "SELECT count(*) FROM audit WHERE key = (key >> 40) << 40 | line"), 5_001);
    assert_eq!(count(&conn, "SELECT count(*) FROM session_audit WHERE key >> 40 = 1"), 2_048);
    let last = count(&conn, "SELECT max(key) FROM session_audit");
    assert_eq!(last, 1 << 40 | 4_095, "the lines after the last batch are not indexed");
}

#[test]
fn blobs_of_the_layout_before_chunks_stay_in_their_rows() {
    const SIX: SchemaLayout =
        SchemaLayout { newest: &[], steps: &[FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH] };
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    migrate_to(&conn, &path, SIX).unwrap();
    let rows = "INSERT INTO tenants (pk, name) VALUES (1, 'local');
        INSERT INTO blobs (pk, tenant, hash, packing, data) VALUES (1, 1, x'01', 0, 'small'), (2, 1, x'02', 0, zeroblob(3 << 20));";
    conn.execute_batch(rows).unwrap();
    let pages = count(&conn, "PRAGMA page_count");
    migrate(&conn, &path).unwrap();
    assert_eq!(count(&conn, "SELECT count(*) FROM blobs WHERE cut IS NULL AND length(data) > 0"), 2);
    assert_eq!(count(&conn, "SELECT count(*) FROM pieces"), 0);
    assert!(count(&conn, "PRAGMA page_count") < pages + 10, "nothing was moved");
}

#[test]
fn a_lease_of_the_layout_before_terms_is_kept_without_a_term() {
    const EIGHT: SchemaLayout =
        SchemaLayout { newest: &[], steps: &[FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH] };
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    migrate_to(&conn, &path, EIGHT).unwrap();
    let rows = "INSERT INTO tenants (pk, name) VALUES (1, 'local');
        INSERT INTO sessions (pk, tenant, id, listed_at) VALUES (1, 1, 'a', 0);
        INSERT INTO leases VALUES (1, 'old', 7, 1900000000000);";
    conn.execute_batch(rows).unwrap();
    migrate(&conn, &path).unwrap();
    let kept =
        "SELECT count(*) FROM leases WHERE fence = 7 AND expires_at = 1900000000000 AND timed_fence IS NULL";
    assert_eq!(count(&conn, kept), 1);
}

#[test]
fn a_new_file_has_the_layout_that_the_steps_produce() {
    let objects = |layouts: &[SchemaLayout]| {
        let dir = tempfile::tempdir().unwrap();
        let (path, conn) = file(&dir);
        layouts.iter().for_each(|layout| migrate_to(&conn, &path, *layout).unwrap());
        let sql = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name";
        let mut select = conn.prepare(sql).unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        rows.and_then(Iterator::collect::<rusqlite::Result<Vec<(String, String, String)>>>).unwrap()
    };
    assert_eq!(objects(&[LAYOUT]), objects(&[OLD, LAYOUT]));
}

#[test]
fn a_step_that_fails_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    migrate_to(&conn, &path, BROKEN).unwrap_err();
    assert_eq!(version(&conn), 1);
    assert_eq!(count(&conn, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"), 0);
}

#[test]
fn a_newer_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (path, conn) = file(&dir);
    migrate_to(&conn, &path, OLD).unwrap();
    migrate_to(&conn, &path, NOTED).unwrap();
    let refused = migrate_to(&conn, &path, OLD).unwrap_err();
    assert!(matches!(refused, StoreError::TooNew { found: 2, known: 1, .. }), "{refused}");
}
