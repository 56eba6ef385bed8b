//! The stores that axes share. The long session (ordinary messages) and the huge session (short messages) are slow to
//! create, so each is created once, on first use.

use std::path::Path;

use sapwood::core::entry::{Compaction, Strategy, Trigger};
use sapwood::core::port::store::SearchQuery;
use sapwood::engine::edits::InjectOptions;
use sapwood::store::{Durability, OpenOptions as StoreOptions};
use sapwood::{Body, Engine, EntryId, OpenOptions, Principal, Scope, SessionId, TenantId};

use crate::bodies::{bodies, content_bytes, line_of, short_bodies};
use crate::floor;
use crate::measure::{file_bytes, millis, per_second};
use crate::scratch::Scratch;
use crate::sizes::Sizes;

/// Number of messages per append when filling a session.
const BATCH: usize = 1_000;
/// Number of messages that a compaction keeps.
pub const KEPT: usize = 50;

pub const LONG: &str = "long";
pub const HUGE: &str = "huge";

pub struct Stage {
    pub scratch: Scratch,
    pub sizes: Sizes,
    pub scope: Scope,
    long: Option<Long>,
    huge: bool,
}

/// Properties of the long session.
#[derive(Debug, Clone, Copy)]
pub struct Long {
    pub content_bytes: u64,
    /// Size of the store with only this session, including the search index.
    pub bytes_on_disk: u64,
    pub messages_per_second: f64,
    /// Duration of the first search, which brings the index up to date.
    pub catch_up_ms: f64,
}

impl Stage {
    pub fn make(directory: Option<&Path>, sizes: Sizes) -> anyhow::Result<Self> {
        let scope = Scope::operator(TenantId::local(), Principal::System);
        Ok(Self { scratch: Scratch::make(directory)?, sizes, scope, long: None, huge: false })
    }

    pub fn open(&self, name: &str, durability: Durability) -> anyhow::Result<Engine> {
        let options = StoreOptions { durability, ..StoreOptions::default() };
        Ok(sapwood::open_engine(&self.scratch.url(name), options)?)
    }

    pub async fn session(&self, engine: &Engine, id: &str) -> anyhow::Result<SessionId> {
        let options = OpenOptions { id: Some(id.parse()?), ..OpenOptions::default() };
        Ok(engine.sessions().open(&self.scope, options).await?.0)
    }

    /// Append in one batch and return the ids.
    pub async fn append(
        &self,
        engine: &Engine,
        session: &SessionId,
        bodies: Vec<Body>,
    ) -> anyhow::Result<Vec<EntryId>> {
        let appended = engine.edits().inject(&self.scope, session, bodies, InjectOptions::default()).await?;
        Ok(appended.entries.into_iter().map(|(_, id)| id).collect())
    }

    /// Append in batches, and call `after_batch` with the number of entries after each batch.
    pub async fn fill(
        &self,
        engine: &Engine,
        session: &SessionId,
        mut bodies: impl Iterator<Item = Body>,
        count: usize,
        mut after_batch: impl FnMut(usize),
    ) -> anyhow::Result<()> {
        let mut done = 0;
        while done < count {
            let batch: Vec<Body> = bodies.by_ref().take(BATCH.min(count - done)).collect();
            anyhow::ensure!(!batch.is_empty(), "the corpus is too short");
            done += batch.len();
            self.append(engine, session, batch).await?;
            after_batch(done);
        }
        Ok(())
    }

    /// Append ordinary messages, and a compaction that keeps exactly these messages.
    pub async fn compact_behind(&self, engine: &Engine, session: &SessionId) -> anyhow::Result<()> {
        let kept = self.append(engine, session, bodies(5).take(KEPT).collect()).await?;
        self.append(engine, session, vec![compaction(kept.first().copied())]).await?;
        Ok(())
    }

    /// A session of ordinary messages in `long.db`, and the same messages as lines in `long.jsonl`.
    pub async fn long(&mut self) -> anyhow::Result<Long> {
        if let Some(long) = self.long {
            return Ok(long);
        }
        let count = self.sizes.long;
        floor::write_lines(
            &self.scratch.file("long.jsonl"),
            bodies(1).take(count).map(|body| line_of(&body)),
        )?;
        let engine = self.open("long.db", Durability::Normal)?;
        let session = self.session(&engine, LONG).await?;
        let mut bytes = 0;
        let counted = bodies(1).inspect(|body| bytes += content_bytes(body));
        let start = std::time::Instant::now();
        self.fill(&engine, &session, counted.take(count), count, |_| ()).await?;
        let messages_per_second = per_second(count, start.elapsed());
        // The search index may lag. Update it now with a search, so that no axis measures the update.
        let start = std::time::Instant::now();
        let query = SearchQuery { text: "nothing".to_owned(), limit: 1, ..SearchQuery::default() };
        engine.directory().search(&self.scope, &query).await?;
        let catch_up_ms = millis(start.elapsed());
        self.close("long.db", engine)?;
        let bytes_on_disk = file_bytes(self.scratch.path(), "long.db")?;
        let long = Long { content_bytes: bytes, bytes_on_disk, messages_per_second, catch_up_ms };
        self.long = Some(long);
        Ok(long)
    }

    /// A session of short messages in `huge.db`. If this call creates it, `after_batch` runs after each batch.
    pub async fn huge(&mut self, after_batch: impl FnMut(usize)) -> anyhow::Result<Engine> {
        let engine = self.open("huge.db", Durability::Normal)?;
        if !self.huge {
            let session = self.session(&engine, HUGE).await?;
            self.fill(&engine, &session, short_bodies(2), self.sizes.huge, after_batch).await?;
            self.huge = true;
        }
        Ok(engine)
    }

    /// Close a store, so that its file has its final size.
    pub fn close(&self, name: &str, engine: Engine) -> anyhow::Result<()> {
        drop(engine);
        sapwood::store::baseline::checkpoint(&self.scratch.file(name)).map_err(anyhow::Error::msg)
    }
}

pub fn compaction(first_kept: Option<EntryId>) -> Body {
    Body::Compaction(Compaction {
        summary: Some("What happened before, in a few words.".to_owned()),
        first_kept,
        ..Compaction::new(Strategy::Truncate, Trigger::Manual)
    })
}
