//! Many sessions at once in one process: answers, tools, skills, spend and files stay separate. The model
//! follows the first message of its conversation over several rounds with real tools, so that any mix-up
//! between sessions is detected.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use futures_util::stream;
use sapwood::core::agent::{Budget, OnExceed};
use sapwood::core::entry::{ArtifactUse, Outcome, Stop, Usage};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request};
use sapwood::core::project::context::Role;
use sapwood::effects::skill::SkillFolders;
use sapwood::effects::tool::host::{Host, Settings};
use sapwood::{Agent, Backends, HookEvent, HookName, Sapwood, Seq, SessionId, TurnReport};

const SESSIONS: usize = 50;
const CALLS: u64 = 6;
const PRICE: u64 = 1_000;
const INPUT_TOKENS: u64 = 100;

fn marker(number: usize) -> String {
    format!("marker-{number:03}-x")
}

/// Every marker in a text.
fn markers_in(text: &str) -> Vec<String> {
    let mut found: Vec<String> = text
        .match_indices("marker-")
        .filter_map(|(at, _)| text.get(at..at + 12).map(str::to_owned))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// A model that writes its marker, reads it, reads its skill, delivers the marker, lists files, and reports
/// all results.
#[derive(Default)]
struct MarkerModel {
    /// Markers of other sessions that the model received.
    mixed: Mutex<Vec<String>>,
}

fn call(name: &str, input: serde_json::Value) -> Vec<ReplyEvent> {
    let begun = ReplyEvent::CallBegan { index: 0, call_id: format!("call-{name}"), name: name.to_owned() };
    vec![begun, ReplyEvent::CallInput { index: 0, text: input.to_string() }]
}

#[async_trait::async_trait]
impl Model for MarkerModel {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let prompt = format!("{:?} {:?}", request.system, request.messages);
        let markers = markers_in(&prompt);
        if markers.len() != 1 {
            self.mixed.lock().unwrap().push(format!("{markers:?}"));
        }
        let own = markers.first().cloned().unwrap_or_default();
        let skill = request.system.clone().unwrap_or_default();
        let skill =
            skill.rsplit("- ").next().and_then(|line| line.split(':').next()).unwrap_or_default().to_owned();
        let question = request.messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
        let answers =
            request.messages[question..].iter().filter(|message| message.role == Role::Assistant).count();
        let mut events = match answers {
            0 => call("write_file", serde_json::json!({"path": "name.txt", "content": own})),
            1 => call("read_file", serde_json::json!({"path": "name.txt"})),
            2 => call("skill", serde_json::json!({"name": skill})),
            3 => call("put_artifact", serde_json::json!({"name": "name.txt", "content": own})),
            4 => call("list_directory", serde_json::json!({"path": "."})),
            _ => vec![ReplyEvent::Text(format!("It was {own}."))],
        };
        events.push(ReplyEvent::Usage(Usage { input: INPUT_TOKENS, ..Usage::default() }));
        events.push(ReplyEvent::Stop(if answers < 5 { Stop::ToolUse } else { Stop::Stop }));
        tokio::task::yield_now().await;
        Ok(Box::pin(stream::iter(events.into_iter().map(Ok))))
    }

    fn facts(&self, _: &str) -> ModelFacts {
        ModelFacts { price: Some(Price { input: PRICE, ..Price::default() }), ..ModelFacts::default() }
    }

    fn names(&self) -> Vec<String> {
        vec!["player".to_owned()]
    }
}

fn write_skills(dir: &std::path::Path) {
    for number in 0..SESSIONS {
        let name = format!("skill-{number}");
        std::fs::create_dir_all(dir.join(&name)).unwrap();
        let text = format!(
            "---\nname: {name}\ndescription: of {}\n---\nThis is for {}.\n",
            marker(number),
            marker(number)
        );
        std::fs::write(dir.join(&name).join("SKILL.md"), text).unwrap();
    }
}

fn agent(number: usize) -> Agent {
    let tools = ["write_file", "read_file", "list_directory", "put_artifact"];
    // Every tenth agent has almost no budget.
    let cap_usd = if has_no_budget(number) { 1e-9 } else { 1.0 };
    Agent {
        tools: tools.map(str::to_owned).to_vec(),
        skills: vec![format!("skill-{number}")],
        budget: Some(Budget { cap_usd, on_exceed: OnExceed::Fail }),
        ..Agent::default_with(Some("player".into()))
    }
}

fn has_no_budget(number: usize) -> bool {
    number.is_multiple_of(10)
}

async fn run_session(sapwood: &Sapwood, number: usize) -> (SessionId, TurnReport) {
    let own = marker(number);
    let session = sapwood.start(agent(number)).await.unwrap();
    let (engine, scope) = (sapwood.engine(), sapwood.scope());
    let given = own.clone().into_bytes();
    engine
        .edits()
        .put_artifact(scope, &session, "given.txt", ArtifactUse::Input, "text/plain", given)
        .await
        .unwrap();
    let report = sapwood.send(&session, format!("You are {own}.")).await.unwrap();
    (session, report)
}

async fn check(
    sapwood: &Sapwood,
    base: &std::path::Path,
    number: usize,
    session: &SessionId,
    report: &TurnReport,
) {
    let (engine, scope, own) = (sapwood.engine(), sapwood.scope(), marker(number));
    let ended = report.ended.as_ref().unwrap();
    let spent = engine.directory().summary(scope, session).await.unwrap().spend.total().cost_nano_usd;
    if has_no_budget(number) {
        assert_eq!((ended.outcome, ended.code.as_deref()), (Outcome::Limited, Some("budget_exceeded")));
        assert_eq!(spent, 0);
    } else {
        assert_eq!(
            (ended.outcome, report.text.as_str()),
            (Outcome::Completed, format!("It was {own}.").as_str())
        );
        assert_eq!(spent, CALLS * PRICE * INPUT_TOKENS);
        let files = base.join("local").join(session.as_str()).join("files");
        assert_eq!(std::fs::read_to_string(files.join("name.txt")).unwrap(), own);
        assert_eq!(std::fs::read_dir(files).unwrap().count(), 1);
    }
    let records = engine.store().read_after(scope, session, Seq::ZERO, 1_000).await.unwrap();
    for record in records {
        let body = String::from_utf8(record.body).unwrap();
        assert!(markers_in(&body).iter().all(|found| *found == own), "{own}: {body}");
    }
    let artifacts = engine.views().artifacts(scope, session).await.unwrap();
    for put in artifacts.by_name.values() {
        let bytes = engine.store().get_blob(scope, put.content.blob).await.unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), own);
    }
    assert_eq!(sapwood.context(session).await.unwrap().skills, [format!("skill-{number}")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_concurrent_sessions_stay_separate() {
    let dir = tempfile::tempdir().unwrap();
    write_skills(&dir.path().join("skills"));
    let url = format!("sqlite:{}", dir.path().join("s.db").display());
    let engine = sapwood::open_engine(&url, Default::default()).unwrap();
    let (model, base) = (Arc::new(MarkerModel::default()), dir.path().join("scratch"));
    let tools = Arc::new(Host::new(Settings::new(&base)));
    let backends = Backends { model: model.clone(), tools, default_model: "player".to_owned() };
    let engine = engine.with_backends(backends).configured(|config| {
        config.skills = Some(Arc::new(SkillFolders::new(vec![dir.path().join("skills")])))
    });
    // A hook receives events of all sessions, each with only its own data.
    let mixed = Arc::new(Mutex::new(Vec::new()));
    let recorded = mixed.clone();
    let hook = move |event: HookEvent| {
        let markers = markers_in(&event.data.to_string());
        if markers.len() > 1 {
            recorded.lock().unwrap().push(markers);
        }
        async {}
    };
    let sapwood = Sapwood::with_engine(engine).on(HookName::AfterTool, hook).unwrap();
    let results = join_all((0..SESSIONS).map(|number| run_session(&sapwood, number))).await;
    assert!(model.mixed.lock().unwrap().is_empty(), "{:?}", model.mixed.lock().unwrap());
    assert!(mixed.lock().unwrap().is_empty());
    for (number, (session, report)) in results.iter().enumerate() {
        check(&sapwood, &base, number, session, report).await;
    }
}
