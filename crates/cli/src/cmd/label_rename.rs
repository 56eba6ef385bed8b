//! `sapwood label` and `sapwood rename`: labels of entries and titles of sessions.

use clap::Args;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

/// Label an entry, or remove its label
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood label @last 12 before-refactoring
  sapwood label @last before-refactoring")]
pub struct LabelArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Entry: seq, id, unique prefix, or label
    entry: String,
    /// New label; omit it to remove the label
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
}

pub async fn label(app: &mut App, args: LabelArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let target = app.engine.directory().find_entry(&app.scope, &session, &args.entry).await?.meta;
    let text = match &args.text {
        Some(text) => format!("entry {} is now labelled {:?}", target.seq, text.trim()),
        None => format!("removed the label of entry {}", target.seq),
    };
    let appended = app.engine.edits().label(&app.scope, &session, target.id, args.text).await?;
    print_change(app, &appended, &text)
}

/// Set a session's title
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood rename @last \"Cache investigation\"")]
pub struct RenameArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// New title
    #[arg(allow_hyphen_values = true)]
    title: String,
}

pub async fn rename(app: &mut App, args: RenameArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let appended = app.engine.sessions().rename(&app.scope, &session, &args.title).await?;
    print_change(app, &appended, &format!("{session} is now titled {:?}", args.title.trim()))
}
