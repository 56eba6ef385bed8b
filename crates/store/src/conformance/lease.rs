//! Leases: who may move the leaf, until when, and what becomes of those who lost it.

use sapwood_core::entry::{LeafMoved, SessionNamed};
use sapwood_core::port::store::{Append, Lease, Result};
use sapwood_core::{Seq, SessionId, StoreError, TimestampMs};

use super::Harness;
use super::world::{World, ana, code, said};

const TTL_MS: i64 = 10_000;
const T0: TimestampMs = TimestampMs(1_900_000_000_000);

fn later(ms: i64) -> TimestampMs {
    TimestampMs(T0.0 + ms)
}

async fn take(world: &World, session: &SessionId, holder: &str, now: TimestampMs) -> Result<Lease> {
    world.store.take_lease(&ana(), session, holder, TTL_MS, now).await
}

fn fenced(world: &World, session: &SessionId, fence: Option<u64>, now: TimestampMs) -> Append {
    Append { fence, now, ..world.append_of(session, vec![said("x")]) }
}

pub async fn a_lease_guards_the_leaf(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let lease = take(&world, &session, "a", T0).await.unwrap();
    assert_eq!(lease.expires_at, later(TTL_MS));
    let error = world.store.append(&ana(), fenced(&world, &session, None, later(4_000))).await.unwrap_err();
    let StoreError::Leased { holder, remaining_ms } = error else { panic!("{error:?}") };
    assert_eq!((holder.as_str(), remaining_ms), ("a", 6_000));
    let moved = Append { now: later(1), ..world.append_of(&session, vec![LeafMoved { to: None }.into()]) };
    assert_eq!(code(world.store.append(&ana(), moved).await), "session.leased");
    let named = SessionNamed { title: "beside the tree".to_owned() };
    let named = Append { now: later(1), ..world.append_of(&session, vec![named.into()]) };
    world.store.append(&ana(), named).await.unwrap();
    world.store.append(&ana(), fenced(&world, &session, Some(lease.fence), later(1))).await.unwrap();
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(3));
}

pub async fn a_fence_grows_when_the_lease_changes_hands(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a", T0).await.unwrap();
    assert_eq!(code(take(&world, &session, "b", later(1)).await), "session.leased");
    let second = take(&world, &session, "b", later(TTL_MS)).await.unwrap();
    assert!(second.fence > first.fence);
    let other = world.told(&ana(), "other", &["one"]).await;
    take(&world, &other, "a", T0).await.unwrap();
}

pub async fn a_stale_fence_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    assert_eq!(
        code(world.store.append(&ana(), fenced(&world, &session, Some(1), T0)).await),
        "session.stale_fence"
    );
    let first = take(&world, &session, "a", T0).await.unwrap();
    let second = take(&world, &session, "b", later(TTL_MS)).await.unwrap();
    let now = later(TTL_MS + 1);
    let error =
        world.store.append(&ana(), fenced(&world, &session, Some(first.fence), now)).await.unwrap_err();
    let StoreError::StaleFence { given, current } = error else { panic!("{error:?}") };
    assert_eq!((given, current), (first.fence, second.fence));
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(1));
    world.store.append(&ana(), fenced(&world, &session, Some(second.fence), now)).await.unwrap();
}

pub async fn a_lease_ends_by_time(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let lease = take(&world, &session, "a", T0).await.unwrap();
    let late = world.store.append(&ana(), fenced(&world, &session, None, later(TTL_MS - 1))).await;
    assert_eq!(code(late), "session.leased");
    world.store.append(&ana(), fenced(&world, &session, None, later(TTL_MS))).await.unwrap();
    // Nobody took it since, so its holder has lost nothing yet.
    world.store.append(&ana(), fenced(&world, &session, Some(lease.fence), later(TTL_MS))).await.unwrap();
}

pub async fn a_holder_renews_and_keeps_its_fence(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a", T0).await.unwrap();
    let renewed = take(&world, &session, "a", later(TTL_MS - 1)).await.unwrap();
    assert_eq!((renewed.fence, renewed.expires_at), (first.fence, later(2 * TTL_MS - 1)));
    assert_eq!(code(take(&world, &session, "b", later(TTL_MS)).await), "session.leased");
}

pub async fn a_released_lease_is_free(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a", T0).await.unwrap();
    world.store.release_lease(&ana(), &first).await.unwrap();
    world.store.append(&ana(), fenced(&world, &session, None, later(1))).await.unwrap();
    let second = take(&world, &session, "b", later(1)).await.unwrap();
    assert!(second.fence > first.fence);
    // Giving back what is lost already is no error, and frees nothing.
    world.store.release_lease(&ana(), &first).await.unwrap();
    assert_eq!(code(take(&world, &session, "c", later(2)).await), "session.leased");
}

pub async fn a_lease_without_holder_or_time_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    assert_eq!(code(take(&world, &session, "", T0).await), "input.invalid");
    assert_eq!(code(world.store.take_lease(&ana(), &session, "a", 0, T0).await), "input.invalid");
    assert_eq!(code(world.store.take_lease(&ana(), &session, "a", -5, T0).await), "input.invalid");
    let forever = world.store.take_lease(&ana(), &session, "a", i64::MAX, T0).await.unwrap();
    assert!(forever.expires_at > T0);
}

pub async fn fences_live_on_after_reopening(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.told(&ana(), "s", &["one"]).await;
    let first = take(&world, &session, "a", T0).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(code(take(&world, &session, "b", later(1)).await), "session.leased");
    world.store.append(&ana(), fenced(&world, &session, Some(first.fence), later(1))).await.unwrap();
    world.store.release_lease(&ana(), &first).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert!(take(&world, &session, "b", later(2)).await.unwrap().fence > first.fence);
}
