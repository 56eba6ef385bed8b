//! `sapwood hook`: lists the installed hooks and runs them with sample events.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::core::port::hook::{HookName, Verdict};
use sapwood::engine::hook::HookDryRun;
use sapwood::{InstalledHook, SessionId};
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{DIM, GREEN, RED, Table, clean};

/// List and test hooks
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood hook ls
  sapwood hook test before_tool")]
pub struct HookArgs {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, Subcommand)]
enum HookCommand {
    /// List the hooks in call order
    #[command(after_help = "\
Examples:
  sapwood hook ls")]
    Ls,
    /// Call hooks with a sample event and ignore their answers
    #[command(after_help = "\
Examples:
  sapwood hook test before_tool
  sapwood hook test guard --event '{\"text\": \"hello\"}'")]
    Test {
        /// Event such as before_tool or after_turn, or the name of a hook
        name: String,
        /// Session of the event; default: an example id
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// Event data as a JSON object; default: a sample
        #[arg(long, value_name = "JSON")]
        event: Option<String>,
    },
}

pub async fn run(app: &mut App, args: HookArgs) -> Result<()> {
    match args.command {
        HookCommand::Ls => list(app),
        HookCommand::Test { name, session, event } => {
            let session = match session {
                Some(given) => app.session(&given).await?,
                None => "example".parse().map_err(sapwood::Error::from)?,
            };
            test(app, &name, &session, event).await
        }
    }
}

fn row_of(hook: &InstalledHook) -> Value {
    json!({
        "name": hook.name, "on": hook.on, "what": hook.hook.describe(), "priority": hook.priority,
        "timeout_ms": u64::try_from(hook.timeout.as_millis()).unwrap_or(u64::MAX),
        "on_failure": hook.on_failure.as_str(), "tools": hook.tools, "tenant": hook.installer.tenant,
    })
}

fn list(app: &mut App) -> Result<()> {
    let hooks = &app.engine.config().hooks;
    if app.out.is_json() {
        return hooks.iter().try_for_each(|hook| app.out.json(&row_of(hook)));
    }
    let rows = hooks.iter().map(|hook| {
        let on_failure = hook.on_failure.as_str().to_owned();
        let what = clean(&hook.hook.describe()).into_owned();
        vec![hook.on.to_string(), hook.priority.to_string(), hook.name.clone(), on_failure, what]
    });
    let head = ["ON", "PRIORITY", "HOOK", "ON FAILURE", "WHAT"];
    Table { head: &head, rows: rows.collect(), flexible: 4 }.print(&mut app.out)
}

async fn test(app: &mut App, name: &str, session: &SessionId, event: Option<String>) -> Result<()> {
    let given: Option<Value> = match event {
        Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
            Failure::usage(
                format!("--event is not valid JSON: {error}"),
                "give an object: --event '{\"text\": \"hello\"}'",
            )
        })?),
        None => None,
    };
    let all = &app.engine.config().hooks;
    let names: Vec<HookName> = match HookName::from_name(name) {
        Some(on) => vec![on],
        None => all.iter().filter(|hook| hook.name == name).map(|hook| hook.on).collect(),
    };
    if names.is_empty() {
        let message = format!("no hook and no hook event named `{name}`");
        return Err(Failure::new("hook.not_found", message));
    }
    for on in names {
        let data = given.clone().unwrap_or_else(|| on.sample());
        let results = app.engine.hooks().dry_run(on, &app.scope, session, data).await;
        results.iter().try_for_each(|result| print_result(app, on, result))?;
        if results.is_empty() && !app.out.is_json() {
            writeln!(app.out, "{on}: no hooks installed")?;
        }
    }
    Ok(())
}

fn print_result(app: &mut App, on: HookName, result: &HookDryRun) -> Result<()> {
    if app.out.is_json() {
        let mut line = serde_json::to_value(result).map_err(std::io::Error::from)?;
        line["on"] = json!(on);
        return app.out.json(&line);
    }
    let answer = match (&result.verdict, &result.failure) {
        (_, Some(failure)) => format!("fails: {failure}"),
        (Some(Verdict::GoOn) | None, None) => "allows".to_owned(),
        (Some(Verdict::Refuse { reason }), None) => format!("refuses: {reason}"),
        (Some(Verdict::Change { data }), None) => format!("changes: {data}"),
        (Some(Verdict::Supply { data }), None) => format!("supplies: {data}"),
    };
    let (mark, colour) = if result.goes_on { ("✓", GREEN) } else { ("✗", RED) };
    writeln!(
        app.out,
        "{colour}{mark}{colour:#} {on} {} {} {DIM}{} ms{DIM:#}",
        result.by,
        clean(&answer),
        result.took_ms
    )?;
    for action in &result.actions {
        let action = serde_json::to_string(action).map_err(std::io::Error::from)?;
        writeln!(app.out, "    would run the action {}", clean(&action))?;
    }
    Ok(())
}
