//! Memories: ownership, permissions, and erasure together with their source session.

use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{
    Belongs, Embedding, Learned, MEMORY_BYTES_MAX, Memory, MemoryFilter, MemoryKind, MemorySource, Standing,
    Whose,
};
use sapwood_core::port::store::AuditAction;
use sapwood_core::{EntryId, Principal, Scope, SessionId, StoreError, TimestampMs};

use super::Harness;
use super::world::{World, ana, bob, code, foreign_ana, id, operator};

/// A memory that belongs to the caller, not stored yet.
fn memory_of(scope: &Scope, number: i64, text: &str) -> Memory {
    Memory {
        id: MemoryId::mint(TimestampMs(1_000 + number), 7),
        belongs: Belongs::To(scope.principal.clone()),
        kind: MemoryKind::Fact,
        text: text.to_owned(),
        sources: Vec::new(),
        learned: Learned::ByHand,
        by: Principal::System,
        version: 99,
        created_at: TimestampMs(0),
        updated_at: TimestampMs(0),
        superseded_by: None,
        embedding: None,
    }
}

fn source(session: &SessionId, entry: i64) -> MemorySource {
    MemorySource { session: session.clone(), entries: vec![EntryId::mint(TimestampMs(entry), 1)] }
}

async fn put(world: &World, scope: &Scope, memory: Memory) -> Memory {
    world.store.put_memory(scope, memory, 0, world.now()).await.unwrap()
}

async fn listed(world: &World, scope: &Scope, filter: &MemoryFilter) -> Vec<String> {
    let page = world.store.list_memories(scope, filter).await.unwrap();
    page.items.into_iter().map(|memory| memory.text).collect()
}

fn with_words(text: &str) -> MemoryFilter {
    MemoryFilter { text: text.to_owned(), ..MemoryFilter::default() }
}

pub async fn a_memory_reads_back_as_it_was_put(harness: &impl Harness) {
    let world = World::open(harness).await;
    let given = Memory {
        kind: MemoryKind::ErrorPattern,
        sources: vec![source(&id("a"), 1), source(&id("b"), 2)],
        learned: Learned::ByModel("x/y".to_owned()),
        embedding: Some(Embedding { model: "m".to_owned(), numbers: vec![-128, 0, 127] }),
        ..memory_of(&ana(), 1, "é \"quoted\"\nsecond line")
    };
    let now = world.now();
    let kept = world.store.put_memory(&ana(), given.clone(), 0, now).await.unwrap();
    let expected =
        Memory { by: ana().principal, version: 1, created_at: now, updated_at: now, ..given.clone() };
    assert_eq!(kept, expected);
    assert_eq!(world.store.get_memory(&ana(), given.id).await.unwrap(), expected);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.store.get_memory(&ana(), given.id).await.unwrap(), expected);
}

pub async fn an_update_needs_the_current_version(harness: &impl Harness) {
    let world = World::open(harness).await;
    let first = put(&world, &ana(), memory_of(&ana(), 1, "one")).await;
    assert_eq!(code(world.store.put_memory(&ana(), first.clone(), 0, world.now()).await), "memory.conflict");
    let edited = Memory { text: "two".to_owned(), ..first.clone() };
    let second = world.store.put_memory(&ana(), edited.clone(), 1, world.now()).await.unwrap();
    assert_eq!((second.version, second.created_at, second.text.as_str()), (2, first.created_at, "two"));
    assert!(second.updated_at > first.updated_at);
    let late = world.store.put_memory(&ana(), edited, 1, world.now()).await.unwrap_err();
    assert!(matches!(late, StoreError::MemoryConflict { expected: 1, actual: 2, .. }), "{late:?}");
    let unknown = memory_of(&ana(), 5, "x");
    assert_eq!(code(world.store.put_memory(&ana(), unknown, 3, world.now()).await), "memory.not_found");
    assert_eq!(listed(&world, &ana(), &with_words("one")).await, Vec::<String>::new());
    assert_eq!(listed(&world, &ana(), &with_words("two")).await, ["two"]);
}

pub async fn memory_limits_are_enforced(harness: &impl Harness) {
    let world = World::open(harness).await;
    let refused =
        async |memory: Memory| code(world.store.put_memory(&ana(), memory, 0, TimestampMs(1)).await);
    assert_eq!(refused(memory_of(&ana(), 1, " ")).await, "input.invalid");
    assert_eq!(refused(memory_of(&ana(), 1, &"x".repeat(MEMORY_BYTES_MAX + 1))).await, "input.too_large");
    let sources = (0..65).map(|n| source(&id(&format!("s{n}")), n)).collect();
    assert_eq!(refused(Memory { sources, ..memory_of(&ana(), 1, "x") }).await, "input.too_large");
    let long = with_words(&"word ".repeat(100_000));
    assert_eq!(code(world.store.list_memories(&ana(), &long).await), "input.too_large");
}

pub async fn lists_are_newest_first_in_pages(harness: &impl Harness) {
    let world = World::open(harness).await;
    for number in 0..7 {
        put(&world, &ana(), memory_of(&ana(), number, &format!("needle {number}"))).await;
    }
    let mut filter = MemoryFilter { limit: 3, ..with_words("needle") };
    let mut seen = Vec::new();
    for page_number in 0..10 {
        let page = world.store.list_memories(&ana(), &filter).await.unwrap();
        assert!(page.items.len() <= 3 && page_number < 4);
        seen.extend(page.items.into_iter().map(|memory| memory.text));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            break;
        }
        put(
            &world,
            &ana(),
            memory_of(&ana(), 100 + page_number, "a newer needle does not affect later pages"),
        )
        .await;
    }
    let expected: Vec<String> = (0..7).rev().map(|number| format!("needle {number}")).collect();
    assert_eq!(seen, expected);
    filter.cursor = Some("made up".to_owned());
    assert_eq!(code(world.store.list_memories(&ana(), &filter).await), "input.invalid");
}

pub async fn memories_are_filtered_by_words_kind_and_session(harness: &impl Harness) {
    let world = World::open(harness).await;
    let pencil = Memory {
        sources: vec![source(&id("s"), 1)],
        ..memory_of(&ana(), 1, "Deploys run on Fridays; the pencil is red.")
    };
    put(&world, &ana(), pencil).await;
    let tabs = Memory { kind: MemoryKind::Preference, ..memory_of(&ana(), 2, "Prefers tabs to spaces.") };
    put(&world, &ana(), tabs).await;
    for (words, expected) in [
        ("pencil RED", 1),
        ("\"red pencil\"", 0),
        ("\"pencil is\"", 1),
        ("frid*", 1),
        ("the tabs", 0),
        ("\"", 0),
    ] {
        assert_eq!(listed(&world, &ana(), &with_words(words)).await.len(), expected, "{words}");
    }
    let kind = MemoryFilter { kind: Some(MemoryKind::Preference), ..MemoryFilter::default() };
    assert_eq!(listed(&world, &ana(), &kind).await, ["Prefers tabs to spaces."]);
    let session = MemoryFilter { session: Some(id("s")), ..MemoryFilter::default() };
    assert_eq!(listed(&world, &ana(), &session).await.len(), 1);
    let nowhere = MemoryFilter { session: Some(id("nowhere")), ..MemoryFilter::default() };
    assert!(listed(&world, &ana(), &nowhere).await.is_empty());
}

pub async fn memories_stay_with_their_tenant_and_owner_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let hers = put(&world, &ana(), memory_of(&ana(), 1, "hers")).await;
    let all = MemoryFilter { standing: Standing::Any, ..MemoryFilter::default() };
    for stranger in [bob(), foreign_ana()] {
        assert!(listed(&world, &stranger, &all).await.is_empty());
        for whose in [Whose::For(ana().principal), Whose::Only(hers.belongs.clone())] {
            assert!(listed(&world, &stranger, &MemoryFilter { whose, ..all.clone() }).await.is_empty());
        }
        let unknown = MemoryId::mint(TimestampMs(9), 9);
        let as_unknown = |result: String| result.replace(&unknown.to_string(), &hers.id.to_string());
        let got = format!("{:?}", world.store.get_memory(&stranger, hers.id).await);
        assert_eq!(got, as_unknown(format!("{:?}", world.store.get_memory(&stranger, unknown).await)));
        let now = world.now();
        let gone = format!("{:?}", world.store.forget_memory(&stranger, hers.id, now).await);
        let never = world.store.forget_memory(&stranger, unknown, now).await;
        assert_eq!(gone, as_unknown(format!("{never:?}")));
        // In another tenant the id is unknown. For another user of the same tenant it must also look unknown.
        let stolen = world.store.put_memory(&stranger, hers.clone(), 1, now).await;
        assert_eq!(code(stolen), "memory.not_found");
    }
    // A user cannot create a memory that belongs to another user.
    let planted = memory_of(&ana(), 2, "planted");
    assert_eq!(code(world.store.put_memory(&bob(), planted, 0, world.now()).await), "memory.denied");
    assert_eq!(listed(&world, &operator(), &all).await, ["hers"]);
    let for_bob = MemoryFilter { whose: Whose::For(bob().principal), ..all.clone() };
    assert!(listed(&world, &operator(), &for_bob).await.is_empty());
    // The same id in another tenant is a different memory.
    let theirs = put(&world, &foreign_ana(), memory_of(&foreign_ana(), 1, "theirs")).await;
    assert_eq!(theirs.id, hers.id);
    world.store.forget_memory(&foreign_ana(), theirs.id, world.now()).await.unwrap();
    assert_eq!(world.store.get_memory(&ana(), hers.id).await.unwrap(), hers);
}

pub async fn tenant_memories_are_readable_by_all_and_changed_by_their_creator(harness: &impl Harness) {
    let world = World::open(harness).await;
    let ours = Memory { belongs: Belongs::Tenant, ..memory_of(&ana(), 1, "ours") };
    let ours = put(&world, &ana(), ours).await;
    assert_eq!(world.store.get_memory(&bob(), ours.id).await.unwrap(), ours);
    assert_eq!(code(world.store.get_memory(&foreign_ana(), ours.id).await), "memory.not_found");
    let edited = Memory { text: "edited".to_owned(), ..ours.clone() };
    assert_eq!(code(world.store.put_memory(&bob(), edited.clone(), 1, world.now()).await), "memory.denied");
    assert_eq!(code(world.store.forget_memory(&bob(), ours.id, world.now()).await), "memory.denied");
    let kept = world.store.put_memory(&operator(), edited, 1, world.now()).await.unwrap();
    assert_eq!(
        (kept.by.clone(), kept.version),
        (ana().principal, 2),
        "the creator of a memory does not change"
    );
    // Once the memory is private again, only ana can read it.
    let private = Memory { belongs: Belongs::To(ana().principal), ..kept };
    world.store.put_memory(&ana(), private, 2, world.now()).await.unwrap();
    assert_eq!(code(world.store.get_memory(&bob(), ours.id).await), "memory.not_found");
    assert!(listed(&world, &bob(), &MemoryFilter::default()).await.is_empty());
    world.store.forget_memory(&ana(), ours.id, world.now()).await.unwrap();
}

pub async fn a_forgotten_memory_is_deleted_and_audited(harness: &impl Harness) {
    let world = World::open(harness).await;
    let memory = put(&world, &ana(), memory_of(&ana(), 1, "needle")).await;
    world.store.forget_memory(&ana(), memory.id, world.now()).await.unwrap();
    assert_eq!(code(world.store.get_memory(&ana(), memory.id).await), "memory.not_found");
    assert_eq!(code(world.store.forget_memory(&ana(), memory.id, world.now()).await), "memory.not_found");
    let lines = world.store.read_audit(&operator(), None, 0, 100).await.unwrap();
    let about: Vec<&str> = lines
        .iter()
        .filter(|line| line.action == AuditAction::MemoryChange && line.by == ana().principal)
        .filter_map(|line| line.detail.as_deref())
        .collect();
    let expected = ["learned", "forgot"].map(|what| format!("{what} memory {} of user:ana", memory.id));
    assert_eq!(about, expected);
    let Some(world) = world.reopen(harness).await else { return };
    let all = MemoryFilter { standing: Standing::Any, ..MemoryFilter::default() };
    assert!(listed(&world, &operator(), &all).await.is_empty());
}

pub async fn a_superseded_memory_becomes_current_when_the_newer_is_deleted(harness: &impl Harness) {
    let world = World::open(harness).await;
    let old = put(&world, &ana(), memory_of(&ana(), 1, "spaces")).await;
    let new = put(&world, &ana(), memory_of(&ana(), 2, "tabs")).await;
    let superseded = Memory { superseded_by: Some(new.id), ..old.clone() };
    world.store.put_memory(&ana(), superseded, 1, world.now()).await.unwrap();
    assert_eq!(listed(&world, &ana(), &MemoryFilter::default()).await, ["tabs"]);
    let any = MemoryFilter { standing: Standing::Any, ..MemoryFilter::default() };
    assert_eq!(listed(&world, &ana(), &any).await, ["tabs", "spaces"]);
    assert_eq!(world.store.get_memory(&ana(), old.id).await.unwrap().superseded_by, Some(new.id));
    world.store.forget_memory(&ana(), new.id, world.now()).await.unwrap();
    assert_eq!(listed(&world, &ana(), &MemoryFilter::default()).await, ["spaces"]);
    assert_eq!(world.store.get_memory(&ana(), old.id).await.unwrap().superseded_by, None);
}

pub async fn erasing_a_session_erases_memories_with_no_other_source(harness: &impl Harness) {
    let world = World::open(harness).await;
    let (first, second) =
        (world.create_with(&ana(), "first", &["x"]).await, world.create_with(&ana(), "second", &["y"]).await);
    // The same session id in another tenant is a different session.
    world.create_with(&foreign_ana(), "first", &["z"]).await;
    let made = |number, text: &str, sources| Memory { sources, ..memory_of(&ana(), number, text) };
    put(&world, &ana(), made(1, "only first", vec![source(&first, 1)])).await;
    let both = put(&world, &ana(), made(2, "both", vec![source(&first, 1), source(&second, 2)])).await;
    put(&world, &ana(), made(3, "by hand", Vec::new())).await;
    let old = put(&world, &ana(), made(4, "older", vec![source(&second, 2)])).await;
    let newer = put(&world, &ana(), made(5, "newer", vec![source(&first, 2)])).await;
    let superseded = Memory { superseded_by: Some(newer.id), ..old };
    world.store.put_memory(&ana(), superseded, 1, world.now()).await.unwrap();
    let theirs = Memory { sources: vec![source(&first, 1)], ..memory_of(&foreign_ana(), 6, "theirs") };
    put(&world, &foreign_ana(), theirs).await;
    world.store.erase(&ana(), &first, world.now()).await.unwrap();
    assert_eq!(listed(&world, &ana(), &MemoryFilter::default()).await, ["older", "by hand", "both"]);
    assert_eq!(world.store.get_memory(&ana(), both.id).await.unwrap().sources, [source(&second, 2)]);
    assert_eq!(listed(&world, &foreign_ana(), &MemoryFilter::default()).await, ["theirs"]);
    world.store.erase(&ana(), &second, world.now()).await.unwrap();
    assert_eq!(listed(&world, &ana(), &MemoryFilter::default()).await, ["by hand"]);
}
