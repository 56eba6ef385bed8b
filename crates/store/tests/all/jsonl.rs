//! Run the conformance suite on the JSONL store.

use std::sync::Arc;

use sapwood_core::Store;
use sapwood_store::Durability;
use sapwood_store::conformance::Harness;
use sapwood_store::conformance::clock::ManualClock;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore};

struct InFiles {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl InFiles {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), clock: ManualClock::new() }
    }
}

impl Harness for InFiles {
    async fn open(&self) -> Arc<dyn Store> {
        // Syncs would only slow these cases down.
        let options = JsonlOptions { durability: Durability::Normal, ..JsonlOptions::default() };
        let store = JsonlStore::open(self.dir.path().join("sessions"), options).unwrap();
        Arc::new(store.with_lease_clock(self.clock.clone()))
    }
    fn persists(&self) -> bool {
        true
    }
    fn pass_time(&self, ms: i64) {
        self.clock.pass(ms);
    }
}

sapwood_store::conformance_tests!(InFiles::new());
