//! Whether the checks can fail at all: stores that are broken on purpose, one way each, under the simulation and under the
//! checker of histories. Each of them has to be found out, and by what it did.

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

use super::faulty::{Dice, Fate, Faulty};
use super::simulate::simulate;

/// Seeds within which the simulation has to notice.
const SEEDS: u64 = 25;
/// Histories within which their checker has to.
const HISTORIES: u64 = 10;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Whoever once had the lease may write.
    TakesStaleFences,
    /// Now and then an append is acknowledged and not written.
    LosesAppends,
    /// Now and then an append is written twice.
    DoublesAppends,
    /// An append behind a head is refused and written all the same.
    WritesWhatItRefuses,
}

/// Of so many appends one meets the fault, where it is not every one.
const ONE_IN: u64 = 12;

/// One fault, shared by all who use the store.
pub struct Sabotage {
    fault: Fault,
    dice: Dice,
    /// The newest fence of each session.
    fences: Mutex<HashMap<SessionId, u64>>,
}

impl Sabotage {
    pub fn new(fault: Fault, seed: u64) -> Self {
        Self { fault, dice: Dice::new(seed ^ 0xfa17), fences: Mutex::default() }
    }

    pub fn note_lease(&self, lease: &Lease) {
        self.fences.lock().unwrap().insert(lease.session.clone(), lease.fence);
    }

    pub async fn append(&self, store: &dyn Store, scope: &Scope, mut append: Append) -> Result<Appended> {
        let happens = self.dice.below(ONE_IN) == 0;
        match self.fault {
            Fault::TakesStaleFences => {
                if append.fence.is_some() {
                    append.fence = self.fences.lock().unwrap().get(&append.session).copied();
                }
                store.append(scope, append).await
            }
            Fault::LosesAppends if happens => self.pretend(store, scope, &append).await,
            Fault::DoublesAppends if happens => {
                let again = Append { idempotency_key: None, expect: Expect::Any, ..append.clone() };
                let answer = store.append(scope, append).await?;
                let _ = store.append(scope, again).await;
                Ok(answer)
            }
            // Where it may be refused: behind another head, and not as the repetition of what was answered.
            Fault::WritesWhatItRefuses
                if append.expect != Expect::Any && append.idempotency_key.is_none() =>
            {
                let actual = store.append(scope, append).await?.head.seq;
                Err(StoreError::Conflict { expected: Seq::ZERO, actual })
            }
            _ => store.append(scope, append).await,
        }
    }

    /// The answer that an append would get.
    async fn pretend(&self, store: &dyn Store, scope: &Scope, append: &Append) -> Result<Appended> {
        let head = store.summary(scope, &append.session).await?.head;
        let mint = |number: usize| {
            (Seq(head.seq.0 + 1 + number as u32), EntryId::mint(append.now, self.dice.bits()))
        };
        let entries: Vec<_> = (0..append.drafts.len()).map(mint).collect();
        let last = entries.last().map_or(head.seq, |(seq, _)| *seq);
        Ok(Appended { head: Head { seq: last, leaf: Some(last) }, entries })
    }
}

/// What somebody who panicked said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// What the simulation says of a fault: of the first seed that shows it.
fn simulation_says(fault: Fault) -> Option<String> {
    (1..=SEEDS).find_map(|seed| {
        let sabotage = Sabotage::new(fault, seed);
        let simulated = std::panic::catch_unwind(AssertUnwindSafe(|| simulate(seed, Some(sabotage))));
        simulated.err().map(|panic| words_of(&*panic))
    })
}

struct Broken(Fault, Arc<ManualClock>);

impl Harness for Broken {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(Faulty {
            inner: Arc::new(MemoryStore::with_cap(1_000).with_lease_clock(self.1.clone())),
            fate: Fate::new(Dice::new(1), 0),
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

/// What the checker of histories says of a fault. Its clients are threads, so a run may happen to miss it.
fn history_says(fault: Fault) -> Option<String> {
    let check =
        || block_on(history::the_log_matches_what_clients_observed(&Broken(fault, ManualClock::new())));
    let try_it = |_| std::panic::catch_unwind(AssertUnwindSafe(check)).err().map(|panic| words_of(&*panic));
    (0..HISTORIES).find_map(try_it)
}

fn assert_says(said: Option<String>, any_of: &[&str]) {
    let said = said.expect("nobody noticed");
    assert!(any_of.iter().any(|words| said.contains(words)), "{said}");
}

#[test]
fn the_simulation_notices_a_store_that_takes_stale_fences() {
    let found = ["a stale fence wrote", "ran twice", "ended twice", "has one end", "has two results"];
    assert_says(simulation_says(Fault::TakesStaleFences), &found);
}

#[test]
fn the_simulation_notices_an_acknowledged_append_that_is_lost() {
    let found = ["was acknowledged", "ran twice", "has one end", "without its call", "has two results"];
    assert_says(simulation_says(Fault::LosesAppends), &found);
}

#[test]
fn the_simulation_notices_an_append_that_is_written_twice() {
    let found = ["was acknowledged", "said twice", "ended twice", "has one end", "has two results"];
    assert_says(simulation_says(Fault::DoublesAppends), &found);
}

#[test]
fn the_history_checker_notices_a_store_that_takes_stale_fences() {
    assert_says(history_says(Fault::TakesStaleFences), &["a stale fence wrote"]);
}

#[test]
fn the_history_checker_notices_an_acknowledged_append_that_is_lost() {
    let found = [
        "acknowledged, and not there",
        "somebody was told of",
        "a key gives the first answer",
        "what was written is answered again",
    ];
    assert_says(history_says(Fault::LosesAppends), &found);
}

#[test]
fn the_history_checker_notices_an_append_that_is_written_twice() {
    let found = ["something was written twice", "who does not know of it"];
    assert_says(history_says(Fault::DoublesAppends), &found);
}

#[test]
fn the_history_checker_notices_what_is_refused_and_written() {
    assert_says(history_says(Fault::WritesWhatItRefuses), &["refused, and written"]);
}
