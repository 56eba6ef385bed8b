//! `sapwood flow`: runs a flow of roles, and shows, resumes and cancels runs.

mod draw;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use sapwood::core::Agent;
use sapwood::core::flow::{Flow, RunOutcome};
use sapwood::core::port::clock::Clock;
use sapwood::core::project::feed::Feed;
use sapwood::engine::flow::{FlowReport, Mirror, RUN_PREFIX, RunView, RunningFlow, StartFlow};
use sapwood::flow::{RoleFiles, load_flow_with};
use sapwood::{Seq, SessionId};
use serde_json::json;

use super::session_options::pair_of;
use crate::app::App;
use crate::chat::outcome::approval_instructions;
use crate::failure::{Failure, Result};
use crate::number_arg::rows;
use crate::render::{DIM, Table, age, clean, fit, note};

/// Default number of rows in a list.
const ROWS_DEFAULT: u32 = 50;

/// Run flows of roles that pass work to each other
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood flow check flow.yaml
  sapwood flow run flow.yaml --input \"the harbour\"")]
pub struct FlowArgs {
    #[command(subcommand)]
    command: FlowCommand,
}

#[derive(Debug, Subcommand)]
enum FlowCommand {
    /// Run a flow from a file
    ///
    /// `sapwood export --format workflow` writes such a file.
    #[command(after_help = "\
Examples:
  sapwood flow run flow.yaml --input \"the harbour\"
  sapwood flow run flow.yaml --id harbour --mirror roles --var project=sapwood")]
    Run(RunArgs),
    /// Check a flow file and report every mistake
    #[command(after_help = "\
Examples:
  sapwood flow check flow.yaml
  sapwood flow check flow.yaml --var project=sapwood")]
    Check {
        /// Flow file
        file: PathBuf,
        /// Value of {{ctx.NAME}} in prompts; repeatable
        #[arg(long = "var", value_name = "NAME=VALUE")]
        variables: Vec<String>,
    },
    /// Show a run's graph and the status of each node
    #[command(after_help = "\
Examples:
  sapwood flow show flow-harbour")]
    Show {
        /// Run id, unique prefix, or @last
        run: String,
    },
    /// List runs, newest first
    #[command(after_help = "\
Examples:
  sapwood flow ls --limit 10")]
    Ls {
        /// Maximum number of runs
        #[arg(long, value_name = "N", value_parser = rows, default_value_t = ROWS_DEFAULT)]
        limit: u32,
    },
    /// Resume a run that was interrupted, is waiting, or failed
    #[command(after_help = "\
Examples:
  sapwood flow resume flow-harbour")]
    Resume {
        /// Run id, unique prefix, or @last
        run: String,
        /// Write each role's transcript.json and feed.json under this directory
        #[arg(long, value_name = "DIR")]
        mirror: Option<PathBuf>,
    },
    /// Cancel a run, even if another process is running it
    #[command(after_help = "\
Examples:
  sapwood flow cancel flow-harbour")]
    Cancel {
        /// Run id, unique prefix, or @last
        run: String,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Flow file
    file: PathBuf,
    /// Input text for the flow
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    input: String,
    /// Run id; default: generated
    #[arg(long)]
    id: Option<String>,
    /// Write each role's transcript.json and feed.json under this directory
    #[arg(long, value_name = "DIR")]
    mirror: Option<PathBuf>,
    /// Run the improvement pass after the forward pass
    #[arg(long)]
    improve: bool,
    /// Value of {{ctx.NAME}} in prompts, stored as plain text; repeatable, overrides the flow file
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Working directory of the roles; default: the current directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

pub async fn run(app: &mut App, args: FlowArgs) -> Result<()> {
    match args.command {
        FlowCommand::Run(args) => start(app, args).await,
        FlowCommand::Check { file, variables } => check(app, &file, &variables),
        FlowCommand::Show { run } => {
            let run = app.engine.flows().find(&app.scope, &run).await?;
            let view = app.engine.flows().show(&app.scope, &run).await?;
            show(app, &view)
        }
        FlowCommand::Ls { limit } => list(app, limit as usize).await,
        FlowCommand::Resume { run, mirror } => resume(app, &run, mirror).await,
        FlowCommand::Cancel { run } => cancel(app, &run).await,
    }
}

async fn start(app: &mut App, args: RunArgs) -> Result<()> {
    app.open_backends()?;
    let flow = load(app, &args.file, &args.variables)?;
    let cwd = Some(super::new::directory(args.cwd)?);
    let id = args.id.map(|id| if id.starts_with(RUN_PREFIX) { id } else { format!("{RUN_PREFIX}{id}") });
    let run = id.map(|id| id.parse()).transpose().map_err(sapwood::Error::from)?;
    let mirror = args.mirror.map(|dir| super::new::directory(Some(dir))).transpose()?;
    let start = StartFlow { flow, input: args.input, run, improve: args.improve, cwd, mirror };
    let running = app.engine.flows().start(&app.scope, start).await?;
    let mirror = mirror_of(app, &running.run, None).await?;
    deliver(app, running, mirror, Seq::ZERO).await
}

fn check(app: &mut App, file: &std::path::Path, variables: &[String]) -> Result<()> {
    let flow = load(app, file, variables)?;
    if app.out.is_json() {
        return app
            .out
            .json(&json!({ "flow": flow.id, "nodes": flow.nodes.len(), "edges": flow.edges.len() }));
    }
    Ok(writeln!(
        app.out,
        "{} is valid: {} nodes, {} edges",
        clean(&flow.id),
        flow.nodes.len(),
        flow.edges.len()
    )?)
}

/// Loads a flow and resolves its agents from the project and the user.
fn load(app: &App, file: &std::path::Path, variables: &[String]) -> Result<Flow> {
    let agents = app.paths.agents();
    let find_agent = |name: &str| agents.choose(Some(name), &app.paths.config).ok();
    let failed = |error: sapwood::flow::FlowFileError| Failure::new(error.code(), error.to_string());
    let variables = variables.iter().map(|given| pair_of(given)).collect::<Result<_>>()?;
    let mut flow = load_flow_with(file, variables, find_agent).map_err(failed)?;
    // Agents without a model use the configured model, as in other commands.
    let model = app.paths.config.model.clone();
    let fill = |agent: &mut Agent| agent.model = agent.model.take().or_else(|| model.clone());
    flow.agents.values_mut().for_each(fill);
    Ok(flow)
}

/// Starts writing the role files to the given directory, or else to the directory stored in the run, if any.
async fn mirror_of(app: &App, run: &SessionId, given: Option<PathBuf>) -> Result<Option<Mirror>> {
    let stored = app.engine.flows().show(&app.scope, run).await?.mirror.map(PathBuf::from);
    let dir = given.or(stored);
    Ok(dir.map(|dir| app.engine.flows().mirror(&app.scope, run, Arc::new(RoleFiles::in_dir(dir)))))
}

async fn resume(app: &mut App, given: &str, mirror: Option<PathBuf>) -> Result<()> {
    app.open_backends()?;
    let run = app.engine.flows().find(&app.scope, given).await?;
    match app.engine.flows().resume(&app.scope, &run).await? {
        Some(running) => {
            let mirror = mirror_of(app, &run, mirror).await?;
            deliver(app, running, mirror, Seq::ZERO).await
        }
        None => {
            note(app.format(), "nothing to resume: the run has ended");
            let view = app.engine.flows().show(&app.scope, &run).await?;
            show(app, &view)
        }
    }
}

/// Continues a run after a pending approval of one of its roles was answered. Prints only what happened after `after`.
pub async fn continue_run(app: &mut App, running: RunningFlow, after: Seq) -> Result<()> {
    let mirror = mirror_of(app, &running.run, None).await?;
    deliver(app, running, mirror, after).await
}

async fn cancel(app: &mut App, given: &str) -> Result<()> {
    app.open_backends()?;
    let run = app.engine.flows().find(&app.scope, given).await?;
    if let Some(running) = app.engine.flows().cancel(&app.scope, &run).await? {
        running.ended().await?;
    }
    if app.out.is_json() {
        return app.out.json(&json!({ "run": run, "cancelled": true }));
    }
    Ok(writeln!(app.out, "cancelled")?)
}

/// Prints progress until the run ends or waits, then the state of the run.
async fn deliver(app: &mut App, running: RunningFlow, mirror: Option<Mirror>, after: Seq) -> Result<()> {
    let run = running.run.clone();
    note(app.format(), &format!("run {run}"));
    let report = watch(app, running, after).await;
    if let Some(mirror) = mirror {
        mirror.finish().await;
    }
    let report = report?;
    let view = app.engine.flows().show(&app.scope, &run).await?;
    show(app, &view)?;
    app.out.flush()?;
    outcome_of(&report)
}

/// Prints the feed of a run. Folds the feed from the start, but prints only the items after `after`.
async fn watch(app: &App, running: RunningFlow, after: Seq) -> Result<FlowReport> {
    let mut follower = app.engine.events().follow(&app.scope, &running.run, Seq::ZERO).await?;
    let mut feed = Feed::default();
    let ended = running.ended();
    tokio::pin!(ended);
    loop {
        tokio::select! {
            record = follower.next() => {
                let Ok(entry) = record?.into_entry() else { continue };
                feed.apply(&entry);
                for item in feed.news().filter(|item| entry.meta.seq > after && !item.is_state_change()) {
                    note(app.format(), &fit(&format!("{}: {}", item.label, item.text), 110));
                }
            }
            report = &mut ended => return Ok(report?),
        }
    }
}

fn outcome_of(report: &FlowReport) -> Result<()> {
    let Some(ended) = &report.ended else { return Ok(()) };
    let message = || ended.message.clone().unwrap_or_else(|| "the run failed".to_owned());
    match ended.outcome {
        RunOutcome::Completed => Ok(()),
        RunOutcome::Cancelled => Err(Failure::new("flow.cancelled", "the run was cancelled")),
        RunOutcome::Failed => {
            let code = ended.code.clone().unwrap_or_else(|| "flow.failed".to_owned());
            let hint = format!("run `sapwood flow resume {}` to retry the failed roles", report.run);
            Err(Failure {
                exit: crate::failure::Exit::Failed,
                ..Failure::new(code, message()).with_hint(hint)
            })
        }
    }
}

fn show(app: &mut App, view: &RunView) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(view);
    }
    draw::draw(view, &mut app.out)?;
    for pending in &view.approvals {
        note(app.format(), &approval_instructions(pending));
    }
    Ok(())
}

async fn list(app: &mut App, limit: usize) -> Result<()> {
    let list = app.engine.flows().list(&app.scope, limit, None).await?;
    if app.out.is_json() {
        return list.items.iter().try_for_each(|row| app.out.json(row));
    }
    if list.items.is_empty() {
        return Ok(writeln!(app.out, "{DIM}no runs yet; start one with `sapwood flow run FILE`{DIM:#}")?);
    }
    let now = sapwood::SystemClock.now().0;
    let rows = list.items.iter().map(|row| {
        let done = format!("{}/{}", row.done, row.nodes);
        let (status, age) = (row.status.as_str().to_owned(), age(row.updated_at.0, now));
        vec![row.run.to_string(), row.name.clone(), status, done, age]
    });
    Table { head: &["RUN", "FLOW", "STATUS", "DONE", "AGE"], rows: rows.collect(), flexible: 1 }
        .print(&mut app.out)
}
