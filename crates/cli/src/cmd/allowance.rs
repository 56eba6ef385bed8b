//! `sapwood allowance`: the models that users and the tenant may call, and how much per day.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::engine::allowance::{Allowance, AllowanceHolder, HeldAllowance};
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{clean, cost};

/// Limit the models, tokens and dollars per day of users
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood allowance set --user alice --usd-per-day 5
  sapwood allowance ls")]
pub struct AllowanceArgs {
    #[command(subcommand)]
    command: AllowanceCommand,
}

#[derive(Debug, Subcommand)]
enum AllowanceCommand {
    /// List the allowances, and what was spent today
    #[command(after_help = "\
Examples:
  sapwood allowance ls")]
    Ls,
    /// Set an allowance; it replaces the previous one
    #[command(after_help = "\
Examples:
  sapwood allowance set --user alice --models \"anthropic/*,demo\" --usd-per-day 5
  sapwood allowance set --every-user --tokens-per-day 200000
  sapwood allowance set --whole-tenant --usd-per-day 100")]
    Set {
        #[command(flatten)]
        holder: HolderArgs,
        /// Models that may be called, comma-separated; a name may end in *
        #[arg(long, value_delimiter = ',', value_name = "MODELS")]
        models: Option<Vec<String>>,
        /// Dollars per day (UTC)
        #[arg(long, value_name = "USD")]
        usd_per_day: Option<f64>,
        /// Tokens per day (UTC), input and output
        #[arg(long, value_name = "TOKENS")]
        tokens_per_day: Option<u64>,
    },
    /// Remove an allowance
    #[command(after_help = "\
Examples:
  sapwood allowance rm --user alice")]
    Rm {
        #[command(flatten)]
        holder: HolderArgs,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct HolderArgs {
    /// One user
    #[arg(long)]
    user: Option<String>,
    /// Each user without an allowance of its own
    #[arg(long)]
    every_user: bool,
    /// The sum of all users of the tenant
    #[arg(long)]
    whole_tenant: bool,
}

impl HolderArgs {
    fn holder(&self) -> Result<AllowanceHolder> {
        Ok(match &self.user {
            Some(user) => AllowanceHolder::User(user.parse().map_err(sapwood::Error::from)?),
            None if self.every_user => AllowanceHolder::EveryUser,
            None => AllowanceHolder::Tenant,
        })
    }
}

pub async fn run(app: &mut App, args: AllowanceArgs) -> Result<()> {
    match args.command {
        AllowanceCommand::Ls => list(app).await,
        AllowanceCommand::Set { holder, models, usd_per_day, tokens_per_day } => {
            let nano_usd_per_day = usd_per_day.map(nano_usd).transpose()?;
            let allowance = Allowance { models, nano_usd_per_day, tokens_per_day };
            if allowance == Allowance::default() {
                let hint = "give --models, --usd-per-day or --tokens-per-day";
                return Err(Failure::usage("the allowance has no limit", hint));
            }
            let holder = holder.holder()?;
            app.engine.allowances().set(&app.scope, &holder, Some(allowance)).await?;
            list(app).await
        }
        AllowanceCommand::Rm { holder } => {
            let holder = holder.holder()?;
            app.engine.allowances().set(&app.scope, &holder, None).await?;
            if app.out.is_json() {
                return app.out.json(&json!({ "holder": holder.to_string(), "removed": true }));
            }
            Ok(writeln!(app.out, "allowance of {holder} removed")?)
        }
    }
}

fn nano_usd(usd: f64) -> Result<u64> {
    if !usd.is_finite() || !(0.0..=1e9).contains(&usd) {
        return Err(Failure::usage("--usd-per-day is not an amount", "give dollars, such as 2.50"));
    }
    Ok((usd * 1e9).round() as u64)
}

async fn list(app: &mut App) -> Result<()> {
    let held: Vec<HeldAllowance> = app.engine.allowances().list(&app.scope).await?;
    for one in &held {
        if app.out.is_json() {
            app.out.json(one)?;
            continue;
        }
        let limits = &one.allowance;
        let models = limits.models.as_ref().map(|models| format!("models {}", clean(&models.join(", "))));
        let usd = limits.nano_usd_per_day.map(|max| format!("{} of {}", cost(one.spent.nano_usd), cost(max)));
        let tokens = limits.tokens_per_day.map(|max| format!("{} of {max} tokens", one.spent.tokens));
        let parts: Vec<String> = [models, usd, tokens].into_iter().flatten().collect();
        writeln!(app.out, "{}\t{}", one.holder, parts.join("; "))?;
    }
    if held.is_empty() && !app.out.is_json() {
        writeln!(app.out, "no allowances")?;
    }
    Ok(())
}
