//! `sapwood agent`: lists, shows and checks agent files, which needs no store, and adopts imported agents.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sapwood::store::DamagedLog;
use serde::Serialize;

use super::agent_adopt::{self, AdoptArgs};
use crate::agents::{self, AgentFault, Agents, name_of};
use crate::app::App;
use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::render::{DIM, GREEN, Out, RED, Table, clean, plural};

/// List, show and check agents
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood agent ls
  sapwood agent check")]
pub struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// List the project's agents and your own
    #[command(after_help = "\
Examples:
  sapwood agent ls")]
    Ls,
    /// Show an agent's definition, with the defaults of omitted fields
    #[command(after_help = "\
Examples:
  sapwood agent show default
  sapwood agent show reviewer --json")]
    Show {
        /// Agent name
        name: String,
    },
    /// Check agent files and report every mistake with its location
    #[command(after_help = "\
Examples:
  sapwood agent check
  sapwood agent check agents/reviewer.yaml")]
    Check {
        /// Agent files; default: all agents that can be found
        files: Vec<PathBuf>,
    },
    Adopt(AdoptArgs),
}

pub async fn run(args: AgentArgs, global: &Global) -> Result<()> {
    if let AgentCommand::Adopt(args) = args.command {
        let mut app = App::open(global, DamagedLog::Refuse)?;
        Box::pin(agent_adopt::run(&mut app, args)).await?;
        return Ok(app.out.flush()?);
    }
    let agents = AppPaths::find(global)?.agents();
    let mut out = Out::new(global.format());
    match args.command {
        AgentCommand::Ls => list(&agents, &mut out)?,
        AgentCommand::Show { name } => show(&agents, &name, &mut out)?,
        AgentCommand::Check { files } => return check(&agents, files, out),
        AgentCommand::Adopt(_) => {}
    }
    Ok(out.flush()?)
}

#[derive(Serialize)]
struct AgentRow {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    file: Option<String>,
    mistakes: usize,
}

fn list(agents: &Agents, out: &mut Out) -> Result<()> {
    let mut rows: Vec<AgentRow> = agents.files()?.iter().map(|path| row_of(path)).collect();
    if !rows.iter().any(|row| row.id == "default") {
        let description = Some("used when no agent is specified".to_owned());
        rows.insert(
            0,
            AgentRow { id: "default".to_owned(), model: None, description, file: None, mistakes: 0 },
        );
    }
    if out.is_json() {
        return rows.iter().try_for_each(|row| out.json(row));
    }
    let rows = rows.into_iter().map(|row| {
        let about = match row.mistakes {
            0 => row.description.unwrap_or_default(),
            count => format!("cannot be used: {}", plural(count as u64, "mistake")),
        };
        let file = row.file.unwrap_or_else(|| "built in".to_owned());
        vec![row.id, row.model.unwrap_or_else(|| "-".to_owned()), about, file]
    });
    let head = ["AGENT", "MODEL", "ABOUT", "FILE"];
    Table { head: &head, rows: rows.collect(), flexible: 2 }.print(out)
}

fn row_of(path: &Path) -> AgentRow {
    let file = Some(path.display().to_string());
    let id = name_of(path).to_owned();
    match agents::read(path) {
        Ok(agent) => {
            let description = agent.description.or(agent.name);
            AgentRow { id, model: agent.model, description, file, mistakes: 0 }
        }
        Err(faults) => AgentRow { id, model: None, description: None, file, mistakes: faults.len() },
    }
}

fn show(agents: &Agents, name: &str, out: &mut Out) -> Result<()> {
    let (agent, file) = agents.find_or_default(name)?;
    if out.is_json() {
        return out.json(&agent);
    }
    let file = file.map_or("built in".to_owned(), |path| path.display().to_string());
    writeln!(out, "{DIM}{}{DIM:#}", clean(&file))?;
    let value = serde_json::to_value(&agent).map_err(std::io::Error::from)?;
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::String(text) if text.contains('\n') => {
                format!("\n    {}", text.trim_end().replace('\n', "\n    "))
            }
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        writeln!(out, "{key}: {}", clean(&text))?;
    }
    Ok(())
}

fn check(agents: &Agents, given: Vec<PathBuf>, mut out: Out) -> Result<()> {
    let files = if given.is_empty() { agents.files()? } else { given };
    let faults: Vec<AgentFault> =
        files.iter().filter_map(|path| agents::read(path).err()).flatten().collect();
    for fault in &faults {
        if out.is_json() {
            out.json(fault)?;
        } else {
            let AgentFault { file, line, column, field, message } = fault;
            let message = format!("{field} {message}");
            writeln!(out, "{}:{line}:{column}: {RED}{}{RED:#}", clean(file), clean(message.trim()))?;
        }
    }
    if faults.is_empty() && !out.is_json() {
        writeln!(out, "{GREEN}✓{GREEN:#} {} valid", plural(files.len() as u64, "agent"))?;
    }
    out.flush()?;
    if faults.is_empty() {
        return Ok(());
    }
    let message =
        format!("{} in {}", plural(faults.len() as u64, "mistake"), plural(files.len() as u64, "file"));
    Err(Failure::new("agent.invalid", message)
        .with_hint("correct the mistakes listed above, then check again"))
}
