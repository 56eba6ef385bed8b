//! The audit: append-only and hash-chained per tenant.

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Right, Scope, SessionId, TimestampMs};

use super::desk::{Desk, int};
use super::fault::Fault;
use super::session::find;
use crate::rules;

/// Which lines are about a session is noted whenever a line's number is a multiple of this. The lines behind it are few
/// enough to be gone through. Written into the layout: never change it.
const LINES_PER_NOTE: u64 = 1_024;

/// The end of a tenant's chain.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLine {
    number: u64,
    hash: String,
}

pub(super) fn write_line(desk: &Desk, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()> {
    let tenant = desk.tenant_or_new(&scope.tenant)?;
    let last = match desk.hot.last_line(tenant) {
        Some(last) => last,
        None => read_last(desk, tenant)?,
    };
    let number = last.number + 1;
    let line = AuditLine::chained(number, now, scope.principal.clone(), note, &last.hash);
    let json = serde_json::to_string(&line).expect("an audit line holds strings and numbers only");
    let session = line.session.as_ref().map(SessionId::as_str);
    desk.prepare("INSERT INTO audit (tenant, number, session, line) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![tenant, int(number), session, json])
        .at(&desk.path)?;
    if number.is_multiple_of(LINES_PER_NOTE) {
        let sql = "INSERT INTO session_audit SELECT tenant, session, number FROM audit
                   WHERE tenant = ?1 AND number > ?2 AND session NOT NULL ORDER BY session, number";
        desk.prepare(sql)?.execute([tenant, int(number - LINES_PER_NOTE)]).at(&desk.path)?;
    }
    desk.hot.keep_line(tenant, LastLine { number, hash: line.hash });
    Ok(())
}

fn read_last(desk: &Desk, tenant: i64) -> Result<LastLine> {
    let mut select = desk.prepare("SELECT line FROM audit WHERE tenant = ?1 ORDER BY number DESC LIMIT 1")?;
    let json: Option<String> = select.query_row([tenant], |row| row.get(0)).optional().at(&desk.path)?;
    let line = json.map(|json| read_line(desk, &json)).transpose()?;
    Ok(line.map_or_else(LastLine::default, |line| LastLine { number: line.number, hash: line.hash }))
}

fn read_line(desk: &Desk, json: &str) -> Result<AuditLine> {
    serde_json::from_str(json).map_err(|error| desk.damaged(format!("an audit line: {error}")))
}

/// Those that were noted, and those behind.
pub(super) const OF_SESSION: &str = "
    SELECT line, s.number FROM session_audit s
    CROSS JOIN audit a ON a.tenant = s.tenant AND a.number = s.number
    WHERE s.tenant = ?1 AND s.session = ?3 AND s.number > ?2
    UNION ALL
    SELECT line, number FROM audit WHERE tenant = ?1 AND session = ?3
    AND number > max(?2, (SELECT max(number) FROM audit WHERE tenant = ?1) / 1024 * 1024)
    ORDER BY 2";

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
        Some(_) => OF_SESSION,
        None => "SELECT line FROM audit WHERE tenant = ?1 AND number > ?2 AND ?3 IS NULL ORDER BY number",
    };
    let mut select = desk.prepare(sql)?;
    let session = session.map(SessionId::as_str);
    let mut rows = select.query(params![tenant, int(after), session]).at(&desk.path)?;
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
