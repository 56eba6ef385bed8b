//! The response to an import.

use sapwood::engine::import::{ImportReport, ReportedProblem};
use sapwood::formats::import::Format;

use crate::problem::Result;
use crate::wire;

/// Maximum number of reported problems per session and per file. Further problems are only counted.
const PROBLEMS_REPORTED_MAX: usize = 100;
const PROBLEMS_REPORTED_TOTAL_MAX: usize = 1_000;

/// The imported sessions, and the remaining number of problems that the response may report.
pub struct ImportedSessions {
    pub items: Vec<wire::Imported>,
    format: Format,
    remaining: usize,
}

impl ImportedSessions {
    pub fn new(format: Format) -> Self {
        Self { items: Vec::new(), format, remaining: PROBLEMS_REPORTED_TOTAL_MAX }
    }

    /// Adds a session. Fails if its import failed.
    pub fn add(&mut self, report: ImportReport) -> Result<()> {
        if let Some(failure) = report.failure {
            return Err(failure.into());
        }
        let (mut problems, of_file): (Vec<_>, Vec<_>) =
            report.problems.into_iter().partition(|problem| problem.line.is_some());
        let reported = problems.len().min(self.remaining).min(PROBLEMS_REPORTED_MAX);
        self.remaining -= reported;
        let more_problems = (problems.len() - reported) as u64;
        problems.truncate(reported);
        self.items.push(wire::Imported {
            session: report.session.map(|session| session.to_string()),
            format: Some(self.format.as_str().to_owned()),
            added: report.added,
            skipped: report.skipped,
            problems: problems.into_iter().chain(of_file).map(to_wire).collect(),
            more_problems,
        });
        Ok(())
    }
}

fn to_wire(problem: ReportedProblem) -> wire::ImportProblem {
    let ReportedProblem { line, code, message } = problem;
    wire::ImportProblem { line, code: code.into_owned(), message }
}
