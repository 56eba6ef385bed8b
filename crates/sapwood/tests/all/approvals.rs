//! Deadlines of questions, the hook `on_approval`, and late answers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use sapwood::core::TimestampMs;
use sapwood::core::agent::Agent;
use sapwood::core::approval::{ApprovalWait, Escalation};
use sapwood::core::entry::ApprovalAnswer;
use sapwood::core::port::clock::Clock;
use sapwood::engine::turn::{OnWait, SendOptions, Sent, TurnReport};
use sapwood::storage::{StoreOptions, open_store};
use sapwood::{Body, Engine, HookEvent, HookName, Part, Sapwood, Scope, Seq, SessionId};
use serde_json::Value;

use super::harness::{RecordingTools, ScriptedModel, backends, calls, text};

/// A clock that the test moves.
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> TimestampMs {
        TimestampMs(self.0.load(Ordering::SeqCst))
    }
    fn random(&self) -> u128 {
        sapwood::SystemClock.random()
    }
}

struct Fixture {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    clock: Arc<TestClock>,
    events: Arc<Mutex<Vec<Value>>>,
}

/// A session whose agent waits for a person before it calls `act`.
async fn fixture(wait: Option<ApprovalWait>) -> Fixture {
    let model = ScriptedModel::with_replies(vec![calls(&[("c1", "act", r#"{"x":1}"#)]), text("done")]);
    let tools = Arc::new(RecordingTools::default());
    let clock = Arc::new(TestClock(AtomicI64::new(1_700_000_000_000)));
    let store = open_store("memory:", StoreOptions::default()).unwrap();
    let engine = Engine::new(store, clock.clone()).with_backends(backends(&model, &tools));
    let events: Arc<Mutex<Vec<Value>>> = Arc::default();
    let received = events.clone();
    let sapwood = Sapwood::with_engine(engine);
    let hook = move |event: HookEvent| {
        received.lock().unwrap().push(event.data);
        async {}
    };
    let sapwood = sapwood.on(HookName::OnApproval, hook).unwrap();
    let agent = Agent {
        tools: vec!["act".to_owned()],
        approval_wait: wait,
        ..Agent::default_with(Some("actor".into()))
    };
    let session = sapwood.start(agent).await.unwrap();
    let (engine, scope) = (sapwood.engine().clone(), sapwood.scope().clone());
    Fixture { engine, scope, session, clock, events }
}

impl Fixture {
    async fn send(&self, on_wait: OnWait) -> TurnReport {
        let options = SendOptions { on_wait, ..SendOptions::default() };
        let parts = vec![Part::text("act")];
        match self.engine.turns().send(&self.scope, &self.session, parts, options).await.unwrap() {
            Sent::Started(running) => running.ended().await.unwrap(),
            Sent::Queued(_) => panic!("the input was queued instead of starting a turn"),
        }
    }

    fn pass(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds * 1_000, Ordering::SeqCst);
    }

    async fn settle(&self) -> Option<TimestampMs> {
        self.engine.approvals().settle(&self.scope.tenant, &self.session).await.unwrap()
    }

    async fn answers(&self) -> Vec<(String, ApprovalAnswer)> {
        let mut answers = Vec::new();
        let visit = |entry: sapwood::core::Entry| {
            if let Body::ApprovalAnswered(given) = entry.body {
                answers.push((entry.meta.by.to_string(), given.answer));
            }
        };
        self.engine.log().each_entry(&self.scope, &self.session, Seq::ZERO, visit).await.unwrap();
        answers
    }

    async fn escalations(&self) -> usize {
        let mut count = 0;
        let visit = |entry: sapwood::core::Entry| {
            count += usize::from(Escalation::of_body(&entry.body).is_some());
        };
        self.engine.log().each_entry(&self.scope, &self.session, Seq::ZERO, visit).await.unwrap();
        count
    }
}

fn wait(escalate: u32, expire: u32) -> Option<ApprovalWait> {
    let escalate_to = Some("on-call".to_owned());
    Some(ApprovalWait { escalate_after_s: Some(escalate), escalate_to, expire_after_s: Some(expire) })
}

#[tokio::test]
async fn a_question_reaches_the_hook_is_escalated_once_and_expires() {
    let fixture = fixture(wait(10, 60)).await;
    let report = fixture.send(OnWait::Leave).await;
    let pending = &report.waiting[0];
    let asked = fixture.events.lock().unwrap()[0].clone();
    assert_eq!(asked["approval"], pending.approval.as_str());
    assert_eq!((&asked["tool"], &asked["input"]["x"]), (&"act".into(), &1.into()));
    assert_eq!((&asked["escalated"], &asked["target"]), (&false.into(), &Value::Null));
    assert_eq!(asked["expires_at"], 1_700_000_060_000_i64);
    assert_eq!(fixture.settle().await, Some(TimestampMs(1_700_000_010_000)));
    fixture.pass(10);
    for _ in 0..3 {
        assert_eq!(fixture.settle().await, Some(TimestampMs(1_700_000_060_000)));
    }
    let events = fixture.events.lock().unwrap().clone();
    assert_eq!((events.len(), fixture.escalations().await), (2, 1), "escalated once");
    assert_eq!((&events[1]["escalated"], &events[1]["target"]), (&true.into(), &"on-call".into()));
    fixture.pass(50);
    for _ in 0..2 {
        assert_eq!(fixture.settle().await, None);
    }
    assert_eq!(fixture.answers().await, [("system".to_owned(), ApprovalAnswer::Denied)]);
    let resumed =
        fixture.engine.turns().resume(&fixture.scope, &fixture.session, OnWait::Leave).await.unwrap();
    assert_eq!(resumed.unwrap().ended().await.unwrap().text, "done");
}

#[tokio::test]
async fn a_late_answer_is_refused_and_the_question_denied() {
    let fixture = fixture(wait(10, 60)).await;
    let approval = fixture.send(OnWait::Leave).await.waiting[0].approval.clone();
    fixture.pass(61);
    let control = fixture.engine.turn_control();
    let late = control.answer(&fixture.scope, &approval, ApprovalAnswer::Approved, None).await;
    assert_eq!(late.unwrap_err().code(), "approval.expired");
    assert_eq!(fixture.answers().await, [("system".to_owned(), ApprovalAnswer::Denied)]);
    let again = control.answer(&fixture.scope, &approval, ApprovalAnswer::Approved, None).await;
    assert_eq!(again.unwrap_err().code(), "approval.not_found");
}

#[tokio::test]
async fn a_resumed_turn_denies_questions_that_expired_without_a_process() {
    let fixture = fixture(wait(10, 60)).await;
    fixture.send(OnWait::Leave).await;
    fixture.pass(3_600);
    let resumed =
        fixture.engine.turns().resume(&fixture.scope, &fixture.session, OnWait::Leave).await.unwrap();
    assert_eq!(resumed.unwrap().ended().await.unwrap().text, "done");
    assert_eq!((fixture.answers().await.len(), fixture.escalations().await), (1, 0));
}

/// With [`OnWait::Stay`], the turn keeps running while it waits, and enforces the deadline itself.
#[tokio::test]
async fn a_running_turn_denies_its_question_at_the_deadline() {
    let fixture = fixture(wait(1, 2)).await;
    let clock = fixture.clock.clone();
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            clock.0.fetch_add(100, Ordering::SeqCst);
        }
    });
    let report = fixture.send(OnWait::Stay).await;
    ticking.abort();
    assert_eq!(report.text, "done");
    assert_eq!(fixture.answers().await, [("system".to_owned(), ApprovalAnswer::Denied)]);
}

#[tokio::test]
async fn a_question_without_deadlines_waits() {
    let fixture = fixture(None).await;
    let approval = fixture.send(OnWait::Leave).await.waiting[0].approval.clone();
    fixture.pass(86_400 * 365);
    assert_eq!(fixture.settle().await, None);
    let control = fixture.engine.turn_control();
    control.answer(&fixture.scope, &approval, ApprovalAnswer::Approved, None).await.unwrap();
    assert_eq!(fixture.answers().await.len(), 1);
}

#[tokio::test]
async fn one_of_many_concurrent_answers_counts() {
    let fixture = fixture(None).await;
    let approval = fixture.send(OnWait::Leave).await.waiting[0].approval.clone();
    let answer = |number: usize| {
        let (engine, scope, approval) = (fixture.engine.clone(), fixture.scope.clone(), approval.clone());
        let answer = [ApprovalAnswer::Approved, ApprovalAnswer::Denied][number % 2];
        async move { engine.turn_control().answer(&scope, &approval, answer, None).await }
    };
    let answers = futures_util::future::join_all((0..8).map(answer)).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(fixture.answers().await.len(), 1);
}
