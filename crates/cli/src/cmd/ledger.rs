//! `sapwood ledger`: one line per round, with its action and result.

use clap::Args;
use sapwood::core::entry::ActionKind;
use sapwood::core::project::ledger::LedgerLine;

use crate::app::App;
use crate::failure::Result;
use crate::render::{Table, cost, local_time};

/// Show one line per round: action, result, cost, confidence
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood ledger @last
  sapwood ledger @last --json")]
pub struct LedgerArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: LedgerArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let lines = app.engine.views().ledger(&app.scope, &session).await?;
    if app.out.is_json() {
        return lines.iter().try_for_each(|line| app.out.json(line));
    }
    if lines.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    let head = ["ROUND", "TIME", "ACTION", "WHAT", "RESULT", "TOKENS", "COST", "CONFIDENCE"];
    Table { head: &head, rows, flexible: 3 }.print(&mut app.out)
}

fn row(line: &LedgerLine) -> Vec<String> {
    let action = match line.action.kind {
        ActionKind::Answer => "answer",
        ActionKind::Tool => "tool",
        ActionKind::Delegate => "delegate",
        ActionKind::AskUser => "ask user",
    };
    let dash = || "-".to_owned();
    let (status, tokens, price) = match &line.result {
        None => ("open", dash(), dash()),
        Some(result) => {
            (result.status.as_str(), result.tokens.to_string(), result.cost_nano_usd.map_or_else(dash, cost))
        }
    };
    let sure = line.confidence.map_or_else(dash, |confidence| format!("{confidence:.2}"));
    let time = local_time(line.at.0);
    let what = line.action.what.clone();
    vec![line.round.to_string(), time, action.to_owned(), what, status.to_owned(), tokens, price, sure]
}
