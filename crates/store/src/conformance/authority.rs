//! Authority records: which entries callers of this store wrote. Imported entries are marked outside the
//! log, and forks inherit the marks.

use std::collections::BTreeMap;

use sapwood_core::entry::{ContextChanged, LeafMoved, Outcome, TurnEnded, TurnStarted};
use sapwood_core::port::store::{Append, NewSession};
use sapwood_core::{Authority, Body, Draft, EntryId, Seq, SessionId, Source, TurnId};

use super::Harness;
use super::world::{World, ana, id, user_message};

impl World {
    async fn import_session(&self, name: &str) -> SessionId {
        let new = NewSession { source: Source::Imported, ..self.new_session(name) };
        self.store.create(&ana(), new).await.unwrap();
        id(name)
    }

    async fn import(&self, session: &SessionId, bodies: Vec<Body>) {
        let append = Append { source: Source::Imported, ..self.append_of(session, bodies) };
        self.store.append(&ana(), append).await.unwrap();
    }

    async fn authority(&self, session: &SessionId) -> Authority {
        self.summary(&ana(), session).await.authority.expect("every new session has an authority record")
    }

    /// Return the seqs of entries that were not imported; 0 represents the creation settings.
    async fn own(&self, session: &SessionId) -> Vec<u32> {
        let (authority, head) = (self.authority(session).await, self.summary(&ana(), session).await.head.seq);
        (0..=head.0).filter(|seq| authority.is_own(Seq(*seq))).collect()
    }

    async fn own_by_id(&self, session: &SessionId) -> BTreeMap<EntryId, bool> {
        let authority = self.authority(session).await;
        let log = self.log(&ana(), session).await;
        log.iter().map(|record| (record.meta.id, authority.is_own(record.meta.seq))).collect()
    }
}

fn ended_well() -> TurnEnded {
    TurnEnded { outcome: Outcome::Completed, code: None, message: None, usage: None, cost_nano_usd: None }
}

pub async fn entries_written_by_callers_are_own(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one", "two"]).await;
    assert_eq!(world.own(&session).await, [0, 1, 2]);
    let fork = world.fork(&ana(), &session, Some(1), "fork").await;
    assert_eq!(world.own(&fork).await, [0, 1]);
}

pub async fn imported_entries_stay_marked(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.import_session("s").await;
    world.import(&session, vec![user_message("1"), user_message("2")]).await;
    world.import(&session, vec![user_message("3")]).await;
    world.append(&ana(), &session, vec![user_message("own 4"), user_message("own 5")]).await;
    world.import(&session, vec![user_message("6")]).await;
    assert_eq!(world.own(&session).await, [4, 5]);
    let extended = world.create_with(&ana(), "extended", &["own 1"]).await;
    world.import(&extended, vec![user_message("2"), user_message("3")]).await;
    world.append_text(&ana(), &extended, "own 4").await;
    assert_eq!(world.own(&extended).await, [0, 1, 4]);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.own(&session).await, [4, 5]);
    assert_eq!(world.own(&extended).await, [0, 1, 4]);
    world.append_text(&ana(), &session, "own 7").await;
    world.import(&extended, vec![user_message("5")]).await;
    assert_eq!(world.own(&session).await, [4, 5, 7]);
    assert_eq!(world.own(&extended).await, [0, 1, 4]);
}

pub async fn an_imported_turn_is_not_open(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.import_session("s").await;
    let turn = |number: u128| TurnId::mint(world.now(), number);
    let begin = |turn: TurnId| {
        let now = world.now();
        vec![
            Draft::new(now, TurnStarted::default()).in_turn(turn),
            Draft::new(now, user_message("go")).in_turn(turn),
        ]
    };
    let (theirs, ours) = (turn(1), turn(2));
    let imported = Append::new(session.clone(), world.now(), begin(theirs));
    world.store.append(&ana(), Append { source: Source::Imported, ..imported }).await.unwrap();
    let summary = world.summary(&ana(), &session).await;
    assert_eq!((summary.turns, summary.open_turn), (0, None));
    world.store.append(&ana(), Append::new(session.clone(), world.now(), begin(ours))).await.unwrap();
    assert_eq!(world.summary(&ana(), &session).await.open_turn, Some(ours));
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!(world.summary(&ana(), &session).await.open_turn, Some(ours));
    let ended = Draft::new(world.now(), ended_well()).in_turn(ours);
    world.store.append(&ana(), Append::new(session.clone(), world.now(), vec![ended])).await.unwrap();
    assert_eq!(world.summary(&ana(), &session).await.open_turn, None);
}

/// Forks number shared entries by depth and omit other branches.
pub async fn a_fork_shares_the_marks_of_its_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["own 1", "own 2"]).await;
    let second = world.log(&ana(), &session).await[1].meta.id;
    world.import(&session, vec![user_message("3"), user_message("4")]).await;
    let back = || vec![Body::from(LeafMoved { to: Some(second) })];
    world.append(&ana(), &session, back()).await;
    world.append(&ana(), &session, vec![user_message("own 6"), user_message("own 7")]).await;
    world.import(&session, vec![user_message("8"), user_message("9")]).await;
    world.append_text(&ana(), &session, "own 10").await;
    let expected = world.own_by_id(&session).await;
    for at in [1, 2, 3, 4, 6, 7, 8, 9, 10] {
        let fork = world.fork(&ana(), &session, Some(at), &format!("fork{at}")).await;
        for (entry, is_own) in world.own_by_id(&fork).await {
            assert_eq!(is_own, expected[&entry], "entry {entry} of a fork at {at}");
        }
        assert!(world.authority(&fork).await.is_own(Seq::ZERO));
        world.append_text(&ana(), &fork, "own").await;
        let again = world.fork(&ana(), &fork, None, &format!("again{at}")).await;
        let of_again = world.own_by_id(&again).await;
        assert!(of_again.iter().all(|(entry, is_own)| expected.get(entry).is_none_or(|own| own == is_own)));
        assert_eq!(of_again.values().last(), Some(&true), "the fork's own entries are own");
    }
    let imported = world.import_session("imported").await;
    world.import(&imported, vec![user_message("1")]).await;
    let fork = world.fork(&ana(), &imported, Some(1), "of-imported").await;
    assert_eq!(world.own(&fork).await, Vec::<u32>::new());
}

pub async fn a_fork_starts_with_its_drafts(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let mut fork = world.fork_of(&session, Some(0), "fork");
    let changed = ContextChanged { system: Some("kept".to_owned()), ..ContextChanged::default() };
    fork.drafts = vec![Draft::new(world.now(), changed)];
    world.store.fork(&ana(), fork).await.unwrap();
    world.append_text(&ana(), &id("fork"), "first").await;
    let log = world.log(&ana(), &id("fork")).await;
    let kinds: Vec<&str> = log.iter().map(|record| record.meta.kind.as_str()).collect();
    assert_eq!(kinds, ["context_changed", "user_message"]);
}

pub async fn a_named_model_is_recorded_and_nothing_else_changes(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.import_session("s").await;
    world.import(&session, vec![user_message("1")]).await;
    world.store.grant_model(&ana(), &session, "scripted:a.toml").await.unwrap();
    world.import(&session, vec![user_message("2")]).await;
    world.append_text(&ana(), &session, "own 3").await;
    let check = async |world: &World| {
        let authority = world.authority(&session).await;
        assert!(authority.allows_model("scripted:a.toml") && !authority.allows_model("scripted:b.toml"));
        assert_eq!(world.own(&session).await, [3]);
        assert_eq!(world.store.settle_authority(&ana(), &session).await.unwrap(), authority);
    };
    check(&world).await;
    let stranger = super::world::bob();
    let refused = world.store.grant_model(&stranger, &session, "scripted:b.toml").await;
    assert_eq!(super::world::code(refused), "session.not_found");
    let Some(world) = world.reopen(harness).await else { return };
    check(&world).await;
}

pub async fn an_erased_session_leaves_no_record(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.import_session("s").await;
    world.import(&session, vec![user_message("1"), user_message("2")]).await;
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    let session = world.create_with(&ana(), "s", &["own 1"]).await;
    assert_eq!(world.own(&session).await, [0, 1]);
}
