//! Imports files in Sapwood's own format.

use sapwood::engine::import::{ImportOptions, ImportReport as SessionReport};
use sapwood::formats::import::{Format, LINE_BYTES_MAX, Problem, ProblemKind};
use sapwood::{Engine, Scope};

use super::source::Source;
use super::{ImportReport, print};
use crate::app::App;
use crate::failure::Result;

/// Imports every session of a file and prints its report. Returns the number of sessions that are now in the store.
pub async fn import_file(app: &mut App, source: Source, options: ImportOptions) -> Result<u64> {
    let reader = OwnFile { engine: app.engine.clone(), scope: app.scope.clone(), options };
    let mut taken = 0;
    reader
        .read(source, |report| {
            taken += u64::from(report.taken);
            print(app, &report)
        })
        .await?;
    Ok(taken)
}

/// The target of a file, which may contain several concatenated exports.
pub(super) struct OwnFile {
    pub engine: Engine,
    pub scope: Scope,
    pub options: ImportOptions,
}

impl OwnFile {
    /// Imports the sessions, and calls `each` with the report of each.
    pub async fn read(
        self,
        mut source: Source,
        mut each: impl FnMut(ImportReport) -> Result<()>,
    ) -> Result<()> {
        let mode = self.options.mode;
        let mut import = self.engine.imports().begin_own(&self.scope, self.options);
        let mut report = |report: SessionReport, name: &str| {
            let format = report.session.as_ref().map(|_| Format::Sapwood);
            each(ImportReport::new(report, name, format, mode, "the file is empty")?)
        };
        while let Some((line, number)) = source.next_line(LINE_BYTES_MAX)? {
            import.push_line(line, number);
            while let Some(ended) = import.next_report().await {
                report(ended, &source.name)?;
            }
            import.store_if_full().await;
        }
        let mut last = import.finish().await;
        if source.is_torn() {
            let what = ProblemKind::Torn;
            last.problems.push((&Problem { line: source.line_number().max(1), what }).into());
        }
        report(last, &source.name)
    }
}
