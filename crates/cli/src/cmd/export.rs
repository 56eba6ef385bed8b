//! `sapwood export`: a session as a file. Streams, so that a long one needs no memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sapwood::Seq;
use sapwood::core::project::summary::Summary;
use sapwood::formats::export::{ExportError, jsonl::Exporter};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::render::{self, Format, Out, plural};
use crate::wiring::App;

/// How many entries are asked of the store at a time.
const PAGE_RECORDS: usize = 1_000;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shape {
    /// Sapwood's own, lossless
    Jsonl,
}

/// Write a session to a file, or to stdout
#[derive(Debug, Args)]
pub struct ExportArgs {
    session: String,
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Shape,
    /// The file; stdout if not given
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
}

pub async fn run(app: &mut App, args: ExportArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let summary = app.engine.summary(&app.scope, &session).await?;
    let Shape::Jsonl = args.format;
    let file = args.output.filter(|path| path.as_os_str() != "-");
    if let Some(path) = file.as_ref().filter(|path| !args.force && path.exists()) {
        let message = format!("{} is there already", path.display());
        return Err(Failure::usage(message, "--force overwrites it"));
    }
    // Written down first: a copy that was cut short has been taken away all the same.
    app.engine.record_export(&app.scope, &session, "jsonl").await?;
    match file {
        Some(path) => export_to_file(app, &summary, &path).await,
        None => {
            let out = Out::new(Format::Json);
            write_session(app, &summary, out).await.map_err(on_stdout).map(drop)
        }
    }
}

/// The file appears under its name when it is whole.
async fn export_to_file(app: &mut App, summary: &Summary, path: &Path) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let written = write_file(app, summary, &temporary).await;
    let renamed =
        written.and_then(|()| std::fs::rename(&temporary, path).map_err(|error| Failure::file(path, &error)));
    if let Err(failure) = renamed {
        // What is left of it is of no use; the failure that led here is what matters.
        let _ = std::fs::remove_file(&temporary);
        return Err(failure);
    }
    let entries = summary.head.seq.0;
    if app.out.is_json() {
        return app
            .out
            .json(&json!({ "session": summary.id, "file": path.display().to_string(), "entries": entries }));
    }
    render::note(app.format(), &format!("{}: {}", path.display(), plural(u64::from(entries), "entry")));
    Ok(())
}

async fn write_file(app: &App, summary: &Summary, path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let file = File::create(path).map_err(failed)?;
    let writer = BufWriter::with_capacity(1 << 16, file);
    let writer = write_session(app, summary, writer).await.map_err(|error| match error {
        Broken::Read(failure) => failure,
        Broken::Write(ExportError::Io(error)) => Failure::file(path, &error),
        Broken::Write(error) => Failure::new(error.code(), error.to_string()),
    })?;
    let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

/// Which side of an export broke.
enum Broken {
    Read(Failure),
    Write(ExportError),
}

fn on_stdout(broken: Broken) -> Failure {
    match broken {
        Broken::Read(failure) => failure,
        Broken::Write(ExportError::Io(error)) => Failure::from(error),
        Broken::Write(error) => Failure::new(error.code(), error.to_string()),
    }
}

/// Writes what the session held when the export began; what comes meanwhile belongs to the next one.
async fn write_session<W: Write>(app: &App, summary: &Summary, to: W) -> Result<W, Broken> {
    let mut exporter = Exporter::new(to);
    exporter.header(summary).map_err(Broken::Write)?;
    let (mut after, end) = (Seq::ZERO, summary.head.seq);
    while after < end {
        let limit = PAGE_RECORDS.min((end.0 - after.0) as usize);
        let records = app.engine.store().read_after(&app.scope, &summary.id, after, limit).await;
        let records = records.map_err(|error| Broken::Read(error.into()))?;
        let Some(last) = records.last().map(|record| record.meta.seq) else {
            let message = format!("session {} ends at {after}, and its head says {end}", summary.id);
            return Err(Broken::Read(Failure::new("store.damaged", message)));
        };
        records.iter().try_for_each(|record| exporter.line(record)).map_err(Broken::Write)?;
        after = last;
    }
    exporter.finish().map_err(Broken::Write)
}
