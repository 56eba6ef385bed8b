//! Imports in batches, the next begun while the last is written: whoever gets in between ends them, and leaves no gap.

use sapwood::core::entry::UserMessage;
use sapwood::core::port::store::NewSession;
use sapwood::core::{Draft, EntryId, Part, TimestampMs};
use sapwood::engine::import::BATCH_ENTRIES;
use sapwood::engine::write::InjectOptions;
use sapwood::store::OpenOptions;
use sapwood::{Body, Engine, Principal, Scope, Seq, SessionId, TenantId};

const PAGE: usize = 1_000;

fn text(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

fn draft(number: usize) -> Draft {
    let at = TimestampMs(number as i64 + 1);
    Draft { id: Some(EntryId::mint(at, 7)), ..Draft::new(at, text(&number.to_string())) }
}

async fn read_texts(engine: &Engine, scope: &Scope, session: &SessionId) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    loop {
        let after = Seq(texts.len() as u32);
        let records = engine.store().read_after(scope, session, after, PAGE).await.unwrap();
        if records.is_empty() {
            return texts;
        }
        texts.extend(records.iter().map(|record| record.decode().unwrap().text()));
    }
}

/// A session that is imported in batches, and an entry of somebody else behind the first of them.
async fn import_interrupted(url: &str) -> (Vec<String>, String) {
    let engine = sapwood::open_engine(url, OpenOptions::default()).unwrap();
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let session: SessionId = "imported".parse().unwrap();
    let new = NewSession::new(session.clone(), TimestampMs(1));
    let (mut import, _) = engine.begin_import(&scope, new).await.unwrap();
    for number in 0..BATCH_ENTRIES * 2 + 10 {
        import.push(draft(number)).await.unwrap();
    }
    let options = InjectOptions::default();
    engine.inject(&scope, &session, vec![text("somebody else")], options).await.unwrap();
    for number in BATCH_ENTRIES * 2 + 10..BATCH_ENTRIES * 5 {
        if let Err(error) = import.push(draft(number)).await {
            return (read_texts(&engine, &scope, &session).await, error.code().to_owned());
        }
    }
    let error = import.finish().await.unwrap_err();
    (read_texts(&engine, &scope, &session).await, error.code().to_owned())
}

#[tokio::test]
async fn somebody_else_ends_an_import_and_what_it_wrote_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["memory:".to_owned(), format!("sqlite:{}", dir.path().join("s.db").display())] {
        let (texts, code) = import_interrupted(&url).await;
        let mut expected: Vec<String> = (0..BATCH_ENTRIES * 2).map(|number| number.to_string()).collect();
        expected.push("somebody else".to_owned());
        assert_eq!((texts, code.as_str()), (expected, "session.conflict"), "{url}");
    }
}

#[tokio::test]
async fn an_import_in_many_batches_is_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("s.db").display());
    let engine = sapwood::open_engine(&url, OpenOptions::default()).unwrap();
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let session: SessionId = "imported".parse().unwrap();
    let (mut import, _) =
        engine.begin_import(&scope, NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
    let count = BATCH_ENTRIES * 4 + 3;
    for number in 0..count {
        import.push(draft(number)).await.unwrap();
    }
    assert_eq!(import.finish().await.unwrap(), count as u64);
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(read_texts(&engine, &scope, &session).await, expected);
}
