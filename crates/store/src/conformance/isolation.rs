//! No read or write crosses a tenant, and a session that the caller cannot read is indistinguishable from
//! an unknown session (I9).

use std::fmt::Debug;

use sapwood_core::entry::Kind;
use sapwood_core::port::store::{
    Append, Created, Expect, LEASE_TTL_MS_MAX, Lease, ListFilter, Result, SearchQuery, Until,
};
use sapwood_core::{Scope, Seq, SessionId, TimestampMs};

use super::Harness;
use super::world::{
    World, ana, archived, bob, code, foreign_ana, id, message_with_blob, operator, shared, user_message,
};

/// Collect the results of methods with a session parameter, with the session id masked.
async fn answers(world: &World, scope: &Scope, session: &SessionId) -> Vec<String> {
    let (store, now) = (&world.store, TimestampMs(1_950_000_000_000));
    let mut answers = Vec::new();
    fn shown<T: Debug>(session: &SessionId, result: Result<T>) -> String {
        format!("{result:?}").replace(&format!("{session}"), "ID")
    }
    let mut add = |answer: String| answers.push(answer);
    let lease = Lease { session: session.clone(), holder: "h".to_owned(), fence: 1, ttl_ms: 1 };
    let in_session =
        SearchQuery { text: "one".to_owned(), session: Some(session.clone()), ..Default::default() };
    add(shown(session, store.summary(scope, session).await));
    add(shown(session, store.children(scope, session).await));
    add(shown(session, store.read_after(scope, session, Seq::ZERO, 10).await));
    add(shown(session, store.read_kinds(scope, session, &[Kind::UserMessage], Seq::ZERO, 10).await));
    for until in [Until::Root, Until::ContextStart, Until::Entries(1)] {
        add(shown(session, store.read_path(scope, session, None, until).await));
        add(shown(session, store.read_path(scope, session, Some(Seq(1)), until).await));
    }
    add(shown(session, store.nth_message(scope, session, Seq(1), 1).await));
    add(shown(session, store.read_entry(scope, session, Seq(1)).await));
    add(shown(session, store.read_entry(scope, session, Seq(99)).await));
    add(shown(session, store.find_entries(scope, session, "0").await));
    add(shown(session, store.take_lease(scope, session, "h", 1).await));
    add(shown(session, store.release_lease(scope, &lease).await));
    add(shown(session, store.search(scope, &in_session).await));
    add(shown(session, store.read_audit(scope, Some(session), 0, 10).await));
    add(shown(session, store.erase(scope, session, now).await));
    for at in [None, Some(1), Some(99)] {
        add(shown(session, store.fork(scope, world.fork_of(session, at, "stolen")).await));
        // Forking a session onto its own id must not reveal that the id is taken.
        add(shown(session, store.fork(scope, world.fork_of(session, at, session.as_str())).await));
    }
    for append in sample_appends(world, session, now) {
        add(shown(session, store.append(scope, append).await));
    }
    answers
}

/// Build appends that would get different answers if the caller had access to the session.
fn sample_appends(world: &World, session: &SessionId, now: TimestampMs) -> Vec<Append> {
    let append = |bodies| Append { now, ..world.append_of(session, bodies) };
    let plain = append(vec![user_message("x")]);
    vec![
        plain.clone(),
        append(Vec::new()),
        append(vec![archived()]),
        append(vec![shared(&bob(), None)]),
        append(vec![message_with_blob(sapwood_core::BlobHash::of(b"unknown"))]),
        Append { expect: Expect::Head(Seq(77)), ..plain.clone() },
        Append { fence: Some(77), ..plain.clone() },
        Append { idempotency_key: Some("k".to_owned()), ..plain },
    ]
}

/// Create a session with every kind of data that could reveal its existence.
async fn secret(world: &World) -> SessionId {
    let session = world.create(&ana(), "secret").await;
    let append = Append {
        idempotency_key: Some("k".to_owned()),
        ..world.append_of(&session, vec![user_message("one"), user_message("two")])
    };
    world.store.append(&ana(), append).await.unwrap();
    world.fork(&ana(), &session, None, "secret-fork").await;
    world.store.take_lease(&ana(), &session, "a", LEASE_TTL_MS_MAX).await.unwrap();
    session
}

pub async fn another_tenants_session_looks_unknown_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = secret(&world).await;
    let everywhere = Scope::operator(foreign_ana().tenant, foreign_ana().principal);
    for scope in [foreign_ana(), everywhere] {
        let unknown = answers(&world, &scope, &id("unknown")).await;
        assert_eq!(answers(&world, &scope, &session).await, unknown);
        let summaries = unknown.iter().filter(|answer| answer.contains("NoSession")).count();
        assert!(
            summaries + 1 >= unknown.len(),
            "every method except read_audit fails with NoSession: {unknown:#?}"
        );
    }
    assert_eq!(world.log(&ana(), &session).await.len(), 2);
}

pub async fn an_unshared_session_looks_unknown_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = secret(&world).await;
    let unknown = answers(&world, &bob(), &id("unknown")).await;
    assert_eq!(answers(&world, &bob(), &session).await, unknown);
    // An archived session must also look unknown.
    let append = Append { fence: Some(1), ..world.append_of(&session, vec![archived()]) };
    world.store.append(&ana(), append).await.unwrap();
    assert_eq!(answers(&world, &bob(), &session).await, unknown);
    // Within a tenant, a taken id cannot be used again.
    assert!(world.store.create(&bob(), world.new_session("secret")).await.is_err());
}

pub async fn the_same_id_in_two_tenants_is_two_sessions_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let here = world.create_with(&ana(), "same", &["here", "here too"]).await;
    assert_eq!(world.store.create(&foreign_ana(), world.new_session("same")).await.unwrap(), Created::New);
    world.append_text(&foreign_ana(), &here, "there").await;
    assert_eq!(world.texts(&ana(), &here).await, ["here", "here too"]);
    assert_eq!(world.texts(&foreign_ana(), &here).await, ["there"]);
    world.store.erase(&foreign_ana(), &here, world.now()).await.unwrap();
    assert_eq!(world.texts(&ana(), &here).await, ["here", "here too"]);
}

pub async fn lists_and_searches_stay_inside_the_tenant_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.create_with(&ana(), "anas", &["needle"]).await;
    world.create_with(&bob(), "bobs", &["needle"]).await;
    world.create_with(&foreign_ana(), "foreign", &["needle"]).await;
    let find = SearchQuery { text: "needle".to_owned(), ..SearchQuery::default() };
    for (scope, expected) in [
        (ana(), vec!["anas"]),
        (bob(), vec!["bobs"]),
        (foreign_ana(), vec!["foreign"]),
        (operator(), vec!["bobs", "anas"]),
    ] {
        let listed = world.store.list(&scope, &ListFilter::default()).await.unwrap().items;
        let listed: Vec<&str> = listed.iter().map(|summary| summary.id.as_str()).collect();
        assert_eq!(listed, expected, "{scope:?}");
        let found = world.store.search(&scope, &find).await.unwrap().items;
        let found: Vec<&str> = found.iter().map(|hit| hit.session.as_str()).collect();
        assert_eq!(found, expected, "{scope:?}");
        let prefixed = ListFilter { id_prefix: Some("f".to_owned()), ..ListFilter::default() };
        let count = world.store.list(&scope, &prefixed).await.unwrap().items.len();
        assert_eq!(count, usize::from(expected == ["foreign"]));
    }
    // Children that the caller cannot read are not listed.
    world.append(&ana(), &id("anas"), vec![shared(&bob(), Some(sapwood_core::Role::Collaborator))]).await;
    world.fork(&ana(), &id("anas"), None, "hidden").await;
    world.fork(&bob(), &id("anas"), None, "his").await;
    assert_eq!(world.store.children(&bob(), &id("anas")).await.unwrap(), [id("his")]);
}

pub async fn blobs_stay_inside_the_tenant_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let blob = world.store.put_blob(&ana(), b"abc".to_vec()).await.unwrap();
    world.create_with(&foreign_ana(), "f", &["x"]).await;
    assert_eq!(code(world.store.get_blob(&foreign_ana(), blob).await), "blob.not_found");
    let append = world.try_append(&foreign_ana(), &id("f"), vec![message_with_blob(blob)]).await;
    assert_eq!(code(append), "blob.not_found");
    // The same bytes in two tenants are two separate blobs.
    let session = world.create(&ana(), "s").await;
    world.append(&ana(), &session, vec![message_with_blob(blob)]).await;
    world.store.put_blob(&foreign_ana(), b"abc".to_vec()).await.unwrap();
    world.append(&foreign_ana(), &id("f"), vec![message_with_blob(blob)]).await;
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    assert_eq!(world.store.get_blob(&foreign_ana(), blob).await.unwrap(), b"abc");
}
