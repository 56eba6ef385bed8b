//! Paths, and how far back they are read.

use sapwood_core::port::store::{PathSlice, Until};
use sapwood_core::project::context::{OpenTurn, build_context};
use sapwood_core::{Seq, Store};

use super::Harness;
use super::world::{ModeledSession, World, code};

async fn slice(store: &dyn Store, modeled: &ModeledSession, until: Until) -> PathSlice {
    store.read_path(&modeled.scope, &modeled.session, None, until).await.unwrap()
}

fn seqs(slice: &PathSlice) -> Vec<u32> {
    slice.entries.iter().map(|entry| entry.meta.seq.0).collect()
}

pub async fn until_root_entries_and_context_start(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, "u1 a2 u3 a4 K5(s,3) u6 a7").await;
    modeled.check(&world).await;
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::Root).await), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::ContextStart).await), [3, 4, 5, 6, 7]);
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::Entries(2)).await), [6, 7]);
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::Entries(u32::MAX)).await).len(), 7);
    assert!(seqs(&slice(&*world.store, &modeled, Until::Entries(0)).await).is_empty());
    let context = build_context(slice(&*world.store, &modeled, Until::ContextStart).await, OpenTurn::Keep);
    assert_eq!(modeled.model.show(&context), "s u3 a4 u6 a7");
    for number in 1..=7 {
        modeled.check_path(&world, Some(modeled.model.seq(number))).await;
    }
}

pub async fn dead_branches_are_not_on_the_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, "u1 a2 u3 a4 L→2 B5(lesson,4) u6 L→1 u7 a8 L→6 a9").await;
    modeled.check(&world).await;
    assert_eq!(slice(&*world.store, &modeled, Until::Root).await.entries.len(), 5);
    for number in 1..=9 {
        modeled.check_path(&world, Some(modeled.model.seq(number))).await;
    }
}

pub async fn a_reset_empties_the_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut modeled = ModeledSession::of(&world, "M(m) u1 a2 L→none").await;
    let empty = slice(&*world.store, &modeled, Until::Root).await;
    assert!(empty.entries.is_empty() && empty.settings_before == Default::default());
    assert_eq!((empty.head.seq, empty.head.leaf), (Seq(4), None));
    let summary = world.summary(&modeled.scope, &modeled.session).await;
    assert_eq!((summary.messages, summary.model), (0, None));
    modeled.write(&world, "u3 a4").await;
    modeled.check(&world).await;
    let path = slice(&*world.store, &modeled, Until::Root).await;
    assert_eq!((seqs(&path), path.entries[0].meta.parent), (vec![5, 6], None));
    assert_eq!(world.log(&modeled.scope, &modeled.session).await.len(), 6);
}

pub async fn only_the_latest_compaction_counts(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut modeled = ModeledSession::of(&world, "u1 a2 K3(s1,1) u4 a5 K6(s2,4) u7").await;
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::ContextStart).await), [4, 5, 6, 7]);
    modeled.write(&world, "K8(s3) u9").await;
    assert_eq!(seqs(&slice(&*world.store, &modeled, Until::ContextStart).await), [8, 9]);
    // The newer compaction keeps older entries than the previous compaction.
    modeled.write(&world, "K10(s4,2)").await;
    assert_eq!(
        seqs(&slice(&*world.store, &modeled, Until::ContextStart).await),
        (2..=10).collect::<Vec<u32>>()
    );
    modeled.check(&world).await;
    modeled.write(&world, "L→2 u11").await;
    modeled.check(&world).await;
}

pub async fn settings_before_come_from_the_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let script =
        "M(small) H(high) u1 a2@large S(sql) u3 a4@large L→2 Y(be brief) u5 a6@small K7(s,5) u8 L→none u9";
    let mut modeled = ModeledSession::of(&world, script).await;
    for number in 1..=9 {
        modeled.check_path(&world, Some(modeled.model.seq(number))).await;
    }
    modeled.write(&world, "L→8").await;
    let slice = slice(&*world.store, &modeled, Until::ContextStart).await;
    assert_eq!(slice.settings_before.model.as_deref(), Some("large"));
    assert_eq!(slice.settings_before.system.as_deref(), Some("be brief"));
    assert_eq!(slice.settings_before.skills, None);
    assert_eq!(world.summary(&modeled.scope, &modeled.session).await.model.as_deref(), Some("small"));
}

pub async fn a_path_to_an_unknown_entry_is_an_error(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, "u1 N(title) a2").await;
    let read = async |seq| {
        world.store.read_path(&modeled.scope, &modeled.session, Some(Seq(seq)), Until::Root).await
    };
    assert_eq!(code(read(0).await), "entry.not_found");
    assert_eq!(code(read(4).await), "entry.not_found");
    // An entry outside the tree has no path.
    assert_eq!(code(read(2).await), "input.invalid");
    let nth = world.store.nth_message(&modeled.scope, &modeled.session, Seq(2), 1).await;
    assert_eq!(code(nth), "input.invalid");
}

pub async fn a_path_includes_ended_turns_and_the_open_turn(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut modeled =
        ModeledSession::of(&world, "[ u1 a2 ] [ u3 ]failed [ u4 a5 K6(s,4) ]cancelled [ u7 a8 |").await;
    modeled.check(&world).await;
    let root = slice(&*world.store, &modeled, Until::Root).await;
    assert_eq!(root.ended_turns.len(), 3);
    assert!(root.open_turn.is_some());
    let context = slice(&*world.store, &modeled, Until::ContextStart).await;
    assert_eq!(context.ended_turns.len(), 1);
    modeled.write(&world, "]").await;
    assert_eq!(slice(&*world.store, &modeled, Until::Root).await.open_turn, None);
    let fork = modeled.fork(&world, None).await;
    let forked = slice(&*world.store, &fork, Until::Root).await;
    assert!(forked.ended_turns.is_empty(), "a fork has its own turns only");
}
