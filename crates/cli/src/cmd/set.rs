//! `sapwood set`: changes a session's directory, context and limits.

use std::path::PathBuf;

use clap::Args;
use sapwood::core::entry::LimitsChanged;
use sapwood::engine::config_changes::ConfigChange;

use super::new::existing_directory;
use super::session_options::{ContextArgs, git_ref_of, pair_of};
use crate::app::App;
use crate::failure::{Failure, Result};

/// Change a session's directory, context or limits
///
/// Tools and file access are fixed when the session starts and cannot be changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood set @last --cwd ~/work/moved-project
  sapwood set @last --active-file src/main.rs --selection src/main.rs:10-20
  sapwood set @last --turns-max 200 --budget-usd 5")]
pub struct SetArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// New working directory, for example after the project was moved
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Set a variable; an empty value removes it; repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    #[command(flatten)]
    context: ContextArgs,
    /// Maximum number of turns; 0 for the default
    #[arg(long, value_name = "N")]
    turns_max: Option<u32>,
    /// Maximum number of tokens in the context
    #[arg(long, value_name = "N")]
    token_budget: Option<u64>,
    /// Maximum cost of the session in US dollars
    #[arg(long, value_name = "USD", value_parser = dollars)]
    budget_usd: Option<u64>,
}

/// Parses an amount in US dollars, and returns it in billionths.
fn dollars(text: &str) -> std::result::Result<u64, String> {
    let amount: f64 = text.parse().map_err(|_| format!("{text:?} is not an amount in US dollars"))?;
    if !(amount > 0.0 && amount < 1e9) {
        return Err("the amount must be more than 0 and less than 1000000000".to_owned());
    }
    Ok((amount * 1e9).round() as u64)
}

pub async fn run(app: &mut App, args: SetArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let variables: Result<_> = args.variables.iter().map(|given| pair_of(given)).collect();
    let cwd = args.cwd.map(|dir| existing_directory(Some(dir))).transpose()?;
    let detected = cwd.as_deref().map(|dir| git_ref_of(dir).unwrap_or_default());
    let git_ref = args.context.git_ref.clone().or(detected);
    let change = ConfigChange {
        working_dir: cwd,
        git_ref,
        active_file: args.context.active_file.clone(),
        selection: args.context.selection.clone().map(Some),
        variables: variables?,
        limits: LimitsChanged {
            turns_max: args.turns_max,
            token_budget: args.token_budget,
            budget_nano_usd: args.budget_usd,
        },
    };
    if change == ConfigChange::default() {
        return Err(Failure::usage(
            "there is nothing to set",
            "give an option such as --cwd, --var or --turns-max",
        ));
    }
    let appended = app.engine.configuration().change(&app.scope, &session, &change).await?;
    super::print_change(app, &appended, "changed")
}
