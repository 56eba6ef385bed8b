//! An append with a known idempotency key returns the first answer and writes nothing (I5).

use sapwood_core::port::store::{Append, Expect, hash_request};
use sapwood_core::{Seq, SessionId};

use super::Harness;
use super::world::{World, ana, code, user_message};

fn keyed(world: &World, session: &SessionId, key: &str, text: &str) -> Append {
    Append {
        idempotency_key: Some(key.to_owned()),
        ..world.append_of(session, vec![user_message(text), user_message("more")])
    }
}

pub async fn a_repeated_key_returns_the_first_answer_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let append = Append { expect: Expect::Head(Seq::ZERO), ..keyed(&world, &session, "k", "one") };
    let first = world.store.append(&ana(), append.clone()).await.unwrap();
    world.append_text(&ana(), &session, "meanwhile").await;
    // The head has moved since, but the repeated append still gets the first answer.
    assert_eq!(world.store.append(&ana(), append).await.unwrap(), first);
    assert_eq!(world.store.append(&ana(), keyed(&world, &session, "k", "else")).await.unwrap(), first);
    assert_eq!(world.log(&ana(), &session).await.len(), 3);
    let other = world.store.append(&ana(), keyed(&world, &session, "k2", "one")).await.unwrap();
    assert_eq!(other.head.seq, Seq(5));
}

pub async fn a_key_belongs_to_one_session_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let (one, two) = (world.create(&ana(), "one").await, world.create(&ana(), "two").await);
    world.store.append(&ana(), keyed(&world, &one, "k", "x")).await.unwrap();
    world.store.append(&ana(), keyed(&world, &two, "k", "x")).await.unwrap();
    assert_eq!(world.log(&ana(), &two).await.len(), 2);
    let fork = world.fork(&ana(), &one, None, "fork").await;
    let appended = world.store.append(&ana(), keyed(&world, &fork, "k", "x")).await.unwrap();
    assert_eq!(appended.head.seq, Seq(4));
}

pub async fn a_key_is_remembered_after_reopening_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let append = keyed(&world, &session, "k \"quoted\" é", "one");
    let first = world.store.append(&ana(), append.clone()).await.unwrap();
    world.append_text(&ana(), &session, "meanwhile").await;
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.store.append(&ana(), append).await.unwrap(), first);
    assert_eq!(world.log(&ana(), &session).await.len(), 3);
}

fn with_request_hash(append: Append) -> Append {
    let bodies: Vec<_> = append.drafts.iter().map(|draft| draft.body.clone()).collect();
    Append { request: Some(hash_request(&bodies)), ..append }
}

pub async fn a_key_with_another_request_is_refused_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let append = with_request_hash(keyed(&world, &session, "k", "one"));
    let first = world.store.append(&ana(), append.clone()).await.unwrap();
    let other = with_request_hash(keyed(&world, &session, "k", "else"));
    assert_eq!(code(world.store.append(&ana(), other.clone()).await), "session.key_reused");
    assert_eq!(world.store.append(&ana(), append.clone()).await.unwrap(), first);
    // Appends without a request hash get the first answer, and a key stored without a hash accepts any
    // request.
    assert_eq!(world.store.append(&ana(), keyed(&world, &session, "k", "else")).await.unwrap(), first);
    let old = world.store.append(&ana(), keyed(&world, &session, "old", "one")).await.unwrap();
    assert_eq!(
        world.store.append(&ana(), with_request_hash(keyed(&world, &session, "old", "else"))).await.unwrap(),
        old
    );
    assert_eq!(world.log(&ana(), &session).await.len(), 4);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(code(world.store.append(&ana(), other).await), "session.key_reused");
    assert_eq!(world.store.append(&ana(), append).await.unwrap(), first);
}

pub async fn a_refused_append_does_not_consume_its_key_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let append = Append { expect: Expect::Head(Seq(9)), ..keyed(&world, &session, "k", "two") };
    assert_eq!(code(world.store.append(&ana(), append.clone()).await), "session.conflict");
    let append = Append { expect: Expect::Head(Seq(1)), ..append };
    assert_eq!(world.store.append(&ana(), append).await.unwrap().head.seq, Seq(3));
}
