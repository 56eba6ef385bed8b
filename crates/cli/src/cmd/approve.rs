//! `sapwood approve` and `sapwood deny`: answer a pending approval and resume the turn, unless another process runs it.

use std::io::Write;

use clap::Args;
use sapwood::Seq;
use sapwood::core::entry::ApprovalAnswer;
use sapwood::engine::turn::OnWait;
use serde_json::json;

use super::send::{JsonOutput, TurnSubscription, deliver};
use crate::app::App;
use crate::failure::Result;

/// Approve a pending request and resume its turn
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood approve APPROVAL_ID
  sapwood approve APPROVAL_ID --text \"use the staging database\"")]
pub struct ApproveArgs {
    /// Approval id, as printed when the turn asked
    #[arg(value_name = "ID")]
    approval: String,
    /// Answer, if the turn asked a question
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
}

/// Deny a pending request and resume its turn
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood deny APPROVAL_ID
  sapwood deny APPROVAL_ID --reason \"do not touch production\"")]
pub struct DenyArgs {
    /// Approval id, as printed when the turn asked
    #[arg(value_name = "ID")]
    approval: String,
    /// Reason, which is passed to the model
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
    let session = app.engine.turn_control().answer(&app.scope, approval, answer, reason).await?;
    let run = app.engine.flows().run_of(&app.scope, &session).await?;
    let after = match &run {
        Some(run) => app.engine.directory().summary(&app.scope, run).await?.head.seq,
        None => Seq::ZERO,
    };
    if let Some(run) = &run {
        // The turn belongs to a flow run: resume the run, which then continues with the next roles.
        match app.engine.flows().resume(&app.scope, run).await {
            Ok(Some(running)) => return super::flow::continue_run(app, running, after).await,
            Ok(None) => {}
            Err(error) if matches!(error.code(), "session.leased" | "flow.not_found") => {}
            Err(error) => return Err(error.into()),
        }
    }
    let turn = TurnSubscription::open(app, &session).await?;
    match app.engine.turns().resume(&app.scope, &session, OnWait::Leave).await {
        Ok(Some(running)) => {
            deliver(app, turn.with(running), JsonOutput::Report).await?;
            resume_run(app, run, after).await
        }
        Ok(None) => print_answered(app, &session),
        Err(error) if error.code() == "session.leased" => print_answered(app, &session),
        Err(error) => Err(error.into()),
    }
}

/// Resumes the flow run, because the process that ran it may have exited while this process ran the turn.
async fn resume_run(app: &mut App, run: Option<sapwood::SessionId>, after: Seq) -> Result<()> {
    let Some(run) = run else { return Ok(()) };
    match app.engine.flows().resume(&app.scope, &run).await {
        Ok(Some(running)) => super::flow::continue_run(app, running, after).await,
        Ok(None) => Ok(()),
        Err(error) if matches!(error.code(), "session.leased" | "flow.not_found") => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reports that the answer is recorded and that another process continues the turn.
fn print_answered(app: &mut App, session: &sapwood::SessionId) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(&json!({ "session": session, "outcome": "answered" }));
    }
    Ok(writeln!(app.out, "answered; the process that runs the turn continues it")?)
}
