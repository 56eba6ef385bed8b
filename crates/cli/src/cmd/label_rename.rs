//! `sapwood label` and `sapwood rename`: what entries and sessions are called.

use clap::Args;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

/// Name an entry, or take its name away
#[derive(Debug, Args)]
pub struct LabelArgs {
    session: String,
    entry: String,
    /// The name; without it the entry's name is taken away
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
}

pub async fn label(app: &mut App, args: LabelArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let target = app.engine.find_entry(&app.scope, &session, &args.entry).await?.meta;
    let text = match &args.text {
        Some(text) => format!("entry {} is now called {:?}", target.seq, text.trim()),
        None => format!("entry {} has no name now", target.seq),
    };
    let appended = app.engine.label(&app.scope, &session, target.id, args.text).await?;
    print_change(app, &appended, &text)
}

/// Give a session a title
#[derive(Debug, Args)]
pub struct RenameArgs {
    session: String,
    #[arg(allow_hyphen_values = true)]
    title: String,
}

pub async fn rename(app: &mut App, args: RenameArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let appended = app.engine.rename(&app.scope, &session, &args.title).await?;
    print_change(app, &appended, &format!("{session} is now called {:?}", args.title.trim()))
}
