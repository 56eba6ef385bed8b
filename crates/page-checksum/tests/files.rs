//! Real SQLite files: bits are flipped, transactions overwrite their own frames, files get checksums while other
//! connections use them, and connections write and read at the same time.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ffi};
use sapwood_page_checksum::{
    Damage, NAME, find_damaged_pages, frames, register, reserve_bytes, reserved_bytes, take_damage,
    take_torn_end,
};

fn open(path: &Path) -> rusqlite::Result<Connection> {
    assert!(register());
    let conn = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), NAME)?;
    conn.busy_timeout(Duration::from_secs(60))?;
    Ok(conn)
}

/// Creates a file with checksums and a write-ahead log.
fn create(path: &Path) -> Connection {
    let conn = open(path).unwrap();
    reserve_bytes(&conn);
    prepare(&conn);
    assert_eq!(reserved_bytes(&conn), 8);
    conn
}

fn prepare(conn: &Connection) {
    conn.pragma_update(None, "journal_mode", "WAL").unwrap();
    conn.pragma_update(None, "synchronous", "OFF").unwrap();
    conn.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    conn.execute_batch("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); CREATE INDEX t_by_b ON t (b)")
        .unwrap();
}

fn add(conn: &Connection, from: i64, to: i64, bytes: usize) {
    let tx = conn.unchecked_transaction().unwrap();
    for number in from..to {
        let text = format!("{number:08} {}", "x".repeat(bytes));
        tx.execute("INSERT OR REPLACE INTO t VALUES (?1, ?2)", (number, text)).unwrap();
    }
    tx.commit().unwrap();
}

/// Reads all rows, and checks the index in the same snapshot.
fn read_all(conn: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let _snapshot = if conn.is_autocommit() { Some(conn.unchecked_transaction()?) } else { None };
    let mut select = conn.prepare("SELECT a, b FROM t ORDER BY a")?;
    let rows =
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let by_index: i64 =
        conn.query_row("SELECT count(*) FROM t INDEXED BY t_by_b WHERE b > ''", [], |row| row.get(0))?;
    assert_eq!(by_index, i64::try_from(rows.len()).unwrap());
    Ok(rows)
}

fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_extended_error_code() == Some(ffi::SQLITE_IOERR_DATA)
}

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

/// A generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

fn flip(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}

#[test]
fn a_flipped_bit_in_the_database_file_is_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let conn = create(&path);
    add(&conn, 0, 300, 200);
    add(&conn, 300, 310, 20_000);
    let whole = read_all(&conn).unwrap();
    drop(conn);
    let bytes = std::fs::read(&path).unwrap();
    let mut rng = Rng(1);
    // Every bit of the header, and random bits.
    let bits = (0..100 * 8).step_by(3).chain((0..300).map(|_| rng.below(bytes.len() * 8)));
    for bit in bits.collect::<Vec<_>>() {
        std::fs::write(&path, flip(&bytes, bit)).unwrap();
        take_damage();
        let conn = open(&path).unwrap();
        conn.pragma_update(None, "mmap_size", if bit % 2 == 0 { 0 } else { 1 << 30 }).unwrap();
        let found = read_all(&conn);
        let page = u32::try_from(bit / 8 / 4096).unwrap() + 1;
        match found {
            Ok(found) => assert_eq!(found, whole, "bit {bit}"),
            Err(error) => {
                assert!(is_damage(&error), "bit {bit}: {error}");
                assert_eq!(take_damage(), Some(Damage::Page(page)));
            }
        }
        if page > 1 {
            assert_eq!(find_damaged_pages(&conn, &HashSet::new(), 9), Some(vec![page]), "bit {bit}");
        }
    }
}

#[test]
fn a_flipped_bit_in_the_log_is_never_read_and_hides_no_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("x.db"), dir.path().join("copy.db"));
    let conn = create(&path);
    // An earlier round of the log, whose frames remain behind the current ones.
    add(&conn, 0, 400, 300);
    conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    let mut states = vec![read_all(&conn).unwrap()];
    for batch in 0..6 {
        add(&conn, 400 + batch * 10, 410 + batch * 10, 300);
        states.push(read_all(&conn).unwrap());
    }
    let (database, log) = (std::fs::read(&path).unwrap(), std::fs::read(log_of(&path)).unwrap());
    let mut torn = 0;
    let mut rng = Rng(2);
    let state = frames::examine(log.len() as u64, |buffer, offset| {
        let offset = usize::try_from(offset).unwrap();
        buffer.copy_from_slice(&log[offset..offset + buffer.len()]);
        true
    });
    let state = state.unwrap();
    assert_eq!((state.bad, state.commits_after), (None, 0));
    let used = usize::try_from(frames::offset_of(state.committed + 1)).unwrap();
    assert!(used < log.len(), "frames of the earlier round remain");
    let header_bits = 0..32 * 8;
    let frame_headers = (0..state.committed).flat_map(|frame| {
        let start = usize::try_from(frames::offset_of(frame + 1)).unwrap() * 8;
        (start..start + 24 * 8).step_by(7)
    });
    let random: Vec<usize> = (0..400).map(|_| rng.below(log.len() * 8)).collect();
    for bit in header_bits.chain(frame_headers).chain(random) {
        std::fs::write(&copy, &database).unwrap();
        std::fs::write(log_of(&copy), flip(&log, bit)).unwrap();
        let _ = std::fs::remove_file(dir.path().join("copy.db-shm"));
        let (_, _) = (take_torn_end(), take_damage());
        let found = open(&copy).and_then(|conn| {
            conn.pragma_update(None, "synchronous", "OFF")?;
            read_all(&conn)
        });
        match found {
            Ok(found) if bit / 8 >= used => {
                assert_eq!(&found, states.last().unwrap(), "bit {bit} is not used")
            }
            Ok(found) => {
                assert!(take_torn_end().is_some(), "bit {bit} is ignored silently");
                assert_eq!(found, states[states.len() - 2], "bit {bit} hides more than the last transaction");
                torn += 1;
            }
            Err(error) => assert!(is_damage(&error) && take_damage().is_some(), "bit {bit}: {error}"),
        }
    }
    assert!(torn > 0, "some bits are in the last frame");
}

#[test]
fn a_frame_that_is_damaged_while_the_log_is_in_use_is_not_read_or_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let conn = create(&path);
    add(&conn, 0, 200, 300);
    let frame = usize::try_from(frames::offset_of(5)).unwrap() + 24;
    let log = std::fs::read(log_of(&path)).unwrap();
    std::fs::write(log_of(&path), flip(&log, frame * 8 + 77)).unwrap();
    let other = open(&path).unwrap();
    let error = read_all(&other).unwrap_err();
    assert!(is_damage(&error));
    assert_eq!(take_damage(), Some(Damage::Frame(5)));
    let copied = other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(2));
    assert!(copied.is_err(), "{copied:?}");
    std::fs::write(log_of(&path), &log).unwrap();
    assert_eq!(read_all(&other).unwrap().len(), 200);
}

/// A transaction that is larger than the page cache overwrites its own frames in the log, and reads them again.
#[test]
fn a_transaction_larger_than_the_cache_reads_and_writes_its_own_frames() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let conn = create(&path);
    conn.pragma_update(None, "cache_size", 10).unwrap();
    for (round, end) in ["COMMIT", "ROLLBACK", "COMMIT"].into_iter().enumerate() {
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        for number in 0..600 {
            // Scattered keys, so that pages are changed again after they were written to the log.
            let key = (number * 7_919) % 1_009;
            let text = format!("{round} {number} {}", "y".repeat(500));
            conn.execute("INSERT OR REPLACE INTO t VALUES (?1, ?2)", (key, text)).unwrap();
            if number % 97 == 0 {
                conn.execute_batch("SAVEPOINT s").unwrap();
                conn.execute("UPDATE t SET b = b || 'z' WHERE a % 3 = 0", []).unwrap();
                assert!(!read_all(&conn).unwrap().is_empty());
                conn.execute_batch(if number % 2 == 0 { "ROLLBACK TO s; RELEASE s" } else { "RELEASE s" })
                    .unwrap();
            }
        }
        conn.execute_batch(end).unwrap();
        let rows = read_all(&open(&path).unwrap()).unwrap();
        assert_eq!(rows, read_all(&conn).unwrap());
    }
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    assert_eq!(find_damaged_pages(&conn, &HashSet::new(), 9), Some(Vec::new()));
}

#[test]
fn a_file_gets_checksums_while_other_connections_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let (conn, other) = (open(&path).unwrap(), open(&path).unwrap());
    if conn.query_row("PRAGMA cipher_version", [], |_| Ok(())).is_ok() {
        // SQLCipher refuses to rewrite a file without a key whose pages reserve bytes.
        return;
    }
    prepare(&conn);
    add(&conn, 0, 500, 300);
    assert_eq!(read_all(&other).unwrap().len(), 500);
    assert_eq!(find_damaged_pages(&conn, &HashSet::new(), 9), None, "a file without checksums");
    reserve_bytes(&conn);
    conn.execute_batch("VACUUM").unwrap();
    // The other connection copies the new pages into the file, and writes more.
    other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    add(&other, 500, 600, 300);
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    for conn in [&conn, &other, &open(&path).unwrap()] {
        assert_eq!(read_all(conn).unwrap().len(), 600);
        assert_eq!(reserved_bytes(conn), 8);
        assert_eq!(find_damaged_pages(conn, &HashSet::new(), 9), Some(Vec::new()));
    }
}

#[test]
fn connections_that_write_read_and_checkpoint_at_once_see_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    add(&create(&path), 0, 50, 100);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let path = path.clone();
            scope.spawn(move || {
                for round in 0..60 {
                    let conn = open(&path).unwrap();
                    conn.pragma_update(None, "synchronous", "OFF").unwrap();
                    conn.execute(
                        "INSERT INTO t (b) VALUES (?1)",
                        [format!("{writer} {round} {}", "w".repeat(3_000))],
                    )
                    .unwrap();
                    if round % 5 == 0 {
                        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
                    }
                }
            });
        }
        for _ in 0..2 {
            let path = path.clone();
            scope.spawn(move || {
                for _ in 0..60 {
                    assert!(read_all(&open(&path).unwrap()).unwrap().len() >= 50);
                }
            });
        }
    });
    let conn = open(&path).unwrap();
    assert_eq!(read_all(&conn).unwrap().len(), 50 + 120);
    assert_eq!(find_damaged_pages(&conn, &HashSet::new(), 9), Some(Vec::new()));
}
