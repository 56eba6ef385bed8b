//! Import of Sapwood's own format. Concatenated exports are imported as one session each.

use sapwood::core::entry::Draft;
use sapwood::engine::import::{OwnIntake, OwnTaken};
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{Format, LineSplitter};

use super::upload::Upload;
use super::{BATCH_BYTES, BATCH_STEPS, Taking, Telling};
use crate::problem::{Problem, Result};
use crate::wire;

/// Maximum number of sessions per file, because the response has an item for each.
const SESSIONS_MAX: usize = 10_000;

pub async fn take(taking: &Taking<'_>, upload: &mut Upload<'_>) -> Result<Vec<wire::Imported>> {
    let mut file =
        File { taking, intake: taking.begin_own(), imported: Vec::new(), telling: Telling::default() };
    let (mut reading, mut lines) = (Reading::default(), LineSplitter::default());
    loop {
        let came = upload.next().await;
        if let Ok(Some(bytes)) = &came {
            lines.push(bytes, |line, number| reading.push_line(line, number));
            file.take_ended(&mut reading).await?;
            if reading.drafts.len() >= BATCH_STEPS || upload.unsettled_bytes() >= BATCH_BYTES {
                file.take(&mut reading.importer, &mut reading.drafts).await?;
                upload.settle(lines.held_bytes() + reading.importer.held_bytes() + file.intake.held_bytes());
            }
            continue;
        }
        // If the upload was interrupted, the entries before the interruption are still stored.
        if came.is_ok() {
            lines.finish(|line, number| reading.push_line(line, number));
        }
        file.take_ended(&mut reading).await?;
        file.end(&mut reading.importer, &mut reading.drafts).await?;
        return came.map(|_| file.imported);
    }
}

/// The session being read, and the sessions completed since the previous [`File::take_ended`].
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

/// The session being imported, and the results so far.
struct File<'a> {
    taking: &'a Taking<'a>,
    intake: OwnIntake,
    imported: Vec<wire::Imported>,
    telling: Telling,
}

impl File<'_> {
    async fn take_ended(&mut self, reading: &mut Reading) -> Result<()> {
        for (mut importer, mut drafts) in reading.ended.drain(..) {
            self.end(&mut importer, &mut drafts).await?;
            if self.imported.len() >= SESSIONS_MAX {
                let detail = format!("a file may hold at most {SESSIONS_MAX} sessions; those were imported");
                return Err(Problem::new("input.too_large", detail));
            }
        }
        Ok(())
    }

    async fn take(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        if let Some(header) = importer.header_mut() {
            self.taking.disarm_cwd(&mut header.cwd);
        }
        drafts.iter_mut().for_each(|draft| self.taking.disarm(&mut draft.body));
        Ok(self.intake.take(importer, drafts).await?)
    }

    /// Imports the rest of a session and starts the next session.
    async fn end(&mut self, importer: &mut Importer, drafts: &mut Vec<Draft>) -> Result<()> {
        self.take(importer, drafts).await?;
        let intake = std::mem::replace(&mut self.intake, self.taking.begin_own());
        let OwnTaken { added, skipped, differs_at, .. } = intake.finish().await?;
        let (mut problems, more_problems) = self.telling.tell(importer.problems());
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
