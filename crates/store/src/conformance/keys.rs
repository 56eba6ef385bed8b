//! API keys and tenants. Stores keep only the hash of a key's secret and find the key by this hash. A
//! revoked key stays revoked. Keys never cross tenants.

use sapwood_core::port::keys::{ApiKey, Grant};
use sapwood_core::{BlobHash, Scope, TimestampMs};

use super::Harness;
use super::world::{World, ana, bob, code, foreign_ana, operator};

fn key_of(scope: &Scope, id: &str) -> ApiKey {
    ApiKey {
        id: id.to_owned(),
        tenant: scope.tenant.clone(),
        user: scope.principal.to_string().trim_start_matches("user:").parse().unwrap(),
        hash: BlobHash::of(id.as_bytes()),
        label: Some("é \"quoted\"".to_owned()),
        grants: vec![Grant::Read],
        created_at: TimestampMs(5),
        expires_at: Some(TimestampMs(50)),
        revoked_at: None,
    }
}

pub async fn a_key_is_found_by_its_hash_and_listed_for_its_owner(harness: &impl Harness) {
    let world = World::open(harness).await;
    assert!(!world.store.has_keys().await.unwrap());
    let (hers, his, foreign) =
        (key_of(&ana(), "hers"), key_of(&bob(), "his"), key_of(&foreign_ana(), "foreign"));
    for (scope, key) in [(ana(), &hers), (bob(), &his), (foreign_ana(), &foreign)] {
        world.store.put_key(&scope, key.clone()).await.unwrap();
    }
    assert!(world.store.has_keys().await.unwrap());
    assert_eq!(world.store.find_key(hers.hash).await.unwrap(), Some(hers.clone()));
    assert_eq!(world.store.find_key(BlobHash::of(b"never")).await.unwrap(), None);
    assert_eq!(world.store.list_keys(&ana()).await.unwrap(), std::slice::from_ref(&hers));
    assert_eq!(world.store.list_keys(&operator()).await.unwrap(), [hers, his]);
    assert_eq!(world.store.list_keys(&foreign_ana()).await.unwrap(), [foreign]);
}

pub async fn a_key_is_revoked_by_its_owner_and_stays_revoked(harness: &impl Harness) {
    let world = World::open(harness).await;
    let key = key_of(&ana(), "hers");
    world.store.put_key(&ana(), key.clone()).await.unwrap();
    for stranger in [bob(), foreign_ana()] {
        assert_eq!(code(world.store.revoke_key(&stranger, "hers", TimestampMs(9)).await), "key.not_found");
    }
    assert!(world.store.find_key(key.hash).await.unwrap().unwrap().is_valid(TimestampMs(49)));
    world.store.revoke_key(&ana(), "hers", TimestampMs(9)).await.unwrap();
    world.store.revoke_key(&operator(), "hers", TimestampMs(99)).await.unwrap();
    let found = world.store.find_key(key.hash).await.unwrap().unwrap();
    assert_eq!((found.revoked_at, found.is_valid(TimestampMs(10))), (Some(TimestampMs(9)), false));
    let lines = world.store.read_audit(&operator(), None, 0, 100).await.unwrap();
    let details: Vec<&str> = lines.iter().filter_map(|line| line.detail.as_deref()).collect();
    assert!(details.iter().any(|detail| detail.starts_with("created key hers")), "{details:?}");
    assert!(details.iter().any(|detail| detail.starts_with("revoked key hers")), "{details:?}");
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.store.find_key(key.hash).await.unwrap(), Some(found));
}

pub async fn tenants_are_listed_after_creation(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.store.put_tenant(&foreign_ana(), TimestampMs(5)).await.unwrap();
    world.create(&ana(), "s").await;
    let tenants = world.store.list_tenants().await.unwrap();
    assert!(tenants.contains(&foreign_ana().tenant), "{tenants:?}");
}
