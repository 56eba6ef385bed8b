//! Following a session: everything after a cursor, once, in order, then whatever comes. Readers never need a lease and
//! never slow a writer: they pull.

use std::collections::VecDeque;

use sapwood_core::{Body, Record, Scope, Seq, SessionId};

use crate::tail::Watch;
use crate::{Engine, Result};

/// How many records one question brings at most.
const PAGE_RECORDS_MAX: usize = 256;
/// How many the first one brings.
const PAGE_RECORDS_FIRST: usize = 16;
/// About how many bytes of bodies a page may hold: a reader that stands still holds no more than this, or one record.
const PAGE_BYTES: usize = 256 << 10;

/// A reader of one session, with its cursor.
pub struct Follower {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    cursor: Seq,
    page: VecDeque<Record>,
    page_records: usize,
    watch: Watch,
}

impl Engine {
    /// Follows a session from after `cursor`. A cursor past the head is an error: whoever has it saw another log.
    pub async fn follow(&self, scope: &Scope, session: &SessionId, cursor: Seq) -> Result<Follower> {
        let watch = self.tail.watch(&self.store, &scope.tenant, session);
        let head = self.store.summary(scope, session).await?.head;
        if cursor > head.seq {
            let why = format!("the session ends at {}, and {cursor} is past that", head.seq);
            return Err(crate::EngineError::Invalid { what: "the cursor", why });
        }
        Ok(Follower {
            engine: self.clone(),
            scope: scope.clone(),
            session: session.clone(),
            cursor,
            page: VecDeque::new(),
            page_records: PAGE_RECORDS_FIRST,
            watch,
        })
    }
}

impl Follower {
    /// Reads a record of this session.
    pub fn decode(&self, record: &Record) -> Result<Body> {
        let unreadable = |source| crate::EngineError::Unreadable { session: self.session.clone(), source };
        record.decode().map_err(unreadable)
    }

    /// The next record if there is one now.
    pub async fn try_next(&mut self) -> Result<Option<Record>> {
        if self.page.is_empty() {
            self.read_page().await?;
        }
        let record = self.page.pop_front();
        if let Some(record) = &record {
            self.cursor = record.meta.seq;
        }
        Ok(record)
    }

    /// Pages grow while bodies are small, and shrink when they are not.
    async fn read_page(&mut self) -> Result<()> {
        let store = &self.engine.store;
        let page = store.read_after(&self.scope, &self.session, self.cursor, self.page_records).await?;
        let bytes: usize = page.iter().map(|record| record.body.len()).sum();
        if let Some(mean) = bytes.checked_div(page.len()) {
            self.page_records = (PAGE_BYTES / mean.max(1)).clamp(1, PAGE_RECORDS_MAX);
        }
        self.page = page.into();
        Ok(())
    }

    /// The next record, whenever it comes.
    pub async fn next(&mut self) -> Result<Record> {
        loop {
            self.watch.listen();
            if let Some(record) = self.try_next().await? {
                return Ok(record);
            }
            self.watch.changed().await;
        }
    }
}
