//! The result of an import.

use std::borrow::Cow;

use sapwood_core::SessionId;
use sapwood_formats::import::Problem;
use serde::Serialize;

use super::intake::IntakeResult;
use crate::{EngineError, Result};

/// The result of importing one session of a file.
#[derive(Debug)]
pub struct ImportReport {
    pub session: Option<SessionId>,
    pub added: u64,
    /// Records that the store already had.
    pub skipped: u64,
    pub problems: Vec<ReportedProblem>,
    /// Whether the session is now stored, except for unreadable parts of its file.
    pub is_stored: bool,
    /// Why the rest of the session was not imported.
    pub failure: Option<EngineError>,
}

impl ImportReport {
    pub(super) fn new(session: Option<SessionId>, taken: Result<IntakeResult>, problems: &[Problem]) -> Self {
        let mut problems: Vec<ReportedProblem> = problems.iter().map(ReportedProblem::from).collect();
        let (taken, failure) = match taken {
            Ok(taken) => (taken, None),
            Err(failure) => (IntakeResult::default(), Some(failure)),
        };
        if let Some(at) = taken.differs_at {
            let message = format!("the stored session differs from entry {at} on, so nothing was added");
            problems.push(ReportedProblem { line: None, code: "import.differs".into(), message });
        }
        let IntakeResult { added, skipped, is_stored, .. } = taken;
        Self { session, added, skipped, problems, is_stored, failure }
    }
}

/// A problem at a line of a file or, without a line, with the whole session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedProblem {
    pub line: Option<u64>,
    pub code: Cow<'static, str>,
    pub message: String,
}

impl From<&Problem> for ReportedProblem {
    fn from(problem: &Problem) -> Self {
        let (code, message) = (problem.what.code().into(), problem.what.to_string());
        Self { line: Some(problem.line), code, message }
    }
}
