//! The SQLite store: the suite, plain and (with the feature) encrypted.

use std::sync::Arc;

use sapwood_core::Store;
use sapwood_store::conformance::Harness;
use sapwood_store::sqlite::SqliteStore;
use sapwood_store::{Durability, Key, OpenOptions};
use tempfile::TempDir;

/// Durability does not change what a store answers, and without syncs the suite is quick.
pub struct OneFile {
    dir: TempDir,
    key: Option<Key>,
}

impl OneFile {
    pub fn plain() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), key: None }
    }
    #[cfg(feature = "encryption")]
    fn encrypted() -> Self {
        Self { key: Some(Key::new("correct horse battery staple".to_owned())), ..Self::plain() }
    }
}

impl Harness for OneFile {
    async fn open(&self) -> Arc<dyn Store> {
        let options = OpenOptions { durability: Durability::Normal, key: self.key.clone() };
        Arc::new(SqliteStore::open(self.dir.path().join("sapwood.db"), options).unwrap())
    }
    fn persists(&self) -> bool {
        true
    }
}

mod plain {
    use super::OneFile;
    sapwood_store::conformance_tests!(OneFile::plain());
}

#[cfg(feature = "encryption")]
mod encrypted {
    use super::OneFile;
    sapwood_store::conformance_tests!(OneFile::encrypted());
}
