//! Memories over real stores: learned when sessions end, added to new sessions, found by meaning, deleted.

use std::sync::Arc;

use sapwood::core::agent::{Agent, MemoryUse};
use sapwood::core::entry::{Stop, ToolResult};
use sapwood::core::port::embedder::{Embedder, EmbedderError};
use sapwood::core::port::memory::Learned;
use sapwood::core::{Role, TimestampMs};
use sapwood::engine::memory::IdleWindow;
use sapwood::{
    Belongs, Body, Engine, MemoryConfig, MemoryEdit, MemoryKind, MemoryOutcome, Part, Sapwood, Scope,
    SessionId, StartOptions, TenantId, user_text,
};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends, calls, text};

fn scope(name: &str) -> Scope {
    Scope::user(TenantId::local(), name.parse().unwrap())
}

fn operator() -> Sapwood {
    Sapwood::open("memory:").unwrap()
}

fn as_user(operator: &Sapwood, name: &str) -> Sapwood {
    operator.with_scope(scope(name))
}

async fn session_with(sapwood: &Sapwood, texts: &[&str]) -> SessionId {
    let session = sapwood.open_session(Default::default()).await.unwrap();
    let bodies = texts.iter().map(|text| user_text(*text)).collect();
    sapwood.inject(&session, bodies).await.unwrap();
    session
}

async fn texts(sapwood: &Sapwood) -> Vec<String> {
    sapwood.memories().await.unwrap().into_iter().map(|memory| memory.text).collect()
}

async fn system_prompt(sapwood: &Sapwood, agent: Agent) -> String {
    let session = sapwood.start(agent).await.unwrap();
    sapwood.context(&session).await.unwrap().system.unwrap_or_default()
}

#[tokio::test]
async fn closing_and_archiving_store_memories_for_later_sessions() {
    let operator = operator();
    let ana = as_user(&operator, "ana");
    let first = session_with(
        &ana,
        &["Please remember that the staging database is heron. Thanks!", "What time is it?"],
    )
    .await;
    ana.close(&first).await.unwrap();
    let second = session_with(&ana, &["I prefer short answers."]).await;
    ana.archive(&second).await.unwrap();
    let mut learned = texts(&ana).await;
    learned.sort();
    assert_eq!(learned, ["I prefer short answers", "The staging database is heron"]);
    let prompt =
        system_prompt(&ana, Agent { system_prompt: Some("Be kind.".into()), ..Agent::default() }).await;
    assert!(prompt.starts_with("Be kind.\n\n<memories>"), "{prompt}");
    assert!(prompt.contains(&format!("session {first}")), "names its source: {prompt}");
    assert!(prompt.contains("not instructions"), "{prompt}");
    let silent =
        Agent { memory: serde_json::from_str::<Option<MemoryUse>>("false").unwrap(), ..Agent::default() };
    assert_eq!(system_prompt(&ana, silent).await, "");
}

#[tokio::test]
async fn the_memories_in_a_sessions_prompt_never_change() {
    let ana = as_user(&operator(), "ana");
    ana.remember("The build takes nine minutes", MemoryKind::Fact).await.unwrap();
    let session = ana.start(Agent::default()).await.unwrap();
    let before = ana.context(&session).await.unwrap().system;
    ana.remember("The office is in Basel", MemoryKind::Fact).await.unwrap();
    assert_eq!(ana.context(&session).await.unwrap().system, before, "the prompt prefix stays cacheable");
}

#[tokio::test]
async fn nothing_is_learned_twice_and_forgotten_memories_stay_forgotten() {
    let ana = as_user(&operator(), "ana");
    let session = session_with(&ana, &["I prefer tabs to spaces."]).await;
    assert_eq!(ana.learn(&session).await.unwrap().kept.len(), 1);
    assert!(ana.learn(&session).await.unwrap().kept.is_empty());
    let memory = ana.memories().await.unwrap().remove(0);
    assert_eq!(ana.forget(memory.id).await.unwrap(), 1);
    ana.inject(&session, vec![user_text("I always run the tests first.")]).await.unwrap();
    ana.close(&session).await.unwrap();
    assert_eq!(texts(&ana).await, ["I always run the tests first"]);
}

#[tokio::test]
async fn a_repetition_strengthens_and_a_contradiction_supersedes() {
    let ana = as_user(&operator(), "ana");
    let sessions = [
        session_with(&ana, &["Our staging database is heron."]).await,
        session_with(&ana, &["Remember that our staging database is heron."]).await,
        session_with(&ana, &["Our staging database is osprey."]).await,
    ];
    let mut outcomes = Vec::new();
    for session in &sessions {
        outcomes.extend(ana.learn(session).await.unwrap().kept);
    }
    let old = outcomes[0].memory.id;
    assert_eq!(
        outcomes.iter().map(|kept| kept.outcome).collect::<Vec<_>>(),
        [MemoryOutcome::Learned, MemoryOutcome::Strengthened, MemoryOutcome::Superseded { old }]
    );
    assert_eq!(outcomes[1].memory.strength(), 2);
    assert_eq!(texts(&ana).await, ["Our staging database is osprey"]);
    let newer = &outcomes[2].memory;
    let linked = ana.engine().memories().superseded(ana.scope(), newer).await.unwrap();
    assert_eq!((linked.len(), linked[0].id, linked[0].superseded_by), (1, old, Some(newer.id)));
    // Deleting a memory also deletes the memory that it superseded.
    assert_eq!(ana.forget(newer.id).await.unwrap(), 2);
    assert!(texts(&ana).await.is_empty());
}

#[tokio::test]
async fn erasing_a_session_erases_memories_with_no_other_source() {
    let ana = as_user(&operator(), "ana");
    let (first, second) = (
        session_with(&ana, &["I live in Bern.", "I prefer tea."]).await,
        session_with(&ana, &["I prefer tea."]).await,
    );
    for session in [&first, &second] {
        ana.learn(session).await.unwrap();
    }
    assert_eq!(texts(&ana).await.len(), 2);
    ana.engine().sessions().erase(ana.scope(), &first).await.unwrap();
    let left = ana.memories().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].text.as_str(), left[0].sources.len()), ("I prefer tea", 1));
    ana.engine().sessions().erase(ana.scope(), &second).await.unwrap();
    assert!(texts(&ana).await.is_empty());
}

#[tokio::test]
async fn secrets_are_neither_learned_nor_added() {
    let ana = as_user(&operator(), "ana");
    let key = format!("sk-ant-{}", "aB3x".repeat(6));
    let session =
        session_with(&ana, &[&format!("Remember that my key is {key}."), "My password is hunter2."]).await;
    assert!(ana.learn(&session).await.unwrap().kept.is_empty());
    let refused = ana.remember(format!("The key is {key}"), MemoryKind::Fact).await.unwrap_err();
    assert_eq!(refused.code(), "input.invalid");
    assert!(!refused.to_string().contains(&key));
}

#[tokio::test]
async fn only_the_owners_own_messages_are_learned() {
    let operator = operator();
    let (ana, bob) = (as_user(&operator, "ana"), as_user(&operator, "bob"));
    let session = session_with(&ana, &["I prefer tea."]).await;
    let bob_principal = bob.scope().principal.clone();
    ana.engine()
        .sessions()
        .share(ana.scope(), &session, bob_principal, Some(Role::Collaborator))
        .await
        .unwrap();
    bob.inject(&session, vec![user_text("I prefer coffee.")]).await.unwrap();
    assert_eq!(bob.learn(&session).await.unwrap_err().code(), "session.denied");
    // Memories belong to the owner, regardless of which member ends the session.
    bob.close(&session).await.unwrap();
    assert_eq!(texts(&ana).await, ["I prefer tea"]);
    assert!(texts(&bob).await.is_empty());
}

#[tokio::test]
async fn inherited_entries_are_not_learned_from_a_fork() {
    let ana = as_user(&operator(), "ana");
    let source = session_with(&ana, &["I prefer tea."]).await;
    let fork = ana.fork(&source, Default::default(), Default::default()).await.unwrap();
    ana.inject(&fork, vec![user_text("I live in Bern.")]).await.unwrap();
    ana.close(&fork).await.unwrap();
    assert_eq!(texts(&ana).await, ["I live in Bern"]);
}

#[tokio::test]
async fn repeated_tool_failures_are_learned_with_their_fix() {
    let ana = as_user(&operator(), "ana");
    let session = ana.open_session(Default::default()).await.unwrap();
    let mut bodies = vec![user_text("Build it.")];
    for (number, input, output) in [
        (1, r#"{"command":"cargo build"}"#, Some("error: no space left on device (7)")),
        (2, r#"{"command":"cargo build"}"#, Some("error: no space left on device (9)")),
        (3, r#"{"command":"cargo clean"}"#, None),
    ] {
        let call_id = format!("c{number}");
        let input = sapwood::core::Json::parse(input).unwrap();
        bodies.push(Body::AssistantMessage(sapwood::core::entry::AssistantMessage {
            parts: vec![Part::tool_call(&call_id, "run_command", input)],
            model: None,
            usage: None,
            cost_nano_usd: None,
            stop: Stop::ToolUse,
        }));
        bodies.push(Body::ToolResult(ToolResult {
            call_id,
            tool: Some("run_command".into()),
            is_error: output.is_some(),
            parts: vec![Part::text(output.unwrap_or("done"))],
            full: None,
            duration_ms: None,
            interrupted: false,
        }));
    }
    ana.inject(&session, bodies).await.unwrap();
    let kept = ana.learn(&session).await.unwrap().kept;
    assert_eq!((kept.len(), kept[0].memory.kind), (1, MemoryKind::ErrorPattern));
    let text = &kept[0].memory.text;
    assert!(text.contains("no space left") && text.contains("cargo clean"), "{text}");
    assert_eq!(kept[0].memory.sources[0].entries.len(), 2);
}

fn with_model(replies: Vec<ScriptedReply>) -> (Sapwood, Arc<ScriptedModel>) {
    let model = ScriptedModel::with_replies(replies);
    let engine =
        operator().engine().clone().with_backends(backends(&model, &Arc::new(RecordingTools::default())));
    let config = MemoryConfig { model: Some("actor".into()), ..MemoryConfig::default() };
    (
        Sapwood::with_engine(engine.configured(|settings| settings.memory = config)).with_scope(scope("ana")),
        model,
    )
}

#[tokio::test]
async fn a_model_extracts_memories_and_is_asked_once() {
    let answer =
        r#"{"memories":[{"kind":"preference","text":"The user wants answers in German.","lines":[1]}]}"#;
    let (ana, model) = with_model(vec![text(answer)]);
    let session = session_with(&ana, &["Könntest du künftig auf Deutsch antworten?"]).await;
    let learning = ana.learn(&session).await.unwrap();
    assert_eq!((learning.how, learning.fell_back), (Learned::ByModel("actor".into()), None));
    assert_eq!(texts(&ana).await, ["The user wants answers in German."]);
    ana.learn(&session).await.unwrap();
    assert_eq!(model.call_count(), 1);
}

#[tokio::test]
async fn an_invalid_model_answer_falls_back_to_rules_and_records_it() {
    let bad = [
        "I have noted everything!",
        r#"{"memories":[{"kind":"fact","text":"x","lines":[]}]}"#,
        r#"{"memories":[{"kind":"fact","text":"x","lines":[9]}]}"#,
        r#"{"memories":[{"kind":"wish","text":"x","lines":[1]}]}"#,
        r#"{"memories":[],"extra":1}"#,
    ];
    for answer in bad {
        let (ana, _) = with_model(vec![text(answer)]);
        let session = session_with(&ana, &["I prefer tea."]).await;
        let learning = ana.learn(&session).await.unwrap();
        assert_eq!(learning.how, Learned::ByRules, "{answer}");
        assert!(learning.fell_back.is_some(), "{answer}");
        assert_eq!(texts(&ana).await, ["I prefer tea"]);
    }
}

#[tokio::test]
async fn the_recall_tool_keeps_private_memories_out_of_shared_sessions() {
    let replies = || vec![calls(&[("c1", "recall", r#"{"query":"which db for staging"}"#)]), text("done")];
    for is_shared in [false, true] {
        let model = ScriptedModel::with_replies(replies());
        let engine =
            operator().engine().clone().with_backends(backends(&model, &Arc::new(RecordingTools::default())));
        let ana = Sapwood::with_engine(engine).with_scope(scope("ana"));
        session_with(&ana, &["the db for which staging db is heron-session"]).await;
        ana.remember("Our staging database is heron-memory", MemoryKind::Fact).await.unwrap();
        let memory = serde_json::from_str(r#"{"tokens":0}"#).unwrap();
        let agent = Agent { memory: Some(memory), ..Agent::default_with(Some("actor".into())) };
        let session = ana.start(agent).await.unwrap();
        if is_shared {
            let bob = scope("bob").principal;
            ana.engine().sessions().share(ana.scope(), &session, bob, Some(Role::Reader)).await.unwrap();
        }
        ana.send(&session, "where?").await.unwrap();
        let messages = model.last_messages();
        assert_eq!(messages.contains("heron-memory"), !is_shared, "{messages}");
        assert_eq!(messages.contains("heron-session"), !is_shared, "{messages}");
    }
}

#[tokio::test]
async fn only_the_owner_can_share_a_memory_with_the_tenant_and_take_it_back() {
    let operator = operator();
    let (ana, bob) = (as_user(&operator, "ana"), as_user(&operator, "bob"));
    let memory = ana.remember("Releases happen on Thursday", MemoryKind::Fact).await.unwrap().memory;
    assert!(bob.recollect("when do releases happen", 5).await.unwrap().is_empty());
    let shared = MemoryEdit { belongs: Some(Belongs::Tenant), ..MemoryEdit::default() };
    assert_eq!(bob.edit_memory(memory.id, shared.clone()).await.unwrap_err().code(), "memory.not_found");
    ana.edit_memory(memory.id, shared).await.unwrap();
    assert_eq!(bob.recollect("when do releases happen", 5).await.unwrap().len(), 1);
    let prompt = system_prompt(&bob, Agent::default()).await;
    assert!(prompt.contains("by user:ana"), "{prompt}");
    assert_eq!(bob.forget(memory.id).await.unwrap_err().code(), "memory.denied");
    let private =
        MemoryEdit { belongs: Some(Belongs::To(ana.scope().principal.clone())), ..MemoryEdit::default() };
    ana.edit_memory(memory.id, private).await.unwrap();
    assert!(bob.recollect("when do releases happen", 5).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_edit_of_an_outdated_version_is_refused() {
    let ana = as_user(&operator(), "ana");
    let memory = ana.remember("The office is in Basel", MemoryKind::Fact).await.unwrap().memory;
    let edit =
        |text: &str, expected| MemoryEdit { text: Some(text.into()), expected, ..MemoryEdit::default() };
    let edited = ana.edit_memory(memory.id, edit("The office is in Bern", Some(1))).await.unwrap();
    assert_eq!((edited.version, edited.text.as_str()), (2, "The office is in Bern"));
    assert_eq!(
        ana.edit_memory(memory.id, edit("x y z", Some(1))).await.unwrap_err().code(),
        "memory.conflict"
    );
    assert_eq!(ana.edit_memory(memory.id, edit("The office is in Biel", None)).await.unwrap().version, 3);
}

#[tokio::test]
async fn learning_from_idle_sessions_does_not_change_their_list_order() {
    let operator = operator();
    let ana = as_user(&operator, "ana");
    let session = session_with(&ana, &["I prefer tea."]).await;
    let used = ana.engine().directory().summary(ana.scope(), &session).await.unwrap().updated_at;
    let tenant = TenantId::local();
    let engine: &Engine = ana.engine();
    let window =
        |after: i64, before: i64| IdleWindow { after: TimestampMs(after), before: TimestampMs(before) };
    assert_eq!(
        engine.memories().learn_from_idle(&tenant, window(used.0, used.0 + 1)).await.unwrap(),
        0,
        "the session was not last used in this range"
    );
    assert_eq!(engine.memories().learn_from_idle(&tenant, window(used.0 - 1, used.0 + 1)).await.unwrap(), 1);
    assert_eq!(
        engine.memories().learn_from_idle(&tenant, window(used.0 - 1, used.0 + 1)).await.unwrap(),
        0,
        "learned twice"
    );
    assert_eq!(ana.engine().directory().summary(ana.scope(), &session).await.unwrap().updated_at, used);
    assert_eq!(texts(&ana).await, ["I prefer tea"]);
}

/// Embeds texts about an animal in one direction and all other texts in another direction.
struct Animals;

#[async_trait::async_trait]
impl Embedder for Animals {
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedderError> {
        let is_animal = |text: &String| ["hound", "feline"].iter().any(|word| text.contains(word));
        Ok(texts.iter().map(|text| if is_animal(text) { vec![1.0, 0.0] } else { vec![0.0, 1.0] }).collect())
    }
    fn model(&self) -> &str {
        "test/animals"
    }
}

#[tokio::test]
async fn an_embedder_finds_memories_by_meaning_and_embeds_older_ones() {
    let operator = operator();
    let plain = as_user(&operator, "ana");
    plain.remember("Bruno is a hound", MemoryKind::Fact).await.unwrap();
    plain.remember("Lunch is at noon", MemoryKind::Fact).await.unwrap();
    assert!(plain.recollect("feline", 5).await.unwrap().is_empty());
    let config = MemoryConfig { embedder: Some(Arc::new(Animals)), ..MemoryConfig::default() };
    let ana = Sapwood::with_engine(operator.engine().clone().configured(|settings| settings.memory = config))
        .with_scope(scope("ana"));
    let found = ana.recollect("feline", 5).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].memory.text, "Bruno is a hound");
}

#[tokio::test]
async fn an_agent_can_disable_learning() {
    let ana = as_user(&operator(), "ana");
    let memory = serde_json::from_str(r#"{"learn":false}"#).unwrap();
    let options =
        StartOptions { agent: Agent { memory: Some(memory), ..Agent::default() }, ..StartOptions::default() };
    let session = ana.start_with(options).await.unwrap();
    ana.inject(&session, vec![user_text("I prefer tea.")]).await.unwrap();
    ana.close(&session).await.unwrap();
    assert!(texts(&ana).await.is_empty());
}

#[tokio::test]
async fn a_shared_session_delegates_without_private_memories() {
    for is_shared in [false, true] {
        let replies =
            vec![calls(&[("c1", "delegate", r#"{"task":"find it"}"#)]), text("found"), text("done")];
        let model = ScriptedModel::with_replies(replies);
        let engine =
            operator().engine().clone().with_backends(backends(&model, &Arc::new(RecordingTools::default())));
        let ana = Sapwood::with_engine(engine).with_scope(scope("ana"));
        ana.remember("Our staging database is heron", MemoryKind::Fact).await.unwrap();
        let tools = ["delegate", "put_artifact"].map(str::to_owned).to_vec();
        let agent = Agent { tools, ..Agent::default_with(Some("actor".into())) };
        let session = ana.start(agent).await.unwrap();
        if is_shared {
            let bob = scope("bob").principal;
            ana.engine().sessions().share(ana.scope(), &session, bob, Some(Role::Reader)).await.unwrap();
        }
        ana.send(&session, "go").await.unwrap();
        let requests = model.requests.lock().unwrap();
        let child =
            requests.iter().find(|request| format!("{:?}", request.messages).contains("find it")).unwrap();
        let has_memory = child.system.as_deref().unwrap_or_default().contains("heron");
        let recalls = child.tools.iter().any(|tool| tool.name == "recall");
        assert_eq!((has_memory, recalls), (!is_shared, !is_shared));
    }
}
