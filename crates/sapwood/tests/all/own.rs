//! Custom models and tools through the builder, and subscriptions as streams.

use futures_util::{FutureExt, StreamExt};
use sapwood::entry::{BlobHash, BlobRef};
use sapwood::model::model_fn;
use sapwood::tool::ToolSpec;
use sapwood::{Agent, Kind, Part, Sapwood, Seq, SessionEvent, user_text};
use serde_json::json;

#[tokio::test]
async fn an_own_model_receives_requests_for_its_name_and_below() {
    let echo = model_fn(|request| async move { Ok(vec![Part::text(request.model)]) });
    let sapwood = Sapwood::builder("memory:").unwrap().model("mine", echo).build().unwrap();
    for name in ["mine", "mine/large"] {
        let report = sapwood.ask(Agent::default().with_model(name), "hello").await.unwrap();
        assert_eq!(report.text, name);
    }
    let names = sapwood.engine().configuration().models().unwrap();
    assert!(names.contains(&"mine".to_owned()) && names.contains(&"demo".to_owned()), "{names:?}");
}

#[tokio::test]
async fn a_reply_with_media_fails_the_turn() {
    let blob = BlobRef {
        blob: BlobHash::of(b"x"),
        mime: "image/png".into(),
        name: None,
        bytes: 1,
        duration_ms: None,
    };
    let painter = model_fn(move |_| {
        let part = Part::Media(blob.clone());
        async move { Ok(vec![part]) }
    });
    let sapwood = Sapwood::builder("memory:").unwrap().model("painter", painter).build().unwrap();
    let report = sapwood.ask(Agent::default().with_model("painter"), "paint").await.unwrap();
    assert_eq!(report.ended.unwrap().code.as_deref(), Some("model.malformed"));
}

#[test]
fn a_tool_with_a_taken_name_is_refused_when_the_facade_is_built() {
    let spec = ToolSpec::new("read_file", "Reads.", &json!({"type": "object"}));
    let built = Sapwood::builder("memory:").unwrap().tool(spec, |_| async { "" }).build();
    assert_eq!(built.err().unwrap().code(), "tool.invalid");
}

#[tokio::test]
async fn a_stream_and_next_can_be_mixed_without_losing_events() {
    let sapwood = Sapwood::open("memory:").unwrap();
    let session = sapwood.open_session(Default::default()).await.unwrap();
    let mut events = sapwood.subscribe(&session, Seq::ZERO).await.unwrap();
    assert!(StreamExt::next(&mut events).now_or_never().is_none());
    sapwood.inject(&session, (0..4).map(|n| user_text(n.to_string())).collect()).await.unwrap();
    let mut seqs = Vec::new();
    for turn in 0..4 {
        let event = match turn {
            0 => events.next().await.unwrap(),
            1 => StreamExt::next(&mut events).await.unwrap().unwrap(),
            2 => events.try_next().await.unwrap().unwrap(),
            _ => events.next().await.unwrap(),
        };
        let SessionEvent::Entry(record) = event else { panic!("{event:?}") };
        assert_eq!(record.meta.kind, Kind::UserMessage);
        seqs.push(record.meta.seq.0);
    }
    assert_eq!(seqs, [1, 2, 3, 4]);
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_snapshot_is_a_copy_and_an_unknown_session_has_none() {
    let sapwood = Sapwood::open("memory:").unwrap();
    assert!(sapwood.snapshot(&"unknown".parse().unwrap()).await.unwrap().is_none());
    let session = sapwood.open_session(Default::default()).await.unwrap();
    sapwood.inject(&session, vec![user_text("one"), user_text("two")]).await.unwrap();
    let before = sapwood.snapshot(&session).await.unwrap().unwrap();
    let mut changed = before.clone();
    changed.context.messages.clear();
    changed.summary.title = Some("changed".to_owned());
    assert_eq!(sapwood.snapshot(&session).await.unwrap().unwrap(), before);
    sapwood.inject(&session, vec![user_text("three")]).await.unwrap();
    assert_eq!(before.context.messages.len(), 2, "later messages are not in an earlier snapshot");
}

#[tokio::test]
async fn a_reset_keeps_the_subscribers_and_a_fork_has_none() {
    let sapwood = Sapwood::open("memory:").unwrap();
    let session = sapwood.open_session(Default::default()).await.unwrap();
    sapwood.inject(&session, vec![user_text("one")]).await.unwrap();
    let mut events = sapwood.subscribe(&session, Seq::ZERO).await.unwrap();
    sapwood.reset(&session).await.unwrap();
    let fork = sapwood.fork_at(&session, 0).await.unwrap();
    sapwood.inject(&fork, vec![user_text("only in the fork")]).await.unwrap();
    sapwood.inject(&session, vec![user_text("two")]).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(event) = events.try_next().await.unwrap() {
        let SessionEvent::Entry(record) = event else { panic!("{event:?}") };
        let body = String::from_utf8_lossy(&record.body);
        assert!(!body.contains("fork"), "{body}");
        kinds.push(record.meta.kind);
    }
    assert_eq!(kinds.first(), Some(&Kind::UserMessage));
    assert_eq!(kinds.last(), Some(&Kind::UserMessage), "{kinds:?}");
    assert!(kinds.contains(&Kind::LeafMoved), "{kinds:?}");
}
