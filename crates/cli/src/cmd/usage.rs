//! `sapwood usage`: tokens and cost of a session's model calls.

use std::io::Write;

use clap::Args;
use sapwood::core::project::usage::Total;

use crate::app::App;
use crate::failure::Result;
use crate::render::{Table, cost};

/// Show tokens and cost per model and in total
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood usage @last
  sapwood usage @last --json")]
pub struct UsageArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: UsageArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let report = app.engine.views().usage(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&report);
    }
    let head = ["MODEL", "CALLS", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "REASONING", "COST"];
    if app.out.terminal.is_none() {
        writeln!(app.out, "{}", head.join("\t").to_lowercase())?;
    }
    let mut rows: Vec<Vec<String>> =
        report.models.models.iter().map(|(model, total)| row(model, total)).collect();
    rows.push(row("total", &report.total));
    Table { head: &head, rows, flexible: 0 }.print(&mut app.out)
}

fn row(model: &str, total: &Total) -> Vec<String> {
    let usage = total.usage;
    let price = match total.unpriced_calls {
        0 => cost(total.cost_nano_usd),
        unpriced => format!("{} + {unpriced} unpriced", cost(total.cost_nano_usd)),
    };
    let counts =
        [total.calls, usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning];
    let counts = counts.iter().map(u64::to_string);
    std::iter::once(model.to_owned()).chain(counts).chain(std::iter::once(price)).collect()
}
