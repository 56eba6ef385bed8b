//! `sapwood approve` and `sapwood deny`: answers what a turn asked, and carries the turn on if nobody else does.

use std::io::Write;

use clap::Args;
use sapwood::core::entry::ApprovalAnswer;
use sapwood::engine::turn::OnWait;
use serde_json::json;

use super::send::{Told, Turn, deliver};
use crate::app::App;
use crate::failure::Result;

/// Say yes to what a turn asked, and carry it on
#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// The id that was printed when it asked
    #[arg(value_name = "ID")]
    approval: String,
    /// The answer to a question
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
}

/// Say no to what a turn asked, and carry it on
#[derive(Debug, Args)]
pub struct DenyArgs {
    /// The id that was printed when it asked
    #[arg(value_name = "ID")]
    approval: String,
    /// Why, for the model to read
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: Option<String>,
}

pub async fn approve(app: &mut App, args: ApproveArgs) -> Result<()> {
    answer(app, &args.approval, ApprovalAnswer::Approved, args.text).await
}

pub async fn deny(app: &mut App, args: DenyArgs) -> Result<()> {
    answer(app, &args.approval, ApprovalAnswer::Denied, args.reason).await
}

async fn answer(app: &mut App, approval: &str, answer: ApprovalAnswer, reason: Option<String>) -> Result<()> {
    app.open_backends()?;
    let session = app.engine.answer(&app.scope, approval, answer, reason).await?;
    let run = app.engine.run_of(&app.scope, &session).await?;
    if let Some(run) = &run {
        // A role of a flow: its turn is part of a run, and so is what comes after it.
        match app.engine.resume_flow(&app.scope, run).await {
            Ok(Some(running)) => return super::flow::carry_on(app, running).await,
            Ok(None) => {}
            Err(error) if matches!(error.code(), "session.leased" | "flow.not_found") => {}
            Err(error) => return Err(error.into()),
        }
    }
    let turn = Turn::watch(app, &session).await?;
    match app.engine.resume(&app.scope, &session, OnWait::Leave).await {
        Ok(Some(running)) => {
            deliver(app, turn.with(running), Told::Report).await?;
            carry_run_on(app, run).await
        }
        Ok(None) => say_answered(app, &session),
        Err(error) if error.code() == "session.leased" => say_answered(app, &session),
        Err(error) => Err(error.into()),
    }
}

/// Whoever ran the flow may have left while the turn went on here.
async fn carry_run_on(app: &mut App, run: Option<sapwood::SessionId>) -> Result<()> {
    let Some(run) = run else { return Ok(()) };
    match app.engine.resume_flow(&app.scope, &run).await {
        Ok(Some(running)) => super::flow::carry_on(app, running).await,
        Ok(None) => Ok(()),
        Err(error) if matches!(error.code(), "session.leased" | "flow.not_found") => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Another process has the turn, and goes on with it.
fn say_answered(app: &mut App, session: &sapwood::SessionId) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(&json!({ "session": session, "outcome": "answered" }));
    }
    Ok(writeln!(app.out, "answered; the turn goes on where it runs")?)
}
