//! Hooks through the Rust API: every hook is called at the right point, refusals and changes take effect, and
//! failing, slow or recursive hooks are limited as configured.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sapwood::core::agent::Confidence;
use sapwood::core::compact::{CompactOptions, Method};
use sapwood::core::entry::{Outcome, Trigger};
use sapwood::core::port::hook::{Hook, HookError, HookNote, HookResult};
use sapwood::core::port::model::ModelFacts;
use sapwood::engine::compact::Writing;
use sapwood::engine::hook::{Closure, DEPTH_MAX};
use sapwood::engine::turn::{OnWait, SendOptions, Sent};
use sapwood::{
    Agent, Body, Compacting, Error, ForkAt, HookAction, HookAnswer, HookEvent, HookName, InstalledHook,
    OnFailure, OpenOptions, Part, Sapwood, Scope, Seq, SessionId, TenantId, TurnReport, Verdict, user_text,
};
use serde_json::{Value, json};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends, calls, text};

/// The events that hooks received, in order.
#[derive(Clone, Default)]
struct ReceivedEvents(Arc<Mutex<Vec<HookEvent>>>);

impl ReceivedEvents {
    fn names(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|event| event.hook.as_str()).collect()
    }

    fn data_of(&self, name: HookName) -> Value {
        let received = self.0.lock().unwrap();
        let found = received.iter().find(|event| event.hook == name);
        found
            .unwrap_or_else(|| panic!("{name} was not called; {} other events were received", received.len()))
            .data
            .clone()
    }
}

struct Fixture {
    sapwood: Sapwood,
    session: SessionId,
    model: Arc<ScriptedModel>,
    tools: Arc<RecordingTools>,
    events: ReceivedEvents,
}

fn agent() -> Agent {
    Agent { tools: ["look", "act"].map(str::to_owned).to_vec(), ..Agent::default_with(Some("actor".into())) }
}

/// A session with a hook for every hook name. All hooks answer with `respond`.
async fn fixture_of(
    agent: Agent,
    replies: Vec<ScriptedReply>,
    respond: impl Fn(&HookEvent) -> HookAnswer + Send + Sync + 'static,
) -> Fixture {
    let (model, tools, events) = (
        ScriptedModel::with_replies(replies),
        Arc::new(RecordingTools::default()),
        ReceivedEvents::default(),
    );
    let sapwood = Sapwood::open("memory:").unwrap();
    let engine = sapwood.engine().clone().with_backends(backends(&model, &tools));
    let mut sapwood = Sapwood::with_engine(engine);
    let respond = Arc::new(respond);
    for name in HookName::ALL {
        let (events, respond) = (events.clone(), respond.clone());
        let hook = move |event: HookEvent| {
            let answer = respond(&event);
            events.0.lock().unwrap().push(event);
            async move { answer }
        };
        sapwood = sapwood.on(*name, hook).unwrap();
    }
    let session = sapwood.start(agent).await.unwrap();
    Fixture { sapwood, session, model, tools, events }
}

async fn fixture(replies: Vec<ScriptedReply>) -> Fixture {
    fixture_of(agent(), replies, |_| HookAnswer::default()).await
}

/// Answer with the verdict for this name, and with `GoOn` for all other names.
async fn fixture_with(on: HookName, verdict: Verdict, replies: Vec<ScriptedReply>) -> Fixture {
    let respond = move |event: &HookEvent| match event.hook == on {
        true => verdict.clone().into(),
        false => HookAnswer::default(),
    };
    fixture_of(agent(), replies, respond).await
}

async fn refusing(on: HookName, replies: Vec<ScriptedReply>) -> Fixture {
    fixture_with(on, Verdict::Refuse { reason: "not here".into() }, replies).await
}

impl Fixture {
    async fn send(&self, text: &str) -> TurnReport {
        self.sapwood.send(&self.session, text).await.unwrap()
    }

    async fn notes(&self) -> Vec<HookNote> {
        notes_of(&self.sapwood, &self.session).await
    }

    async fn feed(&self) -> String {
        let feed = self.sapwood.engine().views().feed(self.sapwood.scope(), &self.session).await.unwrap();
        feed.iter().map(|item| format!("{}: {}\n", item.label, item.text)).collect()
    }

    async fn fill(&self) {
        let messages =
            (0..20).map(|n| user_text(format!("message {n} {}", "and so on ".repeat(20)))).collect();
        self.sapwood.inject(&self.session, messages).await.unwrap();
    }

    async fn compact(&self) -> sapwood::Compacted {
        let options =
            CompactOptions { keep_last: Some(4), compact_strategy: Method::Truncate, ..Default::default() };
        self.sapwood.compact(&self.session, Compacting::new(options, Trigger::Manual)).await.unwrap()
    }

    async fn leaf_id(&self) -> sapwood::EntryId {
        self.sapwood
            .engine()
            .directory()
            .summary(self.sapwood.scope(), &self.session)
            .await
            .unwrap()
            .last_id
            .unwrap()
    }
}

async fn notes_of(sapwood: &Sapwood, session: &SessionId) -> Vec<HookNote> {
    let records =
        sapwood.engine().store().read_after(sapwood.scope(), session, Seq::ZERO, 1_000).await.unwrap();
    records.iter().filter_map(|record| HookNote::of_body(&record.decode().unwrap())).collect()
}

fn is_refused(error: &Error) -> bool {
    error.code() == "hook.refused" && error.to_string().contains("not here")
}

#[tokio::test]
async fn a_turn_with_a_tool_calls_its_hooks_in_order() {
    let fixture = fixture(vec![calls(&[("1", "look", "{}")]), text("seen")]).await;
    fixture.send("look").await;
    let expected = [
        "session_start",
        "before_send",
        "before_turn",
        "before_model",
        "after_model",
        "before_tool",
        "after_tool",
        "before_model",
        "after_model",
        "after_turn",
    ];
    assert_eq!(fixture.events.names(), expected);
    assert_eq!(fixture.events.data_of(HookName::BeforeSend), json!({"text": "look"}));
    let tool = fixture.events.data_of(HookName::AfterTool);
    assert_eq!((tool["text"].as_str(), tool["is_error"].as_bool()), (Some("look done"), Some(false)));
    assert_eq!(fixture.events.data_of(HookName::AfterTurn)["text"], "seen");
    assert!(fixture.notes().await.is_empty(), "hooks that change nothing leave nothing in the log");
}

#[tokio::test]
async fn tree_operations_call_their_hooks() {
    let fixture = fixture(Vec::new()).await;
    fixture.fill().await;
    let to = fixture.leaf_id().await;
    fixture
        .sapwood
        .engine()
        .edits()
        .branch(fixture.sapwood.scope(), &fixture.session, to, None)
        .await
        .unwrap();
    fixture.sapwood.fork(&fixture.session, ForkAt::Leaf, OpenOptions::default()).await.unwrap();
    assert!(fixture.compact().await.compaction.is_some());
    fixture
        .sapwood
        .engine()
        .views()
        .record_export(fixture.sapwood.scope(), &fixture.session, "pi")
        .await
        .unwrap();
    fixture.sapwood.close(&fixture.session).await.unwrap();
    fixture.sapwood.archive(&fixture.session).await.unwrap();
    let expected = [
        "session_start",
        "before_branch",
        "after_branch",
        "before_fork",
        "after_fork",
        "before_compact",
        "after_compact",
        "before_export",
        "session_end",
        "session_end",
        "on_archive",
    ];
    assert_eq!(fixture.events.names(), expected);
    assert!(fixture.events.data_of(HookName::BeforeCompact)["text"].as_str().unwrap().contains("message 3"));
}

#[tokio::test]
async fn hooks_are_notified_of_failures_low_confidence_and_pressure() {
    let unsure = Agent { confidence: Some(Confidence::default()), ..agent() };
    let replies =
        vec![text("perhaps <confidence>0.1</confidence>"), text("sure <confidence>0.9</confidence>")];
    let fixture = fixture_of(unsure, replies, |_| HookAnswer::default()).await;
    fixture.send("well?").await;
    let confidence = fixture.events.data_of(HookName::OnLowConfidence)["confidence"].as_f64().unwrap();
    assert!((confidence - 0.1).abs() < 1e-3);
    let report = fixture.send("again").await;
    assert_eq!(report.ended.unwrap().outcome, Outcome::Failed);
    assert_eq!(fixture.events.data_of(HookName::OnError)["code"], "model.unscripted");
    assert!(!fixture.events.names().contains(&"on_pressure"));

    let small = ModelFacts { window_tokens: Some(1_500), ..ModelFacts::default() };
    *fixture.model.facts.lock().unwrap() = small;
    fixture.fill().await;
    fixture.send("and now").await;
    let level = fixture.events.data_of(HookName::OnPressure)["level"].clone();
    assert!(["orange", "red"].contains(&level.as_str().unwrap()), "{level}");
    assert!(fixture.events.names().contains(&"after_compact"), "{:?}", fixture.events.names());
}

#[tokio::test]
async fn hooks_are_notified_once_of_low_confidence_that_needs_approval() {
    let unsure = Agent { confidence: Some(Confidence::default()), ..agent() };
    let replies = vec![text("perhaps <confidence>0.4</confidence>")];
    let fixture = fixture_of(unsure, replies, |_| HookAnswer::default()).await;
    let report = fixture.send("well?").await;
    assert_eq!(report.waiting.len(), 1);
    assert_eq!(fixture.events.names().iter().filter(|name| **name == "on_low_confidence").count(), 1);
}

#[tokio::test]
async fn hooks_are_notified_of_memories_learned_on_close() {
    let fixture = fixture(Vec::new()).await;
    fixture.sapwood.inject(&fixture.session, vec![sapwood::user_text("I prefer tea.")]).await.unwrap();
    fixture.sapwood.close(&fixture.session).await.unwrap();
    let event = fixture.events.data_of(HookName::OnMemory);
    assert_eq!((&event["kind"], &event["text"]), (&json!("preference"), &json!("I prefer tea")));
    assert_eq!(event["outcome"], "learned");
}

#[tokio::test]
async fn refused_input_is_never_sent() {
    let fixture = refusing(HookName::BeforeSend, vec![text("hello")]).await;
    let error = fixture.sapwood.send(&fixture.session, "hi").await.unwrap_err();
    assert!(is_refused(&error), "{error}");
    assert_eq!((fixture.sapwood.length(&fixture.session).await.unwrap(), fixture.model.call_count()), (0, 0));
    assert!(fixture.feed().await.contains("hook: closure-1 (before_send) refused: not here"));
}

#[tokio::test]
async fn a_refused_turn_ends_with_the_reason() {
    for (on, calls_made) in [(HookName::BeforeTurn, 0), (HookName::BeforeModel, 0)] {
        let fixture = refusing(on, vec![text("hello")]).await;
        let ended = fixture.send("hi").await.ended.unwrap();
        assert_eq!((ended.outcome, ended.code.as_deref()), (Outcome::Failed, Some("hook.refused")));
        assert!(ended.message.unwrap().contains("not here"));
        assert_eq!(fixture.model.call_count(), calls_made, "{on}");
        // The session stays usable: the next turn is refused again instead of hanging.
        assert_eq!(fixture.send("hi").await.ended.unwrap().code.as_deref(), Some("hook.refused"));
    }
}

#[tokio::test]
async fn hooks_are_asked_about_queued_input_when_its_turn_starts() {
    let fixture = refusing(HookName::BeforeTurn, Vec::new()).await;
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let queued = sapwood::core::entry::InputQueued {
        queue: sapwood::core::entry::Queue::Next,
        parts: vec![Part::text("later")],
    };
    engine.edits().inject(scope, &fixture.session, vec![queued.into()], Default::default()).await.unwrap();
    let running = engine.turns().resume(scope, &fixture.session, OnWait::Leave).await.unwrap().unwrap();
    assert_eq!(running.ended().await.unwrap().ended.unwrap().code.as_deref(), Some("hook.refused"));
    assert!(engine.turns().resume(scope, &fixture.session, OnWait::Leave).await.unwrap().is_none());
}

#[tokio::test]
async fn a_refused_tool_call_is_reported_to_the_model() {
    let fixture =
        refusing(HookName::BeforeTool, vec![calls(&[("1", "look", "{}")]), text("as you say")]).await;
    let report = fixture.send("look").await;
    assert_eq!((fixture.tools.ran.lock().unwrap().len(), report.text.as_str()), (0, "as you say"));
    assert!(fixture.model.last_messages().contains("refused this call: not here"));
    assert_eq!(fixture.events.data_of(HookName::AfterTool)["is_error"], true);
}

#[tokio::test]
async fn compactions_branches_forks_and_exports_can_be_refused() {
    let fixture = refusing(HookName::BeforeCompact, Vec::new()).await;
    fixture.fill().await;
    let done = fixture.compact().await;
    assert!(done.compaction.is_none() && done.cancelled.unwrap().contains("not here"));

    let fixture = refusing(HookName::BeforeBranch, Vec::new()).await;
    fixture.fill().await;
    let (engine, scope, to) = (fixture.sapwood.engine(), fixture.sapwood.scope(), fixture.leaf_id().await);
    assert!(is_refused(&engine.edits().branch(scope, &fixture.session, to, None).await.unwrap_err()));

    let fixture = refusing(HookName::BeforeFork, Vec::new()).await;
    let id: SessionId = "copy".parse().unwrap();
    let options = OpenOptions { id: Some(id.clone()), ..OpenOptions::default() };
    assert!(is_refused(&fixture.sapwood.fork(&fixture.session, ForkAt::Leaf, options).await.unwrap_err()));
    assert!(!fixture.sapwood.exists(&id).await.unwrap());

    let fixture = refusing(HookName::BeforeExport, Vec::new()).await;
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    assert!(is_refused(&engine.views().record_export(scope, &fixture.session, "pi").await.unwrap_err()));
}

#[tokio::test]
async fn notification_hooks_cannot_refuse() {
    for on in HookName::ALL.iter().filter(|name| !name.asks()) {
        let fixture = refusing(*on, vec![calls(&[("1", "look", "{}")]), text("seen")]).await;
        let report = fixture.send("look").await;
        assert_eq!(report.ended.unwrap().outcome, Outcome::Completed, "{on}");
        fixture.sapwood.archive(&fixture.session).await.unwrap();
    }
}

#[tokio::test]
async fn a_hook_can_change_input_prompts_and_summaries() {
    let change = |data| Verdict::Change { data };
    let fixture =
        fixture_with(HookName::BeforeSend, change(json!({"text": "[name]"})), vec![text("hi")]).await;
    fixture.send("Ada").await;
    assert!(
        fixture.model.last_messages().contains("[name]") && !fixture.model.last_messages().contains("Ada")
    );

    let fixture =
        fixture_with(HookName::BeforeModel, change(json!({"system": "Be brief."})), vec![text("hi")]).await;
    fixture.send("hello").await;
    assert_eq!(fixture.model.requests.lock().unwrap()[0].system.as_deref(), Some("Be brief."));

    let fixture =
        fixture_with(HookName::BeforeCompact, change(json!({"summary": "It was short."})), vec![]).await;
    fixture.fill().await;
    let compaction = fixture.compact().await.compaction.unwrap();
    assert_eq!((compaction.summary.as_deref(), compaction.from_hook), (Some("It was short."), true));

    let fixture =
        fixture_with(HookName::BeforeBranch, change(json!({"summary": "A dead end."})), vec![]).await;
    fixture.fill().await;
    let (engine, scope, to) = (fixture.sapwood.engine(), fixture.sapwood.scope(), fixture.leaf_id().await);
    engine.edits().branch(scope, &fixture.session, to, None).await.unwrap();
    assert!(
        fixture
            .sapwood
            .context(&fixture.session)
            .await
            .unwrap()
            .messages
            .last()
            .unwrap()
            .text()
            .contains("dead end")
    );
}

#[tokio::test]
async fn a_changed_tool_input_is_validated_like_the_original() {
    let change = Verdict::Change { data: json!({"input": {"path": "b"}}) };
    let replies = vec![calls(&[("1", "look", r#"{"path": "a"}"#)]), text("seen")];
    let fixture = fixture_with(HookName::BeforeTool, change.clone(), replies).await;
    fixture.send("look").await;
    assert_eq!(fixture.tools.inputs.lock().unwrap().as_slice(), [r#"{"path":"b"}"#]);
    let note = fixture.notes().await.remove(0);
    assert_eq!((note.result, note.data), (HookResult::Changed, Some(json!({"input": {"path": "b"}}))));

    // An invalid input never reaches the tool.
    let replies = vec![calls(&[("1", "look", "{}")]), text("seen")];
    let bad = Verdict::Change { data: json!({"input": {"bad": true}}) };
    let fixture = fixture_with(HookName::BeforeTool, bad, replies).await;
    fixture.send("look").await;
    assert!(fixture.tools.ran.lock().unwrap().is_empty());
    assert!(fixture.model.last_messages().contains("Invalid tool input"));
}

#[tokio::test]
async fn an_approved_call_cannot_be_changed_by_a_hook() {
    let change = Verdict::Change { data: json!({"input": {"path": "/etc"}}) };
    let replies = vec![calls(&[("1", "act", r#"{"path": "a"}"#)]), text("well")];
    let fixture = fixture_with(HookName::BeforeTool, change, replies).await;
    let waiting = fixture.send("act").await.waiting;
    let agreed = sapwood::ApprovalAnswer::Approved;
    fixture.sapwood.answer(&waiting[0].approval, agreed, None).await.unwrap();
    fixture.sapwood.resume(&fixture.session).await.unwrap().unwrap();
    assert!(fixture.tools.ran.lock().unwrap().is_empty());
    assert!(fixture.model.last_messages().contains("after the user had approved it"));
}

#[tokio::test]
async fn a_hook_can_supply_answers_results_and_summaries() {
    let supply = |data| Verdict::Supply { data };
    let fixture =
        fixture_with(HookName::BeforeModel, supply(json!({"text": "from the cache"})), vec![]).await;
    let report = fixture.send("hello").await;
    assert_eq!((report.text.as_str(), fixture.model.call_count()), ("from the cache", 0));
    let usage = fixture
        .sapwood
        .engine()
        .directory()
        .summary(fixture.sapwood.scope(), &fixture.session)
        .await
        .unwrap()
        .spend;
    assert_eq!(usage.total().cost_nano_usd, 0);

    let replies = vec![calls(&[("1", "look", "{}")]), text("seen")];
    let fixture = fixture_with(HookName::BeforeTool, supply(json!({"text": "made up"})), replies).await;
    fixture.send("look").await;
    assert!(
        fixture.tools.ran.lock().unwrap().is_empty() && fixture.model.last_messages().contains("made up")
    );

    let fixture =
        fixture_with(HookName::BeforeCompact, supply(json!({"summary": "All of it."})), vec![]).await;
    fixture.fill().await;
    assert_eq!(fixture.compact().await.compaction.unwrap().summary.as_deref(), Some("All of it."));
}

/// A `before_send` hook that answers with `respond`.
fn installed(
    sapwood: &Sapwood,
    name: &str,
    respond: impl Fn(HookEvent) -> HookAnswer + Send + Sync + 'static,
) -> InstalledHook {
    let respond = Arc::new(respond);
    let hook = Closure(move |event| {
        let respond = respond.clone();
        async move { respond(event) }
    });
    InstalledHook::new(name, HookName::BeforeSend, Arc::new(hook), sapwood.scope().clone())
}

#[tokio::test]
async fn hooks_are_called_by_priority_and_see_earlier_changes() {
    let sapwood = Sapwood::open("memory:").unwrap();
    let add = |word: &'static str| {
        move |event: HookEvent| {
            let text = format!("{} {word}", event.data["text"].as_str().unwrap());
            HookAnswer::from(Verdict::Change { data: json!({"text": text}) })
        }
    };
    let late = InstalledHook { priority: 10, ..installed(&sapwood, "late", add("late")) };
    let early = InstalledHook { priority: -10, ..installed(&sapwood, "early", add("early")) };
    let sapwood = sapwood.install(late).unwrap().install(early).unwrap();
    let session = sapwood.start(Agent::default()).await.unwrap();
    sapwood.send(&session, "said").await.unwrap();
    let context = sapwood.context(&session).await.unwrap();
    assert_eq!(context.messages[0].text(), "said early late");
}

/// A hook that fails, or answers after a delay.
struct BrokenHook(Result<Duration, HookError>);

#[async_trait::async_trait]
impl Hook for BrokenHook {
    async fn call(&self, _: &HookEvent) -> Result<HookAnswer, HookError> {
        tokio::time::sleep(self.0.clone()?).await;
        Ok(HookAnswer::default())
    }
    fn describe(&self) -> String {
        "broken".to_owned()
    }
}

#[tokio::test]
async fn failing_and_slow_hooks_are_ignored_or_refuse_as_configured() {
    let failed = HookError::Failed { why: "out of paper".to_owned() };
    for (broken, why) in
        [(BrokenHook(Err(failed)), "out of paper"), (BrokenHook(Ok(Duration::from_secs(60))), "50 ms")]
    {
        let hook: Arc<dyn Hook> = Arc::new(broken);
        for on_failure in [OnFailure::Ignore, OnFailure::Refuse] {
            let sapwood = Sapwood::open("memory:").unwrap();
            let installed = InstalledHook {
                timeout: Duration::from_millis(50),
                on_failure,
                ..InstalledHook::new("broken", HookName::BeforeSend, hook.clone(), sapwood.scope().clone())
            };
            let sapwood = sapwood.install(installed).unwrap();
            let session = sapwood.start(Agent::default()).await.unwrap();
            let sent = sapwood.send(&session, "hi").await;
            match on_failure {
                OnFailure::Ignore => assert!(sent.is_ok()),
                OnFailure::Refuse => assert_eq!(sent.unwrap_err().code(), "hook.refused"),
            }
            let note = notes_of(&sapwood, &session).await.remove(0);
            assert_eq!(note.result, HookResult::Failed);
            assert!(note.why.unwrap().contains(why));
        }
    }
}

#[tokio::test]
async fn an_answer_that_a_hook_name_does_not_allow_is_a_failure() {
    let sapwood = Sapwood::open("memory:").unwrap();
    let strange = |_| HookAnswer::from(Verdict::Change { data: json!({"model": "dear"}) });
    let strange = InstalledHook { on_failure: OnFailure::Refuse, ..installed(&sapwood, "strange", strange) };
    let sapwood = sapwood.install(strange).unwrap();
    let session = sapwood.start(Agent::default()).await.unwrap();
    assert!(sapwood.send(&session, "hi").await.unwrap_err().to_string().contains("no text"));
}

#[tokio::test]
async fn the_number_of_hooks_per_name_is_limited_and_names_are_unique() {
    let mut sapwood = Sapwood::open("memory:").unwrap();
    for _ in 0..16 {
        sapwood = sapwood.on(HookName::AfterTurn, |_| async {}).unwrap();
    }
    assert!(sapwood.clone().on(HookName::AfterTurn, |_| async {}).is_err());
    let twice = installed(&sapwood, "one", |_| HookAnswer::default());
    let sapwood = sapwood.install(twice.clone()).unwrap();
    assert!(sapwood.clone().install(twice.clone()).is_err());
    assert!(sapwood.clone().install(InstalledHook { name: "a b".into(), ..twice.clone() }).is_err());
    assert!(sapwood.install(InstalledHook { name: "long".into(), timeout: Duration::MAX, ..twice }).is_err());
}

fn with_actions(actions: Vec<HookAction>) -> HookAnswer {
    HookAnswer { verdict: Verdict::GoOn, actions }
}

#[tokio::test]
async fn a_hook_can_open_and_message_another_session() {
    let id: SessionId = "elsewhere".parse().unwrap();
    let open = HookAction::Open { id: Some(id.clone()), title: None, text: Some("go on there".into()) };
    let respond = move |event: &HookEvent| match event.hook == HookName::AfterTurn && event.depth == 0 {
        true => with_actions(vec![open.clone()]),
        false => HookAnswer::default(),
    };
    let fixture = fixture_of(agent(), vec![text("one"), text("two")], respond).await;
    fixture.send("hi").await;
    fixture.sapwood.engine().hooks().settled().await;
    let there = fixture.sapwood.context(&id).await.unwrap();
    assert_eq!(there.messages.iter().map(|m| m.text()).collect::<Vec<_>>(), ["go on there", "two"]);
    let note = fixture.notes().await.remove(0);
    assert_eq!((note.result, note.why.as_deref()), (HookResult::Acted, Some("session elsewhere")));
    let depths: Vec<u8> = fixture.events.0.lock().unwrap().iter().map(|event| event.depth).collect();
    assert!(depths.contains(&1), "hook actions run one level deeper");
}

#[tokio::test]
async fn recursive_hooks_are_stopped() {
    let respond = |event: &HookEvent| match event.hook {
        HookName::AfterTurn => {
            with_actions(vec![HookAction::Send { session: event.session.clone(), text: "and again".into() }])
        }
        _ => HookAnswer::default(),
    };
    let replies = (0..20).map(|n| text(&format!("answer {n}"))).collect();
    let fixture = fixture_of(agent(), replies, respond).await;
    fixture.send("hi").await;
    fixture.sapwood.engine().hooks().settled().await;
    assert_eq!(fixture.model.call_count(), usize::from(DEPTH_MAX) + 1);
    let last = fixture.notes().await.pop().unwrap();
    assert!(fixture.notes().await.iter().any(|note| note.result == HookResult::Failed), "{last}");
}

#[tokio::test]
async fn a_hook_acts_with_the_rights_of_its_installer() {
    let base = Sapwood::open("memory:").unwrap();
    let (bob, ana) = ("bob".parse().unwrap(), "ana".parse().unwrap());
    let ana_scope = Scope::user(TenantId::local(), ana);
    let ana_session = base.with_scope(ana_scope.clone()).start(Agent::default()).await.unwrap();
    let target = ana_session.clone();
    let hook = move |_| {
        let action = HookAction::Send { session: target.clone(), text: "let me in".into() };
        async move { with_actions(vec![action]) }
    };
    let sapwood = base.with_scope(Scope::user(TenantId::local(), bob)).on(HookName::AfterTurn, hook).unwrap();
    let session = sapwood.start(Agent::default()).await.unwrap();
    sapwood.send(&session, "hi").await.unwrap();
    sapwood.engine().hooks().settled().await;
    assert_eq!(base.length(&ana_session).await.unwrap(), 0, "bob's hook cannot write to ana's session");
    let note = notes_of(&sapwood, &session).await.pop().unwrap();
    assert!(note.why.unwrap().contains("no session"));
    // Bob's hook does not receive events of ana's turns.
    let anas = sapwood.with_scope(ana_scope);
    anas.send(&ana_session, "hello").await.unwrap();
    assert!(notes_of(&base, &ana_session).await.is_empty());
}

#[tokio::test]
async fn a_hook_never_receives_events_of_another_tenant() {
    let events = ReceivedEvents::default();
    let received = events.clone();
    let hook = move |event: HookEvent| {
        received.0.lock().unwrap().push(event);
        async {}
    };
    let sapwood = Sapwood::open("memory:").unwrap().on(HookName::BeforeSend, hook).unwrap();
    let other = Scope::operator("elsewhere".parse().unwrap(), sapwood::Principal::System);
    let there = sapwood.with_scope(other);
    let session = there.start(Agent::default()).await.unwrap();
    there.send(&session, "hi").await.unwrap();
    assert!(events.names().is_empty());
}

#[tokio::test]
async fn a_dry_run_reports_the_verdicts_and_writes_nothing() {
    let respond = |event: &HookEvent| match event.hook {
        HookName::BeforeTool if event.rehearsal => HookAnswer {
            verdict: Verdict::Refuse { reason: "no".into() },
            actions: vec![HookAction::Open { id: None, title: None, text: None }],
        },
        _ => HookAnswer::default(),
    };
    let fixture = fixture_of(agent(), Vec::new(), respond).await;
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let sample = HookName::BeforeTool.sample();
    let answers = engine.hooks().dry_run(HookName::BeforeTool, scope, &fixture.session, sample).await;
    assert_eq!((answers.len(), answers[0].goes_on, answers[0].actions.len()), (1, false, 1));
    engine.hooks().settled().await;
    assert!(fixture.notes().await.is_empty());
    let filter = sapwood::core::port::store::ListFilter { limit: 10, ..Default::default() };
    assert_eq!(engine.directory().list(scope, &filter).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn hooks_are_asked_about_steering_input() {
    let refuse_faster = |event: &HookEvent| match event.data["text"] == json!("faster") {
        true => Verdict::Refuse { reason: "not here".into() }.into(),
        false => HookAnswer::default(),
    };
    let fixture = fixture_of(agent(), vec![ScriptedReply::Hang(Vec::new())], refuse_faster).await;
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let parts = vec![Part::text("begin")];
    let Sent::Started(running) =
        engine.turns().send(scope, &fixture.session, parts, SendOptions::default()).await.unwrap()
    else {
        panic!("the input was queued instead of starting a turn")
    };
    assert!(is_refused(&fixture.sapwood.steer(&fixture.session, "faster").await.unwrap_err()));
    fixture.sapwood.cancel(&fixture.session).await.unwrap();
    running.ended().await.unwrap();
}

#[tokio::test]
async fn hooks_are_asked_again_for_a_turn_interrupted_before_its_first_answer() {
    let fixture = refusing(HookName::BeforeTurn, Vec::new()).await;
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    // The log of a process that died before it called the hooks.
    let (now, turn) = (sapwood::core::TimestampMs(1), sapwood::core::TurnId::from_bytes([1; 16]));
    let started = sapwood::core::entry::TurnStarted::default();
    let bodies: Vec<Body> = vec![started.into(), user_text("hi")];
    let drafts = bodies.into_iter().map(|body| sapwood::core::Draft::new(now, body).in_turn(turn)).collect();
    let append = sapwood::core::port::store::Append::new(fixture.session.clone(), now, drafts);
    engine.store().append(scope, append).await.unwrap();
    let report = fixture.sapwood.resume(&fixture.session).await.unwrap().unwrap();
    assert_eq!(report.ended.unwrap().code.as_deref(), Some("hook.refused"));
}

#[tokio::test]
async fn a_dry_run_of_a_compaction_asks_hooks_and_writes_nothing() {
    let fixture = refusing(HookName::BeforeCompact, Vec::new()).await;
    fixture.fill().await;
    let options =
        CompactOptions { keep_last: Some(4), compact_strategy: Method::Truncate, ..Default::default() };
    let how = Compacting { writing: Writing::DryRun, ..Compacting::new(options, Trigger::Manual) };
    let done = fixture.sapwood.compact(&fixture.session, how).await.unwrap();
    assert!(done.cancelled.unwrap().contains("not here"));
    assert!(fixture.events.0.lock().unwrap().last().unwrap().rehearsal);
    assert!(fixture.notes().await.is_empty());
}
