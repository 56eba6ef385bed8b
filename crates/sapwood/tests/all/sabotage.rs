//! Tests of the checks themselves: stores with one deliberate defect each, under the simulation and under the
//! history checker. Each defect must be detected, with a matching message.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use sapwood::core::port::store::{Append, Appended, Expect, Lease, Result, Store};
use sapwood::core::tree::Head;
use sapwood::core::{EntryId, Scope, StoreError};
use sapwood::store::in_memory::MemoryStore;
use sapwood::{Seq, SessionId};
use sapwood_store::conformance::clock::ManualClock;
use sapwood_store::conformance::{Harness, block_on, history};

use super::faulty::{FaultInjector, FaultyStore, SeededRng};
use super::simulate::simulate;

/// Number of seeds within which the simulation must detect a defect.
const SEEDS: u64 = 25;
/// Number of histories within which the history checker must detect a defect.
const HISTORIES: u64 = 10;

/// A defect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Accepts writes with a stale fence.
    AcceptsStaleFences,
    /// Sometimes acknowledges an append without writing it.
    LosesAppends,
    /// Sometimes writes an append twice.
    DoublesAppends,
    /// Refuses an append because of a conflict, but writes it anyway.
    WritesRefusedAppends,
}

/// Intermittent defects affect one in this many appends.
const ONE_IN: u64 = 12;

/// One defect, shared by all users of the store.
pub struct Sabotage {
    defect: Defect,
    rng: SeededRng,
    /// The newest fence of each session.
    fences: Mutex<HashMap<SessionId, u64>>,
}

impl Sabotage {
    pub fn new(defect: Defect, seed: u64) -> Self {
        Self { defect, rng: SeededRng::new(seed ^ 0xfa17), fences: Mutex::default() }
    }

    pub fn note_lease(&self, lease: &Lease) {
        self.fences.lock().unwrap().insert(lease.session.clone(), lease.fence);
    }

    pub async fn append(&self, store: &dyn Store, scope: &Scope, mut append: Append) -> Result<Appended> {
        let is_affected = self.rng.below(ONE_IN) == 0;
        match self.defect {
            Defect::AcceptsStaleFences => {
                if append.fence.is_some() {
                    append.fence = self.fences.lock().unwrap().get(&append.session).copied();
                }
                store.append(scope, append).await
            }
            Defect::LosesAppends if is_affected => self.fake_append(store, scope, &append).await,
            Defect::DoublesAppends if is_affected => {
                let again = Append { idempotency_key: None, expect: Expect::Any, ..append.clone() };
                let answer = store.append(scope, append).await?;
                let _ = store.append(scope, again).await;
                Ok(answer)
            }
            // Only appends that may be refused: with an expected head and without an idempotency key.
            Defect::WritesRefusedAppends
                if append.expect != Expect::Any && append.idempotency_key.is_none() =>
            {
                let actual = store.append(scope, append).await?.head.seq;
                Err(StoreError::Conflict { expected: Seq::ZERO, actual })
            }
            _ => store.append(scope, append).await,
        }
    }

    /// Build the answer of a successful append without writing.
    async fn fake_append(&self, store: &dyn Store, scope: &Scope, append: &Append) -> Result<Appended> {
        let head = store.summary(scope, &append.session).await?.head;
        let mint =
            |number: usize| (Seq(head.seq.0 + 1 + number as u32), EntryId::mint(append.now, self.rng.bits()));
        let entries: Vec<_> = (0..append.drafts.len()).map(mint).collect();
        let last = entries.last().map_or(head.seq, |(seq, _)| *seq);
        Ok(Appended { head: Head { seq: last, leaf: Some(last) }, entries })
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// The panic message of the first seed for which the simulation detects the defect.
fn simulation_failure(defect: Defect) -> Option<String> {
    (1..=SEEDS).find_map(|seed| {
        let sabotage = Sabotage::new(defect, seed);
        let simulated = std::panic::catch_unwind(AssertUnwindSafe(|| simulate(seed, Some(sabotage))));
        simulated.err().map(|panic| panic_message(&*panic))
    })
}

/// A harness for a store with one defect.
struct DefectiveStore(Defect, Arc<ManualClock>);

impl Harness for DefectiveStore {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(FaultyStore {
            inner: Arc::new(MemoryStore::with_cap(1_000).with_lease_clock(self.1.clone())),
            injector: FaultInjector::new(SeededRng::new(1), 0),
            written: Arc::default(),
            sabotage: Some(Arc::new(Sabotage::new(self.0, 1))),
        })
    }
    fn persists(&self) -> bool {
        false
    }
    fn pass_time(&self, ms: i64) {
        self.1.pass(ms);
    }
}

/// The message with which the history checker detects a defect. Its clients are threads, so a run may miss
/// the defect.
fn history_failure(defect: Defect) -> Option<String> {
    let check = || {
        block_on(history::the_log_matches_what_clients_observed(&DefectiveStore(defect, ManualClock::new())))
    };
    let attempt =
        |_| std::panic::catch_unwind(AssertUnwindSafe(check)).err().map(|panic| panic_message(&*panic));
    (0..HISTORIES).find_map(attempt)
}

fn assert_detected(message: Option<String>, any_of: &[&str]) {
    let message = message.expect("the defect was not detected");
    assert!(any_of.iter().any(|text| message.contains(text)), "{message}");
}

#[test]
fn the_simulation_detects_a_store_that_accepts_stale_fences() {
    let found =
        ["a stale fence was written", "ran twice", "ended twice", "exactly one end", "has two results"];
    assert_detected(simulation_failure(Defect::AcceptsStaleFences), &found);
}

#[test]
fn the_simulation_detects_a_lost_acknowledged_append() {
    let found = ["was acknowledged", "ran twice", "exactly one end", "without its call", "has two results"];
    assert_detected(simulation_failure(Defect::LosesAppends), &found);
}

#[test]
fn the_simulation_detects_an_append_that_is_written_twice() {
    let found = ["was acknowledged", "logged twice", "ended twice", "exactly one end", "has two results"];
    assert_detected(simulation_failure(Defect::DoublesAppends), &found);
}

#[test]
fn the_history_checker_detects_a_store_that_accepts_stale_fences() {
    assert_detected(history_failure(Defect::AcceptsStaleFences), &["a stale fence was written"]);
}

#[test]
fn the_history_checker_detects_a_lost_acknowledged_append() {
    let found = [
        "acknowledged, but not in the log",
        "was acknowledged",
        "a key gives the first answer",
        "a repeated append gets the first answer",
    ];
    assert_detected(history_failure(Defect::LosesAppends), &found);
}

#[test]
fn the_history_checker_detects_an_append_that_is_written_twice() {
    let found = ["an append was written twice", "entries that were never acknowledged"];
    assert_detected(history_failure(Defect::DoublesAppends), &found);
}

#[test]
fn the_history_checker_detects_a_refused_append_that_is_written() {
    assert_detected(history_failure(Defect::WritesRefusedAppends), &["refused, but written"]);
}
