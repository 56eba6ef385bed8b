//! Run the conformance suite on the in-memory store, and test its session limit.

use std::sync::Arc;

use sapwood_core::port::store::{Append, NewSession, Sessions};
use sapwood_core::{Draft, Scope, SessionId, Store, TenantId, TimestampMs};
use sapwood_store::conformance::clock::ManualClock;
use sapwood_store::conformance::{Harness, block_on};
use sapwood_store::in_memory::MemoryStore;

#[derive(Default)]
struct InMemory(Arc<ManualClock>);

impl Harness for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::with_cap(10_000).with_lease_clock(self.0.clone()))
    }
    fn persists(&self) -> bool {
        false
    }
    fn pass_time(&self, ms: i64) {
        self.0.pass(ms);
    }
}

sapwood_store::conformance_tests!(InMemory::default());

fn ana() -> Scope {
    Scope::user(TenantId::local(), "ana".parse().unwrap())
}

fn id(name: &str) -> SessionId {
    name.parse().unwrap()
}

async fn create(store: &MemoryStore, scope: &Scope, name: &str) {
    store.create(scope, NewSession::new(id(name), TimestampMs(1))).await.unwrap();
}

async fn exists(store: &MemoryStore, scope: &Scope, name: &str) -> bool {
    store.summary(scope, &id(name)).await.is_ok()
}

#[test]
fn the_least_recently_used_session_is_evicted_at_the_limit() {
    block_on(async {
        let store = MemoryStore::with_cap(3);
        for name in ["a", "b", "c"] {
            create(&store, &ana(), name).await;
        }
        assert!(exists(&store, &ana(), "a").await);
        create(&store, &ana(), "d").await;
        assert!(!exists(&store, &ana(), "b").await);
        for name in ["a", "c", "d"] {
            assert!(exists(&store, &ana(), name).await, "{name}");
        }
    });
}

#[test]
fn the_default_limit_is_128_sessions_across_all_tenants() {
    block_on(async {
        let store = MemoryStore::new();
        let other = Scope::user("other".parse().unwrap(), "ana".parse().unwrap());
        for number in 0..129 {
            let scope = if number % 2 == 0 { ana() } else { other.clone() };
            create(&store, &scope, &format!("s{number}")).await;
        }
        assert!(!exists(&store, &ana(), "s0").await);
        assert!(exists(&store, &other, "s1").await && exists(&store, &ana(), "s128").await);
    });
}

#[test]
fn a_fork_outlives_its_evicted_source() {
    use sapwood_core::port::store::{Fork, Log};
    block_on(async {
        let store = MemoryStore::with_cap(1);
        create(&store, &ana(), "source").await;
        let drafts: Vec<Draft> = sapwood_core::fixture::drafts("u1 a2 u3");
        store.append(&ana(), Append::new(id("source"), TimestampMs(1), drafts)).await.unwrap();
        let new = NewSession::new(id("fork"), TimestampMs(1));
        let fork = Fork { source: id("source"), at: None, new, drafts: Vec::new() };
        store.fork(&ana(), fork).await.unwrap();
        assert!(!exists(&store, &ana(), "source").await);
        let log = store.read_after(&ana(), &id("fork"), sapwood_core::Seq::ZERO, 10).await.unwrap();
        assert_eq!(log.len(), 3);
        store.evict(&ana(), &id("fork")).unwrap();
        assert!(!exists(&store, &ana(), "fork").await);
    });
}
