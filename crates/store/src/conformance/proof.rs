//! Entry hashes: every entry has one, forks share them, and erasing leaves the rest verifiable.

use sapwood_core::entry::proof::{EntryHash, Opening, StoredEntry, Verifier};
use sapwood_core::entry::{CustomInfo, Kind};
use sapwood_core::port::store::Append;
use sapwood_core::{Draft, Json, Scope, Seq, SessionId, Source};

use super::Harness;
use super::world::{ModeledSession, World, ana, user_message};

async fn hashes(world: &World, scope: &Scope, session: &SessionId) -> Vec<EntryHash> {
    let log = world.proofs(scope, session).await;
    log.iter().map(|entry| entry.proof.unwrap().hash).collect()
}

pub async fn every_entry_has_a_hash_that_verifies(harness: &impl Harness) {
    let world = World::open(harness).await;
    let script = "M(m) u1 a2 u3 a4 L→2 B5(lesson,4) u6 L→1 u7 a8 K9(s,7) u10 L→6 a11 L→none u12";
    let modeled = ModeledSession::of(&world, script).await;
    modeled.check(&world).await;
    let (scope, session) = (&modeled.scope, &modeled.session);
    // A parent that is no longer cached, an import, and JSON with line breaks.
    for _ in 0..12 {
        world.append_text(scope, session, "more").await;
    }
    let data = Json::parse("{\n \"a\": 1\r\n}").unwrap();
    let info = CustomInfo { custom_type: "mine".to_owned(), data };
    let import = world.append_of(session, vec![user_message("imported"), info.into()]);
    world.store.append(scope, Append { source: Source::Imported, ..import }).await.unwrap();
    assert_eq!(world.verify(scope, session).await.seq, world.summary(scope, session).await.head.seq);
}

pub async fn a_fork_shares_the_hashes_of_its_path(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = ModeledSession::of(&world, "u1 a2 u3 L→2 u4 a5 K6(s,4) u7").await;
    let scope = &source.scope;
    let all = world.proofs(scope, &source.session).await;
    let fork = source.fork(&world, None).await;
    fork.check(&world).await;
    world.append_text(scope, &fork.session, "own").await;
    let again = fork.session.clone();
    let second = world.fork(scope, &again, None, "second").await;
    world.append_text(scope, &second, "own, too").await;
    for session in [&fork.session, &second] {
        world.verify(scope, session).await;
        let inherited = world.summary(scope, session).await.inherited as usize;
        for shared in world.proofs(scope, session).await.iter().take(inherited.min(6)) {
            let home = all.iter().find(|entry| entry.meta.id == shared.meta.id).unwrap();
            assert_eq!((shared.proof, &shared.body), (home.proof, &home.body));
        }
    }
    world.verify(scope, &source.session).await;
}

pub async fn an_erased_source_leaves_its_forks_verifiable(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2", "3"]).await;
    let fork = world.fork(&ana(), &source, Some(2), "fork").await;
    world.append_text(&ana(), &fork, "own").await;
    let second = world.fork(&ana(), &fork, None, "second").await;
    world.append_text(&ana(), &second, "own").await;
    let before = (hashes(&world, &ana(), &fork).await, hashes(&world, &ana(), &second).await);
    world.store.erase(&ana(), &source, world.now()).await.unwrap();
    assert_eq!(hashes(&world, &ana(), &fork).await, before.0);
    world.store.erase(&ana(), &fork, world.now()).await.unwrap();
    assert_eq!(hashes(&world, &ana(), &second).await, before.1);
    world.append_text(&ana(), &second, "after").await;
    world.verify(&ana(), &second).await;
}

pub async fn hashes_survive_reopening_and_appends_continue_them(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["1", "2"]).await;
    let fork = world.fork(&ana(), &session, Some(1), "fork").await;
    world.append_text(&ana(), &fork, "own").await;
    let before = (world.verify(&ana(), &session).await, world.verify(&ana(), &fork).await);
    let Some(world) = world.reopen(harness).await else { return };
    assert_eq!((world.verify(&ana(), &session).await, world.verify(&ana(), &fork).await), before);
    for session in [&session, &fork] {
        world.append_text(&ana(), session, "after").await;
        world.verify(&ana(), session).await;
    }
}

pub async fn given_salts_reproduce_the_hashes(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2", "3"]).await;
    let copy = world.create(&ana(), "copy").await;
    let log = world.proofs(&ana(), &source).await;
    let salt = |entry: &StoredEntry| match entry.proof.unwrap().opening {
        Opening::Salt(salt) => Some(salt),
        Opening::Dropped(_) => None,
    };
    let salts: Vec<_> = log.iter().map(salt).collect();
    let drafts = world.log(&ana(), &source).await.into_iter().map(|record| {
        let entry = record.into_entry().unwrap();
        let meta = entry.meta;
        Draft { id: Some(meta.id), at: meta.at, by: Some(meta.by), turn: meta.turn, body: entry.body }
    });
    let append = Append { salts, ..Append::new(copy.clone(), world.now(), drafts.collect()) };
    world.store.append(&ana(), append).await.unwrap();
    assert_eq!(hashes(&world, &ana(), &copy).await, hashes(&world, &ana(), &source).await);
    assert_ne!(
        world.verify(&ana(), &copy).await,
        world.verify(&ana(), &source).await,
        "a head names its session"
    );
}

pub async fn a_changed_entry_does_not_verify(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["1", "2", "3"]).await;
    let mut log = world.proofs(&ana(), &session).await;
    let last = log[1].body.len() - 4;
    log[1].body[last] ^= 1;
    let mut verifier = Verifier::new(&session);
    let failed: Vec<Seq> =
        log.iter().filter(|entry| verifier.check(entry).is_err()).map(|entry| entry.meta.seq).collect();
    assert_eq!(failed, [Seq(2)], "only the changed entry is reported");
    assert_eq!(log[0].meta.kind, Kind::UserMessage);
}

pub async fn pages_of_proofs_are_in_order(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create_with(&ana(), "source", &["1", "2", "3", "4"]).await;
    let fork = world.fork(&ana(), &source, Some(3), "fork").await;
    world.append_text(&ana(), &fork, "own").await;
    let whole = world.proofs(&ana(), &fork).await;
    for after in 0..=4 {
        for limit in 1..=5 {
            let page = world.store.read_proofs(&ana(), &fork, Seq(after), limit).await.unwrap();
            let expected: Vec<StoredEntry> = whole.iter().skip(after as usize).take(limit).cloned().collect();
            assert_eq!(page, expected);
        }
    }
    assert!(world.store.seal_entries(&super::world::operator()).await.unwrap().findings.is_empty());
    assert_eq!(world.proofs(&ana(), &fork).await, whole, "sealing changes no proven entry");
}
