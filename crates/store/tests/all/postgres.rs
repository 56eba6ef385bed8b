//! The PostgreSQL store: the suite, on a server of the tests' own.

use std::sync::Arc;

use sapwood_core::Store;
use sapwood_store::conformance::Harness;
use sapwood_store::conformance::cluster;
use sapwood_store::postgres::PgStore;

/// An empty database of its own.
struct OneDatabase(String);

impl OneDatabase {
    fn new() -> Self {
        Self(cluster::shared().new_database())
    }
}

impl Harness for OneDatabase {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PgStore::open(&self.0).unwrap())
    }
    fn persists(&self) -> bool {
        true
    }
}

mod suite {
    use super::OneDatabase;
    sapwood_store::conformance_tests!(OneDatabase::new());
}
