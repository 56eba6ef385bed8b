//! Imports files in Sapwood's own format.

use sapwood::core::Draft;
use sapwood::engine::import::{Mode, OwnIntake, OwnIntakeResult};
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{LINE_BYTES_MAX, Problem, ProblemKind as FileTrouble};

use super::source::Source;
use super::{ImportReport, ReportedProblem, print, to_reported};
use crate::app::App;
use crate::failure::{Failure, Result};

/// A header line that was read ahead, with its line number.
type HeaderLine = (Vec<u8>, u64);

/// Imports every session of a file, which may contain several concatenated exports. Returns the number of sessions that
/// are now in the store.
pub async fn import_file(app: &mut App, mut source: Source, mode: Mode) -> Result<u64> {
    let mut taken = 0;
    let mut carried: Option<HeaderLine> = None;
    loop {
        let intake = app.engine.imports().begin_own_intake(&app.scope, mode);
        let mut session =
            Session { intake: Some(intake), importer: Importer::default(), failures: Vec::new() };
        carried = session.read(&mut source, carried.take()).await?;
        let report = session.finish(&source, carried.is_none(), mode).await?;
        taken += u64::from(report.taken);
        print(app, &report)?;
        if carried.is_none() {
            return Ok(taken);
        }
    }
}

/// A session that is being imported.
struct Session {
    /// `None` after the import of this session failed.
    intake: Option<OwnIntake>,
    importer: Importer,
    failures: Vec<ReportedProblem>,
}

impl Session {
    /// Reads to the end of the file, or to the header of the next session, which is returned.
    async fn read(&mut self, source: &mut Source, first: Option<HeaderLine>) -> Result<Option<HeaderLine>> {
        let mut drafts = Vec::new();
        if let Some((line, number)) = first {
            self.importer.push_line(&line, number, &mut drafts);
        }
        while let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? {
            self.importer.push_line(line, number, &mut drafts);
            let next = self.importer.take_end(number).then(|| (line.to_vec(), number));
            if self.importer.header().is_none() && !self.importer.problems().is_empty() {
                // These entries have no valid header. Skip them: another session may follow.
                self.importer.skip_rest();
            }
            self.take(&mut drafts).await?;
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }

    async fn take(&mut self, drafts: &mut Vec<Draft>) -> Result<()> {
        let Some(intake) = &mut self.intake else {
            drafts.clear();
            self.importer.take_blobs();
            return Ok(());
        };
        if let Err(error) = intake.take(&mut self.importer, drafts).await {
            self.intake = None;
            self.refuse(error.into())?;
        }
        Ok(())
    }

    /// Records the failure as a problem of this session. A store failure ends the command instead.
    fn refuse(&mut self, failure: Failure) -> Result<()> {
        if failure.code.starts_with("store.") {
            return Err(failure);
        }
        self.failures.push(ReportedProblem { line: None, code: failure.code, message: failure.message });
        Ok(())
    }

    async fn finish(mut self, source: &Source, is_last: bool, mode: Mode) -> Result<ImportReport> {
        let taken = match self.intake.take() {
            Some(intake) => intake.finish().await.map_err(Failure::from),
            None => Ok(OwnIntakeResult::default()),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(failure) => {
                self.refuse(failure)?;
                OwnIntakeResult::default()
            }
        };
        let mut problems: Vec<ReportedProblem> = self.importer.problems().iter().map(to_reported).collect();
        if is_last && source.is_torn() {
            let torn = Problem { line: source.line_number().max(1), what: FileTrouble::Torn };
            problems.push(to_reported(&torn));
        }
        if let Some(at) = taken.differs_at {
            let message = format!("the stored session differs from entry {at} on, so nothing was added");
            problems.push(ReportedProblem { line: None, code: "import.differs".into(), message });
        }
        problems.append(&mut self.failures);
        let header = self.importer.header();
        if header.is_none() && problems.is_empty() {
            let message = "the file is empty".to_owned();
            problems.push(ReportedProblem { line: None, code: "import.empty".into(), message });
        }
        Ok(ImportReport {
            session: header.map(|header| header.id.to_string()),
            source: source.name.clone(),
            format: header.map(|_| "sapwood"),
            added: taken.added,
            skipped: taken.skipped,
            problems,
            dry_run: mode == Mode::DryRun,
            taken: taken.is_stored,
        })
    }
}
