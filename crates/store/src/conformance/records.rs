//! Records of a tenant, and the spending of each day.

use sapwood_core::TimestampMs;
use sapwood_core::port::records::{RECORD_VALUE_BYTES_MAX, RecordKind, SPENDING_DAYS_KEPT, Spent};
use sapwood_core::port::store::{AuditAction, AuditNote};

use super::Harness;
use super::world::{World, ana, code, foreign_ana, operator};

fn note(detail: &str) -> AuditNote {
    AuditNote { action: AuditAction::TenantChange, session: None, detail: Some(detail.to_owned()) }
}

async fn put(world: &World, kind: RecordKind, name: &str, value: Option<&str>) {
    let value = value.map(str::to_owned);
    world.store.put_record(&operator(), kind, name, value, note(name), TimestampMs(5)).await.unwrap();
}

async fn listed(world: &World, kind: RecordKind) -> Vec<(String, String)> {
    let records = world.store.list_records(&operator(), kind).await.unwrap();
    assert!(records.iter().all(|record| record.kind == kind));
    records.into_iter().map(|record| (record.name, record.value)).collect()
}

pub async fn records_are_put_replaced_removed_and_audited(harness: &impl Harness) {
    let world = World::open(harness).await;
    put(&world, RecordKind::Hold, "user:é \"q\"", Some("{\"a\":1}")).await;
    put(&world, RecordKind::Hold, "session:s", Some("{}")).await;
    put(&world, RecordKind::Retention, "tenant", Some("{}")).await;
    put(&world, RecordKind::Hold, "session:s", Some("{\"b\":2}")).await;
    put(&world, RecordKind::Hold, "session:never", None).await;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [pair("session:s", "{\"b\":2}"), pair("user:é \"q\"", "{\"a\":1}")];
    assert_eq!(listed(&world, RecordKind::Hold).await, expected);
    assert_eq!(listed(&world, RecordKind::Retention).await, [pair("tenant", "{}")]);
    put(&world, RecordKind::Hold, "session:s", None).await;
    assert_eq!(listed(&world, RecordKind::Hold).await, expected[1..]);
    assert!(world.store.list_records(&foreign_ana(), RecordKind::Hold).await.unwrap().is_empty());
    let lines = world.store.read_audit(&operator(), None, 0, 100).await.unwrap();
    let details: Vec<&str> = lines.iter().filter_map(|line| line.detail.as_deref()).collect();
    assert_eq!(details.iter().filter(|detail| **detail == "session:s").count(), 3);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(listed(&world, RecordKind::Hold).await, expected[1..]);
}

pub async fn a_record_that_is_too_large_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let value = Some("x".repeat(RECORD_VALUE_BYTES_MAX + 1));
    let refused =
        world.store.put_record(&operator(), RecordKind::Notice, "n", value, note("n"), TimestampMs(5)).await;
    assert_eq!(code(refused), "input.too_large");
    assert!(listed(&world, RecordKind::Notice).await.is_empty());
}

pub async fn spending_is_added_up_per_day_and_holder(harness: &impl Harness) {
    let world = World::open(harness).await;
    let holders = ["user:ana".to_owned(), "tenant".to_owned()];
    let one = Spent { tokens: 3, nano_usd: 5 };
    for _ in 0..3 {
        world.store.add_spent(&ana(), 100, &holders, one).await.unwrap();
    }
    world.store.add_spent(&ana(), 101, &holders[1..], one).await.unwrap();
    world.store.add_spent(&foreign_ana(), 100, &holders, one).await.unwrap();
    let three = Spent { tokens: 9, nano_usd: 15 };
    for (day, holder, expected) in [
        (100, "user:ana", three),
        (100, "tenant", three),
        (101, "tenant", one),
        (101, "user:ana", Spent::default()),
        (100, "user:bob", Spent::default()),
    ] {
        assert_eq!(world.store.spent(&ana(), day, holder).await.unwrap(), expected, "{day} {holder}");
    }
    assert_eq!(world.store.spent(&foreign_ana(), 100, "tenant").await.unwrap(), one);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.store.spent(&ana(), 100, "tenant").await.unwrap(), three);
    let later = 101 + SPENDING_DAYS_KEPT + 1;
    world.store.add_spent(&ana(), later, &holders, one).await.unwrap();
    assert_eq!(world.store.spent(&ana(), 100, "tenant").await.unwrap(), Spent::default());
    assert_eq!(world.store.spent(&ana(), later, "tenant").await.unwrap(), one);
}

pub async fn concurrent_spending_is_not_lost(harness: &impl Harness) {
    const CALLS: u64 = 24;
    let world = World::open(harness).await;
    let holders = ["user:ana".to_owned(), "tenant".to_owned()];
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CALLS {
        let (store, holders) = (world.store.clone(), holders.clone());
        let one = Spent { tokens: 1, nano_usd: 2 };
        calls.spawn(async move { store.add_spent(&ana(), 7, &holders, one).await });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap().unwrap();
    }
    let spent = world.store.spent(&ana(), 7, "tenant").await.unwrap();
    assert_eq!(spent, Spent { tokens: CALLS, nano_usd: 2 * CALLS });
}
