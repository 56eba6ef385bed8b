//! The audit: append-only and hash-chained per tenant.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Right, Scope, SessionId, TimestampMs};

use super::desk::Desk;
use super::fault::Fault;
use super::session::find;
use crate::rules;

pub(super) fn write_line(desk: &Desk, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let mut select = desk.prepare("SELECT line FROM audit WHERE tenant = ?1 ORDER BY number DESC LIMIT 1")?;
    let last: Option<String> = select.query_row([tenant], |row| row.get(0)).optional().at(&desk.path)?;
    let last = last.map(|json| read_line(desk, &json)).transpose()?;
    let (number, previous) = last.as_ref().map_or((1, ""), |line| (line.number + 1, &line.hash));
    let line = AuditLine::chained(number, now, scope.principal.clone(), note, previous);
    let json = serde_json::to_string(&line).expect("an audit line holds strings and numbers only");
    let session = line.session.as_ref().map(SessionId::as_str);
    let stored = i64::try_from(number).unwrap_or(i64::MAX);
    desk.prepare("INSERT INTO audit (tenant, number, session, line) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![tenant, stored, session, json])
        .at(&desk.path)?;
    Ok(())
}

fn read_line(desk: &Desk, json: &str) -> Result<AuditLine> {
    serde_json::from_str(json).map_err(|error| desk.damaged(format!("an audit line: {error}")))
}

/// Lines after a number, oldest first, as far as the caller may see them.
pub(super) fn read_lines(
    desk: &Desk,
    scope: &Scope,
    session: Option<&SessionId>,
    after: u64,
    limit: usize,
) -> Result<Vec<AuditLine>> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(Vec::new()) };
    let sql = match session {
        Some(_) => {
            "SELECT line FROM audit WHERE tenant = ?1 AND session = ?3 AND number > ?2 ORDER BY number"
        }
        None => "SELECT line FROM audit WHERE tenant = ?1 AND number > ?2 AND ?3 IS NULL ORDER BY number",
    };
    let mut select = desk.prepare(sql)?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let session = session.map(SessionId::as_str);
    let mut rows = select.query(params![tenant, after, session]).at(&desk.path)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next().at(&desk.path)? {
        let line = read_line(desk, &row.get::<_, String>(0).at(&desk.path)?)?;
        if shows(desk, scope, &line)? {
            lines.push(line);
        }
        if lines.len() == rules::page_limit(limit) {
            break;
        }
    }
    Ok(lines)
}

fn shows(desk: &Desk, scope: &Scope, line: &AuditLine) -> Result<bool> {
    if scope.reach == Reach::Tenant {
        return Ok(true);
    }
    let about = match &line.session {
        Some(session) => find(desk, scope, session, Right::Read).ok().map(|row| row.summary),
        None => None,
    };
    Ok(rules::may_see_line(scope, line, about.as_ref()))
}
