//! Find the entries of a turn and the queued input without reading the rest of the log.
//!
//! The summary has the position of the open turn. An older turn is found by binary search: its id contains the time of
//! its start, and the ids of entries grow with seq (I13), so its first entry follows shortly after the first entry of
//! that time. Imported turns, and turns that started after the clock was set back, are found by a scan of all turns.

use sapwood_core::entry::{Body, InputQueued};
use sapwood_core::port::store::is_full_page;
use sapwood_core::project::summary::{QueuedInput, Summary, TurnPositions};
use sapwood_core::{Authority, Entry, EntryId, Kind, Record, Scope, Seq, SessionId, TurnId};

use crate::{Engine, EngineError, Result};

/// Records in the first page of a turn. Most turns fit into it.
const FIRST_PAGE_RECORDS: usize = 32;
/// Maximum number of records per page. Each page is four times as long as the one before.
const PAGE_RECORDS_MAX: usize = 1_000;
/// Maximum number of records between the first entry of a turn's time and the turn's first entry. They were written by
/// other callers while the turn was being prepared.
const RECORDS_BEFORE_TURN_MAX: u32 = 512;

/// Which entries of a turn to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Up to the entry that ended the turn.
    UntilEnd,
    /// Also the notes that were added to the turn after its end.
    WithNotes,
}

/// Finds turns and queued input in the log of one session.
pub(super) struct TurnLog<'a> {
    engine: &'a Engine,
    scope: &'a Scope,
    summary: &'a Summary,
    authority: Authority,
}

impl<'a> TurnLog<'a> {
    pub async fn open(engine: &'a Engine, scope: &'a Scope, summary: &'a Summary) -> Result<Self> {
        let authority = engine.configuration().authority_of(scope, summary).await?;
        Ok(Self { engine, scope, summary, authority })
    }

    fn session(&self) -> &SessionId {
        &self.summary.id
    }

    /// The entries of a turn and the messages to it, in order; empty for an unknown turn. Imported entries that claim to
    /// belong to a turn of this store are left out.
    pub async fn entries(&self, turn: TurnId, extent: Extent) -> Result<Vec<Entry>> {
        let Some(first) = self.first_seq(turn).await? else { return Ok(Vec::new()) };
        let mut entries = self.read_turn(turn, first).await?;
        let last = entries.last().filter(|entry| entry.meta.kind == Kind::TurnEnded);
        if let (Extent::WithNotes, Some(after)) = (extent, last.map(|entry| entry.meta.seq)) {
            let keep = |entry: Entry| {
                if entry.meta.turn == Some(turn) && self.belongs(first, entry.meta.seq) {
                    entries.push(entry);
                }
            };
            let log = self.engine.log();
            log.each_of_kinds_after(self.scope, self.session(), &[Kind::CustomInfo], after, keep).await?;
        }
        Ok(entries)
    }

    /// The position of a turn's first entry.
    async fn first_seq(&self, turn: TurnId) -> Result<Option<Seq>> {
        if self.summary.open_turn == Some(turn) {
            return Ok(self.positions().await?.open_turn);
        }
        match self.search(turn).await? {
            Some(first) => Ok(Some(first)),
            None => self.scan(turn).await,
        }
    }

    /// Find the first entry of a turn that this store ran.
    async fn search(&self, turn: TurnId) -> Result<Option<Seq>> {
        let from =
            self.engine.store.first_at_or_after(self.scope, self.session(), turn.entries_from()).await?;
        let mut pages = Pages::after(Seq(from.0.saturating_sub(1)));
        while let Some(page) = pages.next(self).await? {
            for record in &page {
                if record.meta.seq.0 - from.0 > RECORDS_BEFORE_TURN_MAX {
                    return Ok(None);
                }
                if is_start(record, turn) && self.authority.is_own(record.meta.seq) {
                    return Ok(Some(record.meta.seq));
                }
            }
        }
        Ok(None)
    }

    /// Look for a turn among all turns of the log. A turn of this store has precedence over an imported one.
    async fn scan(&self, turn: TurnId) -> Result<Option<Seq>> {
        let (mut own, mut imported) = (None, None);
        let visit = |entry: Entry| {
            if entry.meta.turn == Some(turn) {
                let is_own = self.authority.is_own(entry.meta.seq);
                if is_own { &mut own } else { &mut imported }.get_or_insert(entry.meta.seq);
            }
        };
        self.engine.log().each_of_kinds(self.scope, self.session(), &[Kind::TurnStarted], visit).await?;
        Ok(own.or(imported))
    }

    /// Read a turn from its first entry to its end.
    async fn read_turn(&self, turn: TurnId, first: Seq) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut pages = Pages::after(Seq(first.0.saturating_sub(1)));
        while let Some(page) = pages.next(self).await? {
            for record in page {
                let seq = record.meta.seq;
                if record.meta.turn != Some(turn) || !self.belongs(first, seq) {
                    continue;
                }
                let is_end = record.meta.kind == Kind::TurnEnded;
                entries.push(self.decode(record)?);
                if is_end {
                    return Ok(entries);
                }
            }
        }
        Ok(entries)
    }

    /// Whether an entry can belong to the turn that begins at `first`. This store may continue an imported turn, but an
    /// imported entry never belongs to a turn of this store.
    fn belongs(&self, first: Seq, seq: Seq) -> bool {
        !self.authority.is_own(first) || self.authority.is_own(seq)
    }

    /// The input that no turn has consumed yet, oldest first.
    pub async fn queued(&self) -> Result<Vec<(EntryId, InputQueued)>> {
        let mut waiting = Vec::new();
        for QueuedInput { seq, id } in self.positions().await?.queued {
            let record = self.engine.store.read_entry(self.scope, self.session(), seq).await?;
            if let Body::InputQueued(queued) = self.decode(record)?.body {
                waiting.push((id, queued));
            }
        }
        Ok(waiting)
    }

    /// The positions of the open turn and of queued input. If an earlier version wrote the summary, compute them from
    /// the whole log once, and store them.
    async fn positions(&self) -> Result<TurnPositions> {
        let head = self.summary.head.seq;
        if let (false, Some(queued)) = (self.summary.lacks_positions(), &self.summary.queued) {
            let (open_turn, queued) = (self.summary.open_turn_seq, queued.clone());
            return Ok(TurnPositions { head, open_turn, queued, turns: self.summary.turns });
        }
        let mut positions = TurnPositions { head, ..TurnPositions::default() };
        let kinds = [Kind::TurnStarted, Kind::InputQueued, Kind::InputTaken];
        let visit = |entry: Entry| {
            if self.authority.is_own(entry.meta.seq) && entry.meta.seq <= head {
                add_position(&mut positions, self.summary.open_turn, &entry);
            }
        };
        let after = self.authority.imported_prefix();
        self.engine.log().each_of_kinds_after(self.scope, self.session(), &kinds, after, visit).await?;
        let restored = self.engine.store.restore_positions(self.scope, self.session(), &positions).await;
        if let Err(error) = restored {
            // The store may be read-only. The next call computes the positions again.
            tracing::debug!(session = %self.session(), %error, "failed to store the positions of turns");
        }
        Ok(positions)
    }

    fn decode(&self, record: Record) -> Result<Entry> {
        let unreadable = |source| EngineError::Unreadable { session: self.session().clone(), source };
        record.into_entry().map_err(unreadable)
    }
}

fn is_start(record: &Record, turn: TurnId) -> bool {
    record.meta.kind == Kind::TurnStarted && record.meta.turn == Some(turn)
}

fn add_position(positions: &mut TurnPositions, open_turn: Option<TurnId>, entry: &Entry) {
    positions.turns += u32::from(entry.meta.kind == Kind::TurnStarted);
    match &entry.body {
        Body::TurnStarted(_) if entry.meta.turn == open_turn => {
            positions.open_turn = open_turn.map(|_| entry.meta.seq);
        }
        Body::InputQueued(_) => {
            positions.queued.push(QueuedInput { seq: entry.meta.seq, id: entry.meta.id });
        }
        Body::InputTaken(taken) => positions.queued.retain(|input| input.id != taken.input),
        _ => {}
    }
}

/// Pages of a log, from short to long.
struct Pages {
    after: Option<Seq>,
    limit: usize,
}

impl Pages {
    fn after(after: Seq) -> Self {
        Self { after: Some(after), limit: FIRST_PAGE_RECORDS }
    }

    async fn next(&mut self, log: &TurnLog<'_>) -> Result<Option<Vec<Record>>> {
        let Some(after) = self.after else { return Ok(None) };
        let page = log.engine.store.read_after(log.scope, log.session(), after, self.limit).await?;
        let is_full = is_full_page(&page, self.limit);
        self.after = page.last().map(|record| record.meta.seq).filter(|_| is_full);
        self.limit = (self.limit * 4).min(PAGE_RECORDS_MAX);
        Ok(Some(page))
    }
}
