//! Run the conformance suite on the SQLite store, plain and (with the feature) encrypted.

use std::path::Path;
use std::sync::Arc;

use sapwood_core::entry::UserMessage;
use sapwood_core::port::store::{
    Append, Audit, AuditAction, AuditLine, AuditNote, Log, NewSession, Repair, Search, SearchQuery, Sessions,
    Until, Upkeep,
};
use sapwood_core::project::summary::TurnPositions;
use sapwood_core::{Draft, Part, Scope, Seq, SessionId, Store, TenantId, TimestampMs};
use sapwood_store::conformance::clock::ManualClock;
use sapwood_store::conformance::sqlite_file::connect;
use sapwood_store::conformance::{Harness, block_on};
use sapwood_store::sqlite::SqliteStore;
use sapwood_store::{Durability, Key, OpenOptions};
use tempfile::TempDir;

/// A database file without syncs. The suite runs faster, and durability does not change answers.
pub struct OneFile {
    dir: TempDir,
    key: Option<Key>,
    clock: Arc<ManualClock>,
}

impl OneFile {
    pub fn plain() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), key: None, clock: ManualClock::new() }
    }
    #[cfg(feature = "encryption")]
    fn encrypted() -> Self {
        Self { key: Some(Key::new("correct horse battery staple".to_owned())), ..Self::plain() }
    }
}

impl Harness for OneFile {
    async fn open(&self) -> Arc<dyn Store> {
        let options =
            OpenOptions { durability: Durability::Normal, key: self.key.clone(), ..OpenOptions::default() };
        let store = SqliteStore::open(self.dir.path().join("sapwood.db"), options).unwrap();
        Arc::new(store.with_lease_clock(self.clock.clone()))
    }
    fn persists(&self) -> bool {
        true
    }
    fn pass_time(&self, ms: i64) {
        self.clock.pass(ms);
    }
}

mod plain {
    use super::OneFile;
    sapwood_store::conformance_tests!(OneFile::plain());
}

#[cfg(feature = "encryption")]
mod encrypted {
    use super::OneFile;
    sapwood_store::conformance_tests!(OneFile::encrypted());
}

fn ana() -> Scope {
    Scope::user(TenantId::local(), "ana".parse().unwrap())
}

async fn append_text(store: &SqliteStore, session: &SessionId, text: &str) {
    let parts = vec![Part::text(text)];
    let draft = Draft::new(TimestampMs(1), UserMessage { parts, origin: None });
    store.append(&ana(), Append::new(session.clone(), TimestampMs(1), vec![draft])).await.unwrap();
}

fn open(dir: &TempDir) -> SqliteStore {
    SqliteStore::open(dir.path().join("sapwood.db"), OpenOptions::default()).unwrap()
}

fn bytes_of(dir: &TempDir) -> Vec<u8> {
    let files = std::fs::read_dir(dir.path()).unwrap();
    files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

#[test]
fn an_erased_word_is_nowhere_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir);
        let (gone, stays): (SessionId, SessionId) = ("gone".parse().unwrap(), "stays".parse().unwrap());
        for (session, word) in [(&gone, "quagmire"), (&stays, "lighthouse")] {
            store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
            append_text(&store, session, word).await;
        }
        let find = SearchQuery { text: "quagmire".to_owned(), ..SearchQuery::default() };
        assert_eq!(store.search(&ana(), &find).await.unwrap().items.len(), 1);
        assert!(contains(&bytes_of(&dir), "quagmire"), "the files contain the word before the erasure");
        store.erase(&ana(), &gone, TimestampMs(2)).await.unwrap();
        assert!(!contains(&bytes_of(&dir), "quagmire"), "the word is gone while the store is open");
    });
    let bytes = bytes_of(&dir);
    assert!(
        contains(&bytes, "lighthouse") && !contains(&bytes, "quagmire"),
        "the word is gone after the store is closed"
    );
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_access_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let _store = SqliteStore::open(dir.path().join("below/sapwood.db"), OpenOptions::default()).unwrap();
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("below"), mode("below/sapwood.db")), (0o700, 0o600));
}

#[test]
fn a_closed_store_is_one_file_and_its_head() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir);
        let session: SessionId = "s".parse().unwrap();
        store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        append_text(&store, &session, "hello").await;
        store.summary(&ana(), &session).await.unwrap();
    });
    let mut names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["sapwood.db", "sapwood.db.head"]);
}

#[test]
fn a_path_is_complete_when_sessions_are_written_alternately() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir);
        let sessions: Vec<SessionId> = ["a", "b", "c"].map(|id| id.parse().unwrap()).to_vec();
        for session in &sessions {
            store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        }
        // Alternate between the sessions in runs of uneven length.
        for turn in 0..60_usize {
            let times = if turn % 20 < 10 { 1 } else { turn % 5 };
            for (index, session) in sessions.iter().enumerate() {
                for time in 0..times * index + usize::from(index == 0) {
                    append_text(&store, session, &format!("{turn}.{time}")).await;
                }
            }
        }
        for session in &sessions {
            let path = store.read_path(&ana(), session, None, Until::Root).await.unwrap().entries;
            let seqs: Vec<u32> = path.iter().map(|entry| entry.meta.seq.0).collect();
            let last = store.summary(&ana(), session).await.unwrap().head.seq.0;
            assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
            let log = store.read_after(&ana(), session, sapwood_core::Seq::ZERO, 1_000).await.unwrap();
            let ids: Vec<_> = log.iter().map(|record| record.meta.id).collect();
            assert_eq!(ids, path.iter().map(|entry| entry.meta.id).collect::<Vec<_>>());
        }
    });
}

/// Check that the doctor reports a broken index, rebuilds it, and then reports nothing.
async fn check_index_repair(store: &SqliteStore) {
    for (repair, rules) in [(Repair::No, vec!["index"]), (Repair::Yes, vec!["index"]), (Repair::No, vec![])] {
        let found = store.check(&ana(), repair).await.unwrap();
        let broken: Vec<_> = found.iter().map(|finding| finding.rule).collect();
        assert_eq!(broken, rules, "{repair:?}: {found:?}");
    }
}

#[test]
fn the_doctor_repairs_the_search_index() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir);
        let session: SessionId = "s".parse().unwrap();
        store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        append_text(&store, &session, "lighthouse").await;
        let find = SearchQuery { text: "lighthouse".to_owned(), ..SearchQuery::default() };
        assert_eq!(store.search(&ana(), &find).await.unwrap().items.len(), 1);
        assert!(store.check(&ana(), Repair::No).await.unwrap().is_empty());
        drop(store);
        let other = connect(&dir.path().join("sapwood.db"));
        other.execute_batch("DELETE FROM segments; DELETE FROM blocks").unwrap();
        drop(other);
        let store = open(&dir);
        assert!(store.search(&ana(), &find).await.unwrap().items.is_empty(), "the index entry is lost");
        check_index_repair(&store).await;
        assert_eq!(store.search(&ana(), &find).await.unwrap().items.len(), 1);
        drop(store);
        let other = connect(&dir.path().join("sapwood.db"));
        assert_eq!(other.execute("UPDATE blocks SET bytes = CAST(x'ff' || bytes AS BLOB)", []).unwrap(), 1);
        drop(other);
        let store = open(&dir);
        let refused = store.search(&ana(), &find).await.unwrap_err();
        assert_eq!(refused.code(), "store.damaged", "{refused}");
        check_index_repair(&store).await;
        assert_eq!(store.search(&ana(), &find).await.unwrap().items.len(), 1);
    });
}

/// Write to several sessions alternately, one message or a batch at a time, until most positions have been
/// moved out of `recent_places`.
async fn write_in_turns(store: &SqliteStore, sessions: &[SessionId]) {
    for session in sessions {
        store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
    }
    for round in 0..800 {
        for session in sessions {
            // An occasional large batch bypasses `recent_places`.
            let count = if round % 200 == 150 { 70 } else { 1 };
            let draft = |number| {
                let part = Part::text(format!("{session} {round} {number}"));
                Draft::new(TimestampMs(1), UserMessage { parts: vec![part], origin: None })
            };
            let note = AuditNote { action: AuditAction::Edit, session: Some(session.clone()), detail: None };
            let drafts = (0..count).map(draft).collect();
            let append = Append::new(session.clone(), TimestampMs(1), drafts);
            store.append(&ana(), Append { audit: Some(note), ..append }).await.unwrap();
        }
    }
}

#[test]
fn entries_are_found_in_both_index_tables_and_the_doctor_repairs_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sapwood.db");
    let sessions: Vec<SessionId> = ["a", "b", "c"].map(|id| id.parse().unwrap()).into();
    block_on(async {
        let store = open(&dir);
        write_in_turns(&store, &sessions).await;
        let other = connect(&path);
        let count = |table: &str| -> i64 {
            other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
        };
        let (recent, all) = (count("recent_places"), count("places") + count("recent_places"));
        assert!((1..1_024).contains(&recent), "{recent}");
        assert_eq!(all, count("entries"));
        for session in &sessions {
            let whole = store.read_after(&ana(), session, Seq::ZERO, 10_000).await.unwrap();
            let seqs: Vec<u32> = whole.iter().map(|record| record.meta.seq.0).collect();
            let last = store.summary(&ana(), session).await.unwrap().head.seq.0;
            assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
            assert_eq!(store.heads(&ana(), std::slice::from_ref(session)).await.unwrap(), [Some(Seq(last))]);
        }
        assert!(store.check(&ana(), Repair::No).await.unwrap().is_empty());
        other
            .execute_batch("DELETE FROM recent_places; UPDATE places SET arrival = 7 WHERE arrival = 9")
            .unwrap();
        for (repair, expected) in [(Repair::No, true), (Repair::Yes, true), (Repair::No, false)] {
            let findings = store.check(&ana(), repair).await.unwrap();
            assert_eq!(findings.iter().any(|finding| finding.rule == "places"), expected, "{findings:?}");
        }
        assert_eq!(count("placed"), count("entries"));
    });
}

#[test]
fn the_audit_of_a_session_is_complete_over_many_pages() {
    let dir = tempfile::tempdir().unwrap();
    let sessions: Vec<SessionId> = ["a", "b", "c"].map(|id| id.parse().unwrap()).into();
    block_on(async {
        let store = open(&dir);
        write_in_turns(&store, &sessions).await;
        let operator = Scope::operator(TenantId::local(), ana().principal);
        let elsewhere = Scope::operator("elsewhere".parse().unwrap(), ana().principal);
        for number in 0..2_100 {
            let session = Some(sessions[number % 3].clone());
            let note = AuditNote { action: AuditAction::Read, session, detail: None };
            store.write_audit(&operator, note.clone(), TimestampMs(1)).await.unwrap();
            if number % 300 == 0 {
                store.write_audit(&elsewhere, note, TimestampMs(1)).await.unwrap();
            }
        }
        assert_eq!(store.read_audit(&elsewhere, None, 0, 100).await.unwrap().len(), 7);
        assert_eq!(store.read_audit(&elsewhere, Some(&sessions[0]), 0, 100).await.unwrap().len(), 7);
        let mut all = Vec::new();
        while let page @ [_, ..] = &store
            .read_audit(&operator, None, all.last().map_or(0, |line: &AuditLine| line.number), 500)
            .await
            .unwrap()[..]
        {
            all.extend_from_slice(page);
        }
        assert_eq!(
            all.len(),
            3 * (801 + 700),
            "each session was created, appended to 800 times, and read 700 times"
        );
        for session in &sessions {
            let expected: Vec<AuditLine> =
                all.iter().filter(|line| line.session.as_ref() == Some(session)).cloned().collect();
            let mut found: Vec<AuditLine> = Vec::new();
            loop {
                let after = found.last().map_or(0, |line| line.number);
                let page = store.read_audit(&operator, Some(session), after, 300).await.unwrap();
                if page.is_empty() {
                    break;
                }
                found.extend(page);
            }
            assert_eq!(found, expected);
        }
    });
}

#[test]
fn an_erasure_during_indexing_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir);
        let (gone, kept): (SessionId, SessionId) = ("gone".parse().unwrap(), "kept".parse().unwrap());
        for session in [&gone, &kept] {
            store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        }
        for number in 0..2_100 {
            append_text(&store, &gone, &format!("zanzibar{number}")).await;
        }
        store.erase(&ana(), &gone, TimestampMs(2)).await.unwrap();
        for number in 0..2_100 {
            append_text(&store, &kept, &format!("lighthouse{number}")).await;
        }
        let find = |text: &str| SearchQuery { text: text.to_owned(), limit: 5_000, ..SearchQuery::default() };
        assert!(store.search(&ana(), &find("zanzibar*")).await.unwrap().items.is_empty());
        assert_eq!(store.search(&ana(), &find("lighthouse*")).await.unwrap().items.len(), 2_100);
        assert!(store.check(&ana(), Repair::No).await.unwrap().is_empty());
        store.flush().await.unwrap();
    });
    let bytes = std::fs::read(dir.path().join("sapwood.db")).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"zanzibar"), "the erased word is still in the file");
}

/// A store of an earlier build has no positions in its summaries.
#[test]
fn positions_that_an_earlier_version_did_not_write_are_restored() {
    block_on(async {
        let dir = TempDir::new().unwrap();
        let store = open(&dir);
        let session: SessionId = "s".parse().unwrap();
        store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        append_text(&store, &session, "one").await;
        let stored = store.summary(&ana(), &session).await.unwrap();
        assert!(!stored.lacks_positions());
        drop(store);
        let other = connect(&dir.path().join("sapwood.db"));
        other.execute("UPDATE sessions SET summary = json_remove(summary, '$.queued')", []).unwrap();
        drop(other);
        let store = open(&dir);
        assert!(store.summary(&ana(), &session).await.unwrap().lacks_positions());
        let positions = TurnPositions { head: Seq(1), ..TurnPositions::default() };
        let stale = TurnPositions { head: Seq(9), ..positions.clone() };
        store.restore_positions(&ana(), &session, &stale).await.unwrap();
        assert!(store.summary(&ana(), &session).await.unwrap().lacks_positions());
        store.restore_positions(&ana(), &session, &positions).await.unwrap();
        assert_eq!(store.summary(&ana(), &session).await.unwrap(), stored);
        append_text(&store, &session, "two").await;
        assert!(!store.summary(&ana(), &session).await.unwrap().lacks_positions());
    });
}

/// Deletes, moves or replaces a file of the store at the first path. The second path is elsewhere.
type Removal = fn(&Path, &Path);

#[cfg(unix)]
#[test]
fn a_store_whose_files_were_deleted_moved_or_replaced_refuses_writes() {
    let removals: [(&str, Removal); 4] = [
        ("sapwood.db", |path, _| std::fs::remove_file(path).unwrap()),
        ("sapwood.db", |path, away| std::fs::rename(path, away).unwrap()),
        ("sapwood.db", |path, away| {
            std::fs::copy(path, away).unwrap();
            std::fs::rename(away, path).unwrap();
        }),
        ("sapwood.db-wal", |path, _| std::fs::remove_file(path).unwrap()),
    ];
    for (at, (name, remove)) in removals.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            let store = open(&dir);
            let session: SessionId = "s".parse().unwrap();
            store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
            append_text(&store, &session, "one").await;
            remove(&dir.path().join(name), &dir.path().join("away"));
            let part = Part::text("lost");
            let draft = Draft::new(TimestampMs(1), UserMessage { parts: vec![part], origin: None });
            let append = Append::new(session.clone(), TimestampMs(1), vec![draft]);
            let refused = store.append(&ana(), append).await.unwrap_err();
            assert_eq!(refused.code(), "store.unreachable", "removal {at}: {refused}");
        });
    }
}
