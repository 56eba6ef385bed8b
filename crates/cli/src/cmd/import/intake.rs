//! One file into the store. The n-th entry of a file has seq n, so what the store has already is known by its seq and id:
//! equal entries are skipped, and a log that differs is left as it is.

use sapwood::core::{Draft, Right};
use sapwood::engine::import::Import;
use sapwood::formats::header::Header;
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{LINE_BYTES_MAX, Problem, Trouble as FileTrouble};
use sapwood::{EntryId, Seq, SessionId};

use super::source::Source;
use super::{Report, Trouble, print, trouble_of};
use crate::failure::{Failure, Result};
use crate::wiring::App;

/// How many ids of the store's log are asked for at a time.
const PAGE_RECORDS: usize = 1_000;

/// Takes in every session of a file: exports that were put one behind the other are one file each. Returns how many are
/// in the store now.
pub async fn take_file(app: &mut App, mut source: Source, dry_run: bool) -> Result<u64> {
    let mut taken = 0;
    let mut carried: Option<(Vec<u8>, u64)> = None;
    loop {
        let (report, next) = take_session(app, &mut source, carried.take(), dry_run).await?;
        taken += u64::from(report.taken);
        print(app, &report)?;
        match next {
            Some(header_line) => carried = Some(header_line),
            None => return Ok(taken),
        }
    }
}

/// Reads one session up to the end of the file, or to the header of the next one, which it hands back.
async fn take_session(
    app: &App,
    source: &mut Source,
    first: Option<(Vec<u8>, u64)>,
    dry_run: bool,
) -> Result<(Report, Option<(Vec<u8>, u64)>)> {
    let mut importer = Importer::default();
    let mut intake = Intake {
        app,
        target: None,
        before: Seq::ZERO,
        taken: 0,
        skipped: 0,
        trouble: Vec::new(),
        blobs: Vec::new(),
        dry_run,
    };
    let mut drafts = Vec::new();
    let mut next_header = None;
    if let Some((line, number)) = first {
        importer.push_line(&line, number, &mut drafts);
        intake.open(importer.header()).await?;
    }
    while next_header.is_none() {
        let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? else { break };
        let is_first = importer.header().is_none() && importer.problems().is_empty();
        importer.push_line(line, number, &mut drafts);
        intake.blobs.append(&mut importer.take_blobs());
        if importer.take_end(number) {
            next_header = Some((line.to_vec(), number));
        }
        if is_first {
            intake.open(importer.header()).await?;
        }
        if importer.header().is_none() && !importer.problems().is_empty() {
            break;
        }
        intake.take(&mut drafts).await?;
    }
    if next_header.is_none() && source.is_torn() {
        let torn = Problem { line: source.line_number(), what: FileTrouble::Torn };
        intake.trouble.push(trouble_of(&torn));
    }
    Ok((intake.finish(&source.name, importer.header(), importer.problems()).await?, next_header))
}

/// A session that is being taken in.
struct Intake<'a> {
    app: &'a App,
    target: Option<Target>,
    /// Where the store's log ended before.
    before: Seq,
    /// Entries of the file so far.
    taken: u64,
    skipped: u64,
    trouble: Vec<Trouble>,
    /// Named by the entries that come next.
    blobs: Vec<Vec<u8>>,
    dry_run: bool,
}

enum Target {
    /// What is there already is compared first; `page` is the piece of the store's log that is at hand.
    Existing {
        session: SessionId,
        head: Seq,
        page: Vec<(Seq, EntryId)>,
    },
    Writing(Box<Import>),
    /// Only counted.
    Counting,
    /// Not to be touched any more.
    Refused,
}

impl Intake<'_> {
    /// Once the header is known: what does the store have of this session?
    async fn open(&mut self, header: Option<&Header>) -> Result<()> {
        let Some(header) = header.filter(|_| self.target.is_none()) else { return Ok(()) };
        let App { engine, scope, .. } = self.app;
        self.target = Some(match engine.summary(scope, &header.id).await {
            Ok(summary) if summary.head.seq > Seq::ZERO => {
                self.before = summary.head.seq;
                Target::Existing { session: header.id.clone(), head: summary.head.seq, page: Vec::new() }
            }
            Ok(_) => self.begin(header).await?,
            Err(error) if error.code() == "session.not_found" => self.begin(header).await?,
            Err(error) => return Err(error.into()),
        });
        Ok(())
    }

    async fn begin(&mut self, header: &Header) -> Result<Target> {
        if self.dry_run {
            return Ok(Target::Counting);
        }
        match self.app.engine.begin_import(&self.app.scope, header.new_session()).await {
            Ok((import, _)) => Ok(Target::Writing(Box::new(import))),
            Err(error) => {
                self.refuse(error.into())?;
                Ok(Target::Refused)
            }
        }
    }

    async fn take(&mut self, drafts: &mut Vec<Draft>) -> Result<()> {
        for draft in drafts.drain(..) {
            self.taken += 1;
            if let Err(failure) = self.take_one(draft).await {
                self.refuse(failure)?;
                self.target = Some(Target::Refused);
            }
        }
        Ok(())
    }

    async fn take_one(&mut self, draft: Draft) -> Result<()> {
        let seq = Seq(u32::try_from(self.taken).unwrap_or(u32::MAX));
        if let Some(Target::Existing { session, head, page }) = &mut self.target {
            if seq <= *head {
                let found = id_at(self.app, session, seq, page).await?;
                if found != draft.id {
                    let message =
                        format!("the session in the store differs from entry {seq} on; nothing was added");
                    return Err(Failure::new("import.differs", message));
                }
                self.skipped += 1;
                self.blobs.clear();
                return Ok(());
            }
            let session = session.clone();
            self.target = Some(self.extend(session).await?);
        }
        match &mut self.target {
            Some(Target::Writing(import)) => {
                for bytes in self.blobs.drain(..) {
                    self.app.engine.store().put_blob(&self.app.scope, bytes).await?;
                }
                Ok(import.push(draft).await?)
            }
            Some(Target::Counting | Target::Existing { .. } | Target::Refused) | None => Ok(()),
        }
    }

    /// Everything that is there was compared: what follows is new.
    async fn extend(&self, session: SessionId) -> Result<Target> {
        if self.dry_run {
            self.app.engine.check_right(&self.app.scope, &session, Right::Own).await?;
            return Ok(Target::Counting);
        }
        let now = sapwood::core::TimestampMs::default();
        let new = sapwood::core::port::store::NewSession::new(session, now);
        let (import, _) = self.app.engine.begin_import(&self.app.scope, new).await?;
        Ok(Target::Writing(Box::new(import)))
    }

    /// What only concerns this session becomes a problem of it; a store that cannot go on ends the command.
    fn refuse(&mut self, failure: Failure) -> Result<()> {
        if failure.code.starts_with("store.") {
            return Err(failure);
        }
        self.trouble.push(Trouble { line: None, code: failure.code, message: failure.message });
        Ok(())
    }

    async fn finish(mut self, source: &str, header: Option<&Header>, problems: &[Problem]) -> Result<Report> {
        let counted = self.taken - self.skipped.min(self.taken);
        let (added, taken) = match self.target.take() {
            Some(Target::Writing(import)) => match import.finish().await {
                Ok(added) => (added, true),
                Err(error) => {
                    self.refuse(error.into())?;
                    (self.written(header).await, false)
                }
            },
            Some(Target::Counting) => (counted, true),
            Some(Target::Existing { .. }) => (0, true),
            Some(Target::Refused) => (self.written(header).await, false),
            None => (0, false),
        };
        let mut told: Vec<Trouble> = problems.iter().map(trouble_of).collect();
        told.append(&mut self.trouble);
        if header.is_none() && told.is_empty() {
            told.push(Trouble {
                line: None,
                code: "import.empty".into(),
                message: "there is nothing in it".to_owned(),
            });
        }
        Ok(Report {
            session: header.map(|header| header.id.to_string()),
            source: source.to_owned(),
            format: header.map(|_| "sapwood"),
            added,
            skipped: self.skipped,
            problems: told,
            dry_run: self.dry_run,
            taken,
        })
    }

    /// What an import that broke off has left behind: batches before the one that failed.
    async fn written(&self, header: Option<&Header>) -> u64 {
        let Some(header) = header.filter(|_| !self.dry_run) else { return 0 };
        let now = self.app.engine.summary(&self.app.scope, &header.id).await;
        now.map_or(0, |summary| u64::from(summary.head.seq.0.saturating_sub(self.before.0)))
    }
}

/// The id the store has at a seq. The log is read in pages, as it is compared from front to back.
async fn id_at(
    app: &App,
    session: &SessionId,
    seq: Seq,
    page: &mut Vec<(Seq, EntryId)>,
) -> Result<Option<EntryId>> {
    let in_page = |page: &[(Seq, EntryId)]| page.first().and_then(|(first, _)| seq.0.checked_sub(first.0));
    if in_page(page).is_none_or(|at| at as usize >= page.len()) {
        let after = Seq(seq.0.saturating_sub(1));
        let records = app.engine.store().read_after(&app.scope, session, after, PAGE_RECORDS).await?;
        *page = records.iter().map(|record| (record.meta.seq, record.meta.id)).collect();
    }
    let found = in_page(page).and_then(|at| page.get(at as usize)).filter(|(found, _)| *found == seq);
    Ok(found.map(|(_, id)| *id))
}
