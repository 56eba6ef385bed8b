//! Random sessions, stored and read back, compared with the naive model of `sapwood_core::fixture`.

use sapwood_core::fixture::{Dice, random_script};
use sapwood_core::port::store::Until;
use sapwood_core::project::summary::Summary;
use sapwood_core::{EntryId, Seq};

use super::Harness;
use super::world::{ModeledSession, World};

/// Compare the store's answers about each entry with the model.
async fn check_every_entry(modeled: &ModeledSession, world: &World) {
    let (store, scope, session) = (&world.store, &modeled.scope, &modeled.session);
    for placed in modeled.model.placed() {
        let meta = &placed.entry.meta;
        let record = placed.entry.to_record();
        assert_eq!(store.read_entry(scope, session, meta.seq).await.unwrap(), record);
        assert_eq!(store.find_entries(scope, session, &meta.id.to_string()).await.unwrap(), [record]);
        if placed.links.is_some() {
            modeled.check_path(world, Some(meta.seq)).await;
            check_messages(modeled, world, meta.seq).await;
        }
    }
    let nowhere = EntryId::mint(sapwood_core::TimestampMs(77), 77).to_string();
    assert!(store.find_entries(scope, session, &nowhere).await.unwrap().is_empty());
}

/// Check that following links finds the same n-th message as counting along the path.
async fn check_messages(modeled: &ModeledSession, world: &World, leaf: Seq) {
    let path = modeled.model.path_seqs(Some(leaf));
    let messages: Vec<Seq> =
        path.into_iter().filter(|seq| modeled.model.entry(*seq).meta.kind.is_message()).collect();
    for count in [1, 2, messages.len() / 2, messages.len(), messages.len() + 1] {
        let expected = count.checked_sub(1).and_then(|index| messages.get(index)).copied();
        let found =
            world.store.nth_message(&modeled.scope, &modeled.session, leaf, count as u32).await.unwrap();
        assert_eq!(found, expected, "message {count} up to {leaf}");
    }
}

pub async fn random_sessions_equal_the_naive_model(harness: &impl Harness) {
    let world = World::open(harness).await;
    for seed in 0..4 {
        let modeled = ModeledSession::of(&world, &random_script(seed, 80)).await;
        modeled.check(&world).await;
        check_every_entry(&modeled, &world).await;
        world.store.erase(&modeled.scope, &modeled.session, world.now()).await.unwrap();
    }
}

pub async fn random_forks_equal_the_naive_model(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut dice = Dice::new(42);
    let mut sessions = vec![ModeledSession::of(&world, &random_script(42, 60)).await];
    for generation in 0..8_u32 {
        let parent = &sessions[dice.below(sessions.len())];
        let in_tree = parent.model.placed().iter().filter(|placed| placed.links.is_some());
        let seqs: Vec<Seq> = in_tree.map(|placed| placed.entry.meta.seq).collect();
        let at = dice.pick(&seqs);
        let mut fork = parent.fork_as(&world, at, &format!("fork{generation}")).await;
        // Use message numbers that no earlier entry uses.
        let number = 1_000 * (generation + 1);
        fork.write(&world, &format!("u{number} M(m{generation}) a{} L→{number} u{}", number + 1, number + 2))
            .await;
        sessions.push(fork);
    }
    for modeled in &sessions {
        modeled.check(&world).await;
        check_every_entry(modeled, &world).await;
    }
}

pub async fn any_batch_size_gives_the_same_log_i4(harness: &impl Harness) {
    let world = World::open(harness).await;
    for (seed, batch_max) in [(100, 1), (101, 2), (102, 7), (103, usize::MAX)] {
        let mut modeled = ModeledSession::create(&world).await;
        modeled.model.write(&random_script(seed, 60));
        modeled.catch_up(&world, batch_max).await;
        modeled.check(&world).await;
        world.store.erase(&modeled.scope, &modeled.session, world.now()).await.unwrap();
    }
}

pub async fn the_summary_is_the_fold_of_the_log_i10(harness: &impl Harness) {
    let world = World::open(harness).await;
    for seed in 200..206 {
        let mut modeled = ModeledSession::create(&world).await;
        let mut folded: Summary = world.summary(&modeled.scope, &modeled.session).await;
        modeled.model.write(&random_script(seed, 60));
        modeled.catch_up(&world, 7).await;
        let summary = world.summary(&modeled.scope, &modeled.session).await;
        for record in world.log(&modeled.scope, &modeled.session).await {
            folded.apply(&record.into_entry().unwrap());
        }
        // Values that depend on the path are not part of the per-entry fold.
        folded.head.leaf = summary.head.leaf;
        folded.model.clone_from(&summary.model);
        folded.messages = summary.messages;
        assert_eq!(summary, folded);
        world.store.erase(&modeled.scope, &modeled.session, world.now()).await.unwrap();
    }
}

pub async fn a_long_session_has_the_right_links(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut modeled = ModeledSession::create(&world).await;
    let script: Vec<String> = (1..=1_500).map(|number| format!("u{number}")).collect();
    modeled.model.write(&script.join(" "));
    modeled.model.write("L→700 u2001 u2002 K2003(s,650) u2004");
    modeled.catch_up(&world, usize::MAX).await;
    for number in [1, 2, 649, 650, 700, 701, 1_024, 1_500, 2_001, 2_004] {
        let leaf = modeled.model.seq(number);
        check_messages(&modeled, &world, leaf).await;
        let slice = world
            .store
            .read_path(&modeled.scope, &modeled.session, Some(leaf), Until::Entries(2))
            .await
            .unwrap();
        assert_eq!(slice, modeled.model.slice(Some(leaf), Until::Entries(2)));
    }
    modeled.check_path(&world, None).await;
}
