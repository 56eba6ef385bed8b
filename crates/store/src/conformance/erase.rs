//! Erasing deletes the data and leaves forks intact.

use sapwood_core::StoreError;
use sapwood_core::entry::LeafMoved;
use sapwood_core::port::store::{AuditAction, Created, ListFilter, SearchQuery, Until};

use super::Harness;
use super::world::{World, ana, code, id, operator, user_message};

fn needle() -> SearchQuery {
    SearchQuery { text: "needle".to_owned(), limit: 10, ..SearchQuery::default() }
}

pub async fn an_erased_session_is_not_found(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["needle"]).await;
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    let error = world.store.summary(&ana(), &session).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSession { session: ref gone } if *gone == session), "{error:?}");
    assert_eq!(
        code(world.store.read_path(&operator(), &session, None, Until::Root).await),
        "session.not_found"
    );
    assert_eq!(code(world.try_append(&ana(), &session, vec![user_message("x")]).await), "session.not_found");
    assert_eq!(code(world.store.erase(&ana(), &session, world.now()).await), "session.not_found");
    assert!(world.store.list(&operator(), &ListFilter::default()).await.unwrap().items.is_empty());
    assert!(world.store.search(&operator(), &needle()).await.unwrap().items.is_empty());
}

pub async fn forks_are_intact_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2", "3", "4"]).await;
    let back = LeafMoved { to: world.log(&ana(), &source).await.first().map(|record| record.meta.id) };
    world.append(&ana(), &source, vec![back.into(), user_message("other branch")]).await;
    let early = world.fork(&ana(), &source, Some(2), "early").await;
    let other = world.fork(&ana(), &source, None, "other").await;
    world.append_text(&ana(), &early, "own").await;
    let mut before = Vec::new();
    for fork in [&early, &other] {
        before.push((world.log(&ana(), fork).await, world.summary(&ana(), fork).await));
    }
    world.store.erase(&ana(), &source, world.now()).await.unwrap();
    for (fork, before) in [&early, &other].into_iter().zip(before) {
        assert_eq!((world.log(&ana(), fork).await, world.summary(&ana(), fork).await), before);
    }
    assert_eq!(world.texts(&ana(), &early).await, ["1", "2", "own"]);
    assert_eq!(world.texts(&ana(), &other).await, ["1", "other branch"]);
    let forked_again = world.fork(&ana(), &early, Some(1), "again").await;
    world.append_text(&ana(), &forked_again, "new").await;
    assert_eq!(world.texts(&ana(), &forked_again).await, ["1", "new"]);
}

pub async fn forks_of_erased_forks_are_readable_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut session = world.create_with(&ana(), "g0", &["m0", "dead 0"]).await;
    for generation in 1..6 {
        let at = world.summary(&ana(), &session).await.head.seq.0 - 1;
        let fork = world.fork(&ana(), &session, Some(at), &format!("g{generation}")).await;
        world.append_text(&ana(), &fork, &format!("m{generation}")).await;
        world.append_text(&ana(), &fork, &format!("dead {generation}")).await;
        session = fork;
    }
    // Erase the generations out of order.
    for generation in [2, 0, 4, 1, 3] {
        world.store.erase(&ana(), &id(&format!("g{generation}")), world.now()).await.unwrap();
        assert_eq!(world.texts(&ana(), &session).await, ["m0", "m1", "m2", "m3", "m4", "m5", "dead 5"]);
    }
    let last = world.fork(&ana(), &session, Some(3), "last").await;
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    world.append_text(&ana(), &last, "end").await;
    assert_eq!(world.texts(&ana(), &last).await, ["m0", "m1", "m2", "end"]);
    assert_eq!(world.log(&ana(), &last).await.len(), 4);
}

pub async fn an_erased_id_can_be_used_again(harness: &impl Harness) {
    let world = World::open(harness).await;
    let new = world.new_session("s");
    world.store.create(&ana(), new.clone()).await.unwrap();
    world.append_text(&ana(), &id("s"), "needle").await;
    let fork = world.fork(&ana(), &id("s"), None, "fork").await;
    world.store.erase(&ana(), &id("s"), world.now()).await.unwrap();
    assert_eq!(world.store.create(&ana(), new).await.unwrap(), Created::New);
    world.append_text(&ana(), &id("s"), "fresh").await;
    assert_eq!(world.texts(&ana(), &id("s")).await, ["fresh"]);
    assert_eq!(world.texts(&ana(), &fork).await, ["needle"]);
    world.store.erase(&ana(), &id("s"), world.now()).await.unwrap();
    assert_eq!(world.texts(&ana(), &fork).await, ["needle"]);
}

pub async fn the_audit_records_an_erasure_without_content(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["needle"]).await;
    let now = world.now();
    world.store.erase(&ana(), &session, now).await.unwrap();
    let lines = world.store.read_audit(&operator(), Some(&session), 0, 100).await.unwrap();
    let last = lines.last().unwrap();
    assert_eq!((last.action, &last.by, last.at), (AuditAction::Erase, &ana().principal, now));
    assert!(lines.iter().all(|line| !format!("{line:?}").contains("needle")));
}
