//! Runs the programs in `examples/rust`, and the conformance suite on the example of a custom store.

use std::sync::Arc;

use sapwood::storage::Store;
use sapwood::store::conformance::Harness;
use sapwood::store::conformance::clock::ManualClock;
use sapwood::store::in_memory::MemoryStore;

#[path = "../../../../examples/rust/own_model.rs"]
mod own_model;
#[path = "../../../../examples/rust/own_store.rs"]
mod own_store;
#[path = "../../../../examples/rust/own_tool.rs"]
mod own_tool;
#[path = "../../../../examples/rust/subscribe.rs"]
mod subscribe;

#[test]
fn the_example_programs_run() {
    own_model::main().unwrap();
    own_tool::main().unwrap();
    own_store::main().unwrap();
    subscribe::main().unwrap();
}

#[derive(Default)]
struct Counting(Arc<ManualClock>);

impl Harness for Counting {
    async fn open(&self) -> Arc<dyn Store> {
        let inner = MemoryStore::with_cap(10_000).with_lease_clock(self.0.clone());
        Arc::new(own_store::CountingStore::new(Arc::new(inner)))
    }
    fn persists(&self) -> bool {
        false
    }
    fn pass_time(&self, ms: i64) {
        self.0.pass(ms);
    }
}

sapwood_store::conformance_tests!(Counting::default());
