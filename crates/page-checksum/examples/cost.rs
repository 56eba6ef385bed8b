//! Measures what the checksums cost: the same work with SQLite's default VFS and with this crate's, in turns. Reads are
//! measured in CPU time, which other processes disturb less.
//!
//! `cargo run --release -p sapwood-page-checksum --example cost [DIR]`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use sapwood_page_checksum::{NAME, frames, page, register, reserve_bytes};

const ROUNDS: usize = 9;
const COMMITS: i64 = 400;
const ROWS: i64 = 60_000;
const BODY_BYTES: usize = 850;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    PlainMapped,
    Checked,
    CheckedMapped,
}

impl Variant {
    fn open(self, path: &Path) -> rusqlite::Result<Connection> {
        let conn = match self {
            Variant::Plain | Variant::PlainMapped => Connection::open(path)?,
            Variant::Checked | Variant::CheckedMapped => {
                Connection::open_with_flags_and_vfs(path, OpenFlags::default(), NAME)?
            }
        };
        conn.pragma_update(None, "cache_size", -16_384)?;
        if matches!(self, Variant::PlainMapped | Variant::CheckedMapped) {
            conn.pragma_update(None, "mmap_size", 1 << 30)?;
        }
        Ok(conn)
    }

    fn create(self, path: &Path) -> rusqlite::Result<Connection> {
        let conn = self.open(path)?;
        if matches!(self, Variant::Checked | Variant::CheckedMapped) {
            reserve_bytes(&conn);
        }
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")?;
        Ok(conn)
    }
}

fn body(number: i64) -> Vec<u8> {
    (0..BODY_BYTES).map(|at| (number as usize).wrapping_mul(31).wrapping_add(at * 7) as u8).collect()
}

/// Commits single rows, each followed by a sync of the log, and checkpoints at the end.
fn append(conn: &Connection, log: &Path, from: i64) -> rusqlite::Result<Duration> {
    let file = std::fs::File::open(log).expect("the log exists");
    let began = Instant::now();
    for number in from..from + COMMITS {
        conn.execute("INSERT INTO t VALUES (?1, ?2)", (number, body(number)))?;
        file.sync_data().expect("the log can be synced");
    }
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(began.elapsed())
}

fn fill(conn: &Connection, rows: i64) -> rusqlite::Result<()> {
    let tx = conn.unchecked_transaction()?;
    for number in 0..rows {
        tx.execute("INSERT INTO t VALUES (?1, ?2)", (number, body(number)))?;
    }
    tx.commit()
}

/// Reads all rows through a new connection.
fn scan(variant: Variant, path: &Path) -> rusqlite::Result<Duration> {
    let conn = variant.open(path)?;
    let began = cpu_time();
    let bytes: i64 =
        conn.query_row("SELECT sum(length(b) + unicode(substr(b, 1, 1))) FROM t", [], |row| row.get(0))?;
    assert!(bytes > 0);
    Ok(cpu_time() - began)
}

/// Looks rows up in random order.
fn look_up(variant: Variant, path: &Path, rows: i64) -> rusqlite::Result<Duration> {
    let conn = variant.open(path)?;
    let mut select = conn.prepare("SELECT b FROM t WHERE a = ?1")?;
    let began = cpu_time();
    for number in 0..20_000 {
        let bytes: Vec<u8> = select.query_row([(number * 7_919) % rows], |row| row.get(0))?;
        assert_eq!(bytes.len(), BODY_BYTES);
    }
    Ok(cpu_time() - began)
}

/// The time that this thread has spent on a processor (Linux).
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux has this file");
    Duration::from_nanos(
        text.split(' ').next().and_then(|text| text.parse().ok()).expect("its first field is a number"),
    )
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn report(what: &str, times: Vec<(Variant, Vec<Duration>)>) {
    let medians: Vec<_> = times.into_iter().map(|(variant, times)| (variant, median(times))).collect();
    let first = medians[0].1.as_secs_f64();
    for (variant, time) in medians {
        let change = (time.as_secs_f64() / first - 1.0) * 100.0;
        println!("{what}: {variant:?} {:.2} ms ({change:+.1} %)", time.as_secs_f64() * 1e3);
    }
}

fn in_turns(
    variants: &[Variant],
    mut measure: impl FnMut(Variant, usize) -> rusqlite::Result<Duration>,
) -> rusqlite::Result<Vec<(Variant, Vec<Duration>)>> {
    let mut times: Vec<_> = variants.iter().map(|variant| (*variant, Vec::new())).collect();
    for round in 0..ROUNDS {
        for (variant, times) in &mut times {
            times.push(measure(*variant, round)?);
        }
    }
    Ok(times)
}

fn main() -> rusqlite::Result<()> {
    assert!(register());
    let dir =
        PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned())).join("page-checksum-cost");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the directory can be created");
    let path = |variant: Variant, name: &str| dir.join(format!("{name}-{variant:?}.db"));
    let log = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
    let all = [Variant::Plain, Variant::PlainMapped, Variant::Checked, Variant::CheckedMapped];

    let mut appenders = Vec::new();
    for variant in [Variant::Plain, Variant::Checked] {
        appenders.push((variant, variant.create(&path(variant, "append"))?));
    }
    let appended = in_turns(&[Variant::Plain, Variant::Checked], |variant, round| {
        let (_, conn) = appenders.iter().find(|(other, _)| *other == variant).expect("it was created");
        append(conn, &log(&path(variant, "append")), round as i64 * COMMITS)
    })?;
    report(&format!("{COMMITS} durable commits and a checkpoint"), appended);

    for variant in all {
        let conn = variant.create(&path(variant, "read"))?;
        fill(&conn, ROWS)?;
    }
    report("scan of 60 MB", in_turns(&all, |variant, _| scan(variant, &path(variant, "read")))?);
    let look = in_turns(&all, |variant, _| look_up(variant, &path(variant, "read"), ROWS))?;
    report("20,000 lookups in 60 MB", look);

    let mut held = Vec::new();
    for variant in [Variant::Plain, Variant::Checked] {
        let conn = variant.create(&path(variant, "log"))?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        fill(&conn, ROWS / 4)?;
        held.push(conn);
    }
    let logged =
        in_turns(&[Variant::Plain, Variant::Checked], |variant, _| scan(variant, &path(variant, "log")))?;
    report("scan of 15 MB in the log", logged);

    let bytes = std::fs::read(log(&path(Variant::Checked, "log"))).expect("the log is readable");
    let began = Instant::now();
    let state = frames::examine(bytes.len() as u64, |buffer, offset| {
        let offset = usize::try_from(offset).expect("the log fits into memory");
        buffer.copy_from_slice(&bytes[offset..offset + buffer.len()]);
        true
    });
    println!(
        "examination of a log of {} MB: {:.1} ms",
        bytes.len() >> 20,
        began.elapsed().as_secs_f64() * 1e3
    );
    assert!(state.is_some_and(|state| state.bad.is_none()));
    let mut one = [7; page::PAGE_BYTES];
    page::stamp(1, &mut one);
    let began = Instant::now();
    let count = 200_000;
    assert_eq!((0..count).filter(|_| page::matches(1, std::hint::black_box(&one))).count(), count);
    println!("checksum of a page: {:.0} ns", began.elapsed().as_secs_f64() * 1e9 / count as f64);
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
