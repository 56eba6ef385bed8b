//! `sapwood trigger`: lists triggers with their next and last firings, and fires them manually.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::SystemClock;
use sapwood::core::port::clock::Clock;
use sapwood::core::trigger::TriggerState;
use sapwood::engine::trigger::{Drained, InstalledTrigger, TriggerRunner};
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{Table, age, clean, local_time};
use crate::triggers;

/// List and fire triggers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood trigger ls
  sapwood trigger fire nightly-report")]
pub struct TriggerArgs {
    #[command(subcommand)]
    command: TriggerCommand,
}

#[derive(Debug, Subcommand)]
enum TriggerCommand {
    /// List triggers with their next and last firings
    ///
    /// `sapwood serve` runs the triggers.
    #[command(after_help = "\
Examples:
  sapwood trigger ls")]
    Ls,
    /// Fire a trigger now and wait for the result
    ///
    /// If a server runs the trigger, the command does not wait.
    #[command(after_help = "\
Examples:
  sapwood trigger fire nightly-report
  sapwood trigger fire deploy --payload '{\"branch\": \"main\"}' --key build-4711")]
    Fire {
        /// Trigger name
        name: String,
        /// JSON data for the trigger's prompt
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
        /// Idempotency key: a repeated key fires only once
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
}

pub async fn run(app: &mut App, args: TriggerArgs) -> Result<()> {
    match args.command {
        TriggerCommand::Ls => list(app).await,
        TriggerCommand::Fire { name, payload, key } => fire(app, &name, payload, key).await,
    }
}

async fn list(app: &mut App) -> Result<()> {
    let now = SystemClock.now();
    let mut rows = Vec::new();
    for configured in triggers::read(app)? {
        let installed = configured.installed;
        let state = app.engine.triggers().state(&installed).await?;
        let next = installed.next_at(now);
        if app.out.is_json() {
            app.out.json(&json!({
                "name": installed.trigger.name, "kind": installed.source.name(), "what": installed.source.describe(),
                "next_at": next, "last": state.last, "waiting": state.waiting().count(),
                "running": state.running().count(), "log": installed.trigger.log_id(),
            }))?;
            continue;
        }
        let last = state
            .last
            .map_or("-".to_owned(), |last| format!("{} ago: {}", age(last.at.0, now.0), last.outcome));
        rows.push(vec![
            installed.trigger.name.clone(),
            installed.source.name().to_owned(),
            next.map_or("-".to_owned(), |next| local_time(next.0)),
            clean(&last).into_owned(),
            clean(&installed.source.describe()).into_owned(),
        ]);
    }
    if app.out.is_json() {
        return Ok(());
    }
    let head = ["TRIGGER", "KIND", "NEXT", "LAST", "WHAT"];
    Table { head: &head, rows, flexible: 4 }.print(&mut app.out)
}

async fn fire(app: &mut App, name: &str, payload: Option<String>, key: Option<String>) -> Result<()> {
    app.open_backends()?;
    let payload: Value = match payload {
        Some(text) => serde_json::from_str(&text).map_err(|error| {
            Failure::usage(
                format!("--payload is not valid JSON: {error}"),
                "write it as --payload '{\"branch\": \"main\"}'",
            )
        })?,
        None => Value::Null,
    };
    let found = triggers::read(app)?.into_iter().find(|configured| configured.installed.trigger.name == name);
    let unknown = || Failure::new("trigger.not_found", format!("no trigger `{name}`"));
    let installed = found.ok_or_else(unknown)?.installed;
    let firing = app.engine.triggers().fire_installed(&installed, key.as_deref(), payload).await?;
    let runner = TriggerRunner::new(&app.engine, installed.clone()).await?;
    match Box::pin(runner.drain()).await? {
        Drained::Elsewhere => print_firing(app, &installed, firing.0, "a server has it", None),
        Drained::Done(state) => {
            let (outcome, session) = outcome_of(&state, firing);
            print_firing(app, &installed, firing.0, &outcome, session)
        }
    }
}

/// Returns the outcome and session of this firing, or only `done` if a later firing ended after it.
fn outcome_of(state: &TriggerState, firing: sapwood::Seq) -> (String, Option<String>) {
    match state.last.as_ref().filter(|last| last.firing == firing) {
        Some(last) => (last.outcome.clone(), last.session.as_ref().map(ToString::to_string)),
        None => ("done".to_owned(), None),
    }
}

fn print_firing(
    app: &mut App,
    installed: &InstalledTrigger,
    firing: u32,
    outcome: &str,
    session: Option<String>,
) -> Result<()> {
    let name = &installed.trigger.name;
    if app.out.is_json() {
        return app
            .out
            .json(&json!({ "trigger": name, "firing": firing, "outcome": outcome, "session": session }));
    }
    let location = session.map(|session| format!(" in session {session}")).unwrap_or_default();
    Ok(writeln!(app.out, "{name} fired: {}{location}", clean(outcome))?)
}
