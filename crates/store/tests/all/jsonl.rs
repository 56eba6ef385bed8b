//! The JSONL store: the suite.

use std::sync::Arc;

use sapwood_core::Store;
use sapwood_store::Durability;
use sapwood_store::conformance::Harness;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore};

struct InFiles(tempfile::TempDir);

impl Harness for InFiles {
    async fn open(&self) -> Arc<dyn Store> {
        // Thousands of syncs say nothing about these cases.
        let options = JsonlOptions { durability: Durability::Normal, ..JsonlOptions::default() };
        Arc::new(JsonlStore::open(self.0.path().join("sessions"), options).unwrap())
    }
    fn persists(&self) -> bool {
        true
    }
}

sapwood_store::conformance_tests!(InFiles(tempfile::tempdir().unwrap()));
