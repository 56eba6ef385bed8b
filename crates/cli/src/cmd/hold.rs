//! `sapwood hold`: places, releases and lists legal holds.

use std::io::Write;

use clap::Args;
use sapwood::engine::personal_data::{HoldTarget, PlacedHold};
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::clean;

/// Protect a session or a user's data from erasure, or list what is protected
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood hold @last --reason \"case 17\"
  sapwood hold --user alice
  sapwood hold --user alice --release
  sapwood hold")]
pub struct HoldArgs {
    /// Session id, unique prefix, or @last; without a session and a user, list the holds
    session: Option<String>,
    /// Hold all sessions and memories of this user
    #[arg(long, conflicts_with = "session")]
    user: Option<String>,
    /// Why the data must be kept
    #[arg(long, conflicts_with = "release")]
    reason: Option<String>,
    /// Release the hold
    #[arg(long)]
    release: bool,
}

pub async fn run(app: &mut App, args: HoldArgs) -> Result<()> {
    let target = match (&args.session, &args.user) {
        (Some(session), _) => HoldTarget::Session(app.session(session).await?),
        (None, Some(user)) => HoldTarget::User(user.parse().map_err(sapwood::Error::from)?),
        (None, None) if args.release || args.reason.is_some() => {
            return Err(Failure::usage("no session or user was given", "name a session or add --user"));
        }
        (None, None) => return list(app).await,
    };
    if args.release {
        return release(app, &target).await;
    }
    let placed = app.engine.personal_data().place_hold(&app.scope, &target, args.reason).await?;
    if app.out.is_json() {
        return app.out.json(&placed);
    }
    Ok(writeln!(app.out, "hold placed on {target}")?)
}

async fn release(app: &mut App, target: &HoldTarget) -> Result<()> {
    if !app.engine.personal_data().release_hold(&app.scope, target).await? {
        return Err(Failure::new("hold.not_found", format!("there is no hold on {target}")));
    }
    if app.out.is_json() {
        return app.out.json(&json!({ "target": target.to_string(), "released": true }));
    }
    Ok(writeln!(app.out, "hold on {target} released")?)
}

async fn list(app: &mut App) -> Result<()> {
    let holds: Vec<PlacedHold> = app.engine.personal_data().holds(&app.scope).await?;
    for placed in &holds {
        if app.out.is_json() {
            app.out.json(placed)?;
            continue;
        }
        let reason = placed.hold.reason.as_deref().map(clean).unwrap_or_default();
        writeln!(app.out, "{}\t{}\t{reason}", placed.target, placed.hold.by)?;
    }
    if holds.is_empty() && !app.out.is_json() {
        writeln!(app.out, "no holds")?;
    }
    Ok(())
}
