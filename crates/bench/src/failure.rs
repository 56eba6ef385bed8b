//! Errors in the formats of the `sapwood` command line: text, or JSON with `--json`.

use std::process::ExitCode;

use serde::Serialize;

/// An error with its stable code and a hint.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
    pub hint: &'static str,
}

impl Failure {
    pub fn usage(error: &clap::Error) -> Self {
        let message = error.render().to_string().trim().to_owned();
        Self { code: "input.usage", message, hint: "run `sapwood bench --help` to see the options" }
    }

    pub fn failed(error: &anyhow::Error) -> Self {
        let hint = "if the disk is full or read-only, choose a directory on another disk with --dir";
        Self { code: "bench.failed", message: format!("{error:#}"), hint }
    }

    pub fn missed_goals() -> Self {
        let hint = "see the table for the missed goals; other load on this machine distorts the results";
        Self { code: "bench.goals", message: "not every goal was met".to_owned(), hint }
    }

    /// Print the error to stderr and return the exit code.
    pub fn report(&self, is_json: bool) -> ExitCode {
        if is_json {
            eprintln!(r#"{{"error":{}}}"#, serde_json::to_string(self).unwrap_or_default());
        } else {
            eprintln!("error: {}\n  hint: {}", self.message, self.hint);
        }
        ExitCode::from(if self.code == "input.usage" { 2 } else { 1 })
    }
}
