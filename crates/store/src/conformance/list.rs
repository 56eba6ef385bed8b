//! Creating and listing sessions.

use std::collections::BTreeSet;

use sapwood_core::SessionId;
use sapwood_core::entry::SessionState;
use sapwood_core::port::store::{Created, ListFilter, NewSession};
use sapwood_core::project::summary::{Origin, Summary};

use super::Harness;
use super::world::{World, ana, archived, code, id, user_message};

/// More than the default page size, and fewer than the maximum.
const SESSIONS: usize = 110;

async fn fill(world: &World) -> Vec<SessionId> {
    let mut ids = Vec::new();
    for number in 0..SESSIONS {
        // The order by name differs from the order by time.
        ids.push(world.create_with(&ana(), &format!("s{:03}", (number * 37) % SESSIONS), &["hello"]).await);
    }
    ids
}

fn names(page: &[Summary]) -> Vec<SessionId> {
    page.iter().map(|summary| summary.id.clone()).collect()
}

async fn list(world: &World, filter: ListFilter) -> Vec<SessionId> {
    names(&world.store.list(&ana(), &filter).await.unwrap().items)
}

pub async fn newest_first_in_pages(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut expected = fill(&world).await;
    expected.reverse();
    let mut seen = Vec::new();
    let mut filter = ListFilter { limit: 25, ..ListFilter::default() };
    for page_number in 0.. {
        let page = world.store.list(&ana(), &filter).await.unwrap();
        assert!(page.items.len() <= 25 && page_number < 5);
        seen.extend(names(&page.items));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let all = ListFilter { limit: usize::MAX, ..ListFilter::default() };
    let page = world.store.list(&ana(), &all).await.unwrap();
    assert_eq!((page.items.len(), page.next), (SESSIONS, None));
    assert_eq!(page.items[0], world.summary(&ana(), &expected[0]).await);
}

pub async fn an_append_moves_a_session_to_the_front(harness: &impl Harness) {
    let world = World::open(harness).await;
    for name in ["a", "b", "c"] {
        world.create_with(&ana(), name, &["hello"]).await;
    }
    assert_eq!(list(&world, ListFilter::default()).await, [id("c"), id("b"), id("a")]);
    world.append_text(&ana(), &id("a"), "again").await;
    assert_eq!(list(&world, ListFilter::default()).await, [id("a"), id("c"), id("b")]);
}

pub async fn filters_by_cwd_state_and_prefix(harness: &impl Harness) {
    let world = World::open(harness).await;
    for (name, cwd) in [("ab-1", Some("/x")), ("ab-2", Some("/x/y")), ("b_1", Some("/x")), ("bx1", None)] {
        let new = NewSession { cwd: cwd.map(str::to_owned), ..world.new_session(name) };
        world.store.create(&ana(), new).await.unwrap();
        world.append_text(&ana(), &id(name), "hello").await;
    }
    world.append(&ana(), &id("ab-1"), vec![archived()]).await;
    let cwd = ListFilter { cwd: Some("/x".to_owned()), ..ListFilter::default() };
    assert_eq!(list(&world, cwd.clone()).await, [id("ab-1"), id("b_1")]);
    let active = ListFilter { state: Some(SessionState::Active), ..cwd };
    assert_eq!(list(&world, active).await, [id("b_1")]);
    let prefix = |text: &str| ListFilter { id_prefix: Some(text.to_owned()), ..ListFilter::default() };
    assert_eq!(list(&world, prefix("ab-")).await, [id("ab-1"), id("ab-2")]);
    assert_eq!(list(&world, prefix("b_")).await, [id("b_1")], "an underscore is not a wildcard");
    for nothing in ["%", "z", "AB", "' OR ''='", "*"] {
        assert!(list(&world, prefix(nothing)).await.is_empty(), "{nothing:?}");
    }
    assert_eq!(list(&world, prefix("")).await.len(), 4);
}

pub async fn the_cursor_is_stable_under_appends(harness: &impl Harness) {
    let world = World::open(harness).await;
    let all = fill(&world).await;
    let mut seen = Vec::new();
    let mut touched = BTreeSet::new();
    let mut filter = ListFilter { limit: 20, ..ListFilter::default() };
    loop {
        let page = world.store.list(&ana(), &filter).await.unwrap();
        seen.extend(names(&page.items));
        let Some(next) = page.next else { break };
        filter.cursor = Some(next);
        // Append to a session that was listed and to one that was not listed yet, and create another.
        for session in [&all[SESSIONS - 1], &all[touched.len()]] {
            world.append_text(&ana(), session, "meanwhile").await;
            touched.insert(session.clone());
        }
        touched.insert(world.create_with(&ana(), &format!("new{}", touched.len()), &["hello"]).await);
    }
    let unique: BTreeSet<SessionId> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "no session is listed twice");
    assert!(
        all.iter().all(|session| unique.contains(session) || touched.contains(session)),
        "no session is missing"
    );
}

pub async fn an_invalid_cursor_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.create_with(&ana(), "s", &["hello"]).await;
    for cursor in ["", "x", "1", "~", "9999999999999999999999~s", "'; DROP TABLE session; --"] {
        let filter = ListFilter { cursor: Some(cursor.to_owned()), ..ListFilter::default() };
        assert_eq!(code(world.store.list(&ana(), &filter).await), "input.invalid", "{cursor:?}");
    }
}

pub async fn create_is_idempotent(harness: &impl Harness) {
    let world = World::open(harness).await;
    let new = NewSession { title: Some("first".to_owned()), ..world.new_session("s") };
    assert_eq!(world.store.create(&ana(), new).await.unwrap(), Created::New);
    world.append(&ana(), &id("s"), vec![user_message("hello")]).await;
    let before = world.summary(&ana(), &id("s")).await;
    let again = NewSession { title: Some("second".to_owned()), ..world.new_session("s") };
    assert_eq!(world.store.create(&ana(), again).await.unwrap(), Created::Existed);
    assert_eq!(world.summary(&ana(), &id("s")).await, before);
}

pub async fn the_summary_has_the_creation_fields(harness: &impl Harness) {
    let world = World::open(harness).await;
    let new = NewSession {
        title: Some("A title".to_owned()),
        agent: Some("coder".to_owned()),
        cwd: Some("/home/ana".to_owned()),
        origin: Some(Origin { format: "other".to_owned(), id: "42".to_owned() }),
        ..world.new_session("s")
    };
    world.store.create(&ana(), new.clone()).await.unwrap();
    let summary = world.summary(&ana(), &id("s")).await;
    assert_eq!(summary, Summary::new(&new, ana().principal));
    world.append(&ana(), &id("s"), vec![user_message("\n  Hello,\nworld")]).await;
    let summary = world.summary(&ana(), &id("s")).await;
    assert_eq!((summary.preview.as_deref(), summary.messages), (Some("Hello,"), 1));
    assert!(summary.updated_at > summary.created_at);
}
