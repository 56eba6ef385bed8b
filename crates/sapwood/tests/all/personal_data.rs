//! Legal holds, erasure of a person's data, and retention, over every local store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sapwood::core::TimestampMs;
use sapwood::core::port::clock::Clock;
use sapwood::engine::compact::Writing;
use sapwood::engine::memory::UserMemory;
use sapwood::engine::personal_data::{DataSubject, HoldTarget, OtherForks, RetentionPolicy};
use sapwood::storage::{StoreOptions, open_store};
use sapwood::{Engine, ForkAt, MemoryKind, OpenOptions, Principal, Scope, SessionId, TenantId, user_text};
use tempfile::TempDir;

const DAY_MS: i64 = 86_400_000;

#[derive(Default)]
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> TimestampMs {
        TimestampMs(1_900_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed))
    }
    fn random(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed).unsigned_abs()) * 0x9e37_79b9_7f4a_7c15
    }
}

struct TestWorld {
    engine: Engine,
    clock: Arc<TestClock>,
    _dir: TempDir,
}

impl TestWorld {
    fn all() -> Vec<Self> {
        let open = |kind: &str| {
            let dir = tempfile::tempdir().unwrap();
            let url = match kind {
                "memory" => "memory:".to_owned(),
                kind => format!("{kind}:{}", dir.path().join("store").display()),
            };
            let clock = Arc::new(TestClock::default());
            let engine = Engine::new(open_store(&url, StoreOptions::default()).unwrap(), clock.clone());
            Self { engine, clock, _dir: dir }
        };
        ["memory", "sqlite", "jsonl"].map(open).into()
    }

    async fn session(&self, scope: &Scope, id: &str) -> SessionId {
        let options = OpenOptions { id: Some(id.parse().unwrap()), ..OpenOptions::default() };
        let (session, _) = self.engine.sessions().open(scope, options).await.unwrap();
        let bodies = vec![user_text("a secret needle")];
        self.engine.edits().inject(scope, &session, bodies, Default::default()).await.unwrap();
        session
    }

    fn pass_days(&self, days: i64) {
        self.clock.0.fetch_add(days * DAY_MS, Ordering::Relaxed);
    }
}

fn user(name: &str) -> Scope {
    Scope::user(TenantId::local(), name.parse().unwrap())
}

fn operator() -> Scope {
    Scope::operator(TenantId::local(), Principal::System)
}

fn ana() -> DataSubject {
    DataSubject::User("ana".parse().unwrap())
}

fn held_user(name: &str) -> HoldTarget {
    HoldTarget::User(name.parse().unwrap())
}

#[tokio::test]
async fn the_data_of_a_user_is_erased_and_the_fact_stays_in_the_audit() {
    for world in TestWorld::all() {
        let engine = &world.engine;
        let first = world.session(&user("ana"), "first").await;
        let kept = world.session(&user("bob"), "kept").await;
        let written =
            UserMemory { text: "Ana lives in Bern".to_owned(), kind: MemoryKind::Fact, belongs: None };
        engine.memories().remember(&user("ana"), written).await.unwrap();
        let fork = OpenOptions { id: Some("fork".parse().unwrap()), ..OpenOptions::default() };
        let fork = engine.sessions().fork(&operator(), &first, ForkAt::Leaf, fork).await.unwrap();
        let found = engine.personal_data().inventory(&operator(), &ana()).await.unwrap();
        assert_eq!(
            (&found.sessions, &found.forks, found.memories),
            (&vec![first.clone()], &vec![fork.clone()], 1)
        );

        let report = engine.personal_data().erase(&operator(), &ana(), OtherForks::Keep).await.unwrap();
        assert_eq!(
            (report.erased, report.forks, report.memories),
            (vec![first.clone()], vec![fork.clone()], 1)
        );
        assert!(!engine.directory().exists(&operator(), &first).await.unwrap());
        assert!(engine.directory().exists(&operator(), &kept).await.unwrap());
        assert_eq!(engine.personal_data().inventory(&operator(), &ana()).await.unwrap().memories, 0);
        let lines = engine.store().read_audit(&operator(), None, 0, 1_000).await.unwrap();
        let details: Vec<&str> = lines.iter().filter_map(|line| line.detail.as_deref()).collect();
        assert!(details.iter().any(|detail| detail.starts_with("erased the data of user ana: 1 sessions")));
        assert!(!format!("{lines:?}").contains("needle"));
        let denied = engine.personal_data().erase(&user("bob"), &ana(), OtherForks::Keep).await.unwrap_err();
        assert_eq!(denied.code(), "operator.required");
    }
}

#[tokio::test]
async fn forks_of_other_owners_are_erased_on_request() {
    for world in TestWorld::all() {
        let engine = &world.engine;
        let first = world.session(&user("ana"), "first").await;
        let mut source = first.clone();
        for name in ["fork", "fork-of-fork"] {
            let options = OpenOptions { id: Some(name.parse().unwrap()), ..OpenOptions::default() };
            source = engine.sessions().fork(&operator(), &source, ForkAt::Leaf, options).await.unwrap();
        }
        let report = engine.personal_data().erase(&operator(), &ana(), OtherForks::Erase).await.unwrap();
        assert_eq!((report.erased.len(), report.forks.len()), (3, 0));
        assert!(!engine.directory().exists(&operator(), &source).await.unwrap());
    }
}

#[tokio::test]
async fn a_legal_hold_protects_until_it_is_released() {
    for world in TestWorld::all() {
        let (engine, data) = (&world.engine, world.engine.personal_data());
        let first = world.session(&user("ana"), "first").await;
        for target in [HoldTarget::Session(first.clone()), held_user("ana")] {
            data.place_hold(&operator(), &target, Some("case 17".to_owned())).await.unwrap();
            let refused = engine.sessions().erase(&user("ana"), &first).await.unwrap_err();
            assert_eq!(refused.code(), "session.held", "{refused}");
            assert_eq!(data.inventory(&operator(), &ana()).await.unwrap().held, std::slice::from_ref(&first));
            let report = data.erase(&operator(), &ana(), OtherForks::Keep).await;
            assert_eq!(report.unwrap().held, std::slice::from_ref(&first));
            assert_eq!(data.holds(&operator()).await.unwrap().len(), 1);
            assert!(data.release_hold(&operator(), &target).await.unwrap());
            assert!(!data.release_hold(&operator(), &target).await.unwrap());
        }
        engine.sessions().erase(&user("ana"), &first).await.unwrap();
        let denied = data.place_hold(&user("ana"), &held_user("bob"), None).await.unwrap_err();
        assert_eq!(denied.code(), "operator.required");
    }
}

#[tokio::test]
async fn memories_of_a_held_user_cannot_be_forgotten() {
    for world in TestWorld::all() {
        let (engine, data) = (&world.engine, world.engine.personal_data());
        let written =
            UserMemory { text: "Ana lives in Bern".to_owned(), kind: MemoryKind::Fact, belongs: None };
        let memory = engine.memories().remember(&user("ana"), written).await.unwrap().memory;
        data.place_hold(&operator(), &held_user("ana"), None).await.unwrap();
        let refused = engine.memories().forget(&user("ana"), memory.id).await.unwrap_err();
        assert_eq!(refused.code(), "session.held");
        assert_eq!(data.erase(&operator(), &ana(), OtherForks::Keep).await.unwrap().memories, 0);
        data.release_hold(&operator(), &held_user("ana")).await.unwrap();
        assert_eq!(data.erase(&operator(), &ana(), OtherForks::Keep).await.unwrap().memories, 1);
    }
}

#[tokio::test]
async fn retention_announces_before_it_erases_and_respects_activity_and_holds() {
    for world in TestWorld::all() {
        let (engine, data) = (&world.engine, world.engine.personal_data());
        let old = world.session(&user("ana"), "old").await;
        let held = world.session(&user("bob"), "held").await;
        let active = world.session(&user("eve"), "active").await;
        data.place_hold(&operator(), &HoldTarget::Session(held.clone()), None).await.unwrap();
        data.set_retention(&operator(), Some(RetentionPolicy { days: 30, notice_days: 7 })).await.unwrap();
        let run = |writing| data_run(engine, writing);
        assert!(run(Writing::Write).await.announced.is_empty(), "no session is inactive yet");
        world.pass_days(31);

        let dry = run(Writing::DryRun).await;
        assert_eq!((dry.announced.len(), dry.held), (2, vec![held.clone()]));
        assert!(data.notices(&operator()).await.unwrap().is_empty(), "a dry run changes nothing");
        assert_eq!(run(Writing::Write).await.announced.len(), 2);
        assert_eq!(data.notices(&user("ana")).await.unwrap().len(), 1, "owners see their announcements");
        assert!(run(Writing::Write).await.erased.is_empty(), "the notice has not ended");
        world.pass_days(6);
        engine
            .edits()
            .inject(&user("eve"), &active, vec![user_text("hi")], Default::default())
            .await
            .unwrap();
        world.pass_days(2);

        let report = run(Writing::Write).await;
        assert_eq!((report.erased, report.withdrawn), (vec![old.clone()], vec![active.clone()]));
        assert!(!engine.directory().exists(&operator(), &old).await.unwrap());
        assert!(engine.directory().exists(&operator(), &held).await.unwrap());
        assert!(engine.directory().exists(&operator(), &active).await.unwrap());
        data.set_retention(&operator(), None).await.unwrap();
        world.pass_days(1_000);
        assert_eq!(run(Writing::Write).await, Default::default(), "without a policy nothing is erased");
    }
}

async fn data_run(engine: &Engine, writing: Writing) -> sapwood::engine::personal_data::RetentionReport {
    engine.personal_data().run_retention(&operator(), writing).await.unwrap()
}
