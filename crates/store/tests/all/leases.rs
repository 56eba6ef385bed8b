//! Leases under wrong wall clocks, after reboots, and written by an earlier build.

use std::sync::Arc;

use sapwood_core::entry::UserMessage;
use sapwood_core::port::store::{Append, LEASE_TTL_MS_MAX, NewSession};
use sapwood_core::{Draft, Part, Scope, SessionId, Store, TimestampMs};
use sapwood_store::OpenOptions;
use sapwood_store::conformance::clock::ManualClock;
use sapwood_store::conformance::{block_on, cluster};
use sapwood_store::in_memory::MemoryStore;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore, PersistFrom};
use sapwood_store::lease::LeaseClock;
use sapwood_store::postgres::PgStore;
use sapwood_store::sqlite::SqliteStore;
use tempfile::TempDir;

use super::postgres::{ana, database_of};

const HOUR_MS: i64 = 3_600_000;
const TTL_MS: i64 = 4_000;

fn session() -> SessionId {
    "s".parse().unwrap()
}

fn code<T: std::fmt::Debug>(result: sapwood_core::port::store::Result<T>) -> &'static str {
    result.unwrap_err().code()
}

fn append() -> Append {
    let message = Draft::new(TimestampMs(1), UserMessage { parts: vec![Part::text("x")], origin: None });
    Append::new(session(), TimestampMs(1), vec![message])
}

fn sqlite(dir: &TempDir, clock: &Arc<ManualClock>) -> Arc<dyn Store> {
    let store = SqliteStore::open(dir.path().join("s.db"), OpenOptions::default()).unwrap();
    Arc::new(store.with_lease_clock(clock.clone()))
}

fn jsonl(dir: &TempDir, clock: &Arc<ManualClock>) -> Arc<dyn Store> {
    let options = JsonlOptions { persist_from: PersistFrom::Creation, ..JsonlOptions::default() };
    Arc::new(JsonlStore::open(dir.path().join("sessions"), options).unwrap().with_lease_clock(clock.clone()))
}

async fn with_session(store: Arc<dyn Store>) -> Arc<dyn Store> {
    store.create(&ana(), NewSession::new(session(), TimestampMs(1))).await.unwrap();
    store.append(&ana(), append()).await.unwrap();
    store
}

async fn take(store: &Arc<dyn Store>, holder: &str) -> sapwood_core::port::store::Result<u64> {
    let scope: Scope = ana();
    store.take_lease(&scope, &session(), holder, TTL_MS).await.map(|lease| lease.fence)
}

/// Check every method that a lease blocks.
async fn assert_blocked(store: &Arc<dyn Store>) {
    assert_eq!(code(take(store, "b").await), "session.leased");
    assert_eq!(code(store.append(&ana(), append()).await), "session.leased");
}

async fn assert_not_blocked(store: &Arc<dyn Store>) {
    store.append(&ana(), append()).await.unwrap();
    take(store, "b").await.unwrap();
}

/// Acquire a lease while the wall clock is wrong, then correct the clock. The lease must end after its
/// TTL.
async fn check_wrong_wall_clock(store: Arc<dyn Store>, clock: &ManualClock, off_ms: i64) {
    let store = with_session(store).await;
    clock.shift_wall(off_ms);
    take(&store, "dead").await.unwrap();
    clock.shift_wall(-off_ms);
    assert_blocked(&store).await;
    clock.pass(TTL_MS - 1);
    assert_blocked(&store).await;
    clock.pass(1);
    assert_not_blocked(&store).await;
}

#[test]
fn a_wrong_wall_clock_does_not_affect_a_lease() {
    for off_ms in [-HOUR_MS, HOUR_MS] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let memory = Arc::new(MemoryStore::new().with_lease_clock(clock.clone()));
        block_on(check_wrong_wall_clock(memory, &clock, off_ms));
        block_on(check_wrong_wall_clock(sqlite(&dir, &clock), &clock, off_ms));
        block_on(check_wrong_wall_clock(jsonl(&dir, &clock), &clock, off_ms));
    }
}

#[test]
fn a_reboot_ends_a_lease() {
    for open in [sqlite, jsonl] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        block_on(async {
            let store = with_session(open(&dir, &clock)).await;
            take(&store, "dead").await.unwrap();
            let again = open(&dir, &clock);
            assert_blocked(&again).await;
            clock.reboot();
            assert_not_blocked(&again).await;
        });
    }
}

type Open = fn(&TempDir, &Arc<ManualClock>) -> Arc<dyn Store>;
/// Writes a lease as an earlier build does: with only a wall-clock time.
type WriteOld = fn(&TempDir, i64);

fn write_old_row(dir: &TempDir, expires_at: i64) {
    let path = dir.path().join("s.db");
    let sql = format!(
        "INSERT INTO leases (session, holder, fence, expires_at)
         VALUES ((SELECT pk FROM sessions WHERE id = 's'), 'old', 7, {expires_at})
         ON CONFLICT (session) DO UPDATE SET holder = 'old', fence = fence + 1, expires_at = {expires_at}"
    );
    sapwood_store::conformance::sqlite_file::execute(&path, &sql);
}

fn write_old_file(dir: &TempDir, expires_at: i64) {
    let folder = dir.path().join("sessions/tenants").join(ana().tenant.as_str());
    let mut files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let log = files.find(|path| path.to_string_lossy().ends_with("_s.jsonl")).unwrap();
    let lease = format!(r#"{{"holder":"old","fence":7,"expires_at":{expires_at}}}"#);
    std::fs::write(log.with_extension("lease"), lease).unwrap();
}

#[test]
fn a_lease_from_an_earlier_build_blocks_for_at_most_the_maximum_ttl() {
    let stores: [(Open, WriteOld); 2] = [(sqlite, write_old_row), (jsonl, write_old_file)];
    for (open, write_old) in stores {
        let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        block_on(async {
            let store = with_session(open(&dir, &clock)).await;
            write_old(&dir, clock.read().wall.0 + TTL_MS);
            assert_blocked(&store).await;
            clock.pass(TTL_MS);
            assert_not_blocked(&store).await;
            // The older build replaces the lease of this build. The remaining time of the replaced lease
            // must not apply to the new one.
            write_old(&dir, clock.read().wall.0 + LEASE_TTL_MS_MAX);
            assert_blocked(&store).await;
            write_old(&dir, clock.read().wall.0 + HOUR_MS);
            assert_not_blocked(&store).await;
        });
    }
}

/// Write the columns that a server of an earlier build leaves in a session's row.
fn write_old_columns(url: &str, ends_in_ms: i64) {
    let sql = format!(
        "UPDATE sapwood.sessions SET version = version + 1, is_open = true, lease_holder = 'old',
           lease_fence = lease_fence + 1,
           lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {ends_in_ms}"
    );
    cluster::shared().sql(database_of(url), &sql);
}

#[test]
fn only_the_database_clock_decides_when_a_lease_ends() {
    let url = cluster::shared().new_database();
    block_on(async {
        let store: Arc<dyn Store> = with_session(Arc::new(PgStore::open(&url).unwrap())).await;
        for off_ms in [-HOUR_MS, HOUR_MS] {
            write_old_columns(&url, off_ms + TTL_MS);
            assert_eq!(store.abandoned_turns(10).await.unwrap().unwrap().len(), 1, "{off_ms}");
            assert_not_blocked(&store).await;
        }
        write_old_columns(&url, LEASE_TTL_MS_MAX);
        assert_blocked(&store).await;
        assert!(
            store.abandoned_turns(10).await.unwrap().unwrap().is_empty(),
            "the server that holds the lease is alive"
        );
        write_old_columns(&url, 0);
        assert_not_blocked(&store).await;
    });
}

#[test]
fn a_lease_expires_in_real_time_on_every_store() {
    const SHORT_MS: i64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 4] = [
        Arc::new(MemoryStore::new()),
        Arc::new(SqliteStore::open(dir.path().join("s.db"), OpenOptions::default()).unwrap()),
        Arc::new(JsonlStore::open(dir.path().join("sessions"), JsonlOptions::default()).unwrap()),
        Arc::new(PgStore::open(&cluster::shared().new_database()).unwrap()),
    ];
    block_on(async {
        for store in stores {
            let store = with_session(store).await;
            let lease = store.take_lease(&ana(), &session(), "a", LEASE_TTL_MS_MAX).await.unwrap();
            assert_blocked(&store).await;
            store.take_lease(&ana(), &session(), "a", SHORT_MS).await.unwrap();
            let began = std::time::Instant::now();
            let fence = loop {
                match take(&store, "b").await {
                    Ok(fence) => break fence,
                    Err(error) => assert_eq!(error.code(), "session.leased"),
                }
                assert!(began.elapsed().as_secs() < 60, "{}: the lease does not expire", store.describe());
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            };
            assert!(fence > lease.fence);
        }
    });
}
