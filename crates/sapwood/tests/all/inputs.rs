//! Inputs through the Rust API: the note and the tools for the model, the cached prefix, forks, and snippets.

use std::sync::Arc;

use sapwood::core::BlobRef;
use sapwood::core::entry::{ArtifactUse, Body};
use sapwood::core::media_type::media_type;
use sapwood::core::port::document::{DocumentError, DocumentFormat, DocumentReader};
use sapwood::core::port::model::RequestPart;
use sapwood::{Agent, ForkAt, OpenOptions, Sapwood, SessionId};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends, calls, text};

struct Fixture {
    sapwood: Sapwood,
    model: Arc<ScriptedModel>,
}

/// A reader that shows which format it was asked for, and refuses documents that begin with "broken".
struct StubReader;

#[async_trait::async_trait]
impl DocumentReader for StubReader {
    async fn read_text(&self, format: DocumentFormat, document: Vec<u8>) -> Result<String, DocumentError> {
        let text = String::from_utf8_lossy(&document).into_owned();
        match text.contains("broken") {
            true => Err(DocumentError::Damaged { why: "it has no pages".to_owned() }),
            false => Ok(format!("{}: first line\nsecond line\n", format.as_str())),
        }
    }
}

fn fixture(replies: Vec<ScriptedReply>) -> Fixture {
    let (model, tools) = (ScriptedModel::with_replies(replies), Arc::new(RecordingTools::default()));
    let engine = Sapwood::open("memory:").unwrap().engine().clone().with_backends(backends(&model, &tools));
    let engine = engine.configured(|config| config.documents = Some(Arc::new(StubReader)));
    Fixture { sapwood: Sapwood::with_engine(engine), model }
}

impl Fixture {
    async fn add(
        &self,
        session: &SessionId,
        name: &str,
        bytes: &[u8],
        source: Option<&str>,
    ) -> sapwood::engine::Result<()> {
        let (engine, scope) = (self.sapwood.engine(), self.sapwood.scope());
        let blob = engine.store().put_blob(scope, bytes.to_vec()).await?;
        let (mime, name) = (media_type(bytes, "").to_owned(), Some(name.to_owned()));
        let content = BlobRef { blob, mime, name, bytes: bytes.len() as u64, duration_ms: None };
        engine.inputs().add(scope, session, content, source.map(str::to_owned)).await.map(drop)
    }

    fn tools_of(&self, call: usize) -> Vec<String> {
        let requests = self.model.requests.lock().unwrap();
        requests[call].tools.iter().map(|tool| tool.name.clone()).collect()
    }

    /// The results of tools in the last request.
    fn last_results(&self) -> Vec<(String, bool)> {
        let requests = self.model.requests.lock().unwrap();
        let parts = requests.last().unwrap().messages.iter().flat_map(|message| &message.parts);
        parts
            .filter_map(|part| match part {
                RequestPart::ToolResult { parts, is_error, .. } => Some((format!("{parts:?}"), *is_error)),
                _ => None,
            })
            .collect()
    }
}

#[tokio::test]
async fn a_model_without_tools_reads_an_input_of_its_session() {
    let replies = vec![
        calls(&[
            ("1", "list_inputs", "{}"),
            ("2", "read_input", r#"{"name": "notes.txt", "from": 2, "lines": 1}"#),
        ]),
        calls(&[("3", "search_inputs", r#"{"query": "OAKS live"}"#)]),
        text("done"),
    ];
    let fixture = fixture(replies);
    let agent = Agent { tools: Vec::new(), ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.add(&session, "notes.txt", b"trees:\noaks live long\nelms do not\n", None).await.unwrap();
    fixture.sapwood.send(&session, "what lives long?").await.unwrap();
    let first = format!("{:?}", fixture.model.requests.lock().unwrap()[0].messages);
    assert!(first.contains("notes.txt") && first.contains("text/plain, 34 bytes"), "{first}");
    assert_eq!(fixture.tools_of(0), ["list_inputs", "read_input", "search_inputs"]);
    let results = fixture.last_results();
    assert!(results[0].0.contains("notes.txt") && !results[0].1, "{results:?}");
    let read = &results[1].0;
    assert!(
        read.contains("lines 2 to 2") && read.contains("oaks live long") && !read.contains("elms"),
        "{read}"
    );
    assert!(read.contains(r#"\"from\": 3"#), "{read}");
    assert!(results[2].0.contains("notes.txt:2: oaks live long"), "{results:?}");
}

#[tokio::test]
async fn the_tool_list_changes_once_and_keeps_its_prefix() {
    let fixture = fixture((0..4).map(|_| text("ok")).collect());
    let agent = Agent { tools: vec!["look".into(), "put_artifact".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.sapwood.send(&session, "one").await.unwrap();
    fixture.add(&session, "a.txt", b"a", None).await.unwrap();
    fixture.sapwood.send(&session, "two").await.unwrap();
    fixture.add(&session, "b.txt", b"b", None).await.unwrap();
    fixture.sapwood.engine().edits().reset(fixture.sapwood.scope(), &session).await.unwrap();
    fixture.sapwood.send(&session, "three").await.unwrap();
    let (before, after) = (fixture.tools_of(0), fixture.tools_of(1));
    assert!(!before.contains(&"read_input".to_owned()));
    assert_eq!(after[..before.len()], before[..], "the tools are added at the end");
    assert_eq!(after[before.len()..], ["list_inputs", "read_input", "search_inputs"]);
    assert_eq!(fixture.tools_of(2), after, "a reset does not remove them");
    let requests = fixture.model.requests.lock().unwrap();
    assert_eq!(requests[0].system, requests[1].system);
    let shown = |call: usize, count: usize| format!("{:?}", &requests[call].messages[..count]);
    let count = requests[0].messages.len();
    assert_eq!(shown(1, count), shown(0, count), "the messages of the first request are a prefix");
}

#[tokio::test]
async fn an_agent_that_names_an_input_tool_has_all_from_the_first_turn() {
    let fixture = fixture(vec![calls(&[("1", "list_inputs", "{}")]), text("ok"), text("ok")]);
    let agent = Agent { tools: vec!["read_input".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.sapwood.send(&session, "one").await.unwrap();
    assert!(fixture.last_results()[0].0.contains("no inputs"));
    fixture.add(&session, "a.txt", b"a", None).await.unwrap();
    fixture.sapwood.send(&session, "two").await.unwrap();
    assert_eq!(fixture.tools_of(0), fixture.tools_of(2));
}

#[tokio::test]
async fn an_input_added_during_a_turn_is_announced_in_the_next() {
    let hang = ScriptedReply::Hang(Vec::new());
    let fixture = fixture(vec![hang, text("ok")]);
    let session = fixture.sapwood.start(Agent::default()).await.unwrap();
    let (engine, scope) = (fixture.sapwood.engine().clone(), fixture.sapwood.scope().clone());
    let parts = vec![sapwood::Part::text("wait")];
    let sent = engine.turns().send(&scope, &session, parts, Default::default()).await.unwrap();
    while fixture.model.call_count() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.add(&session, "late.txt", b"late", None).await.unwrap();
    engine.turn_control().cancel(&scope, &session).await.unwrap();
    let sapwood::engine::turn::Sent::Started(running) = sent else { panic!() };
    running.ended().await.unwrap();
    fixture.sapwood.send(&session, "next").await.unwrap();
    let messages = fixture.model.last_messages();
    assert_eq!(messages.matches("The user added the input").count(), 1, "{messages}");
    assert!(messages.contains("late.txt"), "{messages}");
}

#[tokio::test]
async fn a_fork_has_the_inputs_and_one_note() {
    let fixture = fixture(vec![text("ok"), calls(&[("1", "read_input", r#"{"name":"a.txt"}"#)]), text("ok")]);
    let session = fixture.sapwood.start(Agent::default()).await.unwrap();
    fixture.add(&session, "a.txt", b"the text", None).await.unwrap();
    fixture.sapwood.send(&session, "one").await.unwrap();
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let fork = engine.sessions().fork(scope, &session, ForkAt::Leaf, OpenOptions::default()).await.unwrap();
    engine.sessions().erase(scope, &session).await.unwrap();
    fixture.sapwood.send(&fork, "two").await.unwrap();
    assert!(fixture.last_results()[0].0.contains("the text"), "{:?}", fixture.last_results());
    assert_eq!(fixture.model.last_messages().matches("The user added the input").count(), 1);
}

#[tokio::test]
async fn a_snippet_is_shown_with_its_source_and_must_be_text() {
    let fixture = fixture(vec![calls(&[("1", "list_inputs", "{}")]), text("ok")]);
    let session = fixture.sapwood.start(Agent::default()).await.unwrap();
    let source = "https://example.org/oaks";
    fixture.add(&session, "oaks", b"Oaks live for 500 years.", Some(source)).await.unwrap();
    let refused = fixture.add(&session, "bad", b"\xff\0", Some(source)).await.unwrap_err();
    assert_eq!(refused.code(), "input.invalid");
    for (name, source) in [("", None), ("a\nb", None), ("a", Some("")), ("a", Some("x\ny"))] {
        assert_eq!(fixture.add(&session, name, b"x", source).await.unwrap_err().code(), "input.invalid");
    }
    fixture.sapwood.send(&session, "how long?").await.unwrap();
    let first = format!("{:?}", fixture.model.requests.lock().unwrap()[0].messages);
    assert!(first.contains("Oaks live for 500 years.") && first.contains(source), "{first}");
    assert!(fixture.last_results()[0].0.contains(source));
    let artifacts =
        fixture.sapwood.engine().views().artifacts(fixture.sapwood.scope(), &session).await.unwrap();
    assert_eq!(artifacts.get(ArtifactUse::Input, "oaks").unwrap().source.as_deref(), Some(source));
}

#[tokio::test]
async fn documents_are_extracted_images_are_media_and_failures_are_tool_errors() {
    let read = |id, name: &str| (id, "read_input", format!(r#"{{"name":"{name}"}}"#));
    let reads = [
        read("1", "a.pdf"),
        read("2", "b.html"),
        read("3", "c.png"),
        read("4", "broken.pdf"),
        read("5", "d.bin"),
        read("6", "missing"),
    ];
    let reads: Vec<(&str, &str, &str)> =
        reads.iter().map(|(id, name, input)| (*id, *name, input.as_str())).collect();
    let fixture = fixture(vec![calls(&reads), text("ok")]);
    let session = fixture.sapwood.start(Agent::default()).await.unwrap();
    for (name, bytes) in [
        ("a.pdf", &b"%PDF-1.7"[..]),
        ("b.html", b"<p>x"),
        ("c.png", b"\x89PNG\r\n\x1a\n"),
        ("broken.pdf", b"%PDF-broken"),
        ("d.bin", b"\0\x01\x02"),
    ] {
        fixture.add(&session, name, bytes, None).await.unwrap();
    }
    fixture.sapwood.send(&session, "read all").await.unwrap();
    let results = fixture.last_results();
    let fails: Vec<bool> = results.iter().map(|(_, is_error)| *is_error).collect();
    assert_eq!(fails, [false, false, false, true, true, true], "{results:?}");
    assert!(results[0].0.contains("pdf: first line"), "{results:?}");
    assert!(results[1].0.contains("html: first line"));
    assert!(results[2].0.contains("image/png") && results[2].0.contains("Media"));
    assert!(results[3].0.contains("no pages") && results[5].0.contains("list_inputs"), "{results:?}");
}

#[tokio::test]
async fn a_delegated_session_names_its_parent() {
    let replies = vec![calls(&[("1", "delegate", r#"{"task":"look it up"}"#)]), text("found"), text("done")];
    let fixture = fixture(replies);
    let agent = Agent { tools: vec!["delegate".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.sapwood.send(&session, "go").await.unwrap();
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let ancestry = engine.views().ancestry(scope, &session).await.unwrap().unwrap();
    let [child] = ancestry.children.as_slice() else { panic!("{ancestry:?}") };
    let summary = engine.directory().summary(scope, child).await.unwrap();
    assert_eq!(summary.parent.as_ref().map(|parent| &parent.session), Some(&session));
    let delegation = engine.views().delegation(scope, &summary).await.unwrap().unwrap();
    assert_eq!(delegation.session, session);
    let path = engine.views().path(scope, child, None).await.unwrap();
    assert!(
        path.iter()
            .any(|entry| matches!(&entry.body, Body::UserMessage(_)) && entry.body.text() == "look it up")
    );
    let fork = engine.sessions().fork(scope, child, ForkAt::Leaf, OpenOptions::default()).await.unwrap();
    let summary = engine.directory().summary(scope, &fork).await.unwrap();
    assert_eq!(engine.views().delegation(scope, &summary).await.unwrap(), None, "a fork is not delegated");
}
