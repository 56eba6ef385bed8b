//! `sapwood feed`: a session's activity for an operator.

use std::io::Write;

use clap::Args;
use sapwood::core::project::feed::{Feed, FeedItem, FeedType};
use sapwood::core::{Entry, Record};
use sapwood::{Seq, SessionId};

use super::events::end_on_interrupt;
use crate::app::App;
use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, Out, RED, YELLOW, fit};

/// Show a session's activity feed
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood feed @last
  sapwood feed @last --follow")]
pub struct FeedArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Keep printing changes until Ctrl-C; an item with a known id replaces the earlier one
    #[arg(long, short)]
    follow: bool,
}

pub async fn run(app: &mut App, args: FeedArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    if args.follow {
        return follow(app, &session).await;
    }
    let items = app.engine.views().feed(&app.scope, &session).await?;
    items.iter().try_for_each(|item| print_item(&mut app.out, item))
}

/// Prints the current items, then every change. A single reader reads both, so no item is missed or repeated.
async fn follow(app: &mut App, session: &SessionId) -> Result<()> {
    end_on_interrupt()?;
    let mut follower = app.engine.events().follow(&app.scope, session, Seq::ZERO).await?;
    let mut feed = Feed::default();
    while let Some(record) = follower.try_next().await? {
        feed.apply(&entry_of(session, record)?);
    }
    feed.items.iter().try_for_each(|item| print_item(&mut app.out, item))?;
    loop {
        app.out.flush()?;
        feed.apply(&entry_of(session, follower.next().await?)?);
        // The printed line does not show the state of an approval or of queued input.
        let is_shown = |item: &&FeedItem| app.out.is_json() || !item.is_state_change();
        let news: Vec<&FeedItem> = feed.news().filter(is_shown).collect();
        news.into_iter().try_for_each(|item| print_item(&mut app.out, item))?;
    }
}

fn entry_of(session: &SessionId, record: Record) -> Result<Entry> {
    let unreadable = |source| sapwood::Error::Unreadable { session: session.clone(), source };
    Ok(record.into_entry().map_err(unreadable)?)
}

fn print_item(out: &mut Out, item: &FeedItem) -> Result<()> {
    if out.is_json() {
        return out.json(item);
    }
    let style = style_of(item.kind);
    let text = fit(&item.text, out.width().saturating_sub(24).max(20));
    Ok(writeln!(out, "{DIM}{:>6}{DIM:#}  {style}{}{style:#}  {text}", item.id, fit(&item.label, 40))?)
}

fn style_of(kind: FeedType) -> anstyle::Style {
    match kind {
        FeedType::User => GREEN,
        FeedType::Assistant => CYAN,
        FeedType::Error | FeedType::ToolError => RED,
        FeedType::Tool | FeedType::ToolSuccess | FeedType::Pressure | FeedType::Repair => YELLOW,
        FeedType::Waiting | FeedType::Resume | FeedType::Handoff => BOLD,
        FeedType::Event | FeedType::Activation | FeedType::Reasoning => DIM,
    }
}
