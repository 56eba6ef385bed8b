//! Allowances: models, tokens and dollars per day are checked before a request is sent, and counted in the store.

use std::sync::Arc;

use sapwood::core::entry::{Outcome, Stop, Usage};
use sapwood::core::port::model::ReplyEvent;
use sapwood::core::port::records::Spent;
use sapwood::engine::allowance::{Allowance, AllowanceHolder};
use sapwood::engine::turn::{OnWait, SendOptions, Sent, TurnReport};
use sapwood::storage::{StoreOptions, open_store};
use sapwood::{Engine, OpenOptions, Part, Principal, Scope, SessionId, SystemClock, TenantId};
use tempfile::TempDir;

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends};

/// The usage that every scripted answer reports: more than the estimate of a call.
const ANSWER_TOKENS: u64 = 50_010;
/// More than the worst case of one call, and less than an answer reports.
const ONE_CALL: u64 = 40_000;

struct Fixture {
    engine: Engine,
    model: Arc<ScriptedModel>,
    dir: TempDir,
}

fn user(name: &str) -> Scope {
    Scope::user(TenantId::local(), name.parse().unwrap())
}

fn operator() -> Scope {
    Scope::operator(TenantId::local(), Principal::System)
}

impl Fixture {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = Arc::new(ScriptedModel::default()).with_price(10);
        // The worst case of a call must be known.
        model.facts.lock().unwrap().output_tokens_max = Some(100);
        Self { engine: engine_on(&dir, &model), model, dir }
    }

    /// Another process on the same store.
    fn reopened(&self) -> Engine {
        engine_on(&self.dir, &self.model)
    }

    async fn set(&self, holder: AllowanceHolder, allowance: Allowance) {
        self.engine.allowances().set(&operator(), &holder, Some(allowance)).await.unwrap();
    }

    async fn spent(&self, holder: &str) -> Spent {
        let held = self.engine.allowances().list(&operator()).await.unwrap();
        held.into_iter().find(|one| one.holder == holder).unwrap().spent
    }
}

fn engine_on(dir: &TempDir, model: &Arc<ScriptedModel>) -> Engine {
    let url = format!("sqlite:{}", dir.path().join("s.db").display());
    let store = open_store(&url, StoreOptions::default()).unwrap();
    Engine::new(store, Arc::new(SystemClock))
        .with_backends(backends(model, &Arc::new(RecordingTools::default())))
}

fn answer() -> ScriptedReply {
    let usage = Usage { input: ANSWER_TOKENS - 10, output: 10, ..Usage::default() };
    let events = [ReplyEvent::Text("hi".to_owned()), ReplyEvent::Usage(usage), ReplyEvent::Stop(Stop::Stop)];
    ScriptedReply::Stream(events.into())
}

async fn session(engine: &Engine, scope: &Scope) -> SessionId {
    engine.sessions().open(scope, OpenOptions::default()).await.unwrap().0
}

async fn send(engine: &Engine, scope: &Scope, session: &SessionId) -> sapwood::Result<TurnReport> {
    let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
    match engine.turns().send(scope, session, vec![Part::text("hello")], options).await? {
        Sent::Started(running) => running.ended().await,
        Sent::Queued(_) => panic!("the input was queued"),
    }
}

fn tokens(tokens_per_day: u64) -> Allowance {
    Allowance { tokens_per_day: Some(tokens_per_day), ..Allowance::default() }
}

fn ana() -> AllowanceHolder {
    AllowanceHolder::User("ana".parse().unwrap())
}

#[tokio::test]
async fn a_model_that_is_not_allowed_is_refused_before_anything_is_written_or_sent() {
    let fixture = Fixture::open();
    let session = session(&fixture.engine, &user("ana")).await;
    let before = fixture.engine.directory().summary(&user("ana"), &session).await.unwrap().head;
    fixture.set(ana(), Allowance { models: Some(vec!["other/*".to_owned()]), ..Allowance::default() }).await;
    let refused = send(&fixture.engine, &user("ana"), &session).await.unwrap_err();
    assert_eq!(refused.code(), "model.denied", "{refused}");
    assert_eq!(fixture.model.call_count(), 0);
    assert_eq!(fixture.engine.directory().summary(&user("ana"), &session).await.unwrap().head, before);
    fixture.set(ana(), Allowance { models: Some(vec!["act*".to_owned()]), ..Allowance::default() }).await;
    fixture.model.add_replies(vec![answer()]);
    send(&fixture.engine, &user("ana"), &session).await.unwrap();
    assert_eq!(fixture.model.call_count(), 1);
}

#[tokio::test]
async fn a_used_up_allowance_is_refused_even_after_a_restart_and_by_another_server() {
    let fixture = Fixture::open();
    let session = session(&fixture.engine, &user("ana")).await;
    // One call fits with its worst case, and a second one does not.
    fixture.set(ana(), tokens(ONE_CALL)).await;
    fixture.model.add_replies(vec![answer(), answer()]);
    let report = send(&fixture.engine, &user("ana"), &session).await.unwrap();
    assert_eq!(report.ended.unwrap().outcome, Outcome::Completed);
    assert_eq!(
        fixture.spent("user:ana").await,
        Spent { tokens: ANSWER_TOKENS, nano_usd: 10 * ANSWER_TOKENS }
    );
    for engine in [fixture.engine.clone(), fixture.reopened()] {
        let refused = send(&engine, &user("ana"), &session).await.unwrap_err();
        assert_eq!(refused.code(), "allowance.exceeded", "{refused}");
    }
    assert_eq!(fixture.model.call_count(), 1, "nothing was sent");
    fixture.engine.allowances().set(&operator(), &ana(), None).await.unwrap();
    send(&fixture.engine, &user("ana"), &session).await.unwrap();
}

#[tokio::test]
async fn a_call_whose_worst_case_exceeds_the_allowance_is_not_sent() {
    let fixture = Fixture::open();
    let session = session(&fixture.engine, &user("ana")).await;
    let cheap = Allowance { nano_usd_per_day: Some(500), ..Allowance::default() };
    fixture.set(ana(), cheap).await;
    let report = send(&fixture.engine, &user("ana"), &session).await.unwrap();
    let ended = report.ended.unwrap();
    assert_eq!((ended.outcome, ended.code.as_deref()), (Outcome::Failed, Some("allowance.exceeded")));
    assert_eq!((fixture.model.call_count(), fixture.spent("user:ana").await), (0, Spent::default()));
}

#[tokio::test]
async fn the_tenant_and_every_user_have_allowances_of_their_own() {
    let fixture = Fixture::open();
    fixture.set(AllowanceHolder::EveryUser, tokens(ONE_CALL)).await;
    fixture.set(AllowanceHolder::Tenant, tokens(10 * ANSWER_TOKENS)).await;
    fixture.model.add_replies(vec![answer(), answer()]);
    for name in ["ana", "bob"] {
        let scope = user(name);
        let session = session(&fixture.engine, &scope).await;
        send(&fixture.engine, &scope, &session).await.unwrap();
        assert_eq!(send(&fixture.engine, &scope, &session).await.unwrap_err().code(), "allowance.exceeded");
    }
    assert_eq!(fixture.spent("tenant").await.tokens, 2 * ANSWER_TOKENS);
    let denied = fixture.engine.allowances().set(&user("ana"), &ana(), None).await.unwrap_err();
    assert_eq!(denied.code(), "operator.required");
}

#[tokio::test]
async fn an_interrupted_call_counts_with_its_estimated_input() {
    let fixture = Fixture::open();
    let session = session(&fixture.engine, &user("ana")).await;
    fixture.set(ana(), tokens(1_000_000)).await;
    let cut = sapwood::core::port::model::ModelError::Malformed { model: "actor".into(), what: "x".into() };
    fixture.model.add_replies(vec![ScriptedReply::Break(vec![ReplyEvent::Text("h".to_owned())], cut)]);
    send(&fixture.engine, &user("ana"), &session).await.unwrap();
    for _ in 0..500 {
        if fixture.spent("user:ana").await.tokens > 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the call was not counted");
}
