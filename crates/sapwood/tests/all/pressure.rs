//! Which model answers, and what token pressure does to a session, with scripted models.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sapwood::core::agent::{Agent, ChainLink};
use sapwood::core::entry::{
    AssistantMessage, Compaction, ModelChanged, Outcome, Stop, Strategy, ToolResult, Trigger,
};
use sapwood::core::port::model::{Model, ModelError, ModelFacts, ReplyStream, Request};
use sapwood::core::port::store::NewSession;
use sapwood::core::pressure::{Level, Pressure};
use sapwood::core::{Draft, Json, Source, TimestampMs};
use sapwood::engine::Backends;
use sapwood::engine::branch::LeaveWith;
use sapwood::engine::compact::{Compacting, IfLarger};
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::hook::Closure;
use sapwood::engine::sessions::StartOptions;
use sapwood::engine::turn::{OnWait, SendOptions, Sent, TurnReport};
use sapwood::{
    Body, Engine, HookEvent, HookName, InstalledHook, Part, Sapwood, Scope, SessionId, Verdict, user_text,
};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, text};

/// Models by name. A name without a row is unknown; `keyless/…` has no key.
struct Catalogue {
    inner: Arc<ScriptedModel>,
    windows: BTreeMap<&'static str, u64>,
}

#[async_trait::async_trait]
impl Model for Catalogue {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        self.inner.call(request).await
    }

    fn facts(&self, model: &str) -> ModelFacts {
        let name = self.resolve(model).unwrap_or_default();
        let window_tokens = self.windows.get(name.as_str()).copied();
        ModelFacts { window_tokens, output_tokens_max: Some(100), price: None }
    }

    fn resolve(&self, model: &str) -> Result<String, ModelError> {
        let full =
            if model.contains('/') || model == "demo" { model.to_owned() } else { format!("lab/{model}") };
        match self.windows.contains_key(full.as_str()) {
            true => Ok(full),
            false => Err(ModelError::Unknown {
                model: model.to_owned(),
                why: "it is not in the catalog".to_owned(),
            }),
        }
    }

    fn check(&self, model: &str) -> Result<(), ModelError> {
        match model.starts_with("keyless/") {
            true => {
                Err(ModelError::NoKey { model: model.to_owned(), variable: "KEYLESS_API_KEY".to_owned() })
            }
            false => Ok(()),
        }
    }
}

struct Fixture {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    model: Arc<ScriptedModel>,
}

/// An engine whose default model is the demo model.
fn engine_with(model: &Arc<ScriptedModel>, window: u64) -> (Engine, Scope) {
    let sapwood = Sapwood::open("memory:").unwrap();
    let names = ["lab/small", "lab/other", "demo", "keyless/big", "asked/one"];
    let windows = names.map(|name| (name, window)).into_iter().collect();
    let models = Catalogue { inner: model.clone(), windows };
    let tools = Arc::new(RecordingTools::default());
    let backends = Backends { model: Arc::new(models), tools, default_model: "demo".to_owned() };
    (sapwood.engine().clone().with_backends(backends), sapwood.scope().clone())
}

async fn fixture(agent: Agent, window: u64, replies: Vec<ScriptedReply>) -> Fixture {
    let model = ScriptedModel::with_replies(replies);
    let (engine, scope) = engine_with(&model, window);
    let options = StartOptions { agent, ..StartOptions::default() };
    let (session, _) = engine.sessions().start(&scope, options).await.unwrap();
    Fixture { engine, scope, session, model }
}

fn plain_agent(model: Option<&str>) -> Agent {
    Agent { tools: Vec::new(), ..Agent::default_with(model.map(str::to_owned)) }
}

impl Fixture {
    async fn try_send(&self, text: &str) -> sapwood::Result<TurnReport> {
        let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
        let parts = vec![Part::text(text)];
        match self.engine.turns().send(&self.scope, &self.session, parts, options).await? {
            Sent::Started(running) => running.ended().await,
            Sent::Queued(_) => panic!("the input was queued"),
        }
    }

    async fn send(&self, text: &str) -> TurnReport {
        let report = self.try_send(text).await.unwrap();
        assert_eq!(report.ended.as_ref().map(|ended| ended.outcome), Some(Outcome::Completed), "{report:?}");
        report
    }

    async fn inject(&self, bodies: Vec<Body>) {
        let options = InjectOptions::default();
        self.engine.edits().inject(&self.scope, &self.session, bodies, options).await.unwrap();
    }

    async fn bodies(&self) -> Vec<Body> {
        let mut bodies = Vec::new();
        let visit = |entry: sapwood::core::Entry| bodies.push(entry.body);
        self.engine.log().each_entry(&self.scope, &self.session, sapwood::Seq::ZERO, visit).await.unwrap();
        bodies
    }

    async fn levels(&self) -> Vec<Level> {
        let bodies = self.bodies().await;
        bodies.iter().filter_map(Pressure::of_body).map(|pressure| pressure.level).collect()
    }

    async fn compactions(&self) -> Vec<Compaction> {
        let bodies = self.bodies().await.into_iter();
        bodies.filter_map(|body| if let Body::Compaction(one) = body { Some(one) } else { None }).collect()
    }

    fn last_model(&self) -> String {
        self.model.requests.lock().unwrap().last().map(|request| request.model.clone()).unwrap_or_default()
    }

    async fn head(&self) -> u32 {
        self.engine.directory().summary(&self.scope, &self.session).await.unwrap().head.seq.0
    }
}

/// About `tokens` tokens of text without words that masking or summaries treat specially.
fn long(tokens: usize) -> String {
    "lorem ipsum dolor sit amet consectetur ".repeat(tokens * 4 / 39 + 1)
}

/// An imported session whose last answer names this model.
async fn import_answer(model: &str) -> Fixture {
    let scripted = ScriptedModel::with_replies(vec![text("continued")]);
    let (engine, scope) = engine_with(&scripted, 100_000);
    let session: SessionId = "imported".parse().unwrap();
    let mut new = NewSession::new(session.clone(), TimestampMs(1));
    new.source = Source::Imported;
    engine.store().create(&scope, new).await.unwrap();
    let answer = AssistantMessage {
        parts: vec![Part::text("before")],
        model: Some(model.to_owned()),
        usage: None,
        cost_nano_usd: None,
        stop: Stop::Stop,
    };
    let drafts = vec![Draft::new(TimestampMs(1), user_text("hi")), Draft::new(TimestampMs(2), answer)];
    let mut append = sapwood::core::port::store::Append::new(session.clone(), TimestampMs(3), drafts);
    append.source = Source::Imported;
    engine.store().append(&scope, append).await.unwrap();
    Fixture { engine, scope, session, model: scripted }
}

#[tokio::test]
async fn an_imported_model_answers_if_it_resolves_here() {
    let fixture = import_answer("small").await;
    let report = fixture.send("go on").await;
    assert_eq!(fixture.last_model(), "lab/small", "the name is resolved in the catalog");
    assert!(!report.notice.unwrap_or_default().contains("demo"));
}

#[tokio::test]
async fn an_imported_model_that_does_not_resolve_is_refused_before_anything_is_written_or_sent() {
    for (model, code) in [("elsewhere/huge", "model.unknown"), ("keyless/big", "model.no_key")] {
        let fixture = import_answer(model).await;
        let before = fixture.head().await;
        let error = fixture.try_send("go on").await.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains("imported session"), "{error}");
        assert_eq!((fixture.head().await, fixture.model.call_count()), (before, 0), "{model}");
        // Another model can be chosen, and stays chosen.
        fixture.inject(vec![ModelChanged { model: "lab/other".to_owned() }.into()]).await;
        fixture.send("go on").await;
        assert_eq!(fixture.last_model(), "lab/other");
    }
}

#[tokio::test]
async fn the_demo_model_answers_only_where_no_model_was_chosen_and_says_so() {
    let fixture = fixture(plain_agent(None), 100_000, vec![text("a"), text("b"), text("c")]).await;
    let first = fixture.send("one").await;
    assert_eq!(fixture.last_model(), "demo");
    assert!(first.notice.is_some_and(|notice| notice.contains("demo model answers")));
    // A model that is configured later answers, because the demo model was never chosen.
    let mut backends = fixture.engine.config().backends.clone().unwrap();
    backends.default_model = "lab/small".to_owned();
    let fixture = Fixture { engine: fixture.engine.clone().with_backends(backends), ..fixture };
    let second = fixture.send("two").await;
    assert_eq!((fixture.last_model().as_str(), second.notice), ("lab/small", None));
    // The last model of the path answers even if the default changes again.
    let mut backends = fixture.engine.config().backends.clone().unwrap();
    backends.default_model = "lab/other".to_owned();
    let fixture = Fixture { engine: fixture.engine.clone().with_backends(backends), ..fixture };
    fixture.send("three").await;
    assert_eq!(fixture.last_model(), "lab/small");
}

#[tokio::test]
async fn a_missing_key_is_refused_before_a_compaction() {
    let agent = plain_agent(Some("keyless/big"));
    let fixture = fixture(agent, 2_000, vec![text("never")]).await;
    fixture.inject((0..20).map(|_| user_text(long(300))).collect()).await;
    let before = fixture.head().await;
    let error = fixture.try_send("hi").await.unwrap_err();
    assert_eq!(error.code(), "model.no_key");
    assert_eq!((fixture.head().await, fixture.model.call_count()), (before, 0));
    assert!(fixture.compactions().await.is_empty());
}

#[tokio::test]
async fn a_fallback_of_the_agent_replaces_a_model_without_a_key_and_the_caller_is_told() {
    let link = ChainLink { model: "lab/small".to_owned(), max_attempts: 1 };
    let agent = Agent { fallback_chain: vec![link], ..plain_agent(Some("keyless/big")) };
    let fixture = fixture(agent, 100_000, vec![text("a")]).await;
    let report = fixture.send("hi").await;
    assert_eq!(fixture.last_model(), "lab/small");
    assert!(
        report
            .notice
            .is_some_and(|notice| notice.contains("KEYLESS_API_KEY") && notice.contains("lab/small"))
    );
}

#[tokio::test]
async fn yellow_compacts_a_plain_chat_without_a_model_call() {
    let fixture = fixture(plain_agent(Some("lab/small")), 10_000, vec![text("a"), text("b")]).await;
    fixture.inject((0..30).map(|n| user_text(format!("{n} {}", long(195)))).collect()).await;
    fixture.send("and now").await;
    let compactions = fixture.compactions().await;
    assert_eq!(compactions.len(), 1, "{compactions:?}");
    let done = &compactions[0];
    assert_eq!(
        (done.strategy, done.trigger, done.written_by.is_none()),
        (Strategy::Truncate, Trigger::Pressure, true)
    );
    assert!(done.tokens_after < done.tokens_before.map(|before| before * 2 / 3), "{done:?}");
    let kept = fixture.engine.views().length(&fixture.scope, &fixture.session).await.unwrap();
    assert!((14..=20).contains(&kept), "the newer half stays: {kept}");
    assert_eq!((fixture.model.call_count(), fixture.levels().await), (1, vec![Level::Yellow]));
    // The next turn records the return to green once.
    fixture.send("and then").await;
    assert_eq!(fixture.levels().await, [Level::Yellow, Level::Green]);
    assert_eq!(fixture.compactions().await.len(), 1);
}

#[tokio::test]
async fn yellow_masks_tool_output_where_that_is_enough() {
    let fixture = fixture(plain_agent(Some("lab/small")), 10_000, vec![text("a")]).await;
    for n in 0..10 {
        let call = Part::tool_call(format!("c{n}"), "look", Json::parse("{}").unwrap());
        let asked = AssistantMessage {
            parts: vec![call],
            model: None,
            usage: None,
            cost_nano_usd: None,
            stop: Stop::ToolUse,
        };
        let result = ToolResult {
            call_id: format!("c{n}"),
            tool: Some("look".to_owned()),
            parts: vec![Part::text(long(550))],
            is_error: false,
            duration_ms: None,
            interrupted: false,
            full: None,
        };
        fixture.inject(vec![user_text(format!("look {n}")), asked.into(), result.into()]).await;
    }
    fixture.send("and now").await;
    let strategies: Vec<Strategy> = fixture.compactions().await.iter().map(|one| one.strategy).collect();
    assert_eq!(strategies, [Strategy::ObservationMask]);
}

#[tokio::test]
async fn red_is_in_the_log_before_its_compaction_and_inside_the_turn() {
    let replies = vec![text("## Goal\nThe summary of the model."), text("done")];
    let fixture = fixture(plain_agent(Some("lab/small")), 10_000, replies).await;
    fixture.inject((0..30).map(|n| user_text(format!("{n} {}", long(330)))).collect()).await;
    let report = fixture.send("and now").await;
    assert_eq!(report.text, "done");
    let bodies = fixture.bodies().await;
    let at = |is: &dyn Fn(&Body) -> bool| bodies.iter().position(is).unwrap();
    let started = at(&|body| matches!(body, Body::TurnStarted(_)));
    let noted = at(&|body| matches!(body, Body::PressureChanged(_)));
    let compacted = at(&|body| matches!(body, Body::Compaction(_)));
    let ended = at(&|body| matches!(body, Body::TurnEnded(_)));
    assert!(
        started < noted && noted < compacted && compacted < ended,
        "{started} {noted} {compacted} {ended}"
    );
    assert_eq!(fixture.levels().await, [Level::Red, Level::Green]);
    let summary = fixture.engine.directory().summary(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!(summary.pressure, Some(Level::Green));
}

#[tokio::test]
async fn an_unchanged_level_is_recorded_once() {
    let replies = (0..4).map(|_| text("a")).collect();
    let fixture = fixture(plain_agent(Some("lab/small")), 10_000, replies).await;
    // One message that cannot be compacted away keeps the level yellow.
    fixture.inject(vec![user_text(long(5_600))]).await;
    for _ in 0..4 {
        fixture.send("next").await;
    }
    assert_eq!(fixture.levels().await.iter().filter(|level| **level == Level::Yellow).count(), 1);
}

#[tokio::test]
async fn a_token_budget_lowers_the_limit_and_works_without_a_known_window() {
    let pressure_of = async |agent: Agent| {
        let fixture = fixture(agent, 100_000, Vec::new()).await;
        fixture.inject(vec![user_text(long(3_000))]).await;
        fixture.engine.compaction().pressure_of(&fixture.scope, &fixture.session).await.unwrap().unwrap()
    };
    let unlimited = pressure_of(plain_agent(Some("lab/small"))).await;
    assert_eq!((unlimited.level, unlimited.budget_tokens), (Level::Green, 99_900));
    let budget = Agent { token_budget: Some(5_000), ..plain_agent(Some("lab/small")) };
    let limited = pressure_of(budget).await;
    assert_eq!((limited.level, limited.budget_tokens), (Level::Yellow, 5_000));
    let unknown = Agent { context_window: Some(4_100), ..plain_agent(Some("lab/nowhere")) };
    let of_agent = pressure_of(unknown).await;
    assert_eq!((of_agent.level, of_agent.budget_tokens), (Level::Orange, 4_000));
}

#[tokio::test]
async fn the_pressure_of_an_import_is_that_of_the_model_that_answers_next() {
    let fixture = import_answer("keyless/big").await;
    let pressure = fixture.engine.compaction().pressure_of(&fixture.scope, &fixture.session).await.unwrap();
    assert_eq!(pressure.map(|pressure| pressure.budget_tokens), Some(99_900), "although it has no key");
}

#[tokio::test]
async fn a_compaction_that_would_not_shrink_the_context_is_made_only_by_force() {
    let fixture = fixture(plain_agent(Some("lab/small")), 100_000, Vec::new()).await;
    fixture.inject(vec![user_text("hi"), user_text("yes"), user_text("no")]).await;
    let mut how = Compacting::new(Default::default(), Trigger::Manual);
    how.options.keep_last = Some(1);
    let head = fixture.head().await;
    let refused =
        fixture.engine.compaction().compact(&fixture.scope, &fixture.session, how.clone()).await.unwrap();
    assert!(refused.larger.is_some_and(|larger| larger >= refused.tokens_before), "{refused:?}");
    assert_eq!((refused.entry, fixture.head().await), (None, head));
    how.if_larger = IfLarger::Write;
    let forced = fixture.engine.compaction().compact(&fixture.scope, &fixture.session, how).await.unwrap();
    assert!(forced.entry.is_some() && forced.tokens_after >= forced.tokens_before, "{forced:?}");
}

#[tokio::test]
async fn a_summary_that_is_too_long_is_shortened_instead() {
    let fixture = fixture(plain_agent(Some("lab/small")), 100_000, Vec::new()).await;
    fixture.inject((0..20).map(|n| user_text(format!("message {n}"))).collect()).await;
    let mut how = Compacting::new(Default::default(), Trigger::Manual);
    how.options.keep_last = Some(6);
    let done = fixture.engine.compaction().compact(&fixture.scope, &fixture.session, how).await.unwrap();
    assert_eq!((done.kept, done.archived), (7, 14));
    assert!(done.tokens_after < done.tokens_before, "{done:?}");
}

#[tokio::test]
async fn the_model_summarizes_the_branch_that_is_left() {
    let fixture =
        fixture(plain_agent(Some("lab/small")), 100_000, vec![text("## Facts\n- the cache is fine")]).await;
    fixture.inject(vec![user_text("start")]).await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    let to = path.last().unwrap().meta.id;
    fixture.inject(vec![user_text("try the cache"), user_text("it was not the cache")]).await;
    let leave = LeaveWith::ModelSummary { model: None };
    fixture.engine.edits().leave_branch(&fixture.scope, &fixture.session, to, leave).await.unwrap();
    let sent = fixture.model.last_messages();
    assert!(sent.contains("try the cache") && sent.contains("it was not the cache"), "{sent}");
    assert!(!sent.contains("start"), "only the branch that is left is summarized: {sent}");
    let context = fixture.engine.views().context(&fixture.scope, &fixture.session, None).await.unwrap();
    let texts: Vec<String> = context.messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["start", "## Facts\n- the cache is fine"]);
    let Some(Body::BranchSummary(summary)) = fixture.bodies().await.pop() else {
        panic!("no branch summary")
    };
    assert_eq!(summary.details.facts, ["the cache is fine"]);
    assert_eq!(summary.written_by.map(|by| (by.model, by.calls)), Some(("lab/small".to_owned(), 1)));
    let spend = fixture.engine.directory().summary(&fixture.scope, &fixture.session).await.unwrap().spend;
    assert_eq!(spend.models["lab/small"].calls, 1, "the summary counts as spent");
}

#[tokio::test]
async fn a_branch_without_messages_or_with_a_failing_model_is_left_unchanged() {
    let fail = ScriptedReply::Fail(ModelError::Overloaded {
        model: "lab/small".to_owned(),
        status: 529,
        retry_after_ms: None,
    });
    let fixture = fixture(plain_agent(Some("lab/small")), 100_000, vec![fail]).await;
    fixture.inject(vec![user_text("start"), user_text("more")]).await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    let (first, leaf) = (path[path.len() - 2].meta.id, path[path.len() - 1].meta.id);
    let head = fixture.head().await;
    let leave = || LeaveWith::ModelSummary { model: None };
    let branch =
        async |to| fixture.engine.edits().leave_branch(&fixture.scope, &fixture.session, to, leave()).await;
    assert_eq!(branch(leaf).await.unwrap_err().code(), "input.invalid");
    assert_eq!(branch(first).await.unwrap_err().code(), "compact.failed");
    assert_eq!(fixture.head().await, head);
}

#[tokio::test]
async fn a_hook_gets_the_text_of_the_branch_and_may_summarize_it() {
    let fixture = fixture(plain_agent(Some("lab/small")), 100_000, Vec::new()).await;
    fixture.inject(vec![user_text("start")]).await;
    let path = fixture.engine.views().path(&fixture.scope, &fixture.session, None).await.unwrap();
    let to = path.last().unwrap().meta.id;
    fixture.inject(vec![user_text("a dead end")]).await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = seen.clone();
    let hook = Closure(move |event: HookEvent| {
        let recorded = recorded.clone();
        async move {
            recorded.lock().unwrap().push(event.data["text"].as_str().unwrap_or_default().to_owned());
            Verdict::Change { data: serde_json::json!({"summary": "by the hook"}) }
        }
    });
    let scope = fixture.scope.clone();
    let installed = InstalledHook::new("summariser", HookName::BeforeBranch, Arc::new(hook), scope);
    let engine = fixture.engine.clone();
    let engine = engine.configured(|config| config.hooks.install(installed).unwrap());
    let leave = LeaveWith::ModelSummary { model: None };
    engine.edits().leave_branch(&fixture.scope, &fixture.session, to, leave).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["user: a dead end"]);
    assert_eq!(fixture.model.call_count(), 0, "the hook's summary needs no model");
    let Some(Body::BranchSummary(summary)) = fixture.bodies().await.pop() else {
        panic!("no branch summary")
    };
    assert_eq!((summary.summary.as_str(), summary.from_hook), ("by the hook", true));
}
