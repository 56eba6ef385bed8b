//! `sapwood archives`: the compactions of a session and their summaries.

use std::io::Write;

use clap::Args;
use sapwood::engine::views::Archive;

use crate::app::App;
use crate::failure::Result;
use crate::render::{BOLD, DIM, Out, clean, local_time, plural};

/// List a session's compactions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood archives @last
  sapwood archives @last --json")]
pub struct ArchivesArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: ArchivesArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    for archive in app.engine.views().archives(&app.scope, &session).await? {
        if app.out.is_json() {
            app.out.json(&archive)?;
        } else {
            print_archive(&mut app.out, &archive)?;
        }
    }
    Ok(())
}

fn print_archive(out: &mut Out, archive: &Archive) -> Result<()> {
    let tokens = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
    let compaction = &archive.compaction;
    let strategy = serde_json::to_value(compaction.strategy).unwrap_or_default();
    let messages = compaction.archived.map(|count| format!(" · {}", plural(u64::from(count), "message")));
    let branch = if archive.on_path { "" } else { " · on another branch" };
    writeln!(
        out,
        "{BOLD}{}{BOLD:#} {DIM}{} · {} · {} → {} tokens{}{branch}{DIM:#}",
        archive.seq,
        local_time(archive.at.0),
        strategy.as_str().unwrap_or_default(),
        tokens(compaction.tokens_before),
        tokens(compaction.tokens_after),
        messages.unwrap_or_default(),
    )?;
    match &compaction.summary {
        Some(summary) => writeln!(out, "{}", clean(summary))?,
        None => writeln!(out, "{DIM}(no summary){DIM:#}")?,
    }
    Ok(())
}
