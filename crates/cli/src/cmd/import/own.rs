//! Imports files in Sapwood's own format.

use sapwood::engine::import::{ImportOptions, ImportReport as SessionReport};
use sapwood::formats::import::{Format, LINE_BYTES_MAX, Problem, ProblemKind};

use super::source::Source;
use super::{ImportReport, print};
use crate::app::App;
use crate::failure::Result;

/// Imports every session of a file, which may contain several concatenated exports. Returns the number of sessions that
/// are now in the store.
pub async fn import_file(app: &mut App, mut source: Source, options: ImportOptions) -> Result<u64> {
    let mode = options.mode;
    let mut import = app.engine.imports().begin_own(&app.scope, options);
    let mut taken = 0;
    let mut report = |report: SessionReport, name: &str| {
        let format = report.session.as_ref().map(|_| Format::Sapwood);
        let report = ImportReport::new(report, name, format, mode, "the file is empty")?;
        taken += u64::from(report.taken);
        print(app, &report)
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
        last.problems.push((&Problem { line: source.line_number().max(1), what: ProblemKind::Torn }).into());
    }
    report(last, &source.name)?;
    Ok(taken)
}
