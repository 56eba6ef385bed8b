//! `sapwood sandbox`: shows what the programs that Sapwood starts may use. Does not open a store.

use std::io::Write;

use clap::Args;
use sapwood::effects::sandbox::limits::{MIB, Profile, ResourceLimits};
use sapwood::effects::sandbox::{Launcher, Network};
use sapwood::effects::tool::mcp::McpFiles;
use serde_json::{Value, json};

use crate::app_paths::AppPaths;
use crate::failure::Result;
use crate::global_args::Global;
use crate::render::{Out, Table};
use crate::sandbox_settings::SandboxSettings;

/// Show the limits and rights of commands, MCP programs and hooks
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood sandbox
  sapwood sandbox --json

The settings are in the table [sandbox] of your own sapwood.toml.")]
pub struct SandboxArgs {}

/// What one kind of program may use.
struct ProfileRow {
    profile: Profile,
    limits: ResourceLimits,
    network: &'static str,
    files: &'static str,
}

pub fn run(_: &SandboxArgs, global: &Global) -> Result<()> {
    let paths = AppPaths::find(global)?;
    let settings = paths.config.sandbox.clone().unwrap_or_default();
    let mut out = Out::new(global.format());
    let is_confined = Launcher::this_binary().confines();
    let rows = rows_of(&settings);
    if out.is_json() {
        out.json(&json!({
            "confines": is_confined, "cgroups": settings.cgroups,
            "profiles": rows.iter().map(json_of).collect::<Vec<Value>>(),
        }))?;
    } else {
        let head = ["PROFILE", "MEMORY", "PROCESSES", "CPU", "FILE", "OPEN FILES", "NETWORK", "FILES"];
        Table { head: &head, rows: rows.iter().map(cells_of).collect(), flexible: 7 }.print(&mut out)?;
        if !is_confined {
            let note = "This system has no Landlock: files and network are not restricted, only resources.";
            writeln!(out, "{note}")?;
        }
    }
    Ok(out.flush()?)
}

fn rows_of(settings: &SandboxSettings) -> [ProfileRow; 3] {
    let network = |network| if network == Network::Open { "yes" } else { "no" };
    let mcp = settings.mcp_profile();
    let row =
        |profile, network, files| ProfileRow { profile, limits: settings.limits(profile), network, files };
    [
        row(Profile::Command, network(settings.command_network()), "by fs_scope"),
        row(
            Profile::Mcp,
            network(mcp.network),
            if mcp.files == McpFiles::Open { "open" } else { "by fs_scope, and listed paths" },
        ),
        row(Profile::Hook, "yes", "open"),
    ]
}

fn json_of(row: &ProfileRow) -> Value {
    let ResourceLimits { memory_bytes_max, processes_max, cpu_seconds_max, file_bytes_max, open_files_max } =
        row.limits;
    json!({
        "profile": row.profile.as_str(), "memory_mb": memory_bytes_max / MIB, "processes": processes_max,
        "cpu_s": cpu_seconds_max, "file_mb": file_bytes_max / MIB, "open_files": open_files_max,
        "network": row.network == "yes", "files": row.files,
    })
}

fn cells_of(row: &ProfileRow) -> Vec<String> {
    let limits = &row.limits;
    vec![
        row.profile.as_str().to_owned(),
        format!("{} MiB", limits.memory_bytes_max / MIB),
        limits.processes_max.to_string(),
        format!("{} s", limits.cpu_seconds_max),
        format!("{} MiB", limits.file_bytes_max / MIB),
        limits.open_files_max.to_string(),
        row.network.to_owned(),
        row.files.to_owned(),
    ]
}
