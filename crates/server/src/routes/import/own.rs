//! Import of Sapwood's own format. Concatenated exports are imported as one session each.

use sapwood::core::entry::Draft;
use sapwood::engine::import::{OwnIntake, OwnIntakeResult};
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{Format, LineSplitter};

use super::upload::Upload;
use super::{BATCH_BYTES, BATCH_STEPS, ImportRequest, ProblemReport};
use crate::problem::{Problem, Result};
use crate::wire;

/// Maximum number of sessions per file, because the response has an item for each.
const SESSIONS_MAX: usize = 10_000;

pub async fn take(request: &ImportRequest<'_>, upload: &mut Upload<'_>) -> Result<Vec<wire::Imported>> {
    let mut file = FileImport {
        request,
        intake: request.begin_own(),
        imported: Vec::new(),
        problem_report: ProblemReport::default(),
    };
    let (mut reader, mut lines) = (SessionReader::default(), LineSplitter::default());
    loop {
        let received = upload.next().await;
        if let Ok(Some(bytes)) = &received {
            lines.push(bytes, |line, number| reader.push_line(line, number));
            file.take_ended(&mut reader).await?;
            if reader.drafts.len() >= BATCH_STEPS || upload.unreleased_bytes() >= BATCH_BYTES {
                file.take(&mut reader.importer, &mut reader.drafts).await?;
                upload.release_stored(
                    lines.held_bytes() + reader.importer.held_bytes() + file.intake.held_bytes(),
                );
            }
            continue;
        }
        // If the upload was interrupted, the entries before the interruption are still stored.
        if received.is_ok() {
            lines.finish(|line, number| reader.push_line(line, number));
        }
        file.take_ended(&mut reader).await?;
        file.end(&mut reader.importer, &mut reader.drafts).await?;
        return received.map(|_| file.imported);
    }
}

/// The session being read, and the sessions completed since the previous [`FileImport::take_ended`].
#[derive(Default)]
struct SessionReader {
    importer: Importer,
    drafts: Vec<Draft>,
    ended: Vec<(Importer, Vec<Draft>)>,
}

impl SessionReader {
    fn push_line(&mut self, line: &[u8], number: u64) {
        self.importer.push_line(line, number, &mut self.drafts);
        if self.importer.take_end(number) {
            self.ended.push((std::mem::take(&mut self.importer), std::mem::take(&mut self.drafts)));
            self.importer.push_line(line, number, &mut self.drafts);
        }
    }
}

/// The session being imported, and the results so far.
struct FileImport<'a> {
    request: &'a ImportRequest<'a>,
    intake: OwnIntake,
    imported: Vec<wire::Imported>,
    problem_report: ProblemReport,
}

impl FileImport<'_> {
    async fn take_ended(&mut self, reader: &mut SessionReader) -> Result<()> {
        for (mut importer, mut drafts) in reader.ended.drain(..) {
            self.end(&mut importer, &mut drafts).await?;
            if self.imported.len() >= SESSIONS_MAX {
                let detail = format!(
                    "a file may contain at most {SESSIONS_MAX} sessions: only the first {SESSIONS_MAX} were imported"
                );
                return Err(Problem::new("input.too_large", detail));
            }
        }
        Ok(())
    }

    async fn take(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        if let Some(header) = importer.header_mut() {
            self.request.restrict_cwd(&mut header.cwd);
        }
        drafts.iter_mut().for_each(|draft| self.request.restrict(&mut draft.body));
        Ok(self.intake.take(importer, drafts).await?)
    }

    /// Imports the rest of a session and starts the next session.
    async fn end(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        self.take(importer, drafts).await?;
        let intake = std::mem::replace(&mut self.intake, self.request.begin_own());
        let OwnIntakeResult { added, skipped, differs_at, .. } = intake.finish().await?;
        let (mut problems, more_problems) = self.problem_report.report(importer.problems());
        if let Some(at) = differs_at {
            problems.push(wire::ImportProblem {
                line: None,
                code: "import.differs".to_owned(),
                message: format!(
                    "the stored session with this id differs from entry {at} on; nothing was added"
                ),
            });
        }
        self.imported.push(wire::Imported {
            session: importer.header().map(|header| header.id.to_string()),
            format: Some(Format::Sapwood.as_str().to_owned()),
            added,
            skipped,
            problems,
            more_problems,
        });
        Ok(())
    }
}
