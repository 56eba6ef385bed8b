//! Turns over real stores: the resulting log, the messages to the model, the calls that ran.

use std::sync::Arc;
use std::time::Duration;

use sapwood::core::agent::{Agent, Budget, ChainLink, Narrowing, OnExceed};
use sapwood::core::entry::{
    ApprovalAnswer, ApprovalAnswered, CancelAsked, InputQueued, Outcome, Queue, SessionContext, Stop,
};
use sapwood::core::policy::ApprovalMode;
use sapwood::core::port::model::{ModelError, ReplyEvent};
use sapwood::core::port::store::{Expect, NewSession};
use sapwood::core::project::context::Role;
use sapwood::core::{Draft, TimestampMs, TurnId};
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::turn::{IfRunning, OnWait, Running, SendOptions, Sent, TurnReport};
use sapwood::engine::{FragmentKind, SessionEvent};
use sapwood::{Body, Engine, Part, Sapwood, Scope, Seq, SessionId};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends, calls, text};

struct Fixture {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    model: Arc<ScriptedModel>,
    tools: Arc<RecordingTools>,
}

fn agent() -> Agent {
    let tools = ["look", "act", "big", "slow", "ask_user", "put_artifact", "recall", "delegate"];
    Agent { tools: tools.map(str::to_owned).to_vec(), ..Agent::default_with(Some("actor".into())) }
}

async fn fixture(agent: Agent, replies: Vec<ScriptedReply>) -> Fixture {
    fixture_of(agent, ScriptedModel::with_replies(replies)).await
}

async fn fixture_of(agent: Agent, model: Arc<ScriptedModel>) -> Fixture {
    let sapwood = Sapwood::open("memory:").unwrap();
    let tools = Arc::new(RecordingTools::default());
    let engine = sapwood.engine().clone().with_backends(backends(&model, &tools));
    let scope = sapwood.scope().clone();
    let options = StartOptions { agent, ..StartOptions::default() };
    let (session, _) = engine.sessions().start(&scope, options).await.unwrap();
    Fixture { engine, scope, session, model, tools }
}

impl Fixture {
    async fn begin(&self, text: &str, options: SendOptions) -> Running {
        let parts = vec![Part::text(text)];
        match self.engine.turns().send(&self.scope, &self.session, parts, options).await.unwrap() {
            Sent::Started(running) => running,
            Sent::Queued(_) => panic!("the input was queued instead of starting a turn"),
        }
    }

    async fn send(&self, text: &str) -> TurnReport {
        let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
        self.begin(text, options).await.ended().await.unwrap()
    }

    async fn resume(&self) -> TurnReport {
        let running = self.engine.turns().resume(&self.scope, &self.session, OnWait::Leave).await.unwrap();
        running.expect("a turn is open").ended().await.unwrap()
    }

    async fn roles(&self) -> Vec<Role> {
        let context = self.engine.views().context(&self.scope, &self.session, None).await.unwrap();
        context.messages.iter().map(|message| message.role).collect()
    }

    fn ran(&self) -> Vec<String> {
        self.tools.ran.lock().unwrap().clone()
    }

    async fn wait_until(&self, mut is_match: impl FnMut(&SessionEvent) -> bool) {
        let mut events = self.engine.events().subscribe(&self.scope, &self.session, Seq::ZERO).await.unwrap();
        let found = async { while !is_match(&events.next().await.unwrap()) {} };
        tokio::time::timeout(Duration::from_secs(120), found)
            .await
            .expect("the event did not arrive in time");
    }
}

fn outcome(report: &TurnReport) -> (Outcome, Option<&str>) {
    let ended = report.ended.as_ref().expect("the turn has ended");
    (ended.outcome, ended.code.as_deref())
}

#[tokio::test]
async fn input_gets_an_answer_and_both_are_in_the_log() {
    let fixture = fixture(agent(), vec![text("hello")]).await;
    let report = fixture.send("hi").await;
    assert_eq!((report.text.as_str(), outcome(&report)), ("hello", (Outcome::Completed, None)));
    assert_eq!(fixture.roles().await, [Role::User, Role::Assistant]);
}

#[tokio::test]
async fn a_tool_runs_and_the_model_receives_its_result() {
    let fixture = fixture(agent(), vec![calls(&[("1", "look", "{}")]), text("seen")]).await;
    fixture.send("look").await;
    assert_eq!(fixture.ran(), ["1"]);
    assert!(fixture.model.last_messages().contains("look done"));
    assert_eq!(fixture.roles().await, [Role::User, Role::Assistant, Role::Tool, Role::Assistant]);
    let ledger = fixture.engine.views().ledger(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!(ledger.len(), 2);
    assert!(ledger.iter().all(|line| line.result.is_some() && line.trace_id.is_some()));
}

#[tokio::test]
async fn invalid_tool_input_is_reported_to_the_model() {
    let fixture = fixture(agent(), vec![calls(&[("1", "look", "\"no\"")]), text("sorry")]).await;
    let report = fixture.send("look").await;
    assert_eq!((fixture.ran().len(), report.text.as_str()), (0, "sorry"));
    assert!(fixture.model.last_messages().contains("an object is expected"));
}

#[tokio::test]
async fn an_approval_survives_the_process_that_requested_it() {
    let fixture = fixture(agent(), vec![calls(&[("1", "act", "{}")]), text("acted")]).await;
    let report = fixture.send("act").await;
    assert!(report.ended.is_none() && fixture.ran().is_empty());
    let approval = report.waiting[0].approval.clone();
    let answered = fixture
        .engine
        .turn_control()
        .answer(&fixture.scope, &approval, ApprovalAnswer::Approved, None)
        .await
        .unwrap();
    assert_eq!(answered, fixture.session);
    let report = fixture.resume().await;
    assert_eq!((fixture.ran(), report.text.as_str()), (vec!["1".to_owned()], "acted"));
    let again =
        fixture.engine.turn_control().answer(&fixture.scope, &approval, ApprovalAnswer::Approved, None).await;
    assert_eq!(again.unwrap_err().code(), "approval.not_found");
}

#[tokio::test]
async fn a_waiting_turn_continues_when_it_is_answered() {
    let fixture =
        fixture(agent(), vec![calls(&[("1", "ask_user", r#"{"question":"which?"}"#)]), text("ok")]).await;
    let running = fixture.begin("ask me", SendOptions::default()).await;
    fixture
        .wait_until(
            |event| matches!(event, SessionEvent::Fragment(f) if matches!(f.kind, FragmentKind::Waiting { .. })),
        )
        .await;
    let pending = fixture.engine.turn_control().approvals(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!((pending[0].question.as_str(), pending[0].kind.as_str()), ("which?", "question"));
    let reason = Some("the left one".to_owned());
    fixture
        .engine
        .turn_control()
        .answer(&fixture.scope, &pending[0].approval, ApprovalAnswer::Approved, reason)
        .await
        .unwrap();
    assert_eq!(running.ended().await.unwrap().text, "ok");
    assert!(fixture.model.last_messages().contains("the left one"));
}

/// Append entries to a session as an import does.
async fn import_into(fixture: &Fixture, turn: TurnId, bodies: Vec<Body>) {
    let now = TimestampMs(i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap());
    let new = NewSession::new(fixture.session.clone(), now);
    let mut import = fixture.engine.imports().begin(&fixture.scope, new, Expect::Any).await.unwrap();
    for body in bodies {
        import.push(Draft::new(now, body).in_turn(turn)).await.unwrap();
    }
    import.finish().await.unwrap();
}

#[tokio::test]
async fn an_import_cannot_answer_cancel_or_steer_a_running_turn() {
    let question = calls(&[("1", "ask_user", r#"{"question":"which?"}"#)]);
    let fixture = fixture(agent(), vec![question, text("ok")]).await;
    let running = fixture.begin("ask me", SendOptions::default()).await;
    fixture
        .wait_until(
            |event| matches!(event, SessionEvent::Fragment(f) if matches!(f.kind, FragmentKind::Waiting { .. })),
        )
        .await;
    let pending = fixture.engine.turn_control().approvals(&fixture.scope, &fixture.session).await.unwrap();
    let approval = pending[0].approval.clone();
    let imported = "from the import".to_owned();
    let answered = ApprovalAnswered {
        approval: approval.clone(),
        answer: ApprovalAnswer::Denied,
        reason: Some(imported.clone()),
    };
    let steered = InputQueued { queue: Queue::Steer, parts: vec![Part::text(&imported)] };
    let cancelled = CancelAsked { turn: running.turn };
    import_into(&fixture, running.turn, vec![answered.into(), steered.into(), cancelled.into()]).await;
    // The inbox reads in order, so an import that took effect would end the turn before this answer.
    let reason = Some("the left one".to_owned());
    fixture
        .engine
        .turn_control()
        .answer(&fixture.scope, &approval, ApprovalAnswer::Approved, reason)
        .await
        .unwrap();
    let report = running.ended().await.unwrap();
    assert_eq!((report.text.as_str(), outcome(&report)), ("ok", (Outcome::Completed, None)));
    let messages = fixture.model.last_messages();
    assert!(messages.contains("the left one") && !messages.contains(&imported), "{messages}");
}

#[tokio::test]
async fn cancelling_keeps_the_partial_answer_and_the_session_continues() {
    let half =
        ScriptedReply::Hang(vec![ReplyEvent::Text("half a ".into()), ReplyEvent::Text("sentence".into())]);
    let fixture = fixture(agent(), vec![half, text("whole")]).await;
    let running = fixture.begin("talk", SendOptions::default()).await;
    fixture.wait_until(|event| matches!(event, SessionEvent::Fragment(f) if f.kind == FragmentKind::Token { text: "sentence".into() })).await;
    fixture.engine.turn_control().cancel(&fixture.scope, &fixture.session).await.unwrap();
    let report = running.ended().await.unwrap();
    assert_eq!((report.text.as_str(), outcome(&report)), ("half a sentence", (Outcome::Cancelled, None)));
    assert_eq!(fixture.send("again").await.text, "whole");
    assert!(fixture.model.last_messages().contains("half a sentence"));
}

#[tokio::test]
async fn cancelling_stops_a_running_tool() {
    let fixture = fixture(agent(), vec![calls(&[("1", "slow", "{}")])]).await;
    let running = fixture.begin("wait", SendOptions::default()).await;
    fixture
        .wait_until(
            |event| matches!(event, SessionEvent::Fragment(f) if matches!(f.kind, FragmentKind::ToolRunning { .. })),
        )
        .await;
    fixture.engine.turn_control().cancel(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!(outcome(&running.ended().await.unwrap()), (Outcome::Cancelled, None));
    assert_eq!(fixture.roles().await, [Role::User, Role::Assistant, Role::Tool]);
}

#[tokio::test]
async fn a_second_send_is_refused_or_queued_as_the_next_turn() {
    let half = ScriptedReply::Hang(vec![ReplyEvent::Text("…".into())]);
    let fixture = fixture(agent(), vec![half, text("second")]).await;
    let running = fixture.begin("first", SendOptions::default()).await;
    fixture
        .wait_until(
            |event| matches!(event, SessionEvent::Fragment(f) if matches!(f.kind, FragmentKind::Token { .. })),
        )
        .await;
    let parts = || vec![Part::text("next")];
    let refused =
        fixture.engine.turns().send(&fixture.scope, &fixture.session, parts(), SendOptions::default()).await;
    assert_eq!(refused.err().unwrap().code(), "turn.running");
    let queue = SendOptions { if_running: IfRunning::Queue, ..SendOptions::default() };
    let sent = fixture.engine.turns().send(&fixture.scope, &fixture.session, parts(), queue).await.unwrap();
    assert!(matches!(sent, Sent::Queued(_)));
    fixture.engine.turn_control().cancel(&fixture.scope, &fixture.session).await.unwrap();
    running.ended().await.unwrap();
    let second = "second".to_owned();
    let is_second = |event: &SessionEvent| matches!(event, SessionEvent::Entry(record) if record.decode().unwrap().text() == second);
    fixture.wait_until(is_second).await;
    assert!(fixture.model.last_messages().contains("next"));
}

#[tokio::test]
async fn steering_input_reaches_the_running_turn() {
    let fixture = fixture(agent(), vec![calls(&[("1", "act", "{}")]), text("ok")]).await;
    let running = fixture.begin("act", SendOptions::default()).await;
    fixture
        .wait_until(
            |event| matches!(event, SessionEvent::Fragment(f) if matches!(f.kind, FragmentKind::Waiting { .. })),
        )
        .await;
    fixture
        .engine
        .turn_control()
        .steer(&fixture.scope, &fixture.session, vec![Part::text("gently")])
        .await
        .unwrap();
    let pending = fixture.engine.turn_control().approvals(&fixture.scope, &fixture.session).await.unwrap();
    fixture
        .engine
        .turn_control()
        .answer(&fixture.scope, &pending[0].approval, ApprovalAnswer::Approved, None)
        .await
        .unwrap();
    running.ended().await.unwrap();
    assert!(fixture.model.last_messages().contains("gently"));
}

fn limited() -> ModelError {
    ModelError::RateLimited { model: "actor".into(), retry_after_ms: Some(1) }
}

#[tokio::test]
async fn a_temporary_failure_is_retried_and_then_the_next_model_is_called() {
    let chain = vec![ChainLink { model: "other".into(), max_attempts: 1 }];
    let agent = Agent { fallback_chain: chain, ..agent() };
    let fail = || ScriptedReply::Fail(limited());
    let fixture = fixture(agent, vec![fail(), fail(), fail(), text("from the other")]).await;
    assert_eq!(fixture.send("hi").await.text, "from the other");
    let models: Vec<String> =
        fixture.model.requests.lock().unwrap().iter().map(|request| request.model.clone()).collect();
    assert_eq!(models, ["actor", "actor", "actor", "other"]);
    let usage = fixture.engine.views().usage(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!(
        usage.models.models.keys().collect::<Vec<_>>(),
        ["other"],
        "the entry names the model that answered"
    );
    let context = fixture.engine.views().context(&fixture.scope, &fixture.session, None).await.unwrap();
    assert_eq!(context.model.as_deref(), Some("other"));
    fixture.send("once more").await;
    assert_eq!(
        fixture.model.requests.lock().unwrap()[4].model,
        "actor",
        "the agent's model is called first again"
    );
}

#[tokio::test]
async fn nothing_is_retried_after_output_has_streamed() {
    let cut = ModelError::Cut { model: "actor".into(), why: "gone".into() };
    let fixture = fixture(
        agent(),
        vec![ScriptedReply::Break(vec![ReplyEvent::Text("half".into())], cut), text("whole")],
    )
    .await;
    let report = fixture.send("hi").await;
    assert_eq!(outcome(&report), (Outcome::Failed, Some("model.cut")));
    assert_eq!(fixture.model.call_count(), 1);
    assert_eq!(fixture.send("again").await.text, "whole");
    assert!(!fixture.model.last_messages().contains("half"), "the failed answer is not in the context");
}

#[tokio::test]
async fn a_stream_without_a_stop_reason_is_incomplete() {
    let fixture = fixture(agent(), vec![ScriptedReply::Stream(vec![ReplyEvent::Text("half".into())])]).await;
    assert_eq!(outcome(&fixture.send("hi").await), (Outcome::Failed, Some("model.cut")));
}

#[tokio::test]
async fn no_model_is_called_beyond_the_turn_limit() {
    let mut few = agent();
    few.limits.turns_max = Some(1);
    let fixture = fixture(few, vec![text("one"), text("two")]).await;
    fixture.send("hi").await;
    let parts = vec![Part::text("more")];
    let refused =
        fixture.engine.turns().send(&fixture.scope, &fixture.session, parts, SendOptions::default()).await;
    assert_eq!((refused.err().unwrap().code(), fixture.model.call_count()), ("turn_limit", 1));
}

#[tokio::test]
async fn a_call_that_could_exceed_the_budget_is_not_made() {
    let budget = |on_exceed| Agent {
        budget: Some(Budget { cap_usd: 0.000_001, on_exceed }),
        max_tokens: Some(1_000),
        ..agent()
    };
    let model = || ScriptedModel::with_replies(vec![text("dear")]).with_price(1_000);
    let fixture = fixture_of(budget(OnExceed::Fail), model()).await;
    assert_eq!(outcome(&fixture.send("hi").await), (Outcome::Limited, Some("budget_exceeded")));
    assert_eq!(fixture.model.call_count(), 0);
    let fixture = fixture_of(budget(OnExceed::Ask), model()).await;
    let report = fixture.send("hi").await;
    assert_eq!((report.waiting[0].kind.as_str(), fixture.model.call_count()), ("budget", 0));
    let approval = &report.waiting[0].approval;
    fixture
        .engine
        .turn_control()
        .answer(&fixture.scope, approval, ApprovalAnswer::Approved, None)
        .await
        .unwrap();
    assert_eq!(fixture.resume().await.text, "dear");
    let fixture = fixture_of(budget(OnExceed::Warn), model()).await;
    assert_eq!(fixture.send("hi").await.text, "dear");
}

#[tokio::test]
async fn totals_equal_the_sums_of_the_log() {
    let model =
        ScriptedModel::with_replies(vec![calls(&[("1", "look", "{}")]), text("a"), text("b")]).with_price(2);
    let fixture = fixture_of(agent(), model).await;
    fixture.send("one").await;
    let report = fixture.send("two").await;
    let usage = fixture.engine.views().usage(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!((usage.total.calls, usage.total.cost_nano_usd), (3, 3 * 220));
    assert_eq!(report.ended.unwrap().cost_nano_usd, Some(220));
    let ledger = fixture.engine.views().ledger(&fixture.scope, &fixture.session).await.unwrap();
    let costs: u64 = ledger.iter().filter_map(|line| line.result.as_ref()?.cost_nano_usd).sum();
    assert_eq!(costs, usage.total.cost_nano_usd);
}

#[tokio::test]
async fn large_output_goes_to_a_blob_and_can_be_read_in_parts() {
    let fixture = fixture(agent(), vec![calls(&[("1", "big", "{}")]), text("much")]).await;
    fixture.send("go").await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    let result = path.iter().find_map(|entry| match &entry.body {
        sapwood::Body::ToolResult(result) => Some(result.clone()),
        _ => None,
    });
    let result = result.unwrap();
    let full = result.full.unwrap();
    assert_eq!(full.bytes, 150_000);
    let shown = result.parts[0].as_text().unwrap();
    assert!(shown.len() < 20_000 && shown.contains(&full.blob.to_string()), "{shown}");
    let bytes = fixture.engine.store().get_blob(&fixture.scope, full.blob).await.unwrap();
    assert_eq!(bytes.len(), 150_000);
}

#[tokio::test]
async fn an_output_of_several_megabytes_is_read_line_by_line() {
    let lines: Vec<String> = (0..300_000).map(|number| format!("line {number}")).collect();
    let text_of = lines.join("\n");
    let hash = sapwood::core::BlobHash::of(text_of.as_bytes());
    let input = format!(r#"{{"output":"{hash}","offset":290000,"limit":3}}"#);
    let past = format!(r#"{{"output":"{hash}","offset":299999}}"#);
    let read_calls = calls(&[("1", "read_output", &input), ("2", "read_output", &past)]);
    let fixture = fixture(agent(), vec![read_calls, text("read")]).await;
    fixture.engine.store().put_blob(&fixture.scope, text_of.into_bytes()).await.unwrap();
    fixture.send("go").await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    let results = path.iter().filter_map(|entry| match &entry.body {
        sapwood::Body::ToolResult(result) => result.parts[0].as_text().map(str::to_owned),
        _ => None,
    });
    let results: Vec<String> = results.collect();
    assert_eq!(results, ["line 290000\nline 290001\nline 290002", "line 299999"]);
}

#[tokio::test]
async fn an_artifact_is_delivered_and_a_task_can_be_delegated() {
    let artifact = calls(&[("1", "put_artifact", r#"{"name":"a.txt","content":"made"}"#)]);
    let delegate = calls(&[("2", "delegate", r#"{"task":"count"}"#)]);
    let fixture = fixture(agent(), vec![artifact, delegate, text("forty-two"), text("done")]).await;
    assert_eq!(fixture.send("go").await.text, "done");
    assert!(fixture.model.last_messages().contains("forty-two"));
    let artifacts = fixture.engine.views().artifacts(&fixture.scope, &fixture.session).await.unwrap();
    assert!(format!("{artifacts:?}").contains("a.txt"));
}

#[tokio::test]
async fn a_session_and_its_fork_keep_the_agent_it_was_started_with() {
    let fixture =
        fixture(Agent { system_prompt: Some("Be brief.".into()), ..agent() }, vec![text("a"), text("b")])
            .await;
    fixture.send("hi").await;
    assert_eq!(fixture.model.requests.lock().unwrap()[0].system.as_deref(), Some("Be brief."));
    let fork = fixture
        .engine
        .sessions()
        .fork(&fixture.scope, &fixture.session, Default::default(), Default::default())
        .await
        .unwrap();
    let frozen = fixture.engine.configuration().agent_of(&fixture.scope, &fork).await.unwrap();
    assert_eq!(frozen.system_prompt.as_deref(), Some("Be brief."));
}

#[tokio::test]
async fn a_session_cannot_exceed_its_agents_rights_or_have_a_key_as_variable() {
    let sapwood = Sapwood::open("memory:").unwrap();
    let wider = Narrowing { approvals: Some(ApprovalMode::Auto), ..Narrowing::default() };
    let options = StartOptions { narrowing: wider, ..StartOptions::default() };
    let refused = sapwood.engine().sessions().start(sapwood.scope(), options).await;
    assert_eq!(refused.unwrap_err().code(), "agent.invalid");
    let key = format!("sk-{}", "a1B2c3D4e5F6g7H8".repeat(3));
    let context = SessionContext { variables: [("token".to_owned(), key)].into(), ..Default::default() };
    let options = StartOptions { context, ..StartOptions::default() };
    let refused = sapwood.engine().sessions().start(sapwood.scope(), options).await;
    assert_eq!(refused.unwrap_err().code(), "input.invalid");
}

#[tokio::test]
async fn an_interrupted_turn_is_resumed_without_repeating_unsafe_calls() {
    let half = ScriptedReply::Hang(vec![ReplyEvent::Text("half".into())]);
    let mut auto = agent();
    auto.approvals = ApprovalMode::Auto;
    let fixture = fixture(auto, vec![half, text("whole")]).await;
    // The first engine's runtime is dropped in the middle of the stream, like a killed process.
    let engine = fixture.engine.clone();
    let (scope, session, model) = (fixture.scope.clone(), fixture.session.clone(), fixture.model.clone());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let parts = vec![Part::text("hi")];
            engine.turns().send(&scope, &session, parts, SendOptions::default()).await.unwrap();
            // Wait until the model was called: its next scripted answer is for the other engine.
            while model.call_count() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        });
    })
    .join()
    .unwrap();
    let parts = vec![Part::text("hello?")];
    let refused =
        fixture.engine.turns().send(&fixture.scope, &fixture.session, parts, SendOptions::default()).await;
    assert!(matches!(refused.err().unwrap().code(), "turn.running" | "turn.interrupted"));
    assert_eq!(fixture.resume().await.text, "whole");
    assert!(fixture.model.last_messages().contains("interrupted"));
}

#[tokio::test]
async fn a_panicking_listener_does_not_affect_others() {
    let fixture = fixture(agent(), vec![text("hello")]).await;
    let _bad = fixture
        .engine
        .events()
        .listen(&fixture.scope, &fixture.session, Seq::ZERO, |_| panic!("a listener that panics"))
        .await
        .unwrap();
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let _good = fixture
        .engine
        .events()
        .listen(&fixture.scope, &fixture.session, Seq::ZERO, move |event| {
            let _ = sender.send(event);
        })
        .await
        .unwrap();
    assert_eq!(fixture.send("hi").await.text, "hello");
    let mut seqs = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(300), received.recv()).await {
        if let SessionEvent::Entry(record) = event {
            seqs.push(record.meta.seq.0);
        }
    }
    assert_eq!(seqs, (1..=seqs.len() as u32).collect::<Vec<_>>());
}

#[tokio::test]
async fn fragments_are_ordered_among_the_entries() {
    let fixture = fixture(agent(), vec![text("hello")]).await;
    let mut events =
        fixture.engine.events().subscribe(&fixture.scope, &fixture.session, Seq::ZERO).await.unwrap();
    fixture.send("hi").await;
    let mut order = Vec::new();
    while let Some(event) = events.try_next().await.unwrap() {
        order.push(match event {
            SessionEvent::Entry(record) => record.meta.kind.as_str().to_owned(),
            SessionEvent::Fragment(fragment) => format!("{:?}", fragment.kind),
        });
    }
    let at = |what: &str| {
        order.iter().position(|item| item.contains(what)).unwrap_or_else(|| panic!("{what} in {order:?}"))
    };
    assert!(at("user_message") < at("Token") && at("Token") < at("assistant_message"), "{order:?}");
}

#[tokio::test]
async fn a_filtered_or_truncated_answer_is_marked() {
    let events = vec![ReplyEvent::Text("part".into()), ReplyEvent::Stop(Stop::Length)];
    let fixture = fixture(agent(), vec![ScriptedReply::Stream(events)]).await;
    fixture.send("hi").await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    assert!(
        path.iter()
            .any(|entry| matches!(&entry.body, sapwood::Body::AssistantMessage(m) if m.stop == Stop::Length))
    );
}

#[tokio::test]
async fn a_session_whose_creator_died_is_completed_by_the_next_start() {
    let fixture = fixture(agent(), Vec::new()).await;
    let id: SessionId = "half".parse().unwrap();
    let open = sapwood::OpenOptions { id: Some(id.clone()), agent: Some(agent().id), ..Default::default() };
    fixture.engine.sessions().open(&fixture.scope, open.clone()).await.unwrap();
    let start = || StartOptions { open: open.clone(), agent: agent(), ..StartOptions::default() };
    fixture.engine.sessions().start(&fixture.scope, start()).await.unwrap();
    assert_eq!(fixture.engine.configuration().agent_of(&fixture.scope, &id).await.unwrap(), agent());
    let head = fixture.engine.directory().summary(&fixture.scope, &id).await.unwrap().head.seq;
    fixture.engine.sessions().start(&fixture.scope, start()).await.unwrap();
    assert_eq!(
        fixture.engine.directory().summary(&fixture.scope, &id).await.unwrap().head.seq,
        head,
        "the session was completed twice"
    );
}
