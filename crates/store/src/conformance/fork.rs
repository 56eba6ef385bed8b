//! Forks: sessions that share the path of another session by reference.

use sapwood_core::entry::{Label, SessionState, UserMessage};
use sapwood_core::port::store::{Fork, LEASE_TTL_MS_MAX, Until};
use sapwood_core::{Draft, EntryId, Role, Seq, TimestampMs};

use super::Harness;
use super::world::{ModeledSession, World, ana, bob, code, id, shared, user_message};

pub async fn a_fork_shares_the_entries_before_it_at_any_depth_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let texts: Vec<String> = (1..=10).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let source = world.create_with(&ana(), "source", &texts).await;
    let source_log = world.log(&ana(), &source).await;
    for at in 1..=10 {
        let fork = world.fork(&ana(), &source, Some(at), &format!("fork{at}")).await;
        assert_eq!(world.log(&ana(), &fork).await, source_log[..at as usize]);
        let summary = world.summary(&ana(), &fork).await;
        assert_eq!((summary.head.seq, summary.head.leaf), (Seq(at), Some(Seq(at))));
        assert_eq!((summary.inherited, summary.messages, summary.state), (at, at, SessionState::Active));
        let own = world.append_text(&ana(), &fork, "own").await;
        assert_eq!(own.entries[0].0, Seq(at + 1));
        let read = world.store.read_entry(&ana(), &fork, Seq(at + 1)).await.unwrap();
        assert_eq!(read.meta.parent, Some(Seq(at)));
    }
    assert_eq!(world.log(&ana(), &source).await, source_log);
}

pub async fn a_fork_and_its_source_have_independent_lengths_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["u1", "a2", "u3", "a4"]).await;
    let fork = world.fork(&ana(), &source, Some(2), "fork").await;
    world.append_text(&ana(), &source, "s5").await;
    world.append(&ana(), &fork, vec![user_message("f3"), user_message("f4")]).await;
    assert_eq!(world.texts(&ana(), &source).await, ["u1", "a2", "u3", "a4", "s5"]);
    assert_eq!(world.texts(&ana(), &fork).await, ["u1", "a2", "f3", "f4"]);
    assert_eq!(world.summary(&ana(), &source).await.messages, 5);
    assert_eq!(world.summary(&ana(), &fork).await.messages, 4);
    let slice = world.store.read_path(&ana(), &fork, None, Until::Root).await.unwrap();
    assert_eq!(slice.inherited, 2);
}

pub async fn a_fork_of_a_fork_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut session = world.create_with(&ana(), "g0", &["m0", "x"]).await;
    let mut expected = vec!["m0".to_owned()];
    for generation in 1..=20_u32 {
        let fork = world.fork(&ana(), &session, Some(generation), &format!("g{generation}")).await;
        world.append(&ana(), &fork, vec![user_message(&format!("m{generation}")), user_message("x")]).await;
        expected.push(format!("m{generation}"));
        session = fork;
    }
    expected.push("x".to_owned());
    assert_eq!(world.texts(&ana(), &session).await, expected);
    assert_eq!(world.texts(&ana(), &id("g3")).await, ["m0", "m1", "m2", "m3", "x"]);
    let log = world.log(&ana(), &session).await;
    for (index, record) in log.iter().enumerate() {
        let seq = Seq(index as u32 + 1);
        assert_eq!((record.meta.seq, record.meta.parent), (seq, (index > 0).then_some(Seq(index as u32))));
        assert_eq!(world.store.read_entry(&ana(), &session, seq).await.unwrap(), *record);
        let nth = world.store.nth_message(&ana(), &session, Seq(log.len() as u32), seq.0).await.unwrap();
        assert_eq!(nth, Some(seq));
    }
}

pub async fn a_fork_at_a_shared_entry_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2", "3", "4", "5"]).await;
    let fork = world.fork(&ana(), &source, Some(4), "fork").await;
    world.append_text(&ana(), &fork, "own").await;
    let inner = world.fork(&ana(), &fork, Some(2), "inner").await;
    world.append_text(&ana(), &inner, "mine").await;
    assert_eq!(world.texts(&ana(), &inner).await, ["1", "2", "mine"]);
    let parent = world.summary(&ana(), &inner).await.parent.unwrap();
    let second = world.log(&ana(), &source).await[1].meta.id;
    assert_eq!((parent.session, parent.at), (fork, Some(second)));
}

pub async fn a_fork_of_a_branched_source(harness: &impl Harness) {
    let world = World::open(harness).await;
    // The source has a dead branch and entries outside the tree, so that seq and depth differ.
    let source = ModeledSession::of(&world, "u1 M(small) a2 [ u3 ] L→2 u4 a5@large 4=here").await;
    let mut fork = source.fork(&world, None).await;
    fork.check(&world).await;
    fork.write(&world, "u6 L→2 u7 a8 L→4 K9(s,2) u10").await;
    fork.check(&world).await;
    for number in [1, 2, 4, 5, 6, 7, 8, 9, 10] {
        fork.check_path(&world, Some(fork.model.seq(number))).await;
    }
    source.check(&world).await;
}

pub async fn labels_are_copied_as_drafts(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = ModeledSession::of(&world, "u1 a2 2=good u3 1=start 3=later").await;
    let fork = source.fork(&world, Some(source.model.seq(2))).await;
    fork.check(&world).await;
    let log = world.log(&fork.scope, &fork.session).await;
    assert_eq!(log.len(), 4, "two shared entries and their labels");
    assert!(log[2..].iter().all(|record| matches!(record.decode().unwrap(), sapwood_core::Body::Label(_))));
    assert_eq!(world.summary(&fork.scope, &fork.session).await.head.leaf, Some(Seq(2)));
}

pub async fn the_source_and_the_fork_grow_independently_i8(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut source = ModeledSession::of(&world, "u1 a2@small u3").await;
    let mut fork = source.fork(&world, None).await;
    for round in 1..=10 {
        let (one, two, three) = (10 * round, 10 * round + 1, 10 * round + 2);
        source.write(&world, &format!("a{one}@large u{two} L→2 M(large) u{three}")).await;
        fork.write(&world, &format!("H(high) a{one}@small L→1 u{two} L→{one}")).await;
    }
    source.check(&world).await;
    fork.check(&world).await;
}

pub async fn a_fork_of_an_empty_session(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = ModeledSession::create(&world).await;
    let mut fork = source.fork(&world, None).await;
    fork.check(&world).await;
    fork.write(&world, "u1 a2").await;
    fork.check(&world).await;
    // A fork of a reset session is also empty.
    let reset = world.create_with(&ana(), "reset", &["x"]).await;
    world.append(&ana(), &reset, vec![sapwood_core::entry::LeafMoved { to: None }.into()]).await;
    let fork = world.fork(&ana(), &reset, None, "f").await;
    let summary = world.summary(&ana(), &fork).await;
    assert_eq!((summary.head.seq, summary.inherited, summary.state), (Seq::ZERO, 0, SessionState::Created));
    assert_eq!(summary.parent.unwrap().at, None);
    // A fork before the first entry is empty even if the source has entries.
    let full = world.create_with(&ana(), "full", &["x", "y"]).await;
    let fork = world.fork(&ana(), &full, Some(0), "before").await;
    assert_eq!(world.summary(&ana(), &fork).await.head, Default::default());
}

pub async fn a_fork_onto_an_existing_id_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1"]).await;
    world.create_with(&ana(), "other", &["1"]).await;
    world.create_with(&bob(), "bobs", &["1"]).await;
    for taken in ["source", "other", "bobs"] {
        assert_eq!(
            code(world.store.fork(&ana(), world.fork_of(&source, None, taken)).await),
            "session.exists"
        );
    }
    assert_eq!(world.texts(&ana(), &id("other")).await, ["1"]);
    let unknown = world.store.fork(&ana(), world.fork_of(&id("nowhere"), None, "x")).await;
    assert_eq!(code(unknown), "session.not_found");
}

pub async fn a_fork_at_an_unknown_entry_is_refused(harness: &impl Harness) {
    let world = World::open(harness).await;
    let modeled = ModeledSession::of(&world, "u1 N(name) a2").await;
    for (at, expected) in [(4, "entry.not_found"), (2, "input.invalid")] {
        let fork = world.fork_of(&modeled.session, Some(at), "f");
        assert_eq!(code(world.store.fork(&modeled.scope, fork).await), expected, "at {at}");
    }
    assert_eq!(code(world.store.summary(&modeled.scope, &id("f")).await), "session.not_found");
}

pub async fn labels_of_unshared_entries_are_left_out(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2"]).await;
    let log = world.log(&ana(), &source).await;
    let (shared, later, nowhere) = (log[0].meta.id, log[1].meta.id, EntryId::mint(TimestampMs(1), 1));
    let label = |target| Draft::new(world.now(), Label { target, text: Some("x".to_owned()) });
    let drafts = [later, shared, nowhere].map(label).to_vec();
    let fork = Fork { drafts, ..world.fork_of(&source, Some(1), "f") };
    let head = world.store.fork(&ana(), fork).await.unwrap();
    assert_eq!((head.seq, head.leaf), (Seq(2), Some(Seq(1))));
    let label = world.log(&ana(), &id("f")).await.remove(1).decode().unwrap();
    assert!(matches!(label, sapwood_core::Body::Label(label) if label.target == shared));
}

pub async fn children_and_lineage(harness: &impl Harness) {
    let world = World::open(harness).await;
    let root = world.create_with(&ana(), "root", &["1", "2"]).await;
    assert!(world.store.children(&ana(), &root).await.unwrap().is_empty());
    let one = world.fork(&ana(), &root, None, "one").await;
    let two = world.fork(&ana(), &root, Some(1), "two").await;
    let deep = world.fork(&ana(), &one, Some(1), "deep").await;
    assert_eq!(world.store.children(&ana(), &root).await.unwrap(), [one.clone(), two]);
    assert_eq!(world.store.children(&ana(), &one).await.unwrap(), std::slice::from_ref(&deep));
    let lineage = world.summary(&ana(), &deep).await.parent.unwrap();
    assert_eq!((lineage.session, lineage.at), (one, Some(world.log(&ana(), &root).await[0].meta.id)));
    world.store.erase(&ana(), &deep, world.now()).await.unwrap();
    assert!(world.store.children(&ana(), &id("one")).await.unwrap().is_empty());
}

pub async fn nothing_but_the_path_is_inherited(harness: &impl Harness) {
    let world = World::open(harness).await;
    let mut source = ModeledSession::of(&world, "u1 a2@small [ u3 N(a name)").await;
    world.append(&source.scope, &source.session, vec![shared(&bob(), Some(Role::Collaborator))]).await;
    let lease = world.store.take_lease(&source.scope, &source.session, "a", LEASE_TTL_MS_MAX).await.unwrap();
    let fork = Fork { at: Some(source.model.seq(3)), ..world.fork_of(&source.session, None, "f") };
    world.store.fork(&bob(), fork).await.unwrap();
    let summary = world.summary(&bob(), &id("f")).await;
    assert_eq!((summary.owner, summary.members.len(), summary.open_turn), (bob().principal, 0, None));
    assert_eq!((summary.title.as_deref(), summary.model.as_deref()), (Some("a name"), Some("small")));
    assert_eq!(summary.spend, Default::default(), "shared calls count in the source session");
    // The source's lease does not cover the fork.
    world.append_text(&bob(), &id("f"), "x").await;
    world.store.release_lease(&source.scope, &lease).await.unwrap();
    source.model.push(UserMessage { parts: Vec::new(), origin: None }).unwrap();
}

pub async fn compactions_reach_into_the_shared_part(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = ModeledSession::of(&world, "Y(be brief) u1 a2@small u3 a4 u5").await;
    let mut fork = source.fork(&world, None).await;
    fork.write(&world, "a6 K7(sum,3) u8").await;
    fork.check(&world).await;
    let slice = world.store.read_path(&fork.scope, &fork.session, None, Until::ContextStart).await.unwrap();
    assert_eq!(slice.entries.first().unwrap().meta.seq, fork.model.seq(3));
    assert_eq!(slice.settings_before.system.as_deref(), Some("be brief"));
    let inner = fork.fork_as(&world, None, "inner").await;
    inner.check(&world).await;
}
