//! `sapwood graft`: another session's deliverables, brought in by reference.

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

/// Bring an artifact, a digest or some rounds of another session in
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GraftArgs {
    #[command(subcommand)]
    verb: Option<GraftVerb>,
    /// The session that gets it
    session: Option<String>,
    /// The session it comes from
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// Something the source delivered
    #[arg(long, value_name = "NAME")]
    artifact: Option<String>,
    /// A line per round with its artifacts
    #[arg(long, conflicts_with = "artifact")]
    digest: bool,
    /// Rounds in full: 3..5, or 3
    #[arg(long, value_name = "A..B", conflicts_with_all = ["artifact", "digest"])]
    rounds: Option<String>,
}

#[derive(Debug, Subcommand)]
enum GraftVerb {
    /// List what was grafted into a session, and whether you may read it
    Ls { session: String },
    /// Print what a graft refers to
    Get {
        session: String,
        /// The graft's entry
        entry: String,
        /// Write an artifact's bytes to this file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// What could be grafted from a session: a line per round with its artifacts
    Digest { source: String },
}

pub async fn run(app: &mut App, args: GraftArgs) -> Result<()> {
    match args.verb {
        Some(GraftVerb::Ls { session }) => list(app, &session).await,
        Some(GraftVerb::Get { session, entry, output }) => get(app, &session, &entry, output).await,
        Some(GraftVerb::Digest { source }) => digest(app, &source).await,
        None => make(app, args).await,
    }
}

async fn make(app: &mut App, args: GraftArgs) -> Result<()> {
    let missing = || Failure::usage("a session and --from SOURCE are needed", "sapwood help graft shows how");
    let (session, from) = args.session.zip(args.from).ok_or_else(missing)?;
    let what = match (args.artifact, args.rounds, args.digest) {
        (Some(name), _, _) => GraftWhat::Artifact { name },
        (None, Some(rounds), _) => parse_rounds(&rounds)?,
        (None, None, true) => GraftWhat::Digest,
        (None, None, false) => {
            return Err(Failure::usage(
                "it is not said what to graft",
                "give --artifact NAME, --digest or --rounds A..B",
            ));
        }
    };
    let (session, source) = (app.session(&session).await?, app.session(&from).await?);
    let view = app.engine.graft(&app.scope, &session, &source, what).await?;
    print_graft(app, &view)
}

fn parse_rounds(text: &str) -> Result<GraftWhat> {
    let wrong = || Failure::usage(format!("{text:?} is not A..B"), "rounds are numbers such as 3..5, or 3");
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim().trim_start_matches('=').parse::<u32>().map_err(|_| wrong());
    Ok(GraftWhat::Rounds { first: number(first)?, last: number(last)? })
}

async fn list(app: &mut App, given: &str) -> Result<()> {
    let session = app.session_to_read(given).await?;
    let grafts = app.engine.grafts(&app.scope, &session).await?;
    if grafts.is_empty() {
        note(app.format(), "nothing was grafted into this session");
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
    Ok(writeln!(app.out, "{} {what} of {}{DIM}{state}{DIM:#}", view.seq, view.graft.source)?)
}

async fn get(app: &mut App, session: &str, entry: &str, output: Option<PathBuf>) -> Result<()> {
    let session = app.session_to_read(session).await?;
    let seq = app.engine.find_entry(&app.scope, &session, entry).await?.meta.seq;
    let (view, grafted) = app.engine.read_graft(&app.scope, &session, seq).await?;
    app.note_read(&view.graft.source).await?;
    if let Some(path) = output {
        let Some(content) = &grafted.artifact else {
            return Err(Failure::usage("only an artifact has bytes to write", "leave --output out"));
        };
        let mut reader = app.engine.open_blob(&app.scope, content.blob).await?;
        let failed = |error| Failure::file(&path, &error);
        // A file that is there already stays as it is if nothing can be read.
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
    for round in app.engine.digest(&app.scope, &source).await? {
        if app.out.is_json() {
            app.out.json(&round)?;
        } else {
            writeln!(app.out, "{}", clean(&digest_line(&round)))?;
        }
    }
    Ok(())
}
