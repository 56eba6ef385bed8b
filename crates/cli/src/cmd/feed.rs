//! `sapwood feed`: what an operator watches.

use std::io::Write;

use clap::Args;
use sapwood::core::project::feed::FeedType;

use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, fit};
use crate::wiring::App;

/// Show the feed an operator watches
#[derive(Debug, Args)]
pub struct FeedArgs {
    session: String,
}

pub async fn run(app: &mut App, args: FeedArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    for item in app.engine.feed(&app.scope, &session).await? {
        if app.out.is_json() {
            app.out.json(&item)?;
            continue;
        }
        let style = style_of(item.kind);
        let text = fit(&item.text, app.out.width().saturating_sub(24).max(20));
        writeln!(app.out, "{DIM}{:>6}{DIM:#}  {style}{}{style:#}  {text}", item.id, fit(&item.label, 40))?;
    }
    Ok(())
}

fn style_of(kind: FeedType) -> anstyle::Style {
    match kind {
        FeedType::User => GREEN,
        FeedType::Assistant => CYAN,
        FeedType::Error | FeedType::ToolError => RED,
        FeedType::Tool | FeedType::ToolSuccess => YELLOW,
        FeedType::Waiting | FeedType::Resume => BOLD,
        FeedType::Event | FeedType::Activation | FeedType::Reasoning => DIM,
    }
}
