//! Sapwood's own file into the store. The n-th entry of a file has seq n: what the store has is compared with it, entry by
//! entry, and what follows is new. A log that differs is left as it is.

use std::collections::{HashMap, VecDeque};

use sapwood::core::entry::Draft;
use sapwood::core::{BlobHash, Right};
use sapwood::engine::import::{Import, Mode};
use sapwood::formats::header::Header;
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{Format, LineSplitter};
use sapwood::{EntryId, Seq, SessionId};

use super::upload::Upload;
use super::{BATCH_BYTES, BATCH_STEPS, Taking, told};
use crate::problem::{Problem, Result};
use crate::wire;

/// How many entries of the store's log are asked for at a time.
const PAGE_RECORDS: usize = 1_000;
/// Sessions of one file: there is a line in the answer for each.
const SESSIONS_MAX: usize = 10_000;

/// Takes in every session of a file: exports that were put one behind the other are one file each.
pub async fn take(taking: &Taking<'_>, upload: &mut Upload<'_>) -> Result<Vec<wire::Imported>> {
    let (mut reading, mut copy) = (Reading::default(), Copy::of(taking));
    let (mut lines, mut imported) = (LineSplitter::default(), Vec::new());
    while let Some(bytes) = upload.next().await? {
        lines.push(&bytes, |line, number| reading.push_line(line, number));
        copy = copy.take_ended(&mut reading, &mut imported).await?;
        if reading.drafts.len() >= BATCH_STEPS || upload.unsettled_bytes() >= BATCH_BYTES {
            copy.take(&mut reading.importer, &mut reading.drafts).await?;
            upload.settle(lines.held_bytes() + reading.importer.held_bytes() + copy.blob_bytes);
        }
    }
    lines.finish(|line, number| reading.push_line(line, number));
    copy = copy.take_ended(&mut reading, &mut imported).await?;
    copy.take(&mut reading.importer, &mut reading.drafts).await?;
    imported.push(copy.finish(&reading.importer).await?);
    Ok(imported)
}

/// The session that is being read, and those that ended since somebody looked.
#[derive(Default)]
struct Reading {
    importer: Importer,
    drafts: Vec<Draft>,
    ended: Vec<(Importer, Vec<Draft>)>,
}

impl Reading {
    fn push_line(&mut self, line: &[u8], number: u64) {
        self.importer.push_line(line, number, &mut self.drafts);
        if self.importer.take_end(number) {
            self.ended.push((std::mem::take(&mut self.importer), std::mem::take(&mut self.drafts)));
            self.importer.push_line(line, number, &mut self.drafts);
        }
    }
}

/// A session that is being taken in as it is.
struct Copy<'a> {
    taking: &'a Taking<'a>,
    target: Target,
    /// Blobs whose entry has not come, and what they weigh.
    blobs: HashMap<BlobHash, Vec<u8>>,
    blob_bytes: usize,
    added: u64,
    skipped: u64,
}

enum Target {
    /// Its header has not come.
    Unknown,
    /// What is there already is compared first.
    Known(Known),
    /// From here on everything is new, and nothing of it has come.
    Ready(Box<Header>),
    Import(Box<Import>),
    Counted,
    /// The store has something else under this name.
    Differs,
}

/// A session that the store has, as far as it was compared.
struct Known {
    header: Box<Header>,
    after: Seq,
    page: VecDeque<EntryId>,
}

impl<'a> Copy<'a> {
    fn of(taking: &'a Taking<'a>) -> Self {
        let blobs = HashMap::new();
        Self { taking, target: Target::Unknown, blobs, blob_bytes: 0, added: 0, skipped: 0 }
    }

    /// Takes what is left of the sessions that ended, and begins with the next one.
    async fn take_ended(mut self, reading: &mut Reading, imported: &mut Vec<wire::Imported>) -> Result<Self> {
        for (mut importer, mut drafts) in reading.ended.drain(..) {
            self.take(&mut importer, &mut drafts).await?;
            let next = Copy::of(self.taking);
            imported.push(std::mem::replace(&mut self, next).finish(&importer).await?);
            if imported.len() >= SESSIONS_MAX {
                let detail = format!("a file may hold {SESSIONS_MAX} sessions; the first of them are in");
                return Err(Problem::new("input.too_large", detail));
            }
        }
        Ok(self)
    }

    async fn take(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        for bytes in importer.take_blobs() {
            self.blob_bytes += bytes.len();
            self.blobs.insert(BlobHash::of(&bytes), bytes);
        }
        if let (Target::Unknown, Some(header)) = (&self.target, importer.header()) {
            let known = Known { header: Box::new(header.clone()), after: Seq::ZERO, page: VecDeque::new() };
            let is_known = self.taking.state.engine.exists(&self.taking.caller.scope, &header.id).await?;
            self.target = if is_known { Target::Known(known) } else { Target::Ready(known.header) };
        }
        for draft in drafts.drain(..) {
            self.take_one(draft).await?;
        }
        Ok(())
    }

    async fn take_one(&mut self, mut draft: Draft) -> Result<()> {
        if let Target::Known(known) = &mut self.target {
            match self.taking.next_id(known).await? {
                None => self.target = Target::Ready(known.header.clone()),
                found if found == draft.id => {
                    self.skipped += 1;
                    self.blobs_of(&draft);
                    return Ok(());
                }
                Some(_) => {
                    (self.target, self.skipped) = (Target::Differs, 0);
                    return Ok(());
                }
            }
        }
        self.begin().await?;
        let blobs = self.blobs_of(&draft);
        match &mut self.target {
            Target::Import(import) => {
                let Taking { state, caller, .. } = self.taking;
                // Before the entry that names them.
                for bytes in blobs {
                    state.engine.store().put_blob(&caller.scope, bytes).await?;
                }
                self.taking.disarm(&mut draft.body);
                self.added += 1;
                Ok(import.push(draft).await?)
            }
            Target::Counted => {
                self.added += 1;
                Ok(())
            }
            Target::Unknown | Target::Known(_) | Target::Ready(_) | Target::Differs => Ok(()),
        }
    }

    /// Something new has come.
    async fn begin(&mut self) -> Result<()> {
        let Target::Ready(header) = &self.target else { return Ok(()) };
        let Taking { state, caller, mode } = self.taking;
        self.target = match mode {
            Mode::Write => {
                let mut new = header.new_session();
                self.taking.disarm_session(&mut new);
                Target::Import(Box::new(state.engine.begin_import(&caller.scope, new).await?.0))
            }
            Mode::DryRun => {
                self.taking.check_may_extend(&header.id).await?;
                Target::Counted
            }
        };
        Ok(())
    }

    /// The blobs that came for this entry.
    fn blobs_of(&mut self, draft: &Draft) -> Vec<Vec<u8>> {
        if self.blobs.is_empty() {
            return Vec::new();
        }
        let named = draft.body.blobs();
        let blobs: Vec<Vec<u8>> = named.iter().filter_map(|blob| self.blobs.remove(blob)).collect();
        self.blob_bytes -= blobs.iter().map(Vec::len).sum::<usize>();
        blobs
    }

    async fn finish(self, importer: &Importer) -> Result<wire::Imported> {
        let mut problems = told(importer.problems());
        match self.target {
            Target::Import(import) => drop(import.finish().await?),
            Target::Differs => problems.push(wire::ImportProblem {
                line: None,
                code: "import.differs".to_owned(),
                message: "the store has another log under this id; nothing was added".to_owned(),
            }),
            Target::Unknown | Target::Known(_) | Target::Ready(_) | Target::Counted => {}
        }
        Ok(wire::Imported {
            session: importer.header().map(|header| header.id.to_string()),
            format: Some(Format::Sapwood.as_str().to_owned()),
            added: self.added,
            skipped: self.skipped,
            problems,
        })
    }
}

impl Taking<'_> {
    /// The next entry that the store has of the session; none at its end.
    async fn next_id(&self, known: &mut Known) -> Result<Option<EntryId>> {
        if known.page.is_empty() {
            let (store, session) = (self.state.engine.store(), &known.header.id);
            let page = store.read_after(&self.caller.scope, session, known.after, PAGE_RECORDS).await?;
            known.after = page.last().map_or(known.after, |last| last.meta.seq);
            known.page.extend(page.iter().map(|record| record.meta.id));
        }
        Ok(known.page.pop_front())
    }

    /// What would be refused is refused in a dry run, too.
    async fn check_may_extend(&self, session: &SessionId) -> Result<()> {
        let (engine, scope) = (&self.state.engine, &self.caller.scope);
        if engine.exists(scope, session).await? {
            engine.check_right(scope, session, Right::Own).await?;
        }
        Ok(())
    }
}
