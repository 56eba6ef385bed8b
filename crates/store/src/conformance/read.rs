//! Reading entries by position, kind and id.

use sapwood_core::entry::{Kind, SessionNamed, TurnStarted};
use sapwood_core::port::store::{PAGE_ROWS_MAX, is_full_page};
use sapwood_core::{EntryId, Seq, SessionId};

use super::Harness;
use super::world::{
    ModeledSession, World, ana, assistant_message, bob, code, foreign_ana, operator, user_message,
};

pub async fn read_after_returns_pages_in_order(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    assert!(world.store.read_after(&ana(), &session, Seq::ZERO, 10).await.unwrap().is_empty());
    let bodies = (0..25).map(|number| user_message(&number.to_string())).collect();
    world.append(&ana(), &session, bodies).await;
    let mut seen = Vec::new();
    let mut after = Seq::ZERO;
    for expected in [10, 10, 5, 0] {
        let page = world.store.read_after(&ana(), &session, after, 10).await.unwrap();
        assert_eq!(page.len(), expected);
        after = page.last().map_or(after, |record| record.meta.seq);
        seen.extend(page.iter().map(|record| record.meta.seq.0));
    }
    assert_eq!(seen, (1..=25).collect::<Vec<u32>>());
    assert!(world.store.read_after(&ana(), &session, Seq(3), 0).await.unwrap().is_empty());
    let all = world.store.read_after(&ana(), &session, Seq::ZERO, usize::MAX).await.unwrap();
    assert_eq!(all.len(), 25.min(PAGE_ROWS_MAX));
    assert!(world.store.read_after(&ana(), &session, Seq(u32::MAX), 10).await.unwrap().is_empty());
}

/// Also check pages that contain shared and own entries of a fork.
pub async fn a_page_ends_with_the_record_that_fills_it(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let sizes = [10, 100_000, 200_000, 300_000, 10, 10, 150_000, 10];
    for size in sizes {
        world.append(&ana(), &session, vec![user_message(&"x".repeat(size))]).await;
    }
    let pages = async |session: &SessionId| -> Vec<usize> {
        let (mut pages, mut after) = (Vec::new(), Seq::ZERO);
        loop {
            let page = world.store.read_after(&ana(), session, after, 100).await.unwrap();
            let Some(last) = page.last() else { return pages };
            assert_eq!(page[0].meta.seq, after.next(), "no entry is skipped");
            assert_eq!(
                is_full_page(&page, 100),
                last.meta.seq < Seq(8),
                "only a full page is followed by more entries"
            );
            after = last.meta.seq;
            pages.push(page.len());
        }
    };
    assert_eq!(pages(&session).await, [3, 1, 4]);
    for (at, expected) in [(7, [3, 1, 4]), (2, [3, 1, 4]), (4, [3, 1, 4])] {
        let fork = world.fork(&ana(), &session, Some(at), &format!("fork-{at}")).await;
        for size in &sizes[at as usize..] {
            world.append(&ana(), &fork, vec![user_message(&"x".repeat(*size))]).await;
        }
        assert_eq!(pages(&fork).await, expected, "forked at {at}");
    }
}

pub async fn read_kinds_returns_only_those_kinds(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    for number in 0..5 {
        let named = SessionNamed { title: number.to_string() };
        let turn = TurnStarted::default();
        world
            .append(
                &ana(),
                &session,
                vec![user_message("u"), assistant_message("a", None), named.into(), turn.into()],
            )
            .await;
    }
    let read = async |kinds: &[Kind], after: u32, limit: usize| -> Vec<u32> {
        let page = world.store.read_kinds(&ana(), &session, kinds, Seq(after), limit).await.unwrap();
        page.iter().map(|record| record.meta.seq.0).collect()
    };
    assert_eq!(read(&[Kind::SessionNamed], 0, 100).await, [3, 7, 11, 15, 19]);
    assert_eq!(read(&[Kind::UserMessage, Kind::TurnStarted], 4, 3).await, [5, 8, 9]);
    assert!(read(&[Kind::Graft], 0, 100).await.is_empty());
    assert!(read(&[], 0, 100).await.is_empty());
    // The log of a fork includes its shared entries.
    let fork = world.fork(&ana(), &session, Some(6), "fork").await;
    let page = world.store.read_kinds(&ana(), &fork, &[Kind::AssistantMessage], Seq::ZERO, 10).await.unwrap();
    assert_eq!(page.iter().map(|record| record.meta.seq.0).collect::<Vec<u32>>(), [2, 4]);
}

pub async fn read_entry_finds_exactly_the_existing_entries(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one", "two"]).await;
    let log = world.log(&ana(), &session).await;
    for record in log {
        assert_eq!(world.store.read_entry(&ana(), &session, record.meta.seq).await.unwrap(), record);
    }
    for seq in [0, 3, u32::MAX] {
        assert_eq!(code(world.store.read_entry(&ana(), &session, Seq(seq)).await), "entry.not_found");
    }
}

pub async fn find_entries_by_prefix(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "s", &["1", "2", "3", "4", "5"]).await;
    let session = world.fork(&ana(), &source, Some(3), "fork").await;
    for text in ["4", "5", "6"] {
        world.append_text(&ana(), &session, text).await;
    }
    let log = world.log(&ana(), &session).await;
    assert_eq!(log.len(), 6);
    let find = async |prefix: &str| world.store.find_entries(&ana(), &session, prefix).await.unwrap();
    for record in &log {
        let text = record.meta.id.to_string();
        assert_eq!(find(&text).await, std::slice::from_ref(record));
        assert_eq!(find(&text.replace('-', "").to_uppercase()).await, std::slice::from_ref(record));
        for length in [1, 6, 9, 14, 20] {
            let begins = |id: EntryId| id.to_string().starts_with(&text[..length]);
            let expected: Vec<_> =
                log.iter().filter(|other| begins(other.meta.id)).take(2).cloned().collect();
            assert_eq!(find(&text[..length]).await, expected, "{}", &text[..length]);
        }
    }
    for nothing in ["", "ffffffff", "0000", "xyz", "%", "' OR 1=1", &"0".repeat(99)] {
        assert!(find(nothing).await.is_empty(), "{nothing:?}");
    }
}

pub async fn nth_message_counts_along_the_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, "u1 M(m) a2 u3 [ a4 ] L→2 u5 K6(s,2) a7").await;
    let nth = async |leaf: u32, count| {
        let leaf = modeled.model.seq(leaf);
        world.store.nth_message(&modeled.scope, &modeled.session, leaf, count).await.unwrap()
    };
    for (leaf, count, expected) in
        [(4, 1, 1), (4, 2, 2), (4, 4, 4), (7, 3, 5), (7, 4, 7), (6, 3, 5), (2, 2, 2)]
    {
        assert_eq!(nth(leaf, count).await, Some(modeled.model.seq(expected)), "message {count} up to {leaf}");
    }
    for (leaf, count) in [(4, 0), (4, 5), (7, 5), (1, 2), (6, 4)] {
        assert_eq!(nth(leaf, count).await, None, "message {count} up to {leaf}");
    }
    let nowhere = world.store.nth_message(&modeled.scope, &modeled.session, Seq(999), 1).await;
    assert_eq!(code(nowhere), "entry.not_found");
}

pub async fn heads_returns_only_sessions_the_caller_can_read(harness: &impl Harness) {
    let world = World::open(harness).await;
    let filled = world.create_with(&ana(), "filled", &["one", "two"]).await;
    let empty = world.create(&ana(), "empty").await;
    let fork = world.fork(&ana(), &filled, Some(1), "fork").await;
    let ids = [filled.clone(), empty, "unknown".parse().unwrap(), fork];
    let expected = [Some(Seq(2)), Some(Seq::ZERO), None, Some(Seq(1))];
    assert_eq!(world.store.heads(&ana(), &ids).await.unwrap(), expected);
    assert_eq!(world.store.heads(&operator(), &ids).await.unwrap(), expected);
    assert_eq!(world.store.heads(&bob(), &ids).await.unwrap(), [None; 4]);
    assert_eq!(world.store.heads(&foreign_ana(), &[filled]).await.unwrap(), [None]);
}

pub async fn the_change_mark_changes_after_a_write(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let mut before = world.store.change_mark().await.unwrap();
    for _ in 0..3 {
        world.append(&ana(), &session, vec![user_message("x")]).await;
        let after = world.store.change_mark().await.unwrap();
        assert!(after.is_none() || after != before, "{after:?}");
        assert_eq!(world.store.change_mark().await.unwrap(), after, "unchanged without a write");
        before = after;
    }
}

pub async fn the_first_entry_at_or_after_an_id_equals_a_scan(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "s", &["1", "2", "3", "4", "5"]).await;
    let session = world.fork(&ana(), &source, Some(3), "fork").await;
    let find = async |session: &SessionId, id: EntryId| {
        world.store.first_at_or_after(&ana(), session, id).await.unwrap()
    };
    let empty = world.create(&ana(), "empty").await;
    assert_eq!(find(&empty, EntryId::from_bytes([1; 16])).await, Seq(1));
    for text in ["4", "5", "6"] {
        world.append_text(&ana(), &session, text).await;
    }
    let log = world.log(&ana(), &session).await;
    let bytes = log.iter().map(|record| u128::from_be_bytes(*record.meta.id.as_bytes()));
    let around = bytes.flat_map(|id| [id - 1, id, id + 1]).chain([0, u128::MAX]);
    for id in around.map(|id| EntryId::from_bytes(id.to_be_bytes())) {
        let scanned = log.iter().filter(|record| record.meta.id < id).count();
        assert_eq!(find(&session, id).await, Seq(scanned as u32 + 1), "{id}");
    }
    let stranger = world.store.first_at_or_after(&bob(), &session, EntryId::from_bytes([0; 16])).await;
    assert_eq!(code(stranger), "session.not_found");
}
