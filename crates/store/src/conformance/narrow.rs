//! Filtered lists: each filter alone and combined, in both orders, in pages, and with permissions.

use sapwood_core::port::store::{ListFilter, ListOrder, NewSession};
use sapwood_core::{Role, Scope, SessionId, TimestampMs};

use super::Harness;
use super::world::{World, ana, bob, foreign_ana, id, operator, shared, user};

/// Enough sessions for more than two pages if one session in seven matches.
const SESSIONS: usize = 70;
const EVERY: usize = 7;
const PAGE_ROWS: usize = 4;
/// More pages than any store should need.
const PAGES_MAX: usize = 50;

/// Collect all sessions that match a filter, page by page.
async fn all_of(world: &World, scope: &Scope, mut filter: ListFilter) -> Vec<SessionId> {
    let mut seen = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = world.store.list(scope, &filter).await.unwrap();
        assert!(page.items.len() <= filter.limit || filter.limit == 0);
        seen.extend(page.items.into_iter().map(|summary| summary.id));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return seen;
        }
    }
    panic!("the list of {SESSIONS} sessions does not end");
}

async fn names(world: &World, scope: &Scope, filter: ListFilter) -> Vec<String> {
    all_of(world, scope, filter).await.into_iter().map(|id| id.to_string()).collect()
}

/// Create sessions, oldest first: `a1` to `a3` belong to ana, `b1` to bob.
async fn fill(world: &World) {
    for (scope, name, title, agent) in [
        (ana(), "a1", Some("Repairs of the Roof"), Some("coder")),
        (ana(), "a2", None, Some("writer")),
        (bob(), "b1", Some("roof garden"), Some("coder")),
        (ana(), "a3", Some("Winter"), None),
        (foreign_ana(), "f1", Some("Roof"), Some("coder")),
    ] {
        let new = NewSession {
            title: title.map(str::to_owned),
            agent: agent.map(str::to_owned),
            ..world.new_session(name)
        };
        world.store.create(&scope, new).await.unwrap();
        world.append_text(&scope, &id(name), "about the ROOF").await;
    }
}

fn by_agent(agent: &str) -> ListFilter {
    ListFilter { agent: Some(agent.to_owned()), ..ListFilter::default() }
}

fn by_owner(scope: &Scope) -> ListFilter {
    ListFilter { owner: Some(scope.principal.clone()), ..ListFilter::default() }
}

fn by_title(title: &str) -> ListFilter {
    ListFilter { title: Some(title.to_owned()), ..ListFilter::default() }
}

pub async fn filters_by_agent(harness: &impl Harness) {
    let world = World::open(harness).await;
    fill(&world).await;
    assert_eq!(names(&world, &operator(), by_agent("coder")).await, ["b1", "a1"]);
    assert_eq!(names(&world, &operator(), by_agent("writer")).await, ["a2"]);
    for agent in ["", "code", "CODER", "%", "' OR ''='"] {
        assert!(names(&world, &operator(), by_agent(agent)).await.is_empty(), "{agent:?}");
    }
}

pub async fn filters_by_owner(harness: &impl Harness) {
    let world = World::open(harness).await;
    fill(&world).await;
    assert_eq!(names(&world, &operator(), by_owner(&ana())).await, ["a3", "a2", "a1"]);
    assert_eq!(names(&world, &operator(), by_owner(&bob())).await, ["b1"]);
    assert!(names(&world, &operator(), by_owner(&user("cleo"))).await.is_empty());
    // Sharing a session does not change its owner.
    world.append(&bob(), &id("b1"), vec![shared(&ana(), Some(Role::Reader))]).await;
    assert_eq!(names(&world, &ana(), by_owner(&bob())).await, ["b1"]);
    assert_eq!(names(&world, &ana(), by_owner(&ana())).await, ["a3", "a2", "a1"]);
}

pub async fn filters_by_title(harness: &impl Harness) {
    let world = World::open(harness).await;
    fill(&world).await;
    // `a2` has no title, so its first message is matched.
    assert_eq!(names(&world, &operator(), by_title("roof")).await, ["b1", "a2", "a1"]);
    assert_eq!(names(&world, &operator(), by_title("ROOF the")).await, ["a2", "a1"]);
    assert_eq!(names(&world, &operator(), by_title("a3")).await, ["a3"]);
    assert_eq!(names(&world, &operator(), by_title(" ")).await.len(), 4);
    for nothing in ["roof winter", "%", "_", "' OR ''='"] {
        assert!(names(&world, &operator(), by_title(nothing)).await.is_empty(), "{nothing:?}");
    }
}

pub async fn filters_by_time(harness: &impl Harness) {
    let world = World::open(harness).await;
    fill(&world).await;
    let at = world.summary(&ana(), &id("a2")).await.updated_at;
    let span = |since: Option<i64>, until: Option<i64>, order| ListFilter {
        since: since.map(|ms| TimestampMs(at.0 + ms)),
        until: until.map(|ms| TimestampMs(at.0 + ms)),
        order,
        ..ListFilter::default()
    };
    for (since, until, expected) in [
        (Some(0), None, vec!["a3", "b1", "a2"]),
        (Some(1), None, vec!["a3", "b1"]),
        (None, Some(0), vec!["a1"]),
        (None, Some(1), vec!["a2", "a1"]),
        (Some(0), Some(1), vec!["a2"]),
        (Some(1), Some(1), vec![]),
        (Some(1_000_000_000), None, vec![]),
    ] {
        let newest_first = names(&world, &operator(), span(since, until, ListOrder::NewestFirst)).await;
        assert_eq!(newest_first, expected, "{since:?} {until:?}");
        let oldest_first = names(&world, &operator(), span(since, until, ListOrder::OldestFirst)).await;
        assert!(oldest_first.iter().eq(newest_first.iter().rev()), "{since:?} {until:?}");
    }
    let always = ListFilter {
        since: Some(TimestampMs(i64::MIN)),
        until: Some(TimestampMs(i64::MAX)),
        ..ListFilter::default()
    };
    assert_eq!(names(&world, &operator(), always).await.len(), 4);
}

pub async fn the_time_filter_uses_the_last_entry(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "busy").await;
    for text in ["one", "two", "three", "four"] {
        world.append_text(&ana(), &session, text).await;
    }
    let at = world.summary(&ana(), &session).await.updated_at;
    let since = |ms| ListFilter { since: Some(TimestampMs(at.0 + ms)), ..ListFilter::default() };
    assert_eq!(names(&world, &ana(), since(0)).await, ["busy"]);
    assert!(names(&world, &ana(), since(1)).await.is_empty());
    let until = |ms| ListFilter { until: Some(TimestampMs(at.0 + ms)), ..ListFilter::default() };
    assert!(names(&world, &ana(), until(0)).await.is_empty());
    assert_eq!(names(&world, &ana(), until(1)).await, ["busy"]);
}

pub async fn a_filtered_list_pages_to_its_end_in_both_orders(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut expected = Vec::new();
    for number in 0..SESSIONS {
        let fits = number % EVERY == 3;
        let agent = Some(if fits { "rare" } else { "common" }.to_owned());
        let new = NewSession { agent, ..world.new_session(&format!("s{number:02}")) };
        let session = new.id.clone();
        world.store.create(&ana(), new).await.unwrap();
        world.append_text(&ana(), &session, "hello").await;
        expected.extend(fits.then_some(session));
    }
    let rare = |order| ListFilter { order, limit: PAGE_ROWS, ..by_agent("rare") };
    assert_eq!(all_of(&world, &ana(), rare(ListOrder::OldestFirst)).await, expected);
    let whole = |order| ListFilter { order, limit: PAGE_ROWS * EVERY, ..ListFilter::default() };
    let mut all = all_of(&world, &ana(), whole(ListOrder::OldestFirst)).await;
    all.reverse();
    assert_eq!(all.len(), SESSIONS);
    assert_eq!(all_of(&world, &ana(), whole(ListOrder::NewestFirst)).await, all);
    expected.reverse();
    assert_eq!(all_of(&world, &ana(), rare(ListOrder::NewestFirst)).await, expected);
    let named =
        |order| ListFilter { id_prefix: Some("s1".to_owned()), limit: PAGE_ROWS, order, ..by_agent("rare") };
    assert_eq!(names(&world, &ana(), named(ListOrder::OldestFirst)).await, ["s10", "s17"]);
    assert_eq!(names(&world, &ana(), named(ListOrder::NewestFirst)).await, ["s17", "s10"]);
}

pub async fn no_filter_reveals_other_users_sessions_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    fill(&world).await;
    let since = ListFilter { since: Some(TimestampMs(0)), ..ListFilter::default() };
    let oldest = ListFilter { order: ListOrder::OldestFirst, ..ListFilter::default() };
    for filter in [by_agent("coder"), by_title("roof"), since, oldest] {
        for (scope, own) in [(ana(), 'a'), (bob(), 'b'), (foreign_ana(), 'f')] {
            let seen = names(&world, &scope, filter.clone()).await;
            assert!(!seen.is_empty() && seen.iter().all(|name| name.starts_with(own)), "{seen:?} {filter:?}");
        }
    }
    for owner in [bob(), foreign_ana()] {
        let seen = names(&world, &ana(), by_owner(&owner)).await;
        assert!(
            seen.iter().all(|name| name.starts_with('a')),
            "{seen:?}: the same name in another tenant is a different user"
        );
    }
    assert!(names(&world, &bob(), by_owner(&ana())).await.is_empty());
    assert_eq!(names(&world, &foreign_ana(), by_owner(&ana())).await, ["f1"]);
}
