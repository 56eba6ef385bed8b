//! Acknowledged writes survive reopening the store (I3). Stores that do not persist have nothing to check.

use sapwood_core::fixture::random_script;
use sapwood_core::port::store::{Append, LEASE_TTL_MS_MAX, ListFilter, SearchQuery};
use sapwood_core::project::summary::Origin;
use sapwood_core::{Role, Seq, StoreError};

use super::Harness;
use super::audit::check_chain;
use super::world::{
    ModeledSession, World, ana, archived, assistant_message, bob, code, foreign_ana, id, message_with_blob,
    operator, shared, user_message,
};

pub async fn a_healthy_store_is_writable(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.store.check_writable().await.unwrap();
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let before = world.store.summary(&ana(), &session).await.unwrap();
    world.store.check_writable().await.unwrap();
    assert_eq!(world.store.summary(&ana(), &session).await.unwrap(), before, "the check changes nothing");
}

pub async fn summaries_are_equal_after_reopening_i3(harness: &impl Harness) {
    let world = World::open(harness).await;
    let new = sapwood_core::port::store::NewSession {
        title: Some("A \"title\"".to_owned()),
        agent: Some("coder".to_owned()),
        cwd: Some("/home/ana/projects".to_owned()),
        origin: Some(Origin { format: "other".to_owned(), id: "42".to_owned() }),
        ..world.new_session("full")
    };
    world.store.create(&ana(), new).await.unwrap();
    let bodies =
        vec![user_message("hello"), assistant_message("hi", Some("m")), shared(&bob(), Some(Role::Reader))];
    world.append(&ana(), &id("full"), bodies).await;
    world.fork(&ana(), &id("full"), Some(1), "fork").await;
    world.append(&ana(), &id("full"), vec![archived()]).await;
    ModeledSession::of(&world, "M(x) u1 a2@small [ u3 C4(c) t5(c) K6(s,3) ] 3=good L→2 N(name) [ u7 |").await;
    world.create_with(&foreign_ana(), "full", &["elsewhere"]).await;
    let scopes = [operator(), foreign_ana()];
    let mut before = Vec::new();
    for scope in &scopes {
        before.push(world.store.list(scope, &ListFilter::default()).await.unwrap());
    }
    let Some(world) = world.reopen(harness).await else { return };
    for (scope, before) in scopes.iter().zip(before) {
        assert_eq!(world.store.list(scope, &ListFilter::default()).await.unwrap(), before);
        for summary in before.items {
            assert_eq!(world.store.summary(scope, &summary.id).await.unwrap(), summary);
        }
    }
}

pub async fn logs_are_equal_after_reopening_i3(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, &random_script(7, 300)).await;
    let Some(world) = world.reopen(harness).await else { return };
    modeled.check(&world).await;
    let find = SearchQuery { text: "build".to_owned(), limit: 10, ..SearchQuery::default() };
    let hits = world.store.search(&modeled.scope, &find).await.unwrap().items;
    assert_eq!(hits.len(), 10, "the search index survives");
}

pub async fn forks_survive_reopening_i3(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = ModeledSession::of(&world, "u1 M(small) a2 [ u3 ] L→2 u4 a5@large 4=here").await;
    let mut fork = source.fork(&world, None).await;
    fork.write(&world, "u6 L→2 u7").await;
    let inner = fork.fork_as(&world, Some(fork.model.seq(4)), "inner").await;
    let Some(world) = world.reopen(harness).await else { return };
    for modeled in [&source, &fork, &inner] {
        modeled.check(&world).await;
    }
    assert_eq!(world.store.children(&source.scope, &source.session).await.unwrap(), [fork.session]);
}

pub async fn an_erased_session_stays_erased_i3(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["needle shared", "needle dead"]).await;
    world.create_with(&ana(), "other", &["x"]).await;
    let fork = world.fork(&ana(), &source, Some(1), "fork").await;
    world.store.erase(&ana(), &source, world.now()).await.unwrap();
    world.store.erase(&ana(), &id("other"), world.now()).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    for gone in ["source", "other"] {
        assert_eq!(code(world.store.summary(&operator(), &id(gone)).await), "session.not_found");
    }
    assert_eq!(world.texts(&ana(), &fork).await, ["needle shared"]);
    assert_eq!(world.store.list(&operator(), &ListFilter::default()).await.unwrap().items.len(), 1);
    world.store.erase(&ana(), &fork, world.now()).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert!(world.store.list(&operator(), &ListFilter::default()).await.unwrap().items.is_empty());
}

pub async fn blobs_and_audit_survive_reopening_i3(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let blob = world.store.put_blob(&ana(), b"abc".to_vec()).await.unwrap();
    world.append(&ana(), &session, vec![message_with_blob(blob)]).await;
    let before = world.store.read_audit(&operator(), None, 0, 100).await.unwrap();
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.store.get_blob(&ana(), blob).await.unwrap(), b"abc");
    assert!(matches!(world.store.get_blob(&bob(), blob).await, Err(StoreError::NoBlob { .. })));
    let after = world.store.read_audit(&operator(), None, 0, 100).await.unwrap();
    assert_eq!(after, before);
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    check_chain(&world.store.read_audit(&operator(), None, 0, 100).await.unwrap());
    assert_eq!(code(world.store.get_blob(&operator(), blob).await), "blob.not_found");
}

pub async fn appends_continue_after_reopening_i3(harness: &impl Harness) {
    let mut world = World::open(harness).await;
    let mut modeled = ModeledSession::of(&world, "u1 a2@small u3").await;
    for round in 0..5 {
        let Some(again) = world.reopen(harness).await else { return };
        world = again;
        let (one, two) = (10 * (round + 1), 10 * (round + 1) + 1);
        modeled.write(&world, &format!("H(high) a{one}@large L→2 u{two}")).await;
        modeled.check(&world).await;
        assert_eq!(modeled.model.head().seq, Seq(3 + 4 * (round + 1)));
    }
}

pub async fn two_open_stores_see_each_others_appends(harness: &impl Harness) {
    let world = World::open(harness).await;
    if !harness.persists() {
        return;
    }
    let session = world.create_with(&ana(), "s", &["0"]).await;
    let other = World::open(harness).await;
    for number in 1..10 {
        let (writer, reader) = if number % 2 == 0 { (&world, &other) } else { (&other, &world) };
        writer.append_text(&ana(), &session, &number.to_string()).await;
        assert_eq!(reader.texts(&ana(), &session).await.len(), number + 1);
        assert_eq!(reader.summary(&ana(), &session).await.head.seq, Seq(number as u32 + 1));
        let listed = reader.store.list(&ana(), &ListFilter::default()).await.unwrap().items;
        assert_eq!(listed[0].messages as usize, number + 1);
    }
    // Leases, idempotency keys and erasures are also visible to the other store.
    let keyed = Append {
        idempotency_key: Some("k".to_owned()),
        ..world.append_of(&session, vec![user_message("x")])
    };
    let first = world.store.append(&ana(), keyed.clone()).await.unwrap();
    assert_eq!(other.store.append(&ana(), keyed).await.unwrap(), first);
    let now = world.now();
    let lease = world.store.take_lease(&ana(), &session, "a", LEASE_TTL_MS_MAX).await.unwrap();
    assert_eq!(code(other.store.take_lease(&ana(), &session, "b", 10).await), "session.leased");
    let unfenced = Append { now, ..other.append_of(&session, vec![user_message("x")]) };
    assert_eq!(code(other.store.append(&ana(), unfenced).await), "session.leased");
    world.store.release_lease(&ana(), &lease).await.unwrap();
    let fork = other.fork(&ana(), &session, Some(2), "fork").await;
    assert_eq!(world.texts(&ana(), &fork).await, ["0", "1"]);
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    assert_eq!(code(other.store.summary(&ana(), &session).await), "session.not_found");
    assert_eq!(other.texts(&ana(), &fork).await, ["0", "1"]);
}
