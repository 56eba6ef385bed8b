//! Power cuts while messages are being written. A real run is recorded with strace. For many points of the recording,
//! the test rebuilds the directory as a power cut would leave it: synced data is present, unsynced data may be missing
//! or partial. The store must then open, contain everything acknowledged (I3) in whole batches only (I4), and
//! pass the doctor.
//!
//! A further test checks the harness: with durability `normal`, which guarantees none of this, it must find losses.

mod platter;
mod trace;

use std::path::{Path, PathBuf};

use crate::actors::{Ack, Injector, SeededRng};
use crate::harness::{World, id, log_file, user};
use crate::library::{inspect, url};
use crate::torture::{FaultCount, rounds};
use platter::{Platter, UnsyncedData};
use trace::{Step, read_traces, require_strace, traced};

/// Number of power cuts at random points, each with a random part of the unsynced data on the disk.
const RANDOM_CUTS: u64 = 400;

#[test]
fn sqlite_keeps_acknowledged_messages_through_a_power_cut() {
    check_power_cuts("sqlite");
}

#[test]
fn jsonl_keeps_acknowledged_messages_through_a_power_cut() {
    check_power_cuts("jsonl");
}

fn check_power_cuts(scheme: &'static str) {
    for _ in 0..rounds(1) {
        let recording = Recording::make(scheme, "full");
        assert_eq!(recording.count_losses_at_every_sync(), 0);
        recording.check_random_cuts();
    }
}

#[test]
fn the_harness_finds_losses_with_normal_durability() {
    for scheme in ["sqlite", "jsonl"] {
        let recording = Recording::make(scheme, "normal");
        assert_ne!(recording.count_losses_at_every_sync(), 0, "the harness did not detect any loss");
    }
}

/// All recorded calls for a store since its creation.
struct Recording {
    world: World,
    scheme: &'static str,
    steps: Vec<Step>,
    /// The sent messages, in order.
    texts: Vec<String>,
    acks: Vec<Ack>,
}

impl Recording {
    /// Creates a store with two sessions, writes to one while erasing the other, and continues in a second process.
    /// The erase checkpoints and restarts SQLite's write-ahead log.
    fn make(scheme: &'static str, durability: &str) -> Self {
        require_strace();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("disk");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("sapwood.toml"), format!("durability = {durability:?}\n")).unwrap();
        let world = World { dir, url: url(scheme, &store_path(scheme, &root)) };
        let mut recording = Self { world, scheme, steps: Vec::new(), texts: Vec::new(), acks: Vec::new() };
        let mut rng = SeededRng::from_env();
        recording.record_import();
        recording.record_writing(&mut rng, true);
        recording.record_writing(&mut rng, false);
        assert_eq!(recording.acks.len(), recording.texts.len());
        recording
    }

    fn root(&self) -> PathBuf {
        self.world.path("disk")
    }

    fn record_import(&mut self) {
        let files = ["seeded", "other"].map(|session| {
            let file = self.world.path(&format!("{session}.log"));
            std::fs::write(&file, log_file(session, &[(None, user("the first"))])).unwrap();
            file.to_str().unwrap().to_owned()
        });
        let trace = self.world.path("import.trace");
        self.run_traced(&["import", "--json", &files[0], &files[1]], &trace);
        self.texts.push("the first".to_owned());
        self.add_steps(&[trace]);
    }

    /// Sends single messages and batches, each after the previous send is acknowledged.
    fn record_writing(&mut self, rng: &mut SeededRng, erase_other: bool) {
        let trace = self.world.path("inject.trace");
        let mut traces = vec![trace.clone()];
        let inject = self.world.command(&["inject", "seeded", "--message", "-", "--json"]);
        let mut injector = Injector::of(traced(&inject, &trace));
        for batch in 0..16 {
            if erase_other && batch == 8 {
                traces.push(self.world.path("erase.trace"));
                self.run_traced(&["erase", "other", "--yes"], &traces[1]);
            }
            let count = [1, 1, 1, 4][rng.below(4) as usize];
            let texts: Vec<String> = (0..count)
                .map(|number| {
                    let length = rng.below(2_500);
                    format!("batch {batch} message {number} {}", rng.letters(length))
                })
                .collect();
            let acks = injector.send(&texts.iter().map(String::as_str).collect::<Vec<&str>>());
            assert_eq!(acks.len(), texts.len(), "{}", injector.finish().stderr);
            self.texts.extend(texts);
        }
        assert_eq!(injector.finish().status, Some(0));
        self.add_steps(&traces);
    }

    fn run_traced(&self, args: &[&str], trace: &Path) {
        let output = traced(&self.world.command(args), trace).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn add_steps(&mut self, traces: &[PathBuf]) {
        let steps = read_traces(traces, &self.root());
        self.acks.extend(steps.iter().flat_map(acks_of));
        self.steps.extend(steps);
    }

    /// Counts the power cuts, just before each sync and at the end, that break a guarantee when all unsynced data is
    /// lost. Between two syncs only the set of acknowledged messages changes.
    fn count_losses_at_every_sync(&self) -> usize {
        let (mut platter, mut acked, mut losses) = (Platter::new(&self.root()), 0, 0);
        for step in self.steps.iter().map(Some).chain([None]) {
            if matches!(step, Some(Step::Sync { .. }) | None) {
                platter.cut_power(UnsyncedData::Lost, &self.world.path("rebuilt"));
                losses += usize::from(self.is_broken(acked));
            }
            platter.apply(step.unwrap_or(&Step::Stdout { bytes: Vec::new() }));
            acked += step.map_or(0, |step| acks_of(step).len());
        }
        losses
    }

    fn check_random_cuts(&self) {
        let mut rng = SeededRng::from_env();
        let (mut platter, mut acked) = (Platter::new(&self.root()), 0);
        let mut count = FaultCount::new("power cuts");
        for (number, step) in self.steps.iter().enumerate() {
            platter.apply(step);
            acked += acks_of(step).len();
            if rng.below(self.steps.len() as u64) < RANDOM_CUTS {
                platter.cut_power(UnsyncedData::Random(&mut rng), &self.world.path("rebuilt"));
                assert!(!self.is_broken(acked), "after step {number}");
                count.add(acked);
            }
        }
        count.print();
    }

    /// Returns whether the rebuilt store breaks a guarantee, and prints which.
    fn is_broken(&self, acked: usize) -> bool {
        let broken = self.check_rebuilt(acked);
        if let Err(what) = &broken {
            eprintln!("{} of {} messages were acknowledged: {what}", acked, self.texts.len());
        }
        broken.is_err()
    }

    fn check_rebuilt(&self, acked: usize) -> Result<(), String> {
        restart_machine(&self.world.path("rebuilt"));
        let found =
            match inspect(&url(self.scheme, &store_path(self.scheme, &self.world.path("rebuilt"))), "seeded")
            {
                Err(error) if error.code() == "session.not_found" && acked == 0 => return Ok(()),
                Err(error) => return Err(format!("{}: {error}", error.code())),
                Ok(found) => found,
            };
        if found.log.len() < acked {
            return Err(format!("only {} messages are in the store", found.log.len()));
        }
        for (at, message) in found.log.iter().enumerate() {
            if message.text != self.texts[at] || message.ack != self.acks[at] {
                return Err(format!("message {} differs from the sent message", at + 1));
            }
        }
        match found.findings.iter().find(|(rule, _)| *rule != "torn") {
            Some((_, what)) => Err(format!("the doctor found {what}")),
            None => Ok(()),
        }
    }
}

/// Removes the id of the boot in which a SQLite store was used. This machine has not been restarted, but a machine after a
/// power cut has another id.
fn restart_machine(dir: &Path) {
    let head = dir.join("store.db.head");
    let Ok(text) = std::fs::read_to_string(&head) else { return };
    let lines: String =
        text.lines().filter(|line| line.starts_with("head ")).flat_map(|line| [line, "\n"]).collect();
    std::fs::write(&head, lines).unwrap();
}

/// Returns the path of the store in a directory.
fn store_path(scheme: &str, root: &Path) -> PathBuf {
    if scheme == "sqlite" { root.join("store.db") } else { root.to_owned() }
}

/// Returns the acknowledgements of a step, for the session that is written to.
fn acks_of(step: &Step) -> Vec<Ack> {
    let Step::Stdout { bytes } = step else { return Vec::new() };
    let lines = std::str::from_utf8(bytes).unwrap().lines();
    let lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap_or_default());
    let acks = lines.filter_map(|line| match line["seq"].as_u64() {
        Some(_) => Some(Ack::parse(&line.to_string())),
        None => (line["session"] == "seeded").then(|| Ack { seq: 1, id: id(1) }),
    });
    acks.collect()
}
