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
        let mut bytes = self.bytes();
        bytes[offset..offset + with.len()].copy_from_slice(with);
        std::fs::write(&self.file, bytes).unwrap();
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
fn a_closed_store_is_one_file() {
    let closed_store = ClosedStore::new();
    assert_eq!(bytes_in(&closed_store.dir).into_keys().collect::<Vec<_>>(), [closed_store.file]);
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
        assert!(found.findings.is_empty(), "cut at {cut}: {:?}", found.findings);
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
