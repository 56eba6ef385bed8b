//! `sapwood input` and `sapwood artifact`: a session's files. Inputs are material for the model, artifacts are results.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sapwood::SessionId;
use sapwood::core::entry::ArtifactUse;
use sapwood::core::input::size_text;
use sapwood::core::media_type::{SNIFFED_BYTES, media_type};
use sapwood::core::project::artifacts::Artifact;
use sapwood::core::{BlobRef, Right};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{Table, clean, note};

/// Number of bytes read from a file at once.
const READ_BYTES: usize = 1 << 20;
/// Maximum number of files per command.
const FILES_MAX: usize = 100;

/// Add files and snippets that the model can read, and list or get them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood input add @last report.pdf data.csv
  sapwood input add @last passage.txt --snippet --source https://example.org/oaks
  sapwood input ls @last
  sapwood input get @last report.pdf -o copy.pdf")]
pub struct InputArgs {
    #[command(subcommand)]
    command: InputCommand,
}

#[derive(Debug, Subcommand)]
enum InputCommand {
    /// Add files to a session, and tell the model how to read them
    #[command(after_help = "\
Examples:
  sapwood input add @last report.pdf data.csv
  sapwood input add @last passage.txt --snippet --source https://example.org/oaks
  git log | sapwood input add @last - --name history.txt")]
    Add {
        #[command(flatten)]
        add: AddArgs,
        /// Add the text as retrieved knowledge, which the model sees at once, with its source
        #[arg(long, requires = "source")]
        snippet: bool,
        /// Where the snippet was retrieved from, such as a URL
        #[arg(long, value_name = "URL", requires = "snippet")]
        source: Option<String>,
    },
    /// List a session's inputs
    #[command(after_help = "\
Examples:
  sapwood input ls @last")]
    Ls(LsFilesArgs),
    /// Print an input, or write it to a file
    #[command(after_help = "\
Examples:
  sapwood input get @last notes.txt
  sapwood input get @last report.pdf -o copy.pdf")]
    Get(GetArgs),
}

/// Add, list and get a session's results
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood artifact ls @last
  sapwood artifact get @last report.md
  sapwood artifact add @last report.md")]
pub struct ArtifactArgs {
    #[command(subcommand)]
    command: ArtifactCommand,
}

#[derive(Debug, Subcommand)]
enum ArtifactCommand {
    /// Add files to a session's results
    #[command(after_help = "\
Examples:
  sapwood artifact add @last report.md
  make report | sapwood artifact add @last - --name report.txt")]
    Add(AddArgs),
    /// List a session's results
    #[command(after_help = "\
Examples:
  sapwood artifact ls @last")]
    Ls(LsFilesArgs),
    /// Print a result, or write it to a file
    #[command(after_help = "\
Examples:
  sapwood artifact get @last report.md
  sapwood artifact get @last chart.png -o chart.png")]
    Get(GetArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Files to add; - reads stdin and requires --name
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name of the file in the session; default: the file's own name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Args)]
pub struct LsFilesArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Name of the file
    name: String,
    /// Write it to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    force: bool,
}

pub async fn input(app: &mut App, args: InputArgs) -> Result<()> {
    match args.command {
        InputCommand::Add { add, source, .. } => add_files(app, ArtifactUse::Input, add, source).await,
        InputCommand::Ls(args) => list(app, ArtifactUse::Input, &args.session).await,
        InputCommand::Get(args) => get(app, ArtifactUse::Input, args).await,
    }
}

pub async fn artifact(app: &mut App, args: ArtifactArgs) -> Result<()> {
    match args.command {
        ArtifactCommand::Add(add) => add_files(app, ArtifactUse::Artifact, add, None).await,
        ArtifactCommand::Ls(args) => list(app, ArtifactUse::Artifact, &args.session).await,
        ArtifactCommand::Get(args) => get(app, ArtifactUse::Artifact, args).await,
    }
}

async fn add_files(app: &mut App, usage: ArtifactUse, args: AddArgs, source: Option<String>) -> Result<()> {
    let files = named_files(args.files, args.name)?;
    let session = app.session(&args.session).await?;
    for (path, name) in files {
        let artifact = add_file(app, &session, usage, &path, &name, source.clone()).await?;
        print_file(app, &artifact)?;
    }
    Ok(())
}

/// Pair each file with its name in the session, which must be unique.
fn named_files(files: Vec<PathBuf>, name: Option<String>) -> Result<Vec<(PathBuf, String)>> {
    if files.len() > FILES_MAX {
        return Err(Failure::usage(format!("more than {FILES_MAX} files"), "add them in several steps"));
    }
    if files.len() > 1 && name.is_some() {
        return Err(Failure::usage("--name works only for one file", "omit --name, or add one file"));
    }
    let mut named: Vec<(PathBuf, String)> = Vec::new();
    for path in files {
        let own_name = path.file_name().and_then(std::ffi::OsStr::to_str).map(str::to_owned);
        let is_stdin = path == Path::new("-");
        let name = name.clone().or(own_name.filter(|_| !is_stdin)).ok_or_else(|| {
            let message = format!("{} has no usable file name", path.display());
            Failure::usage(message, "give a name with --name")
        })?;
        if named.iter().any(|(_, other)| *other == name) {
            let message = format!("two of the files are called {name}");
            return Err(Failure::usage(message, "add them in several steps, each with --name"));
        }
        named.push((path, name));
    }
    Ok(named)
}

/// Store a file in a session and return it as listed.
pub async fn add_file(
    app: &App,
    session: &SessionId,
    usage: ArtifactUse,
    path: &Path,
    name: &str,
    source: Option<String>,
) -> Result<Artifact> {
    app.engine.directory().check_right(&app.scope, session, Right::Write).await?;
    let content = store_file(app, path, name).await?;
    match usage {
        ArtifactUse::Input => app.engine.inputs().add(&app.scope, session, content, source).await?,
        ArtifactUse::Artifact => {
            app.engine.edits().name_artifact(&app.scope, session, usage, content).await?
        }
    };
    let mut artifacts = app.engine.views().artifacts(&app.scope, session).await?;
    artifacts.by_name.remove(&(usage, name.to_owned())).ok_or_else(|| not_found(session, usage, name))
}

/// Add a file to a session's inputs under its own name, and describe it. Returns `None` if the session already has it.
pub async fn attach(app: &App, session: &SessionId, path: &Path) -> Result<Option<String>> {
    let (path, name) = named_files(vec![path.to_owned()], None)?.swap_remove(0);
    let content = store_file(app, &path, &name).await?;
    let artifacts = app.engine.views().artifacts(&app.scope, session).await?;
    let existing = artifacts.get(ArtifactUse::Input, &name);
    if existing.is_some_and(|existing| existing.content.blob == content.blob) {
        return Ok(None);
    }
    let (mime, size) = (plain_type(&content.mime).to_owned(), size_text(content.bytes));
    app.engine.inputs().add(&app.scope, session, content, None).await?;
    Ok(Some(format!("{name} ({mime}, {size})")))
}

/// Copy a file, or stdin, into the store.
async fn store_file(app: &App, path: &Path, name: &str) -> Result<BlobRef> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let mut file: Box<dyn Read + Send> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => {
            let file = std::fs::File::open(path).map_err(failed)?;
            if file.metadata().map_err(failed)?.is_dir() {
                return Err(Failure::new("file.io", format!("{} is a directory", path.display())));
            }
            Box::new(file)
        }
    };
    let mut sink = app.engine.store().begin_blob(&app.scope).await?;
    let (mut head, mut bytes, mut chunk) = (Vec::new(), 0, vec![0; READ_BYTES]);
    loop {
        let count = file.read(&mut chunk).map_err(failed)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        head.extend_from_slice(&chunk[..count.min(SNIFFED_BYTES - head.len().min(SNIFFED_BYTES))]);
        sink.write(&chunk[..count]).await?;
    }
    let declared = if name.to_ascii_lowercase().ends_with(".json") { "application/json" } else { "" };
    let (mime, name) = (media_type(&head, declared).to_owned(), Some(name.to_owned()));
    Ok(BlobRef { blob: sink.finish().await?, mime, name, bytes, duration_ms: None })
}

async fn list(app: &mut App, usage: ArtifactUse, given: &str) -> Result<()> {
    let session = app.session_to_read(given).await?;
    let artifacts = app.engine.views().artifacts(&app.scope, &session).await?;
    let files: Vec<&Artifact> = artifacts.by_name.values().filter(|file| file.usage == usage).collect();
    if app.out.is_json() {
        return files.into_iter().try_for_each(|file| app.out.json(file));
    }
    if files.is_empty() {
        note(app.format(), &format!("this session has no {}s", word_of(usage)));
        return Ok(());
    }
    let row = |file: &&Artifact| {
        let source = file.source.as_deref().unwrap_or("-");
        vec![
            file.name.clone(),
            plain_type(&file.content.mime).to_owned(),
            size_text(file.content.bytes),
            file.version.to_string(),
            source.to_owned(),
        ]
    };
    let head = ["NAME", "TYPE", "SIZE", "VERSION", "SOURCE"];
    Table { head: &head, rows: files.iter().map(row).collect(), flexible: 0 }.print(&mut app.out)
}

fn print_file(app: &mut App, file: &Artifact) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(file);
    }
    let (mime, size) = (plain_type(&file.content.mime), size_text(file.content.bytes));
    let version = if file.version > 1 { format!(", version {}", file.version) } else { String::new() };
    Ok(writeln!(app.out, "added {} ({mime}, {size}{version})", clean(&file.name))?)
}

fn plain_type(mime: &str) -> &str {
    mime.split(';').next().unwrap_or_default()
}

async fn get(app: &mut App, usage: ArtifactUse, args: GetArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let artifacts = app.engine.views().artifacts(&app.scope, &session).await?;
    let file = artifacts.get(usage, &args.name).ok_or_else(|| not_found(&session, usage, &args.name))?;
    match &args.output {
        Some(path) => write_file(app, &file.content, path, args.force).await,
        None if app.out.is_json() => app.out.json(file),
        None => print_content(app, &file.content).await,
    }
}

async fn write_file(app: &App, content: &BlobRef, path: &Path, force: bool) -> Result<()> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::new("file.exists", format!("{} already exists", path.display()))
        }
        _ => Failure::file(path, &error),
    };
    let mut reader = app.engine.views().open_blob(&app.scope, content.blob).await?;
    // Read the first chunk before creating the file, so that a failed read leaves an existing file unchanged.
    let first = reader.next().await?.unwrap_or_default();
    let mut options = std::fs::OpenOptions::new();
    options.write(true).truncate(true);
    let options = if force { options.create(true) } else { options.create_new(true) };
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(&first).map_err(failed)?;
    while let Some(bytes) = reader.next().await? {
        file.write_all(&bytes).map_err(failed)?;
    }
    Ok(())
}

/// Print the content: unchanged to a pipe. A terminal gets only text, without control sequences.
async fn print_content(app: &mut App, content: &BlobRef) -> Result<()> {
    let on_terminal = app.out.terminal.is_some();
    let is_text = content.mime.starts_with("text/") || content.mime.starts_with("application/json");
    if on_terminal && !is_text {
        let message = format!("the file has type {} and cannot be shown", plain_type(&content.mime));
        return Err(Failure::usage(message, "write it to a file with --output FILE"));
    }
    let mut reader = app.engine.views().open_blob(&app.scope, content.blob).await?;
    // Colours are removed from `app.out` in a pipe, so the bytes bypass it.
    let mut stdout = std::io::stdout().lock();
    let mut incomplete = Vec::new();
    while let Some(bytes) = reader.next().await? {
        if on_terminal {
            incomplete.extend_from_slice(&bytes);
            let rest = incomplete.split_off(complete_chars(&incomplete));
            let text = std::mem::replace(&mut incomplete, rest);
            stdout.write_all(clean(&String::from_utf8_lossy(&text)).as_bytes())?;
        } else {
            stdout.write_all(&bytes)?;
        }
    }
    stdout.write_all(clean(&String::from_utf8_lossy(&incomplete)).as_bytes())?;
    Ok(stdout.flush()?)
}

/// Length of the bytes without an incomplete UTF-8 character at their end, which the next chunk continues.
fn complete_chars(bytes: &[u8]) -> usize {
    let start = bytes.iter().rposition(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
    match std::str::from_utf8(&bytes[start..]) {
        Err(error) if error.error_len().is_none() => start,
        _ => bytes.len(),
    }
}

fn word_of(usage: ArtifactUse) -> &'static str {
    match usage {
        ArtifactUse::Input => "input",
        ArtifactUse::Artifact => "artifact",
    }
}

fn not_found(session: &SessionId, usage: ArtifactUse, name: &str) -> Failure {
    let word = word_of(usage);
    Failure::new("artifact.not_found", format!("session `{session}` has no {word} `{name:.64}`"))
        .with_hint(format!("run `sapwood {word} ls SESSION` to list the names"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_character_waits_for_the_next_chunk() {
        let text = "aé€😀";
        for cut in 0..=text.len() {
            let complete = complete_chars(&text.as_bytes()[..cut]);
            assert!(text.is_char_boundary(complete) && cut - complete < 4, "{cut}: {complete}");
        }
        assert_eq!(complete_chars(b"a\xFF"), 2, "invalid bytes are not kept back");
    }

    #[test]
    fn every_file_needs_a_unique_name() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let named = named_files(paths(&["a/x.txt", "y.txt"]), None).unwrap();
        assert_eq!(named[0].1, "x.txt");
        assert!(named_files(paths(&["a/x.txt", "b/x.txt"]), None).is_err());
        assert!(named_files(paths(&["-"]), None).is_err());
        assert!(named_files(paths(&["-"]), Some("in.txt".into())).is_ok());
        assert!(named_files(paths(&["a", "b"]), Some("c".into())).is_err());
    }
}
