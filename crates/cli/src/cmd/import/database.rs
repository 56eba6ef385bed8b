//! Imports the sessions of an OpenCode database.

use std::path::Path;

use sapwood::engine::import::ForeignImport;
use sapwood::formats::import::Format;
use sapwood::store::opencode::{Cursor, Database, DatabaseError};

use super::foreign::ImportTarget;
use super::{ImportReport, problem_report, to_problem};
use crate::failure::{Failure, Result};

/// Imports all sessions of a database. Returns a report per session, and one for the database if it cannot be read
/// completely.
pub async fn import(target: &ImportTarget<'_>, path: &Path) -> Result<Vec<ImportReport>> {
    let mut reports = Vec::new();
    let name = path.display().to_string();
    let opened = Database::open(path).and_then(|database| Ok((database.sessions()?, database)));
    let fault = match opened {
        Ok((sessions, database)) => {
            for session in &sessions.ids {
                reports.push(import_session(target, &database, session, &name).await?);
            }
            sessions.fault
        }
        Err(fault) => Some(fault),
    };
    if let Some(fault) = fault {
        let failure = Failure::new(fault.code(), fault.to_string());
        let format = Some(Format::OpenCode.as_str());
        reports.push(ImportReport { format, ..problem_report(path, failure, target.options.mode) });
    }
    Ok(reports)
}

async fn import_session(
    target: &ImportTarget<'_>,
    database: &Database,
    session: &str,
    name: &str,
) -> Result<ImportReport> {
    let mut import = target.begin(Format::OpenCode, name)?;
    let mut rows = SessionRows { session, after: None, number: 0 };
    let mut read = Ok(true);
    while let Ok(true) = read
        && !import.is_given_up()
    {
        read = rows.read_page(database, &mut import);
        import.store_if_full().await;
    }
    // Import the part that was read before an error.
    let mut report = target.finish(import, Format::OpenCode, name).await?;
    if let Err(fault) = read {
        let failure = Failure::new(fault.code(), format!("session {session}: {fault}"));
        report.problems.push(to_problem(failure));
    }
    Ok(report)
}

/// Reads a session's rows page by page.
struct SessionRows<'a> {
    session: &'a str,
    after: Option<Cursor>,
    number: u64,
}

impl SessionRows<'_> {
    /// Reads one page. Returns whether there may be more.
    fn read_page(
        &mut self,
        database: &Database,
        import: &mut ForeignImport,
    ) -> std::result::Result<bool, DatabaseError> {
        if self.number == 0 {
            self.number = 1;
            import.push_line(&database.session_line(self.session)?, self.number);
        }
        let (lines, next) = database.message_lines(self.session, self.after.take())?;
        for line in lines {
            self.number += 1;
            import.push_line(&line, self.number);
        }
        self.after = next;
        Ok(self.after.is_some())
    }
}
