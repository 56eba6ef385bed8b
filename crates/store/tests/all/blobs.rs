//! Chunked blobs in databases and files: damaged data is never returned, unfinished uploads are removed, and
//! blobs from older versions are read and split into chunks.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sapwood_core::entry::UserMessage;
use sapwood_core::port::store::{
    Append, BLOB_CHUNK_BYTES_MAX, Blobs, Log, NewSession, Repair, Sessions, Upkeep,
};
use sapwood_core::{BlobHash, BlobRef, Draft, Part, Scope, Store, TimestampMs};
use sapwood_store::OpenOptions;
use sapwood_store::conformance::block_on;
use sapwood_store::conformance::cluster;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore};
use sapwood_store::postgres::PgStore;
use sapwood_store::sqlite::SqliteStore;
use tempfile::TempDir;

/// Time limit for the cleanup of dropped uploads, and for a lock on the database.
const CLEANUP_MAX: Duration = Duration::from_secs(60);

fn ana() -> Scope {
    Scope::user("acme".parse().unwrap(), "ana".parse().unwrap())
}

fn operator() -> Scope {
    Scope::operator(ana().tenant, ana().principal)
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A database that the test can inspect and change. In SQL, `@` is replaced by the schema prefix.
enum Database {
    Sqlite(TempDir),
    Postgres(String),
}

impl Database {
    fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(dir) => {
                Arc::new(SqliteStore::open(dir.path().join("s.db"), OpenOptions::default()).unwrap())
            }
            Self::Postgres(url) => Arc::new(PgStore::open(url).unwrap()),
        }
    }

    fn change(&self, sql: &str) {
        match self {
            Self::Sqlite(dir) => self.connect(dir).execute_batch(&sql.replace('@', "")).unwrap(),
            Self::Postgres(url) => {
                let sql = sql.replace('@', "sapwood.").replace("x'00'", "'\\x00'");
                cluster::shared().sql(url.rsplit('/').next().unwrap(), &sql);
            }
        }
    }

    fn count(&self, sql: &str) -> i64 {
        match self {
            Self::Sqlite(dir) => {
                self.connect(dir).query_row(&sql.replace('@', ""), [], |row| row.get(0)).unwrap()
            }
            Self::Postgres(url) => {
                let database = url.rsplit('/').next().unwrap();
                cluster::shared().sql(database, &sql.replace('@', "sapwood.")).trim().parse().unwrap()
            }
        }
    }

    fn connect(&self, dir: &TempDir) -> rusqlite::Connection {
        let conn = sapwood_store::conformance::sqlite_file::connect(&dir.path().join("s.db"));
        conn.busy_timeout(CLEANUP_MAX).unwrap();
        conn
    }

    /// Return the numbers of remaining uploads and chunks. Waits up to [`CLEANUP_MAX`] until both are zero.
    async fn left_over(&self) -> (i64, i64) {
        let began = Instant::now();
        loop {
            let left = (self.count("SELECT count(*) FROM @cuts"), self.count("SELECT count(*) FROM @pieces"));
            if left == (0, 0) || began.elapsed() > CLEANUP_MAX {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn on_each_database(test: impl AsyncFn(&Database)) {
    let sqlite = Database::Sqlite(tempfile::tempdir().unwrap());
    let postgres = Database::Postgres(cluster::shared().new_database());
    block_on(test(&sqlite));
    block_on(test(&postgres));
}

async fn broken_rules(store: &Arc<dyn Store>) -> Vec<&'static str> {
    let findings = store.check(&operator(), Repair::No).await.unwrap();
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn a_damaged_chunk_is_reported_and_never_returned() {
    const CHUNK: u64 = BLOB_CHUNK_BYTES_MAX as u64;
    on_each_database(async |database| {
        let store = database.open();
        let whole = bytes(3 * BLOB_CHUNK_BYTES_MAX);
        let blob = store.put_blob(&ana(), whole.clone()).await.unwrap();
        assert_eq!(broken_rules(&store).await, [""; 0]);
        database.change(
            "UPDATE @pieces SET packing = 0, data = x'00' WHERE hash = (SELECT hash FROM @pieces ORDER BY hash DESC LIMIT 1)",
        );
        let mut refused = 0;
        for from in [0, CHUNK, 2 * CHUNK] {
            match store.read_blob(&ana(), blob, from, BLOB_CHUNK_BYTES_MAX).await {
                Ok(read) => assert!(read == whole[from as usize..][..BLOB_CHUNK_BYTES_MAX]),
                Err(error) => {
                    assert_eq!(error.code(), "store.damaged");
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, 1);
        assert_eq!(store.get_blob(&ana(), blob).await.unwrap_err().code(), "store.damaged");
        assert_eq!(broken_rules(&store).await, ["blobs"]);
        database.change("DELETE FROM @pieces");
        assert_eq!(store.read_blob(&ana(), blob, 5, 5).await.unwrap_err().code(), "store.damaged");
        database.change("UPDATE @blobs SET cut = NULL");
        assert_eq!(store.read_blob(&ana(), blob, 0, 5).await.unwrap_err().code(), "store.damaged");
        assert_eq!(broken_rules(&store).await, ["blobs", "blobs"], "the blob and its chunks");
    });
}

#[test]
fn a_dropped_upload_leaves_no_rows() {
    on_each_database(async |database| {
        let store = database.open();
        let mut sink = store.begin_blob(&ana()).await.unwrap();
        sink.write(&bytes(3 * BLOB_CHUNK_BYTES_MAX + 1)).await.unwrap();
        assert_eq!(database.count("SELECT count(*) FROM @pieces"), 3);
        drop(sink);
        assert_eq!(database.left_over().await, (0, 0));
        // The second upload of the same bytes is redundant, so its chunks are removed.
        let twice = bytes(2 * BLOB_CHUNK_BYTES_MAX);
        let blob = store.put_blob(&ana(), twice.clone()).await.unwrap();
        store.put_blob(&ana(), twice.clone()).await.unwrap();
        let began = Instant::now();
        while database.count("SELECT count(*) FROM @pieces") > 2 && began.elapsed() < CLEANUP_MAX {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(database.count("SELECT count(*) FROM @pieces"), 2);
        assert!(store.get_blob(&ana(), blob).await.unwrap() == twice);
    });
}

#[test]
fn an_upload_dropped_outside_a_runtime_leaves_no_rows() {
    let database = Database::Sqlite(tempfile::tempdir().unwrap());
    let store = database.open();
    let mut sink = block_on(store.begin_blob(&ana())).unwrap();
    block_on(sink.write(&bytes(3 * BLOB_CHUNK_BYTES_MAX))).unwrap();
    assert_eq!(database.count("SELECT count(*) FROM pieces"), 2);
    drop(sink);
    assert_eq!(block_on(database.left_over()), (0, 0));
}

#[test]
fn old_uploads_of_killed_processes_are_removed() {
    on_each_database(async |database| {
        let store = database.open();
        let mut sink = store.begin_blob(&ana()).await.unwrap();
        sink.write(&bytes(3 * BLOB_CHUNK_BYTES_MAX)).await.unwrap();
        drop(database.open());
        assert_eq!(database.count("SELECT count(*) FROM @pieces"), 2, "the upload is recent");
        // Simulate a process that was killed more than an hour ago.
        database.change("UPDATE @cuts SET at = at - 4000");
        drop(database.open());
        assert_eq!(database.left_over().await, (0, 0));
        let late = sink.write(&bytes(BLOB_CHUNK_BYTES_MAX)).await.unwrap_err();
        assert_eq!(late.code(), "input.invalid", "{late}");
        drop(sink);

        let mut sink = store.begin_blob(&ana()).await.unwrap();
        sink.write(&bytes(3 * BLOB_CHUNK_BYTES_MAX)).await.unwrap();
        database.change("UPDATE @cuts SET at = at - 4000");
        let blob = store.put_blob(&ana(), bytes(5 * BLOB_CHUNK_BYTES_MAX)).await.unwrap();
        assert_eq!(database.count("SELECT count(*) FROM @cuts"), 1, "a new upload removes the old one");
        assert_eq!(sink.finish().await.unwrap_err().code(), "input.invalid");
        assert_eq!(store.blob_size(&ana(), blob).await.unwrap(), 5 * BLOB_CHUNK_BYTES_MAX as u64);
        assert_eq!(broken_rules(&store).await, [""; 0]);
    });
}

#[test]
fn a_large_unchunked_blob_is_read_and_split() {
    on_each_database(async |database| {
        let store = database.open();
        let whole = vec![0; 2 * BLOB_CHUNK_BYTES_MAX + 5];
        let blob = store.put_blob(&ana(), whole.clone()).await.unwrap();
        // Store the blob as older versions did: all bytes in its row.
        let zeros = match database {
            Database::Sqlite(_) => format!("zeroblob({})", whole.len()),
            Database::Postgres(_) => format!("decode(repeat('00', {}), 'hex')", whole.len()),
        };
        database.change(&format!("UPDATE @blobs SET cut = NULL, data = {zeros}"));
        database.change("DELETE FROM @pieces; DELETE FROM @cuts");
        assert_eq!(store.blob_size(&ana(), blob).await.unwrap(), whole.len() as u64);
        assert_eq!(broken_rules(&store).await, [""; 0]);
        assert_eq!(
            store.read_blob(&ana(), blob, 2 * BLOB_CHUNK_BYTES_MAX as u64, 100).await.unwrap(),
            [0; 5]
        );
        assert_eq!(database.count("SELECT count(*) FROM @pieces"), 3);
        assert_eq!(database.count("SELECT length(data) FROM @blobs"), 0);
        assert!(store.get_blob(&ana(), blob).await.unwrap() == whole);
        assert_eq!(broken_rules(&store).await, [""; 0]);
    });
}

#[test]
fn a_changed_blob_file_is_reported_and_never_returned() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = JsonlStore::open(dir.path(), JsonlOptions::default()).unwrap();
        let whole = bytes(2 * BLOB_CHUNK_BYTES_MAX);
        let blob = store.put_blob(&ana(), whole.clone()).await.unwrap();
        assert_eq!(store.read_blob(&ana(), blob, 10, 5).await.unwrap(), whole[10..15]);
        let path = dir.path().join(format!("tenants/acme/blobs/{blob}"));
        let mut other = whole.clone();
        other[2_000_000] ^= 1;
        std::fs::write(&path, &other).unwrap();
        assert_eq!(store.read_blob(&ana(), blob, 10, 5).await.unwrap_err().code(), "store.damaged");
        let found = store.check(&operator(), Repair::No).await.unwrap();
        assert_eq!((found.len(), found[0].rule), (1, "blobs"));
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(store.read_blob(&ana(), blob, 10, 5).await.unwrap(), whole[10..15]);
    });
}

#[test]
fn upload_files_are_removed_when_dropped_or_old() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = dir.path().join("tenants/acme/uploads");
    let count = || std::fs::read_dir(&uploads).map_or(0, Iterator::count);
    let open = || JsonlStore::open(dir.path(), JsonlOptions::default()).unwrap();
    block_on(async {
        let store = open();
        for how in ["dropped", "finished"] {
            let mut sink = store.begin_blob(&ana()).await.unwrap();
            sink.write(&bytes(2 * BLOB_CHUNK_BYTES_MAX)).await.unwrap();
            assert_eq!(count(), 1);
            if how == "finished" {
                assert_eq!(sink.finish().await.unwrap(), BlobHash::of(&bytes(2 * BLOB_CHUNK_BYTES_MAX)));
            }
        }
        assert_eq!(count(), 0);
        let left = uploads.join("left");
        std::fs::write(&left, b"half").unwrap();
        open().blob_size(&ana(), BlobHash::of(b"")).await.unwrap_err();
        assert_eq!(count(), 1, "the upload is recent");
        let file = std::fs::File::options().write(true).open(&left).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(4_000)).unwrap();
        open().blob_size(&ana(), BlobHash::of(b"")).await.unwrap_err();
        assert_eq!(count(), 0);
    });
}

#[test]
fn an_erased_blob_is_nowhere_in_the_file() {
    const WORD: &[u8] = b"quagmire";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let holds_word = || std::fs::read(&path).unwrap().windows(WORD.len()).any(|window| window == WORD);
    block_on(async {
        let store = SqliteStore::open(path.clone(), OpenOptions::default()).unwrap();
        let mut whole = bytes(3 * BLOB_CHUNK_BYTES_MAX);
        (0..whole.len() - WORD.len()).step_by(50_000).for_each(|at| {
            whole[at..at + WORD.len()].copy_from_slice(WORD);
        });
        let blob = store.put_blob(&ana(), whole.clone()).await.unwrap();
        let session: sapwood_core::SessionId = "s".parse().unwrap();
        store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        let (mime, size) = ("text/plain".to_owned(), whole.len() as u64);
        let media = BlobRef { blob, mime, name: None, bytes: size, duration_ms: None };
        let message = UserMessage { parts: vec![Part::Media(media)], origin: None };
        let append = Append::new(session.clone(), TimestampMs(1), vec![Draft::new(TimestampMs(1), message)]);
        store.append(&ana(), append).await.unwrap();
        store.flush().await.unwrap();
        assert!(holds_word(), "the file contains the word before the erasure");
        store.erase(&ana(), &session, TimestampMs(2)).await.unwrap();
        assert!(!holds_word());
    });
    assert!(!holds_word());
}
