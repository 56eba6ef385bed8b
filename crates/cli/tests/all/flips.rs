//! Flipped bits in every file of a store, with a write-ahead log and without one. A read answers with the right data or
//! fails, and the doctor reports each flip. `cargo xtask flips` runs more of them.
//!
//! Two kinds of flips are counted separately: bytes that nothing uses, and the last write of a process that was killed,
//! which cannot be distinguished from a write that it did not finish. The doctor reports the latter as a torn end.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::actors::{Injector, SeededRng};
use crate::harness::World;

/// Flips in the ordinary tests.
const FLIPS: u64 = 60;
const PAGE_BYTES: usize = 4_096;
const LOG_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// Sets another number of flips.
const FLIPS_VARIABLE: &str = "SAPWOOD_TEST_FLIPS";
/// Names the kind of store: `sqlite` or `jsonl`.
const STORE_VARIABLE: &str = "SAPWOOD_TEST_FLIPS_STORE";

/// Every kind of read. The session is `talk`.
const READS: &[&[&str]] = &[
    &["show", "talk"],
    &["context", "talk"],
    &["events", "talk"],
    &["tree", "talk"],
    &["ls"],
    &["search", "lighthouse"],
    &["export", "talk"],
    &["export", "branch"],
    &["members", "talk"],
    &["memory", "ls"],
    &["key", "ls"],
    &["artifact", "get", "talk", "large.txt"],
    &["audit"],
];

/// The files of a store that is not open, below its directory.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A store in the directory `store` of a world.
struct Sample {
    world: World,
    files: Files,
    answers: Vec<String>,
}

/// What the flips led to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    flips: u64,
    wrong: u64,
    missed: u64,
    torn: u64,
    unused: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flips, wrong, missed, torn, unused } = self;
        write!(
            f,
            "{flips} flips: {wrong} wrong answers with exit code 0, {missed} missed by the doctor, {torn} torn ends, \
             {unused} in bytes that nothing uses"
        )
    }
}

/// Whether the last process that used the store was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

impl Sample {
    fn make(scheme: &str, end: End) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let location = if scheme == "sqlite" { store.join("store.db") } else { store.clone() };
        let world = World { dir, url: format!("{scheme}:{}", location.display()) };
        fill(&world);
        if end == End::Killed {
            let mut injector = Injector::start(&world, "talk", &[]);
            for number in 0..12 {
                let text = format!("message {number} about a lighthouse {}", "and its lamp ".repeat(60));
                assert_eq!(injector.send(&[&text]).len(), 1);
            }
            injector.kill();
        }
        let mut sample = Self { files: read_files(&store), world, answers: Vec::new() };
        sample.answers =
            READS.iter().map(|args| sample.read(args).expect("an intact store is readable")).collect();
        let again: Vec<_> = READS.iter().map(|args| sample.read(args).unwrap()).collect();
        assert_eq!(sample.answers, again, "answers can be compared");
        sample
    }

    /// Writes the files, with one of them changed.
    fn restore(&self, changed: Option<(&Path, &[u8])>) {
        let store = self.world.path("store");
        std::fs::remove_dir_all(&store).unwrap();
        for (path, bytes) in &self.files {
            let to = store.join(path);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            let bytes = changed.filter(|(name, _)| name == path).map_or(&bytes[..], |(_, bytes)| bytes);
            std::fs::write(to, bytes).unwrap();
        }
    }

    /// Runs a command on a fresh copy. Returns its output if it succeeds.
    fn read(&self, args: &[&str]) -> Option<String> {
        self.restore(None);
        self.run(args)
    }

    fn run(&self, args: &[&str]) -> Option<String> {
        let ran = self.world.run(&[args, &["--json"]].concat());
        (ran.status == Some(0)).then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// Flips a random bit, each bit of all files with the same probability.
    fn flip(&self, rng: &mut SeededRng, tally: &mut Tally) {
        let total: usize = self.files.values().map(Vec::len).sum();
        let mut bit = usize::try_from(rng.below(total as u64 * 8)).unwrap();
        let mut files = self.files.iter();
        let (path, bytes) = loop {
            let (path, bytes) = files.next().unwrap();
            if bit < bytes.len() * 8 {
                break (path, bytes);
            }
            bit -= bytes.len() * 8;
        };
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        self.judge(path, &flipped, bit, tally);
    }

    /// The write-ahead log contains frames of earlier rounds, and newer versions of some pages of the database.
    fn is_unused(&self, path: &Path, byte: usize) -> bool {
        let log = PathBuf::from(format!("{}-wal", path.display()));
        path.to_string_lossy().ends_with("-wal")
            || self.files.get(&log).is_some_and(|log| pages_in(log).any(|page| page == byte / PAGE_BYTES + 1))
    }

    fn judge(&self, path: &Path, flipped: &[u8], bit: usize, tally: &mut Tally) {
        let mut wrong = Vec::new();
        for (args, expected) in READS.iter().zip(&self.answers) {
            self.restore(Some((path, flipped)));
            if self.run(args).is_some_and(|answer| answer != *expected) {
                wrong.push(args);
            }
        }
        self.restore(Some((path, flipped)));
        let doctor = self.world.run(&["doctor", "--json"]);
        let report: Value = serde_json::from_str(doctor.out().trim()).unwrap_or_default();
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        let is_torn = !findings.is_empty() && findings.iter().all(|finding| finding["rule"] == "torn");
        tally.flips += 1;
        match (is_torn, wrong.is_empty(), doctor.status) {
            (true, ..) => tally.torn += 1,
            (false, true, Some(0)) if self.is_unused(path, bit / 8) => tally.unused += 1,
            (false, is_right, status) => {
                tally.wrong += u64::from(!is_right);
                tally.missed += u64::from(status == Some(0));
                if !is_right || status == Some(0) {
                    eprintln!("bit {bit} of {}: {wrong:?}, the doctor ended with {status:?}", path.display());
                }
            }
        }
    }
}

/// The numbers of the pages in the frames of a write-ahead log.
fn pages_in(log: &[u8]) -> impl Iterator<Item = usize> {
    let frames =
        log.get(LOG_HEADER_BYTES..).unwrap_or_default().chunks_exact(FRAME_HEADER_BYTES + PAGE_BYTES);
    frames.map(|frame| u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize)
}

fn fill(world: &World) {
    world.ok(&["new", "--id", "talk", "--title", "The lighthouse"]);
    for number in 0..20 {
        let text = format!("message {number}: the lighthouse {}", "shines ".repeat(number * 9));
        world.ok(&["inject", "talk", "--role", "user", "--text", &text]);
    }
    let large = world.path("large.txt");
    let letters = SeededRng::with_seed(5).letters(150_000);
    std::fs::write(&large, letters).unwrap();
    world.ok(&["artifact", "add", "talk", large.to_str().unwrap()]);
    world.ok(&["fork", "talk", "--id", "branch"]);
    world.ok(&["inject", "branch", "--role", "user", "--text", "another lighthouse"]);
    world.ok(&["share", "talk", "ben", "--role", "reader"]);
    world.ok(&["memory", "add", "The harbour closes at six."]);
    world.ok(&["key", "new", "--user", "ana"]);
    world.ok(&["search", "lighthouse"]);
}

fn read_files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if !path.to_string_lossy().ends_with("-shm") {
                let name = path.strip_prefix(root).unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn a_flipped_bit_is_never_answered_as_data_and_the_doctor_reports_it() {
    let scheme = std::env::var(STORE_VARIABLE).unwrap_or_else(|_| "sqlite".to_owned());
    let flips = std::env::var(FLIPS_VARIABLE).map_or(FLIPS, |flips| flips.parse().unwrap());
    let mut rng = SeededRng::from_env();
    let mut failed = Vec::new();
    for end in [End::Closed, End::Killed] {
        let sample = Sample::make(&scheme, end);
        let mut tally = Tally::default();
        for _ in 0..flips / 2 {
            sample.flip(&mut rng, &mut tally);
        }
        println!("{scheme}, {end:?}: {tally}");
        if tally.wrong + tally.missed > 0 {
            failed.push(format!("{end:?}: {tally}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
