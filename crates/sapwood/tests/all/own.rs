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
