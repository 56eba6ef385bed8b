//! Full-text search. An entry is found in the session it was written to, not again in forks.

use sapwood_core::content::Json;
use sapwood_core::entry::{AssistantMessage, SessionNamed, Stop};
use sapwood_core::port::store::{Hit, Page, SearchQuery};
use sapwood_core::{Part, Role, Seq, SessionId};

use super::Harness;
use super::world::{World, ana, bob, code, id, shared, user_message};

fn query(text: &str) -> SearchQuery {
    SearchQuery { text: text.to_owned(), limit: 100, ..SearchQuery::default() }
}

async fn search(world: &World, query: &SearchQuery) -> Page<Hit> {
    world.store.search(&ana(), query).await.unwrap()
}

async fn found(world: &World, text: &str) -> Vec<(SessionId, u32)> {
    let page = search(world, &query(text)).await;
    page.items.into_iter().map(|hit| (hit.session, hit.seq.0)).collect()
}

pub async fn words_phrases_and_prefixes(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session =
        world.create_with(&ana(), "s", &["the quick brown fox", "quickly, a fox!", "brown and quick"]).await;
    let table: [(&str, &[u32]); 11] = [
        ("fox", &[2, 1]),
        ("FOX", &[2, 1]),
        ("quick", &[3, 1]),
        ("quick*", &[3, 2, 1]),
        ("quick brown", &[3, 1]),
        ("brown quick", &[3, 1]),
        ("\"quick brown\"", &[1]),
        ("\"quick bro\"*", &[1]),
        ("fo", &[]),
        ("fox wolf", &[]),
        ("the fox", &[1]),
    ];
    for (text, expected) in table {
        let seqs: Vec<u32> = found(&world, text).await.into_iter().map(|(_, seq)| seq).collect();
        assert_eq!(seqs, expected, "{text}");
    }
    let page = search(&world, &query("wolf fox*")).await;
    assert_eq!((page.items.len(), page.next), (0, None));
    let page = search(&world, &query("\"brown fox\"")).await;
    let log = world.log(&ana(), &session).await;
    let hit = &page.items[0];
    assert_eq!((hit.seq, hit.id, hit.at), (Seq(1), log[0].meta.id, log[0].meta.at));
    assert_eq!((hit.kind, hit.snippet.contains("brown fox")), ("user_message", true));
}

/// An index may truncate long words, but a search must match the whole word.
pub async fn long_words_are_found_whole(harness: &impl Harness) {
    let world = World::open(harness).await;
    let long = "x".repeat(3_000);
    world.create_with(&ana(), "s", &[&format!("{long}a"), &format!("{long}b and more"), "x"]).await;
    for (text, expected) in
        [(format!("{long}a"), vec![1]), (long.clone(), vec![]), (format!("{long}*"), vec![2, 1])]
    {
        let seqs: Vec<u32> = found(&world, &text).await.into_iter().map(|(_, seq)| seq).collect();
        assert_eq!(seqs, expected);
    }
}

pub async fn newest_first_with_a_cursor(harness: &impl Harness) {
    let world = World::open(harness).await;
    let sessions = [world.create(&ana(), "a").await, world.create(&ana(), "b").await];
    let mut expected = Vec::new();
    for number in 0..23 {
        let session = &sessions[number % 2];
        let appended = world.append_text(&ana(), session, &format!("needle {number}")).await;
        world.append_text(&ana(), session, "hay").await;
        expected.insert(0, (session.clone(), appended.entries[0].0));
    }
    let mut seen = Vec::new();
    let mut query = SearchQuery { limit: 5, ..query("needle") };
    for page_number in 0.. {
        let page = search(&world, &query).await;
        assert!(page.items.len() <= 5 && page_number < 6);
        seen.extend(page.items.into_iter().map(|hit| (hit.session, hit.seq)));
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
        world.append_text(&ana(), &sessions[0], "a newer needle does not affect later pages").await;
    }
    assert_eq!(seen, expected);
    query.cursor = Some("made up".to_owned());
    assert_eq!(code(world.store.search(&ana(), &query).await), "input.invalid");
}

pub async fn within_one_session(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.create_with(&ana(), "a", &["needle"]).await;
    world.create_with(&ana(), "b", &["needle", "needle"]).await;
    let only = SearchQuery { session: Some(id("b")), ..query("needle") };
    let page = search(&world, &only).await;
    assert!(page.items.len() == 2 && page.items.iter().all(|hit| hit.session == id("b")));
    let unknown = SearchQuery { session: Some(id("nowhere")), ..query("needle") };
    assert_eq!(code(world.store.search(&ana(), &unknown).await), "session.not_found");
}

pub async fn special_characters_are_never_an_error(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.create_with(&ana(), "s", &["and or not near col x y", "don't panic: a-b c_d v1.2 über 数字"]).await;
    let nothing =
        ["", " ", "*", "\"", "\"\"", "\"\"\"", "-", "()", "^", ":", "'", "\\", "\u{0}", "* *", "\" \""];
    for text in nothing {
        assert!(found(&world, text).await.is_empty(), "{text:?}");
    }
    let something =
        ["AND", "OR", "NOT", "NEAR", "x AND y", "NOT x", "NEAR(x)", "-x", "^x", "(x", "col:x*", "\"x", "x\""];
    for text in something {
        // Operators are treated as plain words and must not cause errors.
        let hits = found(&world, text).await;
        assert!(hits.iter().all(|(_, seq)| *seq == 1), "{text:?} found {hits:?}");
    }
    assert_eq!(found(&world, "x AND y").await.len(), 1);
    for text in
        ["don't", "a-b", "v1.2", "über", "ÜBER", "数字", "\"panic: a-b\"", "'; DROP TABLE entry; --panic"]
    {
        let hits = found(&world, text).await;
        assert!(hits.len() <= 1 && hits.iter().all(|(_, seq)| *seq == 2), "{text:?} found {hits:?}");
    }
    assert_eq!(found(&world, "don't a-b v1.2 über").await.len(), 1);
    assert!(found(&world, "x OR nothing").await.is_empty(), "OR is not an operator");
    let long = query(&"word ".repeat(100_000));
    assert_eq!(code(world.store.search(&ana(), &long).await), "input.too_large");
}

pub async fn tool_calls_are_found(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let input = Json::parse(r#"{"path":"src/unusual.rs"}"#).unwrap();
    let call = AssistantMessage {
        parts: vec![Part::text("let me look"), Part::tool_call("c1", "read_file", input)],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::ToolUse,
    };
    world.append(&ana(), &session, vec![call.into()]).await;
    for text in ["unusual", "\"read file\"", "src/unusual.rs", "look"] {
        assert_eq!(found(&world, text).await.len(), 1, "{text}");
    }
}

pub async fn names_and_summaries_are_found(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["hello"]).await;
    let named = SessionNamed { title: "Refactoring the parser".to_owned() };
    world.append(&ana(), &session, vec![named.into()]).await;
    let page = search(&world, &query("parser")).await;
    assert_eq!(
        (page.items[0].kind, page.items[0].title.as_deref()),
        ("session_named", Some("Refactoring the parser"))
    );
    // A hit carries the title of its session.
    let page = search(&world, &query("hello")).await;
    assert_eq!(page.items[0].title.as_deref(), Some("Refactoring the parser"));
}

pub async fn a_fork_does_not_find_shared_entries_twice(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "s", &["needle one"]).await;
    let fork = world.fork(&ana(), &source, None, "fork").await;
    world.append_text(&ana(), &fork, "needle two").await;
    assert_eq!(found(&world, "needle").await, [(fork, 2), (source, 1)]);
    assert!(world.store.search(&bob(), &query("needle")).await.unwrap().items.is_empty());
}

pub async fn a_fork_finds_entries_of_an_unreadable_source(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "s", &["needle one", "needle two"]).await;
    world.append(&ana(), &source, vec![shared(&bob(), Some(Role::Collaborator))]).await;
    let fork = world.fork(&bob(), &source, Some(1), "fork").await;
    let his = async |what: &str| world.store.search(&bob(), &query(what)).await.unwrap().items;
    assert_eq!(his("needle").await.len(), 2, "bob finds both entries in the source while he can read it");
    world.append(&ana(), &source, vec![shared(&bob(), None)]).await;
    let found: Vec<_> = his("needle").await.into_iter().map(|hit| (hit.session, hit.seq.0)).collect();
    assert_eq!(found, [(fork, 1)]);
}

pub async fn shared_entries_of_an_erased_source_are_found_in_forks(harness: &impl Harness) {
    let world = World::open(harness).await;
    // Add an entry outside the tree, so that seq and depth differ.
    let source = world.create_with(&ana(), "s", &["needle one"]).await;
    let named = SessionNamed { title: "x".to_owned() };
    world
        .append(&ana(), &source, vec![named.into(), user_message("needle two"), user_message("needle dead")])
        .await;
    let fork = world.fork(&ana(), &source, Some(3), "fork").await;
    let only = SearchQuery { session: Some(fork.clone()), ..query("needle") };
    let seqs =
        |page: Page<Hit>| page.items.into_iter().map(|hit| (hit.session, hit.seq.0)).collect::<Vec<_>>();
    // A search in the fork finds shared entries under the fork's own seqs.
    assert_eq!(seqs(search(&world, &only).await), [(fork.clone(), 2), (fork.clone(), 1)]);
    assert_eq!(found(&world, "needle").await.len(), 3);
    world.store.erase(&ana(), &source, world.now()).await.unwrap();
    assert_eq!(found(&world, "needle").await, [(fork.clone(), 2), (fork.clone(), 1)]);
    assert!(found(&world, "dead").await.is_empty());
    world.fork(&ana(), &fork, None, "second").await;
    assert_eq!(found(&world, "needle").await.len(), 2, "each entry is found once");
}
