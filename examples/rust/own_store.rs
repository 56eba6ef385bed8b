//! A custom store: it wraps another store and counts the appended entries. The test
//! `crates/sapwood/tests/all/examples.rs` runs the conformance suite on it.
//!
//! `cargo run -p sapwood --example own_store`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sapwood::storage::{
    Append, Appended, Kind, Log, PathSlice, Record, Result, Seq, SessionId, Store, StoreOptions, StoredEntry,
    Until, open_store,
};
use sapwood::{Agent, Sapwood, Scope};

/// Counts the entries that are appended to any session.
pub struct CountingStore {
    inner: Arc<dyn Store>,
    appended: AtomicUsize,
}

impl CountingStore {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, appended: AtomicUsize::new(0) }
    }
}

sapwood::delegate_store!(
    impl Sessions, Leases, Authorities, Search, Blobs, Audit, Keys, Memories, Records, Upkeep for CountingStore => inner
);

#[sapwood::async_trait]
impl Log for CountingStore {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        let appended = self.inner.append(scope, append).await?;
        self.appended.fetch_add(appended.entries.len(), Ordering::Relaxed);
        Ok(appended)
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        self.inner.read_after(scope, session, after, limit).await
    }

    async fn read_proofs(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        self.inner.read_proofs(scope, session, after, limit).await
    }

    async fn read_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>> {
        self.inner.read_kinds(scope, session, kinds, after, limit).await
    }

    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        self.inner.read_path(scope, session, at, until).await
    }

    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>> {
        self.inner.nth_message(scope, session, leaf, count).await
    }

    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
        self.inner.read_entry(scope, session, seq).await
    }

    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>> {
        self.inner.find_entries(scope, session, id_prefix).await
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> std::result::Result<(), sapwood::Error> {
    let store = Arc::new(CountingStore::new(open_store("memory:", StoreOptions::default())?));
    let sapwood = Sapwood::with_store(store.clone())?;
    let session = sapwood.start(Agent::default()).await?;
    sapwood.send(&session, "Hello!").await?;
    println!("{} entries were appended", store.appended.load(Ordering::Relaxed));
    Ok(())
}
