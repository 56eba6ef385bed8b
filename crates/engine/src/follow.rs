//! Follow a session: all entries after a cursor, once and in order, then new ones as they are appended.
//! Readers pull, so they need no lease and never slow down a writer.

use std::collections::VecDeque;
use std::sync::Arc;

use sapwood_core::port::store::is_full_page;
use sapwood_core::{Body, Principal, Record, Scope, Seq, SessionId};

use crate::wakeups::{FollowerPage, SharedPage, Watch};
use crate::{Engine, Result, service};

/// Maximum number of records per read; the store limits their total size.
const PAGE_RECORDS_MAX: usize = 256;

/// A reader of one session, with its cursor.
pub struct Follower {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    cursor: Seq,
    page: BufferedRecords,
    /// The wake-up count when the follower last reached the end of the log.
    drained_at: Option<u64>,
    watch: Watch,
}

/// Records of a page that the follower has not returned yet.
enum BufferedRecords {
    Own(VecDeque<Record>),
    /// Shared by all followers of the session. Each follower clones the records that it returns.
    Shared(Arc<FollowerPage>),
}

service! {
    /// Streams of a session's entries and fragments.
    pub struct Events;
    events
}

impl Events<'_> {
    /// Follow a session from after `cursor`. A cursor past the head is an error, because it belongs to a different
    /// log.
    pub async fn follow(self, scope: &Scope, session: &SessionId, cursor: Seq) -> Result<Follower> {
        let watch = self.engine.wakeups.watch(&self.engine.store, &scope.tenant, session);
        let head = self.engine.store.summary(scope, session).await?.head;
        if cursor > head.seq {
            let why = format!("{cursor} is past the end of the session at {}", head.seq);
            return Err(crate::EngineError::Invalid { what: "the cursor", why });
        }
        Ok(Follower {
            engine: self.engine.clone(),
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
    /// Decode a record of this session.
    pub fn decode(&self, record: &Record) -> Result<Body> {
        let unreadable = |source| crate::EngineError::Unreadable { session: self.session.clone(), source };
        record.decode().map_err(unreadable)
    }

    /// Whether this store's engine wrote the record, rather than an import.
    pub(crate) async fn is_own(&self, record: &Record) -> Result<bool> {
        let summary = self.engine.store.summary(&self.scope, &self.session).await?;
        Ok(self.engine.configuration().authority_of(&self.scope, &summary).await?.is_own(record.meta.seq))
    }

    /// The next record, if one is available now.
    pub async fn try_next(&mut self) -> Result<Option<Record>> {
        if let Some(record) = self.take() {
            return Ok(Some(record));
        }
        self.read_page().await?;
        Ok(self.take())
    }

    /// Wait for the next record.
    pub async fn next(&mut self) -> Result<Record> {
        loop {
            if let Some(record) = self.take() {
                return Ok(record);
            }
            let wakes = self.watch.mark_seen();
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
            // Drop an exhausted page to free its memory.
            None => self.page = BufferedRecords::Own(VecDeque::new()),
        }
        next
    }

    /// Read the next page. Returns whether it reaches the end.
    async fn read_page(&mut self) -> Result<bool> {
        let store = &self.engine.store;
        let page = store.read_after(&self.scope, &self.session, self.cursor, PAGE_RECORDS_MAX).await?;
        let is_end = !is_full_page(&page, PAGE_RECORDS_MAX);
        self.page = BufferedRecords::Own(page.into());
        Ok(is_end)
    }

    /// Use the page that another follower has read, or read it for all followers. A follower whose cursor is before
    /// the shared page, or that has lost access to the session, reads directly from the store.
    async fn share_page(&mut self, shared: &SharedPage, wakes: u64) -> Result<bool> {
        let mut held = shared.lock().await;
        let is_behind = held.as_ref().is_some_and(|page| page.after > self.cursor);
        let is_new = |page: &Arc<FollowerPage>| {
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

    /// Read a page for all followers. The members are read after the records, so that a principal who loses access
    /// within the page does not receive the page.
    async fn read_for_all(&self, wakes: u64) -> Result<FollowerPage> {
        let store = &self.engine.store;
        let scope = Scope::operator(self.scope.tenant.clone(), Principal::System);
        let records = store.read_after(&scope, &self.session, self.cursor, PAGE_RECORDS_MAX).await?;
        let summary = store.summary(&scope, &self.session).await?;
        let is_end = !is_full_page(&records, PAGE_RECORDS_MAX);
        let (owner, members) = (summary.owner, summary.members);
        Ok(FollowerPage { after: self.cursor, records, wakes, is_end, owner, members })
    }
}
