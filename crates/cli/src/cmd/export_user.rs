//! `sapwood export --user` and `sapwood export --all`: writes everything that the store has about a user or a tenant to a
//! directory.

use std::io::Write;
use std::path::{Path, PathBuf};

use sapwood::core::project::summary::Summary;
use sapwood::engine::personal_data::DataSubject;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::plural;

/// Audit lines per store query.
const PAGE_LINES: usize = 1_000;

/// Creates the directory and returns the file of each session.
pub fn prepare(directory: &Path, sessions: &[Summary], force: bool) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| Failure::file(directory, &error);
    if directory.exists() && !force && std::fs::read_dir(directory).map_err(failed)?.next().is_some() {
        let message = format!("{} is not empty", directory.display());
        return Err(Failure::usage(message, "choose a new directory, or use --force"));
    }
    std::fs::create_dir_all(directory.join("sessions")).map_err(failed)?;
    let file = |summary: &Summary| directory.join("sessions").join(format!("{}.jsonl", summary.id));
    Ok(sessions.iter().map(file).collect())
}

/// Writes the memories, the keys without their hashes, and the audit lines.
pub async fn write_rest(app: &App, subject: &DataSubject, directory: &Path) -> Result<()> {
    let data = app.engine.personal_data();
    let memories = data.memories_of(&app.scope, subject).await?;
    write_lines(&directory.join("memories.jsonl"), memories.iter())?;
    let keys = data.keys_of(&app.scope, subject).await?;
    let shown = keys.iter().map(|key| {
        json!({ "id": key.id, "user": key.user, "label": key.label, "grants": key.grants,
                "created_at": key.created_at, "expires_at": key.expires_at })
    });
    write_lines(&directory.join("keys.jsonl"), shown)?;
    write_lines(&directory.join("audit.jsonl"), audit_of(app, subject).await?.iter())
}

/// Returns the audit lines by the user, or all lines.
async fn audit_of(app: &App, subject: &DataSubject) -> Result<Vec<sapwood::core::port::store::AuditLine>> {
    let by = match subject {
        DataSubject::User(user) => Some(sapwood::Principal::User(user.clone())),
        DataSubject::Tenant => None,
    };
    let (mut lines, mut after) = (Vec::new(), 0);
    loop {
        let page = app.engine.store().read_audit(&app.scope, None, after, PAGE_LINES).await?;
        let is_last = page.len() < PAGE_LINES;
        after = page.last().map_or(after, |line| line.number);
        lines.extend(page.into_iter().filter(|line| by.as_ref().is_none_or(|by| line.by == *by)));
        if is_last {
            return Ok(lines);
        }
    }
}

fn write_lines(path: &Path, rows: impl Iterator<Item = impl Serialize>) -> Result<()> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let mut out = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut out, &row).map_err(|error| failed(error.into()))?;
        out.push(b'\n');
    }
    let mut file = std::fs::File::create(path).map_err(failed)?;
    file.write_all(&out).and_then(|()| file.sync_all()).map_err(failed)
}

pub fn print_done(app: &mut App, subject: &DataSubject, sessions: usize, directory: &Path) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(&json!({ "sessions": sessions, "directory": directory.display().to_string() }));
    }
    let sessions = plural(sessions as u64, "session");
    Ok(writeln!(app.out, "exported {sessions} of {subject} to {}", directory.display())?)
}
