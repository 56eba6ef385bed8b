//! Following a session: everything after a cursor, once, in order, then whatever comes. Readers never need a lease and
//! never slow a writer: they pull.

use std::collections::VecDeque;
use std::sync::Arc;

use sapwood_core::port::store::is_full_page;
use sapwood_core::{Body, Principal, Record, Scope, Seq, SessionId};

use crate::wakeups::{Page, SharedPage, Watch};
use crate::{Engine, Result};

/// How many records one question brings at most; the store bounds their bytes.
const PAGE_RECORDS_MAX: usize = 256;

/// A reader of one session, with its cursor.
pub struct Follower {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    cursor: Seq,
    page: BufferedRecords,
    /// The wake-up by which everything that was there had been read.
    drained_at: Option<u64>,
    watch: Watch,
}

/// What a follower has of a page and not yet given away.
enum BufferedRecords {
    Own(VecDeque<Record>),
    /// All followers hold the same one, and each copies the record it is at.
    Shared(Arc<Page>),
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
            page: BufferedRecords::Own(VecDeque::new()),
            drained_at: None,
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
        if let Some(record) = self.take() {
            return Ok(Some(record));
        }
        self.read_page().await?;
        Ok(self.take())
    }

    /// The next record, whenever it comes.
    pub async fn next(&mut self) -> Result<Record> {
        loop {
            if let Some(record) = self.take() {
                return Ok(record);
            }
            let wakes = self.watch.listen();
            if self.drained_at == Some(wakes) {
                self.watch.changed().await;
                continue;
            }
            let is_end = match self.watch.shared_page() {
                Some(shared) => self.share_page(&shared, wakes).await?,
                None => self.read_page().await?,
            };
            self.drained_at = is_end.then_some(wakes);
        }
    }

    fn take(&mut self) -> Option<Record> {
        let next = match &mut self.page {
            BufferedRecords::Own(records) => records.pop_front(),
            BufferedRecords::Shared(page) => {
                let at = page.records.partition_point(|record| record.meta.seq <= self.cursor);
                page.records.get(at).cloned()
            }
        };
        match &next {
            Some(record) => self.cursor = record.meta.seq,
            // A page that is used up is nobody's to keep.
            None => self.page = BufferedRecords::Own(VecDeque::new()),
        }
        next
    }

    /// Reads what comes next, and says whether that is the end.
    async fn read_page(&mut self) -> Result<bool> {
        let store = &self.engine.store;
        let page = store.read_after(&self.scope, &self.session, self.cursor, PAGE_RECORDS_MAX).await?;
        let is_end = !is_full_page(&page, PAGE_RECORDS_MAX);
        self.page = BufferedRecords::Own(page.into());
        Ok(is_end)
    }

    /// Takes what somebody else has read, or reads it for everyone. Whoever is far behind, or may not see the session any
    /// more, asks the store itself.
    async fn share_page(&mut self, shared: &SharedPage, wakes: u64) -> Result<bool> {
        let mut held = shared.lock().await;
        let is_behind = held.as_ref().is_some_and(|page| page.after > self.cursor);
        let is_new = |page: &Arc<Page>| {
            let last = page.records.last().map_or(page.after, |record| record.meta.seq);
            last > self.cursor || (last == self.cursor && page.is_end && page.wakes >= wakes)
        };
        let page = match held.as_ref().filter(|page| !is_behind && is_new(page)) {
            Some(page) => page.clone(),
            None if is_behind => {
                drop(held);
                return self.read_page().await;
            }
            None => held.insert(Arc::new(self.read_for_all(wakes).await?)).clone(),
        };
        drop(held);
        if self.scope.role_in(&page.owner, &page.members).is_none() {
            return self.read_page().await;
        }
        let is_end = page.is_end && page.wakes >= wakes;
        self.page = BufferedRecords::Shared(page);
        Ok(is_end)
    }

    /// Who may see it is read after it, so that somebody who was shut out in it does not see it.
    async fn read_for_all(&self, wakes: u64) -> Result<Page> {
        let store = &self.engine.store;
        let scope = Scope::operator(self.scope.tenant.clone(), Principal::System);
        let records = store.read_after(&scope, &self.session, self.cursor, PAGE_RECORDS_MAX).await?;
        let summary = store.summary(&scope, &self.session).await?;
        let is_end = !is_full_page(&records, PAGE_RECORDS_MAX);
        let (owner, members) = (summary.owner, summary.members);
        Ok(Page { after: self.cursor, records, wakes, is_end, owner, members })
    }
}
