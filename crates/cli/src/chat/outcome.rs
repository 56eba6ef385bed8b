//! The outcome of a turn, for users and as exit codes.

use sapwood::core::entry::{Outcome, TurnEnded};
use sapwood::engine::turn::{PendingApproval, TurnReport};
use serde_json::{Value, json};

use super::view::short_input;
use crate::failure::{Exit, Failure, Result};
use crate::render::{clean, fit};

/// Return an error unless the turn completed or is waiting for an approval.
pub fn check(report: &TurnReport) -> Result<()> {
    match &report.ended {
        None => Ok(()),
        Some(ended) => failure_of(ended).map_or(Ok(()), Err),
    }
}

pub fn failure_of(ended: &TurnEnded) -> Option<Failure> {
    let code = |other: &str| ended.code.clone().unwrap_or_else(|| other.to_owned());
    match ended.outcome {
        Outcome::Completed => None,
        Outcome::Cancelled => Some(Failure::new("turn.cancelled", "the turn was cancelled")),
        Outcome::Failed => {
            let code = code("turn.failed");
            Some(Failure::new(
                code.clone(),
                format!("the turn failed: {}", ended.message.as_deref().unwrap_or(describe_code(&code))),
            ))
        }
        Outcome::Limited => {
            let code = code("turn.limit");
            let message = format!("the turn reached a limit: {}", describe_code(&code));
            Some(Failure { exit: Exit::Failed, ..Failure::new(code, message) })
        }
    }
}

fn describe_code(code: &str) -> &str {
    match code {
        "model.rate_limited" => "the provider's rate limit was reached",
        "model.overloaded" => "the provider is overloaded",
        "model.unreachable" => "the provider cannot be reached",
        "model.silent" => "the provider stopped sending data",
        "model.cut" => "the stream was interrupted",
        "model.malformed" => "the provider's stream is malformed",
        "model.key_refused" => "the provider rejected the key",
        "model.no_key" => "the model's provider has no key",
        "model.unknown" => "the model does not exist",
        "model.refused" => "the provider rejected the request",
        "model.unscripted" => "the script has no more calls",
        "model.too_large" => "the reply exceeded a size limit",
        "context_overflow" => "the context is larger than the model's window",
        "budget_exceeded" => "the session has spent its budget",
        "turn_limit" => "it has reached the limit of turns or rounds",
        "correction_limit" => "the model repeatedly called tools with invalid input",
        "wall_time" => "it took longer than its agent allows",
        "rolled_back" => "it was interrupted and rolled back",
        other => other,
    }
}

/// The outcome as JSON for programs.
pub fn as_json(session: &sapwood::SessionId, report: &TurnReport) -> Value {
    let outcome = match report.ended.as_ref().map(|ended| ended.outcome) {
        None => "waiting",
        Some(Outcome::Completed) => "completed",
        Some(Outcome::Cancelled) => "cancelled",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Limited) => "limited",
    };
    let mut line =
        json!({ "session": session, "turn": report.turn, "outcome": outcome, "text": report.text });
    if let Some(code) = report.ended.as_ref().and_then(|ended| ended.code.as_ref()) {
        line["code"] = json!(code);
    }
    if let Some(message) = report.ended.as_ref().and_then(|ended| ended.message.as_ref()) {
        line["message"] = json!(message);
    }
    if !report.waiting.is_empty() {
        line["waiting"] = json!(report.waiting);
    }
    if let Some(notice) = &report.notice {
        line["notice"] = json!(notice);
    }
    line
}

/// The pending approval as text, with the commands that answer it.
pub fn approval_instructions(pending: &PendingApproval) -> String {
    let PendingApproval { approval, question, kind, call, why, .. } = pending;
    let about = call.as_ref().map(|call| format!("\n  {} {}", fit(&call.name, 40), short_input(call)));
    let answers = match kind.as_str() {
        "question" => format!("sapwood approve {approval} --text ANSWER"),
        _ => format!("sapwood approve {approval}\n  sapwood deny {approval} --reason WHY"),
    };
    let why = why.as_ref().map(|why| format!("\n  because {}", clean(why))).unwrap_or_default();
    format!("waiting: {}{}{why}\n  {answers}", clean(question), about.unwrap_or_default())
}
