//! `sapwood version` and `sapwood completions`. Neither opens a store.

use std::io::Write;

use clap::Args;
use clap_complete::Shell;
use sapwood::core::entry::LOG_VERSION;
use serde_json::json;

use crate::failure::Result;
use crate::render::{Format, Out};

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood completions bash > ~/.local/share/bash-completion/completions/sapwood
  sapwood completions fish | source")]
pub struct CompletionsArgs {
    /// Shell to generate the script for
    shell: Shell,
}

pub fn completions(args: &CompletionsArgs, mut command: clap::Command, format: Format) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sapwood", &mut script);
    let mut out = Out::new(format);
    if out.is_json() {
        let script = String::from_utf8_lossy(&script);
        out.json(&json!({ "shell": args.shell.to_string(), "script": script }))?;
    } else {
        out.write_all(&script)?;
    }
    Ok(out.flush()?)
}

/// Print the version, the log format and the build features
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood version
  sapwood version --json")]
pub struct VersionArgs {}

pub fn version(format: Format) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let features: &[&str] = if cfg!(feature = "encryption") { &["encryption"] } else { &[] };
    let mut out = Out::new(format);
    if out.is_json() {
        out.json(&json!({ "version": version, "format": LOG_VERSION, "features": features }))?;
    } else {
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        writeln!(out, "sapwood {version}\nlog format: {LOG_VERSION}\nfeatures: {features}")?;
    }
    Ok(out.flush()?)
}
