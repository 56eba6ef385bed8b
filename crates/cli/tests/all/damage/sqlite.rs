//! Damaged files of the SQLite store, and files of other programs.

use std::path::PathBuf;

use super::{assert_refused, assert_reported, bytes_in};
use crate::actors::{Injector, SeededRng, assert_healthy, read_log, seed};
use crate::harness::World;
use crate::library::{append, inspect, url};

const PAGE_BYTES: usize = 4_096;
/// Sizes in a write-ahead log: its header, and a frame, which is a frame header and a page.
const WAL_HEADER_BYTES: usize = 32;
const FRAME_BYTES: usize = 24 + PAGE_BYTES;
/// Offsets of `user_version` and `application_id` in the header of a SQLite file.
const USER_VERSION: usize = 60;
const APPLICATION_ID: usize = 68;

/// A closed store in a temporary directory.
struct ClosedStore {
    world: World,
    session: String,
    dir: PathBuf,
    file: PathBuf,
}

impl ClosedStore {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let file = store.join("store.db");
        let world = World { url: url("sqlite", &file), dir };
        let session = seed(&world);
        world.add_messages(&session, &["u:the second"]);
        Self { session, dir: world.path("store"), file, world }
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.file).unwrap()
    }

    fn patch(&self, offset: usize, with: &[u8]) {
        sapwood_store::conformance::sqlite_file::patch(&self.file, offset, with);
    }

    fn wal(&self) -> PathBuf {
        self.dir.join("store.db-wal")
    }

    /// Writes messages and kills the writer, so that its write-ahead log remains.
    fn leave_wal(&self, messages: usize) {
        let mut injector = Injector::start(&self.world, &self.session, &[]);
        for number in 1..=messages {
            assert_eq!(injector.send(&[&format!("message {number}")]).len(), 1);
        }
        injector.kill();
        assert!(std::fs::metadata(self.wal()).unwrap().len() > 0);
    }

    fn assert_refused(&self, code: &str) -> Vec<String> {
        assert_reported(&self.world, &self.dir);
        assert_refused(&self.world, &self.dir, &self.session, code)
    }
}

#[test]
fn a_closed_store_is_one_file_and_its_head() {
    let closed_store = ClosedStore::new();
    let head = closed_store.dir.join("store.db.head");
    assert_eq!(bytes_in(&closed_store.dir).into_keys().collect::<Vec<_>>(), [closed_store.file, head]);
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_left_unchanged() {
    let closed_store = ClosedStore::new();
    let mut rng = SeededRng::from_env();
    let garbage: Vec<u8> = (0..50_000).map(|_| rng.below(256) as u8).collect();
    std::fs::write(&closed_store.file, garbage).unwrap();
    for message in closed_store.assert_refused("store.locked") {
        assert!(message.contains("not a SQLite database"), "{message}");
    }
}

#[test]
fn another_programs_database_is_refused_and_left_unchanged() {
    for (application, wal) in [(*b"Note", false), ([0; 4], false), (*b"Note", true)] {
        let closed_store = ClosedStore::new();
        if wal {
            closed_store.leave_wal(1);
        }
        closed_store.patch(APPLICATION_ID, &application);
        for message in closed_store.assert_refused("store.damaged") {
            assert!(message.contains("not a Sapwood store"), "{message}");
        }
    }
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_unchanged() {
    for wal in [false, true] {
        let closed_store = ClosedStore::new();
        if wal {
            closed_store.leave_wal(1);
        }
        let version = closed_store.bytes()[USER_VERSION..USER_VERSION + 4].to_vec();
        closed_store.patch(USER_VERSION, &99u32.to_be_bytes());
        for message in closed_store.assert_refused("store.too_new") {
            assert!(message.contains("99"), "{message}");
        }
        closed_store.patch(USER_VERSION, &version);
        assert_eq!(read_log(&closed_store.world, &closed_store.session).len(), 2 + usize::from(wal));
    }
}

#[test]
fn a_truncated_write_ahead_log_loses_only_the_removed_part() {
    const MESSAGES: usize = 12;
    let closed_store = ClosedStore::new();
    closed_store.leave_wal(MESSAGES);
    let (file, wal) = (closed_store.bytes(), std::fs::read(closed_store.wal()).unwrap());
    let whole = read_log(&closed_store.world, &closed_store.session);
    let frames = (WAL_HEADER_BYTES..wal.len()).step_by(FRAME_BYTES);
    let torn_frames = frames.clone().step_by(3).flat_map(|frame| [frame + 1, frame + 24, frame + 2_000]);
    let cuts =
        [0, 1, WAL_HEADER_BYTES - 1, wal.len() - 1, wal.len()].into_iter().chain(frames).chain(torn_frames);
    let mut lengths = Vec::new();
    for cut in cuts.filter(|cut| *cut <= wal.len()) {
        let dir = closed_store.world.path("cut");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("store.db"), &file).unwrap();
        std::fs::write(dir.join("store.db-wal"), &wal[..cut]).unwrap();
        let url = url("sqlite", &dir.join("store.db"));
        let found = inspect(&url, &closed_store.session).unwrap();
        let unexpected: Vec<_> = found.findings.iter().filter(|(rule, _)| *rule != "torn").collect();
        assert!(unexpected.is_empty(), "cut at {cut}: {unexpected:?}");
        assert_eq!(found.log[..], whole[..found.log.len()], "cut at {cut}");
        append(&url, &closed_store.session, &["after the cut"]).unwrap();
        assert_eq!(inspect(&url, &closed_store.session).unwrap().log.len(), found.log.len() + 1);
        lengths.push((cut, found.log.len()));
    }
    lengths.sort_unstable();
    assert!(lengths.is_sorted_by_key(|(_, length)| *length), "a longer log had fewer messages: {lengths:?}");
    assert_eq!((lengths[0].1, lengths[lengths.len() - 1].1), (2, 2 + MESSAGES));
}

#[test]
fn a_truncated_file_is_refused_and_left_unchanged() {
    let closed_store = ClosedStore::new();
    let whole = closed_store.bytes();
    let half = whole.len() / PAGE_BYTES / 2 * PAGE_BYTES;
    // SQLite treats a file with a single byte as empty.
    for len in [2, 99, 100, 511, 512, PAGE_BYTES, half, half + 100, whole.len() - PAGE_BYTES] {
        std::fs::write(&closed_store.file, &whole[..len]).unwrap();
        let error = closed_store.world.fail(1, &["ls"]);
        let code = error["code"].as_str().unwrap();
        assert!(["store.damaged", "store.locked"].contains(&code), "{len}: {error}");
        assert!(error["message"].as_str().unwrap().contains("store.db"), "{error}");
        closed_store.assert_refused(code);
    }
    // SQLite reads the missing part of the last page as zeros. If that page belongs to the schema, the file is refused
    // on opening; otherwise the doctor checks the length.
    std::fs::write(&closed_store.file, &whole[..whole.len() - 1]).unwrap();
    let report = assert_reported(&closed_store.world, &closed_store.dir);
    assert!(report.contains("its last 1 bytes are missing") || report.contains("store.damaged"), "{report}");
    std::fs::write(&closed_store.file, whole).unwrap();
    assert_healthy(&closed_store.world);
}

#[test]
fn a_garbage_page_is_found_by_the_doctor_and_never_read_as_valid_data() {
    let closed_store = ClosedStore::new();
    let whole = closed_store.bytes();
    let healthy = read_log(&closed_store.world, &closed_store.session);
    for page in 0..whole.len() / PAGE_BYTES {
        // The first page begins with the file header; other pages begin with a page header.
        let start = page * PAGE_BYTES + if page == 0 { 100 } else { 0 };
        let mut bytes = whole.clone();
        bytes[start..start + 12].fill(0xff);
        std::fs::write(&closed_store.file, &bytes).unwrap();
        match inspect(&closed_store.world.url, &closed_store.session) {
            Ok(found) => {
                assert!(!found.findings.is_empty(), "the doctor does not report page {}", page + 1);
                assert_eq!(found.log, healthy, "page {}", page + 1);
            }
            Err(error) => assert_eq!(error.code(), "store.damaged", "page {}: {error}", page + 1),
        }
        assert!(closed_store.bytes() == bytes, "reading with a damaged page {} changed the file", page + 1);
    }
    let findings = assert_reported(&closed_store.world, &closed_store.dir);
    assert!(findings.contains("store.db"), "{findings}");
    std::fs::write(&closed_store.file, whole).unwrap();
    assert_healthy(&closed_store.world);
}

#[test]
fn a_damaged_write_ahead_log_is_refused_and_a_repair_keeps_it_and_continues() {
    let closed_store = ClosedStore::new();
    closed_store.leave_wal(12);
    let whole = read_log(&copy_of(&closed_store), &closed_store.session);
    let mut wal = std::fs::read(closed_store.wal()).unwrap();
    // The first frame of the log is part of the first transaction.
    wal[WAL_HEADER_BYTES + 24 + 100] ^= 4;
    std::fs::write(closed_store.wal(), &wal).unwrap();
    for message in closed_store.assert_refused("store.damaged") {
        assert!(message.contains("frame 1 of the write-ahead log is damaged"), "{message}");
    }
    let repaired = closed_store.world.json(&["doctor", "--repair"]);
    assert_eq!(repaired["findings"][0]["rule"], "log", "{repaired}");
    assert_eq!(std::fs::read(closed_store.dir.join("store.db.damaged-wal-1")).unwrap(), wal);
    let kept = read_log(&closed_store.world, &closed_store.session);
    assert!(kept.len() < whole.len());
    assert_eq!(kept[..], whole[..kept.len()]);
    closed_store.world.add_messages(&closed_store.session, &["u:after the repair"]);
    assert_healthy(&closed_store.world);
}

/// Copies the files of a store, so that reading them does not change the original.
fn copy_of(closed_store: &ClosedStore) -> World {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in bytes_in(&closed_store.dir) {
        std::fs::write(dir.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    World { url: url("sqlite", &dir.path().join("store.db")), dir }
}

#[test]
fn an_older_copy_of_the_file_is_reported_until_it_is_accepted() {
    let closed_store = ClosedStore::new();
    let older = closed_store.bytes();
    closed_store.world.add_messages(&closed_store.session, &["u:the third"]);
    assert_healthy(&closed_store.world);
    std::fs::write(&closed_store.file, older).unwrap();
    for _ in 0..2 {
        assert!(assert_reported(&closed_store.world, &closed_store.dir).contains("its end was lost"));
    }
    closed_store.world.add_messages(&closed_store.session, &["u:another third"]);
    assert!(assert_reported(&closed_store.world, &closed_store.dir).contains("written again"));
    closed_store.world.run(&["doctor", "--repair"]);
    assert_healthy(&closed_store.world);
}

#[test]
fn a_store_without_checksums_works_as_before_and_gets_them() {
    let closed_store = ClosedStore::new();
    let healthy = read_log(&closed_store.world, &closed_store.session);
    sapwood_store::conformance::sqlite_file::remove_checksums(&closed_store.file);
    let world = &closed_store.world;
    assert_eq!(read_log(world, &closed_store.session), healthy);
    world.add_messages(&closed_store.session, &["u:more"]);
    assert_eq!(world.json(&["doctor"])["checksums"], "unproven");
    let log = read_log(world, &closed_store.session);
    if cfg!(feature = "encryption") {
        // SQLCipher cannot rewrite a file without a key.
        assert_eq!(world.json(&["doctor", "--seal"])["checksums"], "unproven");
        assert_eq!(read_log(world, &closed_store.session), log);
        return;
    }
    assert_eq!(world.json(&["doctor", "--seal"])["checksums"], "pages");
    assert_eq!(read_log(world, &closed_store.session), log);
    world.add_messages(&closed_store.session, &["u:and more"]);
    assert_eq!(world.json(&["doctor", "--seal"])["checksums"], "pages", "sealing twice changes nothing");
    let mut bytes = closed_store.bytes();
    let last = bytes.len() - 300;
    bytes[last] ^= 1;
    std::fs::write(&closed_store.file, bytes).unwrap();
    assert!(assert_reported(world, &closed_store.dir).contains("does not match its checksum"));
}

#[test]
fn the_doctor_lists_all_damaged_pages_and_a_repair_changes_nothing() {
    let closed_store = ClosedStore::new();
    let mut bytes = closed_store.bytes();
    for page in [3, 5, 8] {
        bytes[page * PAGE_BYTES + 2_000] ^= 1;
    }
    std::fs::write(&closed_store.file, &bytes).unwrap();
    let report = assert_reported(&closed_store.world, &closed_store.dir);
    for page in ["page 4 ", "page 6 ", "page 9 "] {
        assert!(report.contains(page), "{page}: {report}");
    }
    let ran = closed_store.world.run(&["doctor", "--repair", "--json"]);
    assert_eq!(ran.status, Some(1), "{}", ran.out());
    assert!(closed_store.bytes() == bytes, "the repair changed a damaged file");
}
