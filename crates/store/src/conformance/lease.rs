//! Leases: which writer may move the leaf, when a lease ends, and what a writer that lost its lease may do.

use sapwood_core::entry::{LeafMoved, SessionNamed};
use sapwood_core::port::store::{Append, LEASE_TTL_MS_MAX, Lease, Result};
use sapwood_core::{Seq, SessionId, StoreError, TimestampMs};

use super::Harness;
use super::world::{World, ana, code, user_message};

const TTL_MS: i64 = LEASE_TTL_MS_MAX;
const HOUR_MS: i64 = 3_600_000;

async fn take(world: &World, session: &SessionId, holder: &str) -> Result<Lease> {
    world.store.take_lease(&ana(), session, holder, TTL_MS).await
}

fn fenced(world: &World, session: &SessionId, fence: Option<u64>) -> Append {
    Append { fence, ..world.append_of(session, vec![user_message("x")]) }
}

pub async fn a_lease_guards_the_leaf(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let lease = take(&world, &session, "a").await.unwrap();
    assert_eq!(lease.ttl_ms, TTL_MS);
    harness.pass_time(4_000);
    let error = world.store.append(&ana(), fenced(&world, &session, None)).await.unwrap_err();
    let StoreError::Leased { holder, remaining_ms } = error else { panic!("{error:?}") };
    assert_eq!(holder, "a");
    assert!((1..=TTL_MS - 4_000).contains(&remaining_ms), "{remaining_ms}");
    let moved = world.append_of(&session, vec![LeafMoved { to: None }.into()]);
    assert_eq!(code(world.store.append(&ana(), moved).await), "session.leased");
    let named = SessionNamed { title: "beside the tree".to_owned() };
    world.store.append(&ana(), world.append_of(&session, vec![named.into()])).await.unwrap();
    world.store.append(&ana(), fenced(&world, &session, Some(lease.fence))).await.unwrap();
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(3));
}

pub async fn a_new_holder_gets_a_higher_fence(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a").await.unwrap();
    assert_eq!(code(take(&world, &session, "b").await), "session.leased");
    harness.pass_time(TTL_MS);
    let second = take(&world, &session, "b").await.unwrap();
    assert!(second.fence > first.fence);
    let other = world.create_with(&ana(), "other", &["one"]).await;
    take(&world, &other, "a").await.unwrap();
}

pub async fn a_stale_fence_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    assert_eq!(
        code(world.store.append(&ana(), fenced(&world, &session, Some(1))).await),
        "session.stale_fence"
    );
    let first = take(&world, &session, "a").await.unwrap();
    harness.pass_time(TTL_MS);
    let second = take(&world, &session, "b").await.unwrap();
    let error = world.store.append(&ana(), fenced(&world, &session, Some(first.fence))).await.unwrap_err();
    let StoreError::StaleFence { given, current } = error else { panic!("{error:?}") };
    assert_eq!((given, current), (first.fence, second.fence));
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(1));
    world.store.append(&ana(), fenced(&world, &session, Some(second.fence))).await.unwrap();
}

pub async fn a_lease_expires(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let lease = take(&world, &session, "a").await.unwrap();
    harness.pass_time(TTL_MS / 2);
    let early = world.store.append(&ana(), fenced(&world, &session, None)).await;
    assert_eq!(code(early), "session.leased");
    harness.pass_time(TTL_MS / 2);
    world.store.append(&ana(), fenced(&world, &session, None)).await.unwrap();
    // No other holder has acquired the lease since, so its fence is still valid.
    world.store.append(&ana(), fenced(&world, &session, Some(lease.fence))).await.unwrap();
}

/// The caller's clock, which sets `Append::now`, has no effect on leases. See also
/// `a_wrong_wall_clock_does_not_affect_a_lease` in `tests/all/leases.rs`.
pub async fn the_callers_clock_does_not_affect_a_lease(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let lease = take(&world, &session, "a").await.unwrap();
    let append = |off_ms: i64| {
        let append = fenced(&world, &session, None);
        Append { now: TimestampMs(append.now.0 + off_ms), ..append }
    };
    for off_ms in [-HOUR_MS, HOUR_MS] {
        assert_eq!(code(world.store.append(&ana(), append(off_ms)).await), "session.leased", "{off_ms}");
    }
    harness.pass_time(TTL_MS);
    for off_ms in [-HOUR_MS, HOUR_MS] {
        world.store.append(&ana(), append(off_ms)).await.unwrap();
    }
    assert!(take(&world, &session, "b").await.unwrap().fence > lease.fence);
}

pub async fn a_holder_renews_and_keeps_its_fence(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a").await.unwrap();
    harness.pass_time(TTL_MS / 2);
    let renewed = take(&world, &session, "a").await.unwrap();
    assert_eq!((renewed.fence, renewed.ttl_ms), (first.fence, TTL_MS));
    harness.pass_time(TTL_MS * 3 / 4);
    assert_eq!(code(take(&world, &session, "b").await), "session.leased", "the TTL counts from the renewal");
}

pub async fn a_released_lease_is_free(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a").await.unwrap();
    world.store.release_lease(&ana(), &first).await.unwrap();
    world.store.append(&ana(), fenced(&world, &session, None)).await.unwrap();
    let second = take(&world, &session, "b").await.unwrap();
    assert!(second.fence > first.fence);
    // Releasing a lost lease is not an error and has no effect.
    world.store.release_lease(&ana(), &first).await.unwrap();
    assert_eq!(code(take(&world, &session, "c").await), "session.leased");
}

pub async fn a_lease_needs_a_holder_and_a_valid_ttl(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    assert_eq!(code(take(&world, &session, "").await), "input.invalid");
    let ana = ana();
    let take = |ttl_ms| world.store.take_lease(&ana, &session, "a", ttl_ms);
    assert_eq!(code(take(0).await), "input.invalid");
    assert_eq!(code(take(-5).await), "input.invalid");
    assert_eq!(code(take(LEASE_TTL_MS_MAX + 1).await), "input.too_large");
    assert_eq!(code(take(i64::MAX).await), "input.too_large");
    take(LEASE_TTL_MS_MAX).await.unwrap();
}

pub async fn fences_survive_reopening(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a").await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(code(take(&world, &session, "b").await), "session.leased");
    world.store.append(&ana(), fenced(&world, &session, Some(first.fence))).await.unwrap();
    world.store.release_lease(&ana(), &first).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert!(take(&world, &session, "b").await.unwrap().fence > first.fence);
}
