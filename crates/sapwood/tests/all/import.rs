//! Imports in concurrent batches: a concurrent writer ends an import, without leaving a gap.

use sapwood::core::entry::UserMessage;
use sapwood::core::port::store::{Expect, NewSession};
use sapwood::core::{Draft, EntryId, Part, TimestampMs};
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::import::{BATCH_ENTRIES, Intake, Mode};
use sapwood::formats::import::steps::StepBatch;
use sapwood::formats::import::{Format, Reader, reader};
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

/// Import a session in batches, with another writer's entry after the first batch.
async fn import_interrupted(url: &str) -> (Vec<String>, String) {
    let engine = sapwood::open_engine(url, OpenOptions::default()).unwrap();
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let session: SessionId = "imported".parse().unwrap();
    let new = NewSession::new(session.clone(), TimestampMs(1));
    let mut import = engine.imports().begin(&scope, new, Expect::Any).await.unwrap();
    for number in 0..BATCH_ENTRIES * 2 + 10 {
        import.push(draft(number)).await.unwrap();
    }
    let options = InjectOptions::default();
    engine.edits().inject(&scope, &session, vec![text("another writer")], options).await.unwrap();
    for number in BATCH_ENTRIES * 2 + 10..BATCH_ENTRIES * 5 {
        if let Err(error) = import.push(draft(number)).await {
            return (read_texts(&engine, &scope, &session).await, error.code().to_owned());
        }
    }
    let error = import.finish().await.unwrap_err();
    (read_texts(&engine, &scope, &session).await, error.code().to_owned())
}

#[tokio::test]
async fn a_concurrent_writer_ends_an_import_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["memory:".to_owned(), format!("sqlite:{}", dir.path().join("s.db").display())] {
        let (texts, code) = import_interrupted(&url).await;
        let mut expected: Vec<String> = (0..BATCH_ENTRIES * 2).map(|number| number.to_string()).collect();
        expected.push("another writer".to_owned());
        assert_eq!((texts, code.as_str()), (expected, "session.conflict"), "{url}");
    }
}

#[tokio::test]
async fn an_import_in_many_batches_is_complete_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("s.db").display());
    let engine = sapwood::open_engine(&url, OpenOptions::default()).unwrap();
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let session: SessionId = "imported".parse().unwrap();
    let mut import = engine
        .imports()
        .begin(&scope, NewSession::new(session.clone(), TimestampMs(1)), Expect::Any)
        .await
        .unwrap();
    let count = BATCH_ENTRIES * 4 + 3;
    for number in 0..count {
        import.push(draft(number)).await.unwrap();
    }
    assert_eq!(import.finish().await.unwrap(), count as u64);
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(read_texts(&engine, &scope, &session).await, expected);
}

/// An import of a file of plain messages, line by line.
struct FileImport {
    reader: Box<dyn Reader + Send>,
    batch: StepBatch,
    intake: Intake,
}

impl FileImport {
    fn begin(engine: &Engine, scope: &Scope) -> Self {
        let intake = engine.imports().begin_intake(scope, Format::Messages, Mode::Write);
        Self { reader: reader(Format::Messages, "talk").unwrap(), batch: StepBatch::default(), intake }
    }

    async fn take(&mut self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let line = format!("{{\"role\":\"user\",\"content\":\"m{number}\"}}\n");
            self.reader.push_line(line.as_bytes(), number as u64 + 1, &mut self.batch);
        }
        self.intake.take(&mut self.batch).await.unwrap();
    }

    async fn finish(mut self) -> sapwood::engine::Result<u64> {
        Ok(self.intake.finish(&mut self.batch).await?.added)
    }
}

/// The parent of each entry, and the leaf.
async fn tree_of(
    engine: &Engine,
    scope: &Scope,
    session: &SessionId,
) -> (Vec<(String, Option<u32>)>, Option<u32>) {
    let records = engine.store().read_after(scope, session, Seq::ZERO, PAGE).await.unwrap();
    let node = |record: &sapwood::core::Record| {
        (record.decode().unwrap().text(), record.meta.parent.map(|parent| parent.0))
    };
    let leaf = engine.directory().summary(scope, session).await.unwrap().head.leaf.map(|leaf| leaf.0);
    (records.iter().map(node).collect(), leaf)
}

#[tokio::test]
async fn messages_added_while_a_file_is_read_count_as_added_before() {
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let mut trees = Vec::new();
    for pause_after in [0, 3, 6] {
        let engine = sapwood::open_engine("memory:", OpenOptions::default()).unwrap();
        let mut first = FileImport::begin(&engine, &scope);
        first.take(0..6).await;
        first.finish().await.unwrap();
        let session = engine.store().list(&scope, &Default::default()).await.unwrap().items[0].id.clone();

        let mut grown = FileImport::begin(&engine, &scope);
        grown.take(0..pause_after).await;
        engine
            .edits()
            .inject(&scope, &session, vec![text("in between")], InjectOptions::default())
            .await
            .unwrap();
        grown.take(pause_after..9).await;
        assert_eq!(grown.finish().await.unwrap(), 5, "three messages and two leaf moves");
        trees.push(tree_of(&engine, &scope, &session).await);
    }
    assert_eq!(trees[0].1, Some(7), "the local continuation keeps the leaf");
    assert!(trees.iter().all(|tree| *tree == trees[0]), "{trees:#?}");
}

#[tokio::test]
async fn one_of_two_concurrent_imports_of_a_file_fails_with_a_conflict() {
    let scope = Scope::operator(TenantId::local(), Principal::System);
    let engine = sapwood::open_engine("memory:", OpenOptions::default()).unwrap();
    let [mut one, mut two] = [(); 2].map(|()| FileImport::begin(&engine, &scope));
    one.take(0..6).await;
    two.take(0..6).await;
    assert_eq!(one.finish().await.unwrap(), 6);
    assert_eq!(two.finish().await.unwrap_err().code(), "session.conflict");
    let mut again = FileImport::begin(&engine, &scope);
    again.take(0..7).await;
    assert_eq!(again.finish().await.unwrap(), 1);
}
