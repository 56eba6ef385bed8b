//! Compaction through the Rust API: model summaries, custom compactors, callbacks, hooks, concurrent writers.

use std::sync::{Arc, Mutex};

use sapwood::core::compact::{Archive, CompactOptions, Method};
use sapwood::core::entry::{
    AssistantMessage, Body, Details, Stop, Strategy, ToolResult, Trigger, Usage, WrittenBy,
};
use sapwood::core::port::summariser::{
    BeforeCompact, CompactHook, Compactor, Summariser, SummariserError, SummaryRequest, WrittenSummary,
};
use sapwood::core::pressure::{Level, Moment};
use sapwood::core::{Json, Part};
use sapwood::engine::compact::{Compacted, Compacting, Writing};
use sapwood::engine::pressure::PressureOptions;
use sapwood::{Context, Sapwood, SessionId, user_text};

/// Returns scripted answers and records the requests.
#[derive(Default)]
struct ScriptedSummariser {
    answers: Mutex<Vec<Result<String, SummariserError>>>,
    requests: Mutex<Vec<SummaryRequest>>,
    /// The session that gets a message while the summary is being written.
    meanwhile: Option<(Sapwood, SessionId)>,
    /// The cost of each answer.
    bill: Option<WrittenBy>,
}

impl ScriptedSummariser {
    fn answering(answers: &[&str]) -> Arc<Self> {
        let answers = answers.iter().rev().map(|answer| Ok((*answer).to_owned())).collect();
        Arc::new(Self { answers: Mutex::new(answers), ..Self::default() })
    }
}

#[async_trait::async_trait]
impl Summariser for ScriptedSummariser {
    async fn write(&self, request: SummaryRequest) -> Result<WrittenSummary, SummariserError> {
        if let Some((sapwood, session)) = &self.meanwhile {
            sapwood.inject(session, vec![user_text("said meanwhile")]).await.unwrap();
        }
        self.requests.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop();
        let text = answer.unwrap_or_else(|| Err(SummariserError("no answer".to_owned())))?;
        Ok(WrittenSummary { text, by: self.bill.clone() })
    }
}

async fn chat(count: usize) -> (Sapwood, SessionId) {
    let sapwood = Sapwood::open("memory:").unwrap();
    let session = sapwood.open_session(Default::default()).await.unwrap();
    let messages =
        (0..count).map(|n| user_text(format!("message {n} {}", "and so on ".repeat(20)))).collect();
    sapwood.inject(&session, messages).await.unwrap();
    (sapwood, session)
}

fn options(method: Method) -> CompactOptions {
    CompactOptions { keep_last: Some(6), compact_strategy: method, ..CompactOptions::default() }
}

fn compacting(method: Method) -> Compacting {
    Compacting::new(options(method), Trigger::Manual)
}

async fn compact(sapwood: &Sapwood, session: &SessionId, how: Compacting) -> Compacted {
    sapwood.engine().compaction().compact(sapwood.scope(), session, how).await.unwrap()
}

fn summary_of(context: &Context) -> String {
    context.messages[0].text()
}

fn output(call: &str, text: &str) -> Vec<Body> {
    let call_part = Part::tool_call(call, "run", Json::parse("{}").unwrap());
    let call_message = AssistantMessage { parts: vec![call_part], stop: Stop::ToolUse, ..assistant_text("") };
    let result = ToolResult {
        call_id: call.to_owned(),
        tool: Some("run".to_owned()),
        parts: vec![Part::text(text)],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    };
    vec![call_message.into(), result.into()]
}

fn assistant_text(text: &str) -> AssistantMessage {
    serde_json::from_value(serde_json::json!({ "parts": [{ "type": "text", "text": text }] })).unwrap()
}

#[tokio::test]
async fn a_model_writes_the_summary_and_its_lists_are_carried_over() {
    let (sapwood, session) = chat(20).await;
    let model = ScriptedSummariser::answering(&[
        "## Goal\nship\n## Decisions\n- use SQLite\n## Open items\n- docs",
        "## Goal\nship soon\n## Decisions\n- no cache\n## Open items\n- tests",
    ]);
    let mut how = compacting(Method::Llm);
    how.options.instructions = Some("the deadline".to_owned());
    how.summariser = Some(model.clone());
    let done = compact(&sapwood, &session, how.clone()).await;
    assert_eq!((done.kept, done.archived), (7, 14));
    assert!(done.tokens_after < done.tokens_before);
    let request = model.requests.lock().unwrap()[0].clone();
    assert!(request.text.contains("message 0") && request.text.contains("message 13"), "{}", request.text);
    assert!(!request.text.contains("message 14"), "kept messages are not summarised");
    assert!(request.text.contains("the deadline"));
    sapwood
        .inject(&session, vec![user_text("more"), assistant_text("yes").into(), user_text("go on")])
        .await
        .unwrap();
    let done = compact(&sapwood, &session, how).await;
    let request = model.requests.lock().unwrap()[1].clone();
    assert!(request.text.contains("ship") && request.text.contains("use SQLite"), "the summary is folded in");
    assert!(request.text.contains("message 14"), "no message is lost between two summaries");
    let compaction = done.compaction.unwrap();
    assert_eq!(compaction.details.decisions, ["use SQLite", "no cache"]);
    assert_eq!(compaction.details.open_items, ["tests"]);
    let summary = summary_of(&sapwood.context(&session).await.unwrap());
    assert!(summary.contains("ship soon") && summary.contains("use SQLite"), "{summary}");
}

#[tokio::test]
async fn a_split_turn_is_summarised_in_two_parts() {
    let (sapwood, session) = chat(2).await;
    for round in 0..15 {
        sapwood.inject(&session, output(&format!("c{round}"), "fine")).await.unwrap();
    }
    let model = ScriptedSummariser::answering(&["the story", "how the turn began"]);
    let how = Compacting { summariser: Some(model.clone()), ..compacting(Method::Llm) };
    compact(&sapwood, &session, how).await;
    let requests = model.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    assert!(requests[0].text.contains("message 0") && !requests[0].text.contains("message 1 "));
    assert!(requests[1].text.contains("message 1 ") && requests[1].system.contains("turn"));
}

#[tokio::test]
async fn an_empty_summary_falls_back_to_truncate_and_records_it() {
    for (method, name) in [(Method::Llm, Strategy::Llm), (Method::Custom, Strategy::Custom)] {
        let (sapwood, session) = chat(20).await;
        let mut how = compacting(method);
        how.summariser = Some(ScriptedSummariser::answering(&["  \n"]));
        how.custom_compactor = Some(Arc::new(FixedCompactor(" ")));
        let done = compact(&sapwood, &session, how).await.compaction.unwrap();
        assert_eq!((done.strategy, done.instead_of), (Strategy::Truncate, Some(name)));
        assert!(done.summary.unwrap().contains("user: message 3"));
    }
}

#[tokio::test]
async fn a_failing_model_leaves_the_session_unchanged() {
    let (sapwood, session) = chat(20).await;
    let before = sapwood.engine().directory().summary(sapwood.scope(), &session).await.unwrap();
    let how = Compacting { summariser: Some(ScriptedSummariser::answering(&[])), ..compacting(Method::Llm) };
    let error = sapwood.engine().compaction().compact(sapwood.scope(), &session, how).await.unwrap_err();
    assert_eq!(error.code(), "compact.failed");
    assert_eq!(sapwood.engine().directory().summary(sapwood.scope(), &session).await.unwrap(), before);
    let error = sapwood
        .engine()
        .compaction()
        .compact(sapwood.scope(), &session, compacting(Method::Llm))
        .await
        .unwrap_err();
    assert_eq!(error.code(), "compact.no_model");
}

#[tokio::test]
async fn messages_added_during_a_compaction_are_kept_after_it() {
    let (sapwood, session) = chat(20).await;
    let meanwhile = Some((sapwood.clone(), session.clone()));
    let answers = Mutex::new(vec![Ok("what happened".to_owned())]);
    let model = Arc::new(ScriptedSummariser { answers, meanwhile, ..ScriptedSummariser::default() });
    let how = Compacting { summariser: Some(model.clone()), ..compacting(Method::Llm) };
    let done = compact(&sapwood, &session, how).await;
    assert_eq!(model.requests.lock().unwrap().len(), 1, "the model is not called again");
    let context = sapwood.context(&session).await.unwrap();
    assert_eq!((done.kept, context.messages.len()), (8, 8));
    assert_eq!(context.messages[7].text(), "said meanwhile");
    assert!(summary_of(&context).contains("what happened"));
}

/// Returns a fixed summary, with `#` replaced by the number of archived messages.
struct FixedCompactor(&'static str);

#[async_trait::async_trait]
impl Compactor for FixedCompactor {
    async fn compact(&self, archive: &Archive<'_>) -> Result<String, SummariserError> {
        let count = archive.messages().count();
        Ok(self.0.replace('#', &count.to_string()))
    }
}

#[tokio::test]
async fn a_custom_compactor_writes_the_summary() {
    let (sapwood, session) = chat(20).await;
    let mut how = compacting(Method::Custom);
    let error =
        sapwood.engine().compaction().compact(sapwood.scope(), &session, how.clone()).await.unwrap_err();
    assert!(error.to_string().contains("compact_strategy"), "{error}");
    how.custom_compactor = Some(Arc::new(FixedCompactor("# messages, in my words")));
    let done = compact(&sapwood, &session, how).await;
    assert_eq!(done.compaction.unwrap().strategy, Strategy::Custom);
    assert!(summary_of(&sapwood.context(&session).await.unwrap()).contains("14 messages, in my words"));
}

#[tokio::test]
async fn callbacks_replace_masked_and_shortened_output() {
    let (sapwood, session) = chat(1).await;
    let long = "a line of output\n".repeat(80);
    sapwood.inject(&session, output("x", &long)).await.unwrap();
    sapwood.inject(&session, vec![user_text("next")]).await.unwrap();
    sapwood.inject(&session, output("y", &long)).await.unwrap();
    let mut how = compacting(Method::ObservationMask);
    how.options.keep_last = Some(3);
    how.options.tool_output_max_chars = Some(100);
    how.callbacks.mask = Some(Arc::new(|output| Some(format!("<masked {}>", output.call_id))));
    how.callbacks.compress = Some(Arc::new(|output, max| Some(format!("<{} in {max}>", output.call_id))));
    compact(&sapwood, &session, how).await;
    let context = sapwood.context(&session).await.unwrap();
    assert!(summary_of(&context).contains("run: <masked x>"), "{}", summary_of(&context));
    assert_eq!(context.messages.last().unwrap().text(), "<y in 100>");
}

#[derive(Default)]
struct ScriptedHook {
    answer: BeforeCompact,
    /// Number of calls to `after_compact`.
    notified: Mutex<u32>,
}

#[async_trait::async_trait]
impl CompactHook for ScriptedHook {
    async fn before_compact(&self, _: &Archive<'_>) -> BeforeCompact {
        self.answer.clone()
    }
    async fn after_compact(&self, _: &sapwood::core::entry::Compaction) {
        *self.notified.lock().unwrap() += 1;
    }
}

#[tokio::test]
async fn a_hook_can_cancel_a_compaction_or_supply_the_summary() {
    let (sapwood, session) = chat(20).await;
    let cancel = Arc::new(ScriptedHook {
        answer: BeforeCompact::Cancel { reason: "not now".into() },
        ..ScriptedHook::default()
    });
    let how = Compacting { hook: Some(cancel.clone()), ..compacting(Method::Truncate) };
    let done = compact(&sapwood, &session, how).await;
    assert_eq!((done.cancelled.as_deref(), done.entry, done.kept), (Some("not now"), None, 20));
    assert_eq!(*cancel.notified.lock().unwrap(), 0);
    let answer = BeforeCompact::Supply { summary: "all in all".into(), details: Details::default() };
    let supply = Arc::new(ScriptedHook { answer, ..ScriptedHook::default() });
    let how = Compacting { hook: Some(supply.clone()), ..compacting(Method::Truncate) };
    let done = compact(&sapwood, &session, how).await;
    assert!(done.compaction.unwrap().from_hook);
    assert_eq!(summary_of(&sapwood.context(&session).await.unwrap()), "all in all");
    assert_eq!(*supply.notified.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_hard_limit_holds_for_messages_of_any_size() {
    for limit in [2_000, 400, 120] {
        let (sapwood, session) = chat(30).await;
        sapwood.inject(&session, output("x", &"a line of output\n".repeat(900))).await.unwrap();
        let mut how = compacting(Method::ObservationMask);
        how.options.hard_limit_tokens = Some(limit);
        let done = compact(&sapwood, &session, how).await;
        assert!(done.tokens_after <= limit, "{} over {limit}", done.tokens_after);
        let context = sapwood.context(&session).await.unwrap();
        assert_eq!((context.tokens, context.messages.len()), (done.tokens_after, done.kept));
    }
}

#[tokio::test]
async fn pressure_compacts_when_needed_and_not_twice_without_new_messages() {
    let (sapwood, session) = chat(40).await;
    let usage = Usage { input: 1_000, cache_read: 8_000, ..Usage::default() };
    let answer = AssistantMessage { usage: Some(usage), ..assistant_text("here you are") };
    sapwood.inject(&session, vec![answer.into()]).await.unwrap();
    let (engine, scope) = (sapwood.engine(), sapwood.scope());
    let unknown = PressureOptions::default();
    assert_eq!(
        engine.compaction().relieve(scope, &session, Moment::AfterTurn, &unknown).await.unwrap().compacted,
        None
    );
    let pressure_options = PressureOptions { budget_tokens: Some(10_000), ..PressureOptions::default() };
    let before =
        engine.compaction().relieve(scope, &session, Moment::BeforeCall, &pressure_options).await.unwrap();
    assert_eq!((before.pressure.unwrap().level, before.compacted), (Level::Orange, None));
    let after =
        engine.compaction().relieve(scope, &session, Moment::AfterTurn, &pressure_options).await.unwrap();
    assert!(after.compacted.unwrap().entry.is_some());
    let again = engine.compaction().pressure(scope, &session, &pressure_options).await.unwrap().unwrap();
    assert_eq!(again.level, Level::Green, "{again}");
    let feed = engine.views().feed(scope, &session).await.unwrap();
    assert!(feed.iter().any(|item| item.label == "pressure" && item.text.starts_with("orange")), "{feed:?}");
    let how = Compacting::new(options(Method::Truncate), Trigger::Pressure);
    assert_eq!(compact(&sapwood, &session, how).await.entry, None, "no new messages");
}

#[tokio::test]
async fn an_overflow_compacts_and_reports_whether_it_helped() {
    let (sapwood, session) = chat(40).await;
    let pressure_options = PressureOptions { budget_tokens: Some(1_500), ..PressureOptions::default() };
    let (engine, scope) = (sapwood.engine(), sapwood.scope());
    let dry = PressureOptions { writing: Writing::DryRun, ..pressure_options.clone() };
    let planned = engine.compaction().relieve_overflow(scope, &session, &dry).await.unwrap();
    assert!(planned.compaction.is_some() && planned.entry.is_none(), "a dry run writes no entry");
    assert!(
        engine
            .compaction()
            .relieve_overflow(scope, &session, &pressure_options)
            .await
            .unwrap()
            .entry
            .is_some()
    );
    assert!(sapwood.context(&session).await.unwrap().tokens <= 750);
    let (sapwood, session) = chat(1).await;
    let done = sapwood
        .engine()
        .compaction()
        .relieve_overflow(sapwood.scope(), &session, &pressure_options)
        .await
        .unwrap();
    assert_eq!((done.compaction, done.entry), (None, None));
}

#[tokio::test]
async fn the_cost_of_a_summary_is_in_the_session_totals() {
    let (sapwood, session) = chat(30).await;
    let usage = Usage { input: 700, output: 40, ..Usage::default() };
    let bill = WrittenBy { model: "lab/small".to_owned(), calls: 1, usage, cost_nano_usd: Some(5) };
    let answers = Mutex::new(vec![Ok("It continued.".to_owned())]);
    let summariser =
        Arc::new(ScriptedSummariser { answers, bill: Some(bill.clone()), ..ScriptedSummariser::default() });
    let options =
        CompactOptions { compact_strategy: Method::Llm, keep_last: Some(4), ..CompactOptions::default() };
    let mut how = Compacting::new(options, Trigger::Manual);
    how.summariser = Some(summariser);
    let done = sapwood.compact(&session, how).await.unwrap();
    assert_eq!(done.compaction.unwrap().written_by, Some(bill));
    let spend = sapwood.snapshot(&session).await.unwrap().unwrap().summary.spend;
    let row = &spend.models["lab/small"];
    assert_eq!((row.calls, row.usage, row.cost_nano_usd, row.unpriced_calls), (1, usage, 5, 0));
}
