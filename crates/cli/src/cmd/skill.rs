//! `sapwood skill`: lists skills, and activates or deactivates them in a session.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::engine::skill::Switch;
use serde_json::json;

use crate::app::App;
use crate::failure::Result;
use crate::render::{DIM, Table, clean, note};

/// List skills and activate them in a session
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood skill ls
  sapwood skill on @last code-review")]
pub struct SkillArgs {
    #[command(subcommand)]
    command: SkillCommand,
}

#[derive(Debug, Subcommand)]
enum SkillCommand {
    /// List the project's skills and your own
    #[command(after_help = "\
Examples:
  sapwood skill ls
  sapwood skill ls --session @last")]
    Ls {
        /// Show which skills are active in this session
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
    },
    /// Activate a skill in a session
    #[command(after_help = "\
Examples:
  sapwood skill on @last code-review")]
    On {
        /// Session id, unique prefix, or @last
        session: String,
        /// Skill name
        name: String,
    },
    /// Deactivate a skill in a session
    #[command(after_help = "\
Examples:
  sapwood skill off @last code-review")]
    Off {
        /// Session id, unique prefix, or @last
        session: String,
        /// Skill name
        name: String,
    },
}

pub async fn run(app: &mut App, args: SkillArgs) -> Result<()> {
    match args.command {
        SkillCommand::Ls { session } => list(app, session).await,
        SkillCommand::On { session, name } => switch(app, &session, &name, Switch::On).await,
        SkillCommand::Off { session, name } => switch(app, &session, &name, Switch::Off).await,
    }
}

async fn list(app: &mut App, session: Option<String>) -> Result<()> {
    let active = match session {
        Some(given) => {
            let session = app.session(&given).await?;
            app.engine.skills().active(&app.scope, &session).await?
        }
        None => Vec::new(),
    };
    let listing = app.engine.skills().list().await;
    for fault in &listing.faults {
        note(app.format(), &format!("skipped {}: {}", fault.place, fault.why));
    }
    let is_active = |name: &String| active.contains(name);
    if app.out.is_json() {
        for card in &listing.cards {
            let mut line = serde_json::to_value(card).map_err(std::io::Error::from)?;
            line["active"] = json!(is_active(&card.name));
            app.out.json(&line)?;
        }
        return listing.faults.iter().try_for_each(|fault| app.out.json(&json!({"fault": fault})));
    }
    let rows = listing.cards.iter().map(|card| {
        let mark = if is_active(&card.name) { "active" } else { "-" };
        vec![card.name.clone(), mark.to_owned(), clean(&card.description).into_owned()]
    });
    Table { head: &["SKILL", "STATE", "ABOUT"], rows: rows.collect(), flexible: 2 }.print(&mut app.out)
}

async fn switch(app: &mut App, session: &str, name: &str, switch: Switch) -> Result<()> {
    let session = app.session(session).await?;
    app.engine.skills().switch(&app.scope, &session, name, switch).await?;
    let active = app.engine.skills().active(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "session": session, "active": active }));
    }
    let active = if active.is_empty() { "none".to_owned() } else { active.join(", ") };
    Ok(writeln!(app.out, "active skills {DIM}in {session}:{DIM:#} {}", clean(&active))?)
}
