//! No operation widens a session's configuration. The oracle is the disk: after random operations a model tries to write
//! many paths, and the test looks at what was written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use sapwood::agent::FsScope;
use sapwood::core::agent::Narrowing;
use sapwood::core::compact::{CompactOptions, Method};
use sapwood::core::entry::{SessionContext, Trigger};
use sapwood::core::policy::ApprovalMode;
use sapwood::engine::config_changes::{ConfigChange, ForkChanges};
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::turn::{SendOptions, Sent};
use sapwood::entry::Json;
use sapwood::model::model_fn;
use sapwood::{Agent, Compacting, Error, ForkAt, OpenOptions, Part, Sapwood, Scope, SessionId, user_text};
use serde_json::json;

/// The directories that a model tries to write to.
struct Disk {
    root: tempfile::TempDir,
}

const PROJECT: &str = "project";
const OTHER: &str = "other";

impl Disk {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        [PROJECT, OTHER].iter().for_each(|dir| std::fs::create_dir(root.path().join(dir)).unwrap());
        Self { root }
    }

    fn dir(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    /// The written files below the root, without the scratch directories of sessions.
    fn written(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for dir in [Path::new(""), Path::new(PROJECT), Path::new(OTHER)] {
            for entry in std::fs::read_dir(self.root.path().join(dir)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    files.push(dir.join(entry.file_name()));
                }
            }
        }
        files
    }
}

/// A model that tries every target once per turn, with each tool that could write.
fn greedy(disk: &Disk) -> Sapwood {
    let root = disk.root.path().to_owned();
    let turns = AtomicU32::new(0);
    let model = model_fn(move |request: sapwood::model::Request| {
        let is_answered = request.messages.last().is_some_and(|message| message.role.as_str() == "tool");
        let number = turns.fetch_add(u32::from(!is_answered), Ordering::Relaxed);
        // Paths inside and outside the working directory, absolute and relative.
        let disk_targets = {
            let file = format!("f{number}");
            let dir = |name: &str| root.join(name).join(&file).display().to_string();
            vec![file.clone(), format!("../{file}"), dir(PROJECT), dir(OTHER), dir("")]
        };
        async move {
            if is_answered {
                return Ok(vec![Part::text("tried")]);
            }
            let calls = disk_targets.into_iter().enumerate().map(|(at, path)| {
                let input = Json::from_value(&json!({ "path": path, "content": "x" }));
                Part::tool_call(format!("c{number}-{at}"), "write_file", input)
            });
            Ok(calls.collect())
        }
    });
    let scratch = disk.root.path().join("scratch");
    Sapwood::builder("memory:").unwrap().model("greedy", model).scratch_dir(scratch).build().unwrap()
}

/// The operations that must not widen anything.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Send,
    Reset,
    BranchToFirst,
    Trim,
    Compact,
    Fork,
    EmptyFork,
    SetVariable,
    SetLimits,
}

fn verb() -> impl Strategy<Value = Verb> {
    use Verb::*;
    proptest::sample::select(vec![
        Send,
        Reset,
        BranchToFirst,
        Trim,
        Compact,
        Fork,
        EmptyFork,
        SetVariable,
        SetLimits,
    ])
}

struct World {
    sapwood: Sapwood,
    session: SessionId,
}

impl World {
    async fn start(sapwood: Sapwood, agent: Agent, cwd: String) -> Self {
        let open = OpenOptions { cwd: Some(cwd), ..OpenOptions::default() };
        let options = StartOptions { open, agent, ..StartOptions::default() };
        let (session, _) = sapwood.engine().sessions().start(sapwood.scope(), options).await.unwrap();
        Self { sapwood, session }
    }

    fn scope(&self) -> &Scope {
        self.sapwood.scope()
    }

    async fn send(&self) {
        let parts = vec![Part::text("write everywhere")];
        let sent =
            self.sapwood.engine().turns().send(self.scope(), &self.session, parts, SendOptions::default());
        let Sent::Started(running) = sent.await.unwrap() else { panic!("queued") };
        running.ended().await.unwrap();
    }

    /// Apply a verb. A verb that has nothing to do in this state may fail.
    async fn apply(&mut self, verb: Verb) {
        let (engine, scope, session) = (self.sapwood.engine(), self.sapwood.scope(), self.session.clone());
        let limits = sapwood::entry::LimitsChanged { turns_max: Some(500), ..Default::default() };
        let fork = |at| engine.sessions().fork(scope, &session, at, OpenOptions::default());
        match verb {
            Verb::Send => self.send().await,
            Verb::Reset => drop(engine.edits().reset(scope, &session).await.unwrap()),
            Verb::BranchToFirst => {
                let Some(leaf) = self.leaf().await else { return };
                let first = engine.store().nth_message(scope, &session, leaf, 1).await.unwrap();
                if let Some(first) = first {
                    let id = engine.store().read_entry(scope, &session, first).await.unwrap().meta.id;
                    engine.edits().branch(scope, &session, id, None).await.unwrap();
                }
            }
            Verb::Trim => drop(engine.edits().trim(scope, &session, 1).await),
            Verb::Compact => {
                let options =
                    CompactOptions { compact_strategy: Method::Truncate, ..CompactOptions::default() };
                let compacting = Compacting::new(options, Trigger::Manual);
                drop(engine.compaction().compact(scope, &session, compacting).await);
            }
            Verb::Fork => self.session = fork(ForkAt::Leaf).await.unwrap(),
            Verb::EmptyFork => self.session = fork(ForkAt::KeepFirst(0)).await.unwrap(),
            Verb::SetVariable => {
                let variables = BTreeMap::from([("region".to_owned(), "north".to_owned())]);
                let change = ConfigChange { variables, ..ConfigChange::default() };
                engine.configuration().change(scope, &session, &change).await.unwrap();
            }
            Verb::SetLimits => {
                let change = ConfigChange { limits, ..ConfigChange::default() };
                engine.configuration().change(scope, &session, &change).await.unwrap();
            }
        }
    }

    async fn leaf(&self) -> Option<sapwood::Seq> {
        let summary = self.sapwood.engine().directory().summary(self.scope(), &self.session).await.unwrap();
        summary.head.leaf
    }
}

fn writer(fs_scope: FsScope, tools: &[&str]) -> Agent {
    Agent {
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        fs_scope,
        approvals: ApprovalMode::Auto,
        ..Agent::default_with(Some("greedy".to_owned()))
    }
}

/// Which files each configuration may write, of all that the model tries.
fn is_allowed(agent: &Agent, file: &Path) -> bool {
    let is_in_project = file.parent() == Some(Path::new(PROJECT));
    !agent.tools.is_empty() && agent.fs_scope == FsScope::Project && is_in_project
}

fn check(agent: Agent, verbs: &[Verb]) -> Result<(), TestCaseError> {
    let disk = Disk::new();
    let sapwood = greedy(&disk);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::start(sapwood, agent.clone(), disk.dir(PROJECT)).await;
        for verb in verbs {
            world.apply(*verb).await;
        }
        world.send().await;
    });
    let written = disk.written();
    let forbidden: Vec<_> = written.iter().filter(|file| !is_allowed(&agent, file)).collect();
    prop_assert!(forbidden.is_empty(), "{verbs:?} let {} write {forbidden:?}", agent.id);
    let can_write = !agent.tools.is_empty() && agent.fs_scope == FsScope::Project;
    prop_assert_eq!(can_write, !written.is_empty(), "the model's attempts are not tried: {:?}", verbs);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_session_without_tools_never_writes(verbs in prop::collection::vec(verb(), 0..8)) {
        check(writer(FsScope::Project, &[]), &verbs)?;
    }

    #[test]
    fn a_sandboxed_session_never_leaves_its_scratch_directory(verbs in prop::collection::vec(verb(), 0..8)) {
        check(writer(FsScope::Sandboxed, &["write_file"]), &verbs)?;
    }

    #[test]
    fn a_project_session_writes_only_in_its_directory(verbs in prop::collection::vec(verb(), 0..8)) {
        check(writer(FsScope::Project, &["write_file"]), &verbs)?;
    }
}

async fn project_world(disk: &Disk) -> World {
    World::start(greedy(disk), writer(FsScope::Project, &["write_file"]), disk.dir(PROJECT)).await
}

#[tokio::test]
async fn only_set_and_fork_with_a_directory_change_the_paths() {
    let disk = Disk::new();
    let mut world = project_world(&disk).await;
    let engine = world.sapwood.engine().clone();
    let change = ConfigChange { working_dir: Some(disk.dir(OTHER)), ..ConfigChange::default() };
    engine.configuration().change(world.scope(), &world.session, &change).await.unwrap();
    world.send().await;
    assert_eq!(disk.written().iter().filter(|file| file.starts_with(PROJECT)).count(), 0);
    assert_ne!(disk.written().iter().filter(|file| file.starts_with(OTHER)).count(), 0);
    let changes = ForkChanges { cwd: Some(disk.dir(PROJECT)), ..ForkChanges::default() };
    let fork = engine.sessions().fork_with(
        world.scope(),
        &world.session,
        ForkAt::Leaf,
        OpenOptions::default(),
        changes,
    );
    world.session = fork.await.unwrap();
    world.send().await;
    assert_ne!(disk.written().iter().filter(|file| file.starts_with(PROJECT)).count(), 0);
}

#[tokio::test]
async fn a_fork_can_be_narrowed_but_not_widened() {
    let disk = Disk::new();
    let mut world = project_world(&disk).await;
    let engine = world.sapwood.engine().clone();
    let narrow = |tools: &[&str], fs_scope| Narrowing {
        tools: Some(tools.iter().map(|tool| (*tool).to_owned()).collect()),
        fs_scope,
        ..Narrowing::default()
    };
    let fork = async |session: &SessionId, narrowing| -> Result<SessionId, Error> {
        let changes = ForkChanges { narrowing, ..ForkChanges::default() };
        engine
            .sessions()
            .fork_with(world.sapwood.scope(), session, ForkAt::Leaf, OpenOptions::default(), changes)
            .await
    };
    let wider = fork(&world.session, narrow(&["write_file"], Some(FsScope::Full))).await;
    assert_eq!(wider.unwrap_err().code(), "agent.invalid");
    let narrowed = fork(&world.session, narrow(&[], None)).await.unwrap();
    let again = fork(&narrowed, narrow(&["write_file"], None)).await;
    assert_eq!(again.unwrap_err().code(), "agent.invalid", "a fork of the fork cannot regain a tool");
    world.session = narrowed;
    world.send().await;
    assert_eq!(disk.written(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_collaborator_cannot_move_a_session_or_its_fork_to_another_directory() {
    let disk = Disk::new();
    let sapwood = greedy(&disk);
    let engine = sapwood.engine().clone();
    let user = |name: &str| Scope::user("local".parse().unwrap(), name.parse().unwrap());
    let (ana, ben) = (user("ana"), user("ben"));
    let open = OpenOptions { cwd: Some(disk.dir(PROJECT)), ..OpenOptions::default() };
    let agent = writer(FsScope::Project, &["write_file"]);
    let options = StartOptions { open, agent, ..StartOptions::default() };
    let (session, _) = engine.sessions().start(&ana, options).await.unwrap();
    let role = Some(sapwood::core::scope::Role::Collaborator);
    engine.sessions().share(&ana, &session, ben.principal.clone(), role).await.unwrap();
    let change = ConfigChange { working_dir: Some(disk.dir(OTHER)), ..ConfigChange::default() };
    let refused = engine.configuration().change(&ben, &session, &change).await.unwrap_err();
    assert_eq!(refused.code(), "session.denied");
    let moved = ForkChanges { cwd: Some(disk.dir(OTHER)), ..ForkChanges::default() };
    let refused = engine
        .sessions()
        .fork_with(&ben, &session, ForkAt::Leaf, OpenOptions::default(), moved)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "session.denied");
    let fork = engine.sessions().fork(&ben, &session, ForkAt::Leaf, OpenOptions::default()).await.unwrap();
    let refused = engine.configuration().change(&ben, &fork, &change).await.unwrap_err();
    assert_eq!(refused.code(), "session.denied", "the fork's owner did not fix its configuration");
}

#[tokio::test]
async fn turns_and_money_of_the_ancestors_count_in_forks() {
    let disk = Disk::new();
    let agent = writer(FsScope::Sandboxed, &[]);
    let limited = Agent { limits: sapwood::agent::Limits { turns_max: Some(2), ..agent.limits }, ..agent };
    let mut world = World::start(greedy(&disk), limited, disk.dir(PROJECT)).await;
    world.send().await;
    world.apply(Verb::Fork).await;
    world.send().await;
    world.apply(Verb::EmptyFork).await;
    let engine = world.sapwood.engine();
    let parts = vec![Part::text("once more")];
    let refused = engine.turns().send(world.scope(), &world.session, parts, SendOptions::default()).await;
    assert_eq!(refused.err().unwrap().code(), "turn_limit");
    let ended = engine.store().read_kinds(
        world.scope(),
        &world.session,
        &[sapwood::Kind::TurnEnded],
        sapwood::Seq(0),
        9,
    );
    let records = ended.await.unwrap();
    let sapwood::Body::TurnEnded(ended) = records.last().unwrap().decode().unwrap() else { panic!() };
    assert_eq!(ended.code.as_deref(), Some("turn_limit"), "followers see why nothing ran");
    let limits = sapwood::entry::LimitsChanged { turns_max: Some(3), ..Default::default() };
    let change = ConfigChange { limits, ..ConfigChange::default() };
    engine.configuration().change(world.scope(), &world.session, &change).await.unwrap();
    world.send().await;
}

#[tokio::test]
async fn a_changed_context_is_a_note_and_leaves_the_prompt_unchanged() {
    let disk = Disk::new();
    let prompted = Agent {
        system_prompt: Some("Work on {{ctx.region}}.".to_owned()),
        ..writer(FsScope::Sandboxed, &[])
    };
    let sapwood = greedy(&disk);
    let variables = BTreeMap::from([("region".to_owned(), "north".to_owned())]);
    let context = SessionContext { variables, git_ref: Some("main".to_owned()), ..SessionContext::default() };
    let open = OpenOptions { cwd: Some(disk.dir(PROJECT)), ..OpenOptions::default() };
    let options = StartOptions { open, agent: prompted, context, ..StartOptions::default() };
    let (session, _) = sapwood.engine().sessions().start(sapwood.scope(), options).await.unwrap();
    sapwood.inject(&session, vec![user_text("hello")]).await.unwrap();
    let engine = sapwood.engine();
    let before = engine.views().context(sapwood.scope(), &session, None).await.unwrap();
    assert!(before.system.as_ref().unwrap().contains("Work on north."), "{before:?}");
    assert!(before.system.as_ref().unwrap().contains("git ref: main"), "{before:?}");
    let at = engine.directory().summary(sapwood.scope(), &session).await.unwrap().head.seq;
    let variables = BTreeMap::from([("region".to_owned(), "south".to_owned())]);
    let change =
        ConfigChange { variables, active_file: Some("map.md".to_owned()), ..ConfigChange::default() };
    engine.configuration().change(sapwood.scope(), &session, &change).await.unwrap();
    let after = engine.views().context(sapwood.scope(), &session, None).await.unwrap();
    assert_eq!(after.system, before.system, "the prompt is not rendered again");
    assert_eq!(after.messages[..before.messages.len()], before.messages[..], "the prefix is unchanged");
    let note = after.messages.last().unwrap().text();
    assert!(note.contains("active file: map.md") && note.contains("region = south"), "{note}");
    assert!(!note.contains("git ref"), "only what changed: {note}");
    assert_eq!(after.session.unwrap().variables["region"], "south");
    let earlier = engine.views().context(sapwood.scope(), &session, Some(at)).await.unwrap();
    assert_eq!(earlier.session.unwrap().variables["region"], "north", "--at shows the value at that entry");
    let secret = BTreeMap::from([("token".to_owned(), format!("sk-{}", "a1B2c3D4e5F6g7H8".repeat(3)))]);
    let change = ConfigChange { variables: secret, ..ConfigChange::default() };
    let refused = engine.configuration().change(sapwood.scope(), &session, &change).await.unwrap_err();
    assert_eq!(refused.code(), "input.invalid");
}
