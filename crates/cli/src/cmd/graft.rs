//! `sapwood graft`: references another session's deliverables without copying them.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use sapwood::GraftWhat;
use sapwood::core::project::rounds::digest_line;
use sapwood::engine::graft::{GraftState, GraftView};
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{DIM, clean, note};

/// Reference another session's artifact, digest or rounds
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  sapwood graft @last --from research --artifact report.md
  sapwood graft @last --from research --rounds 3..5
  sapwood graft digest research")]
pub struct GraftArgs {
    #[command(subcommand)]
    command: Option<GraftCommand>,
    /// Session that receives the graft: id, unique prefix, or @last
    session: Option<String>,
    /// Source session: id, unique prefix, or @last
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// Graft this artifact of the source
    #[arg(long, value_name = "NAME")]
    artifact: Option<String>,
    /// Graft a digest: one line per round, with its artifacts
    #[arg(long, conflicts_with = "artifact")]
    digest: bool,
    /// Graft these rounds in full: 3..5, or 3
    #[arg(long, value_name = "A..B", conflicts_with_all = ["artifact", "digest"])]
    rounds: Option<String>,
}

#[derive(Debug, Subcommand)]
enum GraftCommand {
    /// List a session's grafts and whether you can read them
    #[command(after_help = "\
Examples:
  sapwood graft ls @last")]
    Ls {
        /// Session id, unique prefix, or @last
        session: String,
    },
    /// Print the content that a graft refers to
    #[command(after_help = "\
Examples:
  sapwood graft get @last 7
  sapwood graft get @last 7 -o report.md")]
    Get {
        /// Session id, unique prefix, or @last
        session: String,
        /// Entry of the graft: seq, id, unique prefix, or label
        entry: String,
        /// Write the artifact to this file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List the rounds and artifacts that can be grafted from a session
    #[command(after_help = "\
Examples:
  sapwood graft digest research")]
    Digest {
        /// Source session: id, unique prefix, or @last
        source: String,
    },
}

pub async fn run(app: &mut App, args: GraftArgs) -> Result<()> {
    match args.command {
        Some(GraftCommand::Ls { session }) => list(app, &session).await,
        Some(GraftCommand::Get { session, entry, output }) => get(app, &session, &entry, output).await,
        Some(GraftCommand::Digest { source }) => digest(app, &source).await,
        None => create(app, args).await,
    }
}

async fn create(app: &mut App, args: GraftArgs) -> Result<()> {
    let missing =
        || Failure::usage("SESSION and --from SOURCE are required", "run `sapwood help graft` for examples");
    let (session, from) = args.session.zip(args.from).ok_or_else(missing)?;
    let what = match (args.artifact, args.rounds, args.digest) {
        (Some(name), _, _) => GraftWhat::Artifact { name },
        (None, Some(rounds), _) => parse_rounds(&rounds)?,
        (None, None, true) => GraftWhat::Digest,
        (None, None, false) => {
            return Err(Failure::usage(
                "nothing to graft was specified",
                "give --artifact NAME, --digest or --rounds A..B",
            ));
        }
    };
    let (session, source) = (app.session(&session).await?, app.session(&from).await?);
    let view = app.engine.grafts().add(&app.scope, &session, &source, what).await?;
    print_graft(app, &view)
}

fn parse_rounds(text: &str) -> Result<GraftWhat> {
    let wrong = || Failure::usage(format!("{text:?} is not a range of rounds"), "write rounds as 3..5, or 3");
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim().trim_start_matches('=').parse::<u32>().map_err(|_| wrong());
    Ok(GraftWhat::Rounds { first: number(first)?, last: number(last)? })
}

async fn list(app: &mut App, given: &str) -> Result<()> {
    let session = app.session_to_read(given).await?;
    let grafts = app.engine.grafts().list(&app.scope, &session).await?;
    if grafts.is_empty() {
        note(app.format(), "this session has no grafts");
    }
    grafts.iter().try_for_each(|view| print_graft(app, view))
}

fn print_graft(app: &mut App, view: &GraftView) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(view);
    }
    let what = match &view.graft.what {
        GraftWhat::Artifact { name } => format!("artifact {}", clean(name)),
        GraftWhat::Digest => "digest".to_owned(),
        GraftWhat::Rounds { first, last } => format!("rounds {first} to {last}"),
    };
    let state = match view.state {
        GraftState::Readable => "",
        GraftState::Withheld => " (withheld)",
    };
    Ok(writeln!(app.out, "{} {what} from {}{DIM}{state}{DIM:#}", view.seq, view.graft.source)?)
}

async fn get(app: &mut App, session: &str, entry: &str, output: Option<PathBuf>) -> Result<()> {
    let session = app.session_to_read(session).await?;
    let seq = app.engine.directory().find_entry(&app.scope, &session, entry).await?.meta.seq;
    let (view, grafted) = app.engine.grafts().read(&app.scope, &session, seq).await?;
    app.note_read(&view.graft.source).await?;
    if let Some(path) = output {
        let Some(content) = &grafted.artifact else {
            return Err(Failure::usage("--output works only for artifacts", "omit --output"));
        };
        let mut reader = app.engine.views().open_blob(&app.scope, content.blob).await?;
        let failed = |error| Failure::file(&path, &error);
        // Read the first chunk before creating the file, so that a failed read leaves an existing file unchanged.
        let first = reader.next().await?;
        let mut file = std::fs::File::create(&path).map_err(failed)?;
        file.write_all(&first.unwrap_or_default()).map_err(failed)?;
        while let Some(bytes) = reader.next().await? {
            file.write_all(&bytes).map_err(failed)?;
        }
        return Ok(());
    }
    if app.out.is_json() {
        let mut value = serde_json::to_value(&view).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.insert("text".to_owned(), json!(grafted.text));
            fields.insert("content".to_owned(), json!(grafted.artifact));
        }
        return app.out.json(&value);
    }
    Ok(writeln!(app.out, "{}", clean(&grafted.text))?)
}

async fn digest(app: &mut App, given: &str) -> Result<()> {
    let source = app.session_to_read(given).await?;
    for round in app.engine.grafts().digest(&app.scope, &source).await? {
        if app.out.is_json() {
            app.out.json(&round)?;
        } else {
            writeln!(app.out, "{}", clean(&digest_line(&round)))?;
        }
    }
    Ok(())
}
