//! `sapwood store`: shows the version of a store and upgrades its log format.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::core::port::store::StoreStatus;
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{clean, plural};

/// Show the store's version, or upgrade it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood store show
  sapwood store upgrade")]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Show the kind, the layout and the log format of the store, and whether an upgrade is pending
    #[command(after_help = "\
Examples:
  sapwood store show
  sapwood --store postgres://me@db.example/sapwood store show --json")]
    Show,
    /// Write the newest log format from now on
    ///
    /// A PostgreSQL database keeps the format of the previous version until this command runs, so that servers can be
    /// replaced one by one. Run it once, when all servers run the new version: servers of the previous version can no
    /// longer use the database, and only restoring a backup undoes it. SQLite and JSONL stores are upgraded when they are
    /// opened.
    #[command(after_help = "\
Examples:
  sapwood backup before-upgrade.db
  sapwood store upgrade
  sapwood store upgrade --force")]
    Upgrade {
        /// Upgrade although servers of the previous version are connected
        #[arg(long)]
        force: bool,
    },
}

pub async fn run(app: &mut App, args: StoreArgs) -> Result<()> {
    match args.command {
        StoreCommand::Show => show(app).await,
        StoreCommand::Upgrade { force } => upgrade(app, force).await,
    }
}

async fn status(app: &App) -> Result<StoreStatus> {
    Ok(app.engine.store().status().await.map_err(sapwood::Error::from)?)
}

async fn show(app: &mut App) -> Result<()> {
    let status = status(app).await?;
    if app.out.is_json() {
        return app.out.json(&to_json(&status));
    }
    writeln!(app.out, "store:       {}", clean(&status.store))?;
    writeln!(app.out, "kind:        {}", status.kind)?;
    if let (Some(layout), Some(newest)) = (status.layout, status.layout_newest) {
        writeln!(app.out, "layout:      {layout} (newest {newest})")?;
    }
    writeln!(app.out, "log format:  {} (newest {})", status.log_format, status.log_format_newest)?;
    let upgrade = match status.is_upgrade_pending() {
        true => "pending: run `sapwood store upgrade` when all servers run this version",
        false => "none pending",
    };
    writeln!(app.out, "upgrade:     {upgrade}")?;
    if status.older_connections > 0 {
        let count = plural(u64::from(status.older_connections), "connection");
        writeln!(app.out, "in use by:   {count} of the previous version")?;
    }
    Ok(())
}

fn to_json(status: &StoreStatus) -> Value {
    let mut value = json!(status);
    value["upgrade_pending"] = status.is_upgrade_pending().into();
    value
}

async fn upgrade(app: &mut App, force: bool) -> Result<()> {
    let before = status(app).await?;
    if !before.is_upgrade_pending() {
        return report(app, &before, &before);
    }
    if before.older_connections > 0 && !force {
        let count = plural(u64::from(before.older_connections), "connection");
        let message =
            format!("cannot upgrade the store: {count} of servers of the previous version are open");
        let hint = "stop these servers or update them to this version, then retry; --force upgrades anyway";
        return Err(Failure::new("store.in_use", message).with_hint(hint));
    }
    app.engine.store().upgrade().await.map_err(|error| refused(error.into()))?;
    let after = status(app).await?;
    report(app, &before, &after)
}

/// A failed upgrade changed nothing. The usual reason is a database user that does not own the tables.
fn refused(error: sapwood::Error) -> Failure {
    let hint = match error.code() {
        "store.backend" => Some("use the URL of the database user that owns the tables; nothing was changed"),
        "store.read_only" => Some("upgrade the primary server of the database; nothing was changed"),
        _ => None,
    };
    let failure = Failure::from(error);
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn report(app: &mut App, before: &StoreStatus, after: &StoreStatus) -> Result<()> {
    let is_changed = before != after;
    if app.out.is_json() {
        return app.out.json(&json!({
            "upgraded": is_changed, "before": to_json(before), "after": to_json(after),
        }));
    }
    let place = clean(&after.store);
    if !is_changed {
        writeln!(app.out, "{place} is up to date (log format {})", after.log_format)?;
        return Ok(());
    }
    let changed = |name: &str, before: u32, after: u32| format!("{name} {before} → {after}");
    let mut changes = vec![changed("log format", before.log_format, after.log_format)];
    if let (Some(before), Some(after)) = (before.layout, after.layout) {
        changes.push(changed("layout", before, after));
    }
    writeln!(app.out, "upgraded {place}: {}", changes.join(", "))?;
    writeln!(
        app.out,
        "Servers of the previous version can no longer use it. Existing entries were not rewritten."
    )?;
    Ok(())
}
