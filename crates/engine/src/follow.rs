//! Following a session: everything after a cursor, once, in order, then whatever comes. Readers never need a lease and
//! never slow a writer: they pull.

use std::collections::VecDeque;
use std::time::Duration;

use sapwood_core::{Body, Record, Scope, Seq, SessionId};

use crate::{Engine, Result};

/// How often a follower asks the store when nothing in this process has woken it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How many records one question brings.
const PAGE_RECORDS: usize = 256;

/// A reader of one session, with its cursor.
pub struct Follower {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    cursor: Seq,
    page: VecDeque<Record>,
}

impl Engine {
    /// Follows a session from after `cursor`. A cursor past the head is an error: whoever has it saw another log.
    pub async fn follow(&self, scope: &Scope, session: &SessionId, cursor: Seq) -> Result<Follower> {
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
            let store = &self.engine.store;
            self.page = store.read_after(&self.scope, &self.session, self.cursor, PAGE_RECORDS).await?.into();
        }
        let record = self.page.pop_front();
        if let Some(record) = &record {
            self.cursor = record.meta.seq;
        }
        Ok(record)
    }

    /// The next record, whenever it comes.
    pub async fn next(&mut self) -> Result<Record> {
        let tail = self.engine.tail.clone();
        loop {
            // Registered before asking, so that an append between the question and the wait still wakes us.
            let changed = tail.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(record) = self.try_next().await? {
                return Ok(record);
            }
            let _ = tokio::time::timeout(POLL_INTERVAL, changed).await;
        }
    }
}
