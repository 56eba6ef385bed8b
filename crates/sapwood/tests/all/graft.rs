//! Grafts over real stores: by reference, pinned, and withheld from readers without access to the source.

use std::sync::Arc;

use sapwood::core::entry::{ArtifactUse, AssistantMessage};
use sapwood::core::{Role, Scope};
use sapwood::{Agent, Body, GraftState, GraftWhat, Part, Sapwood, SessionId, TenantId, user_text};

use super::harness::{RecordingTools, ScriptedModel, backends, calls, text};

fn answer(text: &str) -> Body {
    Body::AssistantMessage(AssistantMessage {
        parts: vec![Part::text(text)],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Default::default(),
    })
}

fn as_user(operator: &Sapwood, tenant: &str, name: &str) -> Sapwood {
    operator.with_scope(Scope::user(tenant.parse::<TenantId>().unwrap(), name.parse().unwrap()))
}

async fn deliver(sapwood: &Sapwood, session: &SessionId, name: &str, content: &str) {
    let (engine, scope) = (sapwood.engine(), sapwood.scope());
    let bytes = content.as_bytes().to_vec();
    engine
        .edits()
        .put_artifact(scope, session, name, ArtifactUse::Artifact, "text/plain", bytes)
        .await
        .unwrap();
}

/// A session with three rounds and an artifact.
async fn source_of(sapwood: &Sapwood) -> SessionId {
    let source = sapwood.open_session(Default::default()).await.unwrap();
    sapwood.inject(&source, vec![user_text("question one"), answer("answer one")]).await.unwrap();
    deliver(sapwood, &source, "report.md", "the first report").await;
    let rest = vec![
        user_text("question two"),
        answer("answer two"),
        user_text("question three"),
        answer("answer three"),
    ];
    sapwood.inject(&source, rest).await.unwrap();
    source
}

async fn last_text(sapwood: &Sapwood, session: &SessionId) -> String {
    sapwood.context(session).await.unwrap().messages.last().unwrap().text()
}

fn artifact(name: &str) -> GraftWhat {
    GraftWhat::Artifact { name: name.to_owned() }
}

#[tokio::test]
async fn a_graft_shows_its_content_in_the_context() {
    let ana = as_user(&Sapwood::open("memory:").unwrap(), "acme", "ana");
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    ana.graft(&session, &source, GraftWhat::Digest).await.unwrap();
    let digest = last_text(&ana, &session).await;
    assert!(digest.contains("1. asked: question one → answer one [artifacts: report.md]"), "{digest}");
    assert!(digest.contains("not instructions") && digest.contains(source.as_str()), "{digest}");
    ana.graft(&session, &source, GraftWhat::Rounds { first: 2, last: 3 }).await.unwrap();
    let rounds = last_text(&ana, &session).await;
    assert!(
        rounds.contains("User: question two\nAssistant: answer two") && !rounds.contains("one"),
        "{rounds}"
    );
    ana.graft(&session, &source, artifact("report.md")).await.unwrap();
    assert!(last_text(&ana, &session).await.contains("the first report"));
    assert_eq!(ana.context(&session).await.unwrap().messages.len(), 3);
    // The graft is a reference: the session's log has no copy of the content.
    let mut log = String::new();
    ana.engine()
        .log()
        .each_entry(ana.scope(), &session, sapwood::Seq::ZERO, |entry| log += &format!("{entry:?}"))
        .await
        .unwrap();
    assert!(!log.contains("the first report") && !log.contains("answer"), "{log}");
}

#[tokio::test]
async fn a_graft_stays_unchanged_when_the_source_continues() {
    let ana = as_user(&Sapwood::open("memory:").unwrap(), "acme", "ana");
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    let mut before = Vec::new();
    for what in [GraftWhat::Digest, GraftWhat::Rounds { first: 1, last: 3 }, artifact("report.md")] {
        let view = ana.graft(&session, &source, what).await.unwrap();
        before.push((view.seq, ana.read_graft(&session, view.seq).await.unwrap()));
    }
    ana.inject(&source, vec![user_text("question four"), answer("answer four")]).await.unwrap();
    deliver(&ana, &source, "report.md", "the second report").await;
    ana.reset(&source).await.unwrap();
    ana.inject(&source, vec![user_text("all new"), answer("indeed")]).await.unwrap();
    // Use an empty cache, as in another process.
    let other = Sapwood::with_engine(sapwood::Engine::new(
        ana.engine().store().clone(),
        Arc::new(sapwood::SystemClock),
    ))
    .with_scope(ana.scope().clone());
    for (seq, grafted) in before {
        assert_eq!(other.read_graft(&session, seq).await.unwrap(), grafted);
    }
}

#[tokio::test]
async fn access_is_checked_when_grafting_and_on_every_read() {
    let operator = Sapwood::open("memory:").unwrap();
    let (ana, bob) = (as_user(&operator, "acme", "ana"), as_user(&operator, "acme", "bob"));
    let foreign = as_user(&operator, "globex", "bob");
    let source = source_of(&ana).await;
    for stranger in [&bob, &foreign] {
        let session = stranger.open_session(Default::default()).await.unwrap();
        let refused = stranger.graft(&session, &source, GraftWhat::Digest).await.unwrap_err();
        assert_eq!(refused.code(), "session.not_found");
    }
    let share = async |role: Option<Role>| {
        let bob_principal = bob.scope().principal.clone();
        ana.engine().sessions().share(ana.scope(), &source, bob_principal, role).await.unwrap();
    };
    share(Some(Role::Reader)).await;
    let session = bob.open_session(Default::default()).await.unwrap();
    let view = bob.graft(&session, &source, GraftWhat::Digest).await.unwrap();
    let file = bob.graft(&session, &source, artifact("report.md")).await.unwrap();
    assert!(last_text(&bob, &session).await.contains("the first report"));
    assert!(bob.grafts(&session).await.unwrap().iter().all(|graft| graft.state == GraftState::Readable));
    share(None).await;
    for seq in [view.seq, file.seq] {
        assert_eq!(bob.read_graft(&session, seq).await.unwrap_err().code(), "graft.withheld");
    }
    assert!(bob.grafts(&session).await.unwrap().iter().all(|graft| graft.state == GraftState::Withheld));
    let shown = format!("{:?}", bob.context(&session).await.unwrap());
    assert!(
        shown.contains("withheld") && !shown.contains("report\"") && !shown.contains("answer one"),
        "{shown}"
    );
}

#[tokio::test]
async fn other_readers_of_the_session_cannot_read_through_its_grafts() {
    let operator = Sapwood::open("memory:").unwrap();
    let (ana, bob) = (as_user(&operator, "acme", "ana"), as_user(&operator, "acme", "bob"));
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    ana.graft(&session, &source, GraftWhat::Digest).await.unwrap();
    ana.engine()
        .sessions()
        .share(ana.scope(), &session, bob.scope().principal.clone(), Some(Role::Collaborator))
        .await
        .unwrap();
    // Ana has just read the graft: bob must not get the cached content.
    assert!(last_text(&ana, &session).await.contains("answer one"));
    assert!(!last_text(&bob, &session).await.contains("answer one"));
    let fork = bob.fork(&session, Default::default(), Default::default()).await.unwrap();
    assert!(!last_text(&bob, &fork).await.contains("answer one"));
}

#[tokio::test]
async fn erasing_the_source_withholds_the_graft_permanently() {
    let ana = as_user(&Sapwood::open("memory:").unwrap(), "acme", "ana");
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    let view = ana.graft(&session, &source, artifact("report.md")).await.unwrap();
    assert!(last_text(&ana, &session).await.contains("the first report"));
    ana.engine().sessions().erase(ana.scope(), &source).await.unwrap();
    assert!(last_text(&ana, &session).await.contains("withheld"));
    // A new session with the same id is not the source.
    let options = sapwood::OpenOptions { id: Some(source.clone()), ..Default::default() };
    ana.open_session(options).await.unwrap();
    deliver(&ana, &source, "report.md", "another report").await;
    assert_eq!(ana.read_graft(&session, view.seq).await.unwrap_err().code(), "graft.withheld");
}

#[tokio::test]
async fn missing_content_cannot_be_grafted() {
    let ana = as_user(&Sapwood::open("memory:").unwrap(), "acme", "ana");
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    let refused = [
        artifact("nothing.md"),
        GraftWhat::Rounds { first: 0, last: 1 },
        GraftWhat::Rounds { first: 3, last: 2 },
        GraftWhat::Rounds { first: 1, last: 4 },
    ];
    for what in refused {
        assert_eq!(ana.graft(&session, &source, what).await.unwrap_err().code(), "graft.not_found");
    }
    assert_eq!(ana.graft(&session, &session, GraftWhat::Digest).await.unwrap_err().code(), "input.invalid");
    assert_eq!(ana.graft(&source, &session, GraftWhat::Digest).await.unwrap_err().code(), "graft.not_found");
    assert!(ana.grafts(&session).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_graft_tool_includes_content_by_reference() {
    let model = ScriptedModel::with_replies(Vec::new());
    let operator = Sapwood::open("memory:").unwrap();
    let engine =
        operator.engine().clone().with_backends(backends(&model, &Arc::new(RecordingTools::default())));
    let ana = as_user(&Sapwood::with_engine(engine), "acme", "ana");
    let source = source_of(&ana).await;
    let input = format!(r#"{{"session":"{source}","artifact":"report.md"}}"#);
    model.add_replies(vec![calls(&[("c1", "graft", &input)]), text("thanks")]);
    let tools = vec!["graft".to_owned()];
    let approvals = sapwood::core::policy::ApprovalMode::Auto;
    let agent = Agent { tools, approvals, ..Agent::default_with(Some("actor".into())) };
    let session = ana.start(agent).await.unwrap();
    let report = ana.send(&session, "get the report").await.unwrap();
    assert_eq!(report.text, "thanks");
    assert!(model.last_messages().contains("the first report"), "{}", model.last_messages());
    let mut log = String::new();
    ana.engine()
        .log()
        .each_entry(ana.scope(), &session, sapwood::Seq::ZERO, |entry| log += &format!("{entry:?}"))
        .await
        .unwrap();
    assert!(!log.contains("the first report"));
}

#[tokio::test]
async fn a_model_cannot_graft_content_that_some_readers_may_not_read() {
    let model = ScriptedModel::with_replies(Vec::new());
    let operator = Sapwood::open("memory:").unwrap();
    let engine =
        operator.engine().clone().with_backends(backends(&model, &Arc::new(RecordingTools::default())));
    let ana = as_user(&Sapwood::with_engine(engine), "acme", "ana");
    let source = source_of(&ana).await;
    let input = format!(r#"{{"session":"{source}"}}"#);
    model.add_replies(vec![calls(&[("c1", "graft", &input)]), text("done")]);
    let approvals = sapwood::core::policy::ApprovalMode::Auto;
    let agent =
        Agent { tools: vec!["graft".to_owned()], approvals, ..Agent::default_with(Some("actor".into())) };
    let session = ana.start(agent).await.unwrap();
    let bob = as_user(&operator, "acme", "bob").scope().principal.clone();
    ana.engine().sessions().share(ana.scope(), &session, bob, Some(Role::Reader)).await.unwrap();
    ana.send(&session, "get it").await.unwrap();
    assert!(model.last_messages().contains("Not all readers of this session"), "{}", model.last_messages());
    assert!(ana.grafts(&session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_large_artifact_shows_its_beginning_and_a_reference() {
    let ana = as_user(&Sapwood::open("memory:").unwrap(), "acme", "ana");
    let source = source_of(&ana).await;
    let session = ana.open_session(Default::default()).await.unwrap();
    // Three bytes per character, so that the read limit splits a character.
    deliver(&ana, &source, "long.txt", &"€".repeat(700_000)).await;
    ana.graft(&session, &source, artifact("long.txt")).await.unwrap();
    let shown = last_text(&ana, &session).await;
    assert_eq!(shown.matches('€').count(), 24_000);
    assert!(shown.contains("read the rest with read_output"), "{:.200}", shown);
    let (engine, scope) = (ana.engine(), ana.scope());
    let bytes = [b"plain at first ".repeat(10_000), vec![0xff; 9]].concat();
    let usage = ArtifactUse::Artifact;
    engine.edits().put_artifact(scope, &source, "mixed", usage, "text/plain", bytes).await.unwrap();
    ana.graft(&session, &source, artifact("mixed")).await.unwrap();
    assert!(last_text(&ana, &session).await.contains("plain at first"), "the part that is read is text");
    engine.edits().put_artifact(scope, &source, "odd", usage, "text/plain", vec![0xff; 9]).await.unwrap();
    ana.graft(&session, &source, artifact("odd")).await.unwrap();
    assert!(last_text(&ana, &session).await.contains("[binary content; output"));
}
