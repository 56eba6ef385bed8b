//! `sapwood export`: writes a session to a file.
//!
//! Formats that contain the whole log are streamed, so memory use does not depend on its length. The other formats
//! contain only the active path or the context.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sapwood::Seq;
use sapwood::core::project::summary::Summary;
use sapwood::core::{BlobHash, Record};
use sapwood::engine::export::PageFormat;
use sapwood::engine::personal_data::DataSubject;
use sapwood::formats::export::{ExportError, jsonl, tree};
use sapwood::formats::import::pi::Dialect;
use sapwood::formats::workflow;
use serde_json::json;

use super::export_user;
use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{self, Format, Out, plural};

/// Number of entries per store query.
const PAGE_RECORDS: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormatArg {
    /// Sapwood's native JSON Lines, lossless
    Jsonl,
    /// pi session file
    Pi,
    /// operator session file
    Operator,
    /// transcript.json of a role; with a directory as output, also its feed.json
    RoleFiles,
    /// feed.json of a role
    RoleFeed,
    /// Context as OpenAI messages
    Messages,
    /// Context as Anthropic messages
    MessagesAnthropic,
    /// Readable text
    Markdown,
    /// Self-contained web page
    Html,
    /// Completed turns as a flow of agents, in YAML
    Workflow,
}

impl ExportFormatArg {
    fn name(self) -> &'static str {
        match self {
            ExportFormatArg::Jsonl => "jsonl",
            ExportFormatArg::Pi => "pi",
            ExportFormatArg::Operator => "operator",
            ExportFormatArg::RoleFiles => "role-files",
            ExportFormatArg::RoleFeed => "role-feed",
            ExportFormatArg::Messages => "messages",
            ExportFormatArg::MessagesAnthropic => "messages-anthropic",
            ExportFormatArg::Markdown => "markdown",
            ExportFormatArg::Html => "html",
            ExportFormatArg::Workflow => "workflow",
        }
    }
}

/// Export a session to a file or to stdout
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood export @last -o session.jsonl
  sapwood export @last --format markdown
  sapwood export --user alice -o alice/
  sapwood export @last --format html -o session.html --force
  sapwood export flow-harbour__owner --format role-files -o roles/owner/")]
#[command(group(clap::ArgGroup::new("exported").required(true).args(["session", "user", "all"])))]
pub struct ExportArgs {
    /// Session id, unique prefix, or @last
    session: Option<String>,
    /// Export everything of this user to a directory: sessions, memories, keys and audit lines
    #[arg(long, requires = "output")]
    user: Option<String>,
    /// Export everything of the tenant to a directory
    #[arg(long, requires = "output")]
    all: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "jsonl")]
    format: ExportFormatArg,
    /// Output file; default: stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub async fn run(app: &mut App, args: ExportArgs) -> Result<()> {
    let Some(session) = &args.session else { return export_subject(app, args).await };
    let session = app.session(session).await?;
    let summary = app.engine.directory().summary(&app.scope, &session).await?;
    let file = args.output.filter(|path| path.as_os_str() != "-");
    let outputs = outputs_of(args.format, file)?;
    if let Some((path, _)) = outputs.iter().find(|(path, _)| !args.force && path.exists()) {
        let message = format!("{} already exists", path.display());
        return Err(Failure::usage(message, "use --force to overwrite it"));
    }
    // Record the export first: even an incomplete copy discloses data.
    app.engine.views().record_export(&app.scope, &session, args.format.name()).await?;
    match outputs.is_empty() {
        false => {
            for (path, format_arg) in &outputs {
                export_to_file(app, &summary, *format_arg, path).await?;
            }
        }
        true => {
            let out = Out::new(Format::Json);
            write_session(app, &summary, args.format, out).await.map_err(on_stdout).map(drop)?;
        }
    }
    // Only workflow exports are recorded in the session's log. Recording other exports would change the next export.
    if args.format == ExportFormatArg::Workflow {
        app.engine
            .views()
            .mark_exported(&app.scope, &session, args.format.name(), summary.head.seq.0)
            .await?;
    }
    Ok(())
}

async fn export_subject(app: &mut App, args: ExportArgs) -> Result<()> {
    let subject = match &args.user {
        Some(user) => DataSubject::User(user.parse().map_err(sapwood::Error::from)?),
        None => DataSubject::Tenant,
    };
    let directory = args.output.unwrap_or_default();
    let sessions = app.engine.personal_data().sessions_of(&app.scope, &subject).await?;
    let files = export_user::prepare(&directory, &sessions, args.force)?;
    for (summary, file) in sessions.iter().zip(files) {
        app.engine.views().record_export(&app.scope, &summary.id, ExportFormatArg::Jsonl.name()).await?;
        let mut temporary = file.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        write_file(app, summary, ExportFormatArg::Jsonl, &temporary, &file).await?;
        std::fs::rename(&temporary, &file).map_err(|error| Failure::file(&file, &error))?;
    }
    export_user::write_rest(app, &subject, &directory).await?;
    export_user::print_done(app, &subject, sessions.len(), &directory)
}

/// Returns the files to write, none for stdout. A directory is accepted only for role files, which are two files.
fn outputs_of(
    format_arg: ExportFormatArg,
    output: Option<PathBuf>,
) -> Result<Vec<(PathBuf, ExportFormatArg)>> {
    let Some(path) = output else { return Ok(Vec::new()) };
    let names_directory = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    match (names_directory, format_arg) {
        (false, _) => Ok(vec![(path, format_arg)]),
        (true, ExportFormatArg::RoleFiles) => {
            std::fs::create_dir_all(&path).map_err(|error| Failure::file(&path, &error))?;
            let transcript = (path.join("transcript.json"), ExportFormatArg::RoleFiles);
            Ok(vec![transcript, (path.join("feed.json"), ExportFormatArg::RoleFeed)])
        }
        (true, _) => {
            Err(Failure::usage(format!("{} is a directory", path.display()), "give the path of a file in it"))
        }
    }
}

/// Writes a temporary file and renames it when it is complete.
async fn export_to_file(
    app: &mut App,
    summary: &Summary,
    format_arg: ExportFormatArg,
    path: &Path,
) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let written = write_file(app, summary, format_arg, &temporary, path).await;
    let renamed =
        written.and_then(|()| std::fs::rename(&temporary, path).map_err(|error| Failure::file(path, &error)));
    if let Err(failure) = renamed {
        // Best effort: the original failure is reported.
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

/// Writes the temporary file. Error messages contain the requested path.
async fn write_file(
    app: &App,
    summary: &Summary,
    format_arg: ExportFormatArg,
    temporary: &Path,
    path: &Path,
) -> Result<()> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let file = File::create(temporary).map_err(failed)?;
    let writer = BufWriter::with_capacity(1 << 16, file);
    let writer = write_session(app, summary, format_arg, writer).await.map_err(|error| match error {
        ExportFailure::Read(failure) => failure,
        ExportFailure::Write(ExportError::Io(error)) => Failure::file(path, &error),
        ExportFailure::Write(error) => Failure::new(error.code(), error.to_string()),
    })?;
    let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

/// The step of an export that failed: reading the session, or writing the output.
enum ExportFailure {
    Read(Failure),
    Write(ExportError),
}

fn on_stdout(failure: ExportFailure) -> Failure {
    match failure {
        ExportFailure::Read(failure) => failure,
        ExportFailure::Write(ExportError::Io(error)) => Failure::from(error),
        ExportFailure::Write(error) => Failure::new(error.code(), error.to_string()),
    }
}

impl From<Failure> for ExportFailure {
    fn from(failure: Failure) -> Self {
        ExportFailure::Read(failure)
    }
}

impl From<ExportError> for ExportFailure {
    fn from(error: ExportError) -> Self {
        ExportFailure::Write(error)
    }
}

async fn write_session<W: Write>(
    app: &App,
    summary: &Summary,
    format_arg: ExportFormatArg,
    to: W,
) -> Result<W, ExportFailure> {
    match format_arg {
        ExportFormatArg::Jsonl => write_jsonl(app, summary, to).await,
        ExportFormatArg::Pi => write_tree(app, summary, Dialect::Pi, to).await,
        ExportFormatArg::Operator => write_tree(app, summary, Dialect::Operator, to).await,
        ExportFormatArg::RoleFiles => write_page(app, summary, PageFormat::RoleFiles, to).await,
        ExportFormatArg::RoleFeed => write_page(app, summary, PageFormat::RoleFeed, to).await,
        ExportFormatArg::Messages => write_page(app, summary, PageFormat::Messages, to).await,
        ExportFormatArg::MessagesAnthropic => {
            write_page(app, summary, PageFormat::MessagesAnthropic, to).await
        }
        ExportFormatArg::Markdown => write_page(app, summary, PageFormat::Markdown, to).await,
        ExportFormatArg::Html => write_page(app, summary, PageFormat::Html, to).await,
        ExportFormatArg::Workflow => write_page(app, summary, PageFormat::Workflow, to).await,
    }
}

async fn write_page<W: Write>(
    app: &App,
    summary: &Summary,
    format: PageFormat,
    mut to: W,
) -> Result<W, ExportFailure> {
    let text = app.engine.views().page(&app.scope, summary, format).await.map_err(Failure::from)?;
    to.write_all(text.as_bytes()).and_then(|()| to.flush()).map_err(ExportError::Io)?;
    if let Some(why) = (format == PageFormat::Workflow).then(|| workflow::obstacle(&text)).flatten() {
        render::note(app.format(), &format!("`sapwood flow run` cannot run this file: {why}"));
    }
    Ok(to)
}

/// Writes the entries that existed when the export began. Later entries are omitted.
async fn write_jsonl<W: Write>(app: &App, summary: &Summary, to: W) -> Result<W, ExportFailure> {
    let mut exporter = jsonl::Exporter::new(to);
    exporter.header(summary)?;
    let (mut after, end) = (Seq::ZERO, summary.head.seq);
    while after < end {
        for record in next_page(app, summary, after, end).await? {
            for blob in exporter.missing_blobs(&record)? {
                write_blob(app, blob, &mut exporter).await?;
            }
            exporter.line(&record)?;
            after = record.meta.seq;
        }
    }
    Ok(exporter.finish()?)
}

/// Writes a blob as a sequence of lines.
async fn write_blob<W: Write>(
    app: &App,
    blob: BlobHash,
    exporter: &mut jsonl::Exporter<W>,
) -> Result<(), ExportFailure> {
    let mut reader = app.engine.views().open_blob(&app.scope, blob).await.map_err(Failure::from)?;
    let pieces = jsonl::chunk_count(reader.remaining());
    for piece in 1..=pieces {
        let bytes = reader.next_up_to(jsonl::CHUNK_BYTES_MAX).await.map_err(Failure::from)?;
        exporter.blob_chunk(blob, (piece, pieces), &bytes)?;
    }
    Ok(())
}

async fn write_tree<W: Write>(
    app: &App,
    summary: &Summary,
    dialect: Dialect,
    to: W,
) -> Result<W, ExportFailure> {
    let mut exporter = tree::Exporter::new(to, dialect);
    exporter.header(summary)?;
    let (mut after, end) = (Seq::ZERO, summary.head.seq);
    while after < end {
        for record in next_page(app, summary, after, end).await? {
            let blobs = record.decode().map(|body| body.blobs()).unwrap_or_default();
            let media = app.engine.views().media_of(&app.scope, blobs).await.map_err(Failure::from)?;
            exporter.line(&record, &media)?;
            after = record.meta.seq;
        }
    }
    Ok(exporter.finish()?)
}

async fn next_page(app: &App, summary: &Summary, after: Seq, end: Seq) -> Result<Vec<Record>> {
    let limit = PAGE_RECORDS.min((end.0 - after.0) as usize);
    let records = app.engine.store().read_after(&app.scope, &summary.id, after, limit).await?;
    if records.is_empty() {
        let message = format!("session {} ends at entry {after}, but its head is entry {end}", summary.id);
        return Err(Failure::new("store.damaged", message));
    }
    Ok(records)
}
