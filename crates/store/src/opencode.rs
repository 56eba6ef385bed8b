//! Read-only access to opencode's database for the importer in `sapwood-formats`: its rows as JSON
//! lines. It is in this crate because no other crate contains SQL. The file belongs to another
//! program and is not a store, so its errors have a separate type, [`DatabaseError`]. The line of
//! an unreadable row contains the error instead of the data. Other rows are not affected.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row, params};
use sapwood_core::port::store::BODY_BYTES_MAX;
use serde_json::json;
use serde_json::value::RawValue;

/// Maximum messages and bytes per page. The page ends after the message that reaches the limit.
const PAGE_MESSAGES: u32 = 200;
const PAGE_BYTES: usize = 4 << 20;
/// Maximum bytes of one message's parts. The data of further parts is not read.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

pub struct Database {
    connection: Connection,
    /// Whether the table `session` has the column `revert`. Older versions of opencode lack it.
    has_revert: bool,
}

/// An error while reading the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to read opencode's database: {what}")]
pub struct DatabaseError {
    what: String,
}

impl DatabaseError {
    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        "import.unreadable"
    }
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        Self { what: error.to_string() }
    }
}

pub type Result<T> = std::result::Result<T, DatabaseError>;

/// The end of a page: time and id of its last message.
pub type Cursor = (i64, String);

/// The sessions of a database, oldest first, and the reason if the list is incomplete.
pub struct Sessions {
    pub ids: Vec<String>,
    pub fault: Option<DatabaseError>,
}

impl Database {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let has_revert = connection
            .prepare("SELECT 1 FROM pragma_table_info('session') WHERE name = 'revert'")?
            .exists([])?;
        Ok(Self { connection, has_revert })
    }

    pub fn sessions(&self) -> Result<Sessions> {
        let mut select = self.connection.prepare("SELECT id FROM session ORDER BY time_created, id")?;
        let mut rows = select.query([])?;
        let mut sessions = Sessions { ids: Vec::new(), fault: None };
        loop {
            let read = match rows.next() {
                Ok(None) => return Ok(sessions),
                Ok(Some(row)) => row.get(0),
                // The rest of the table cannot be read.
                Err(error) => {
                    sessions.fault = Some(error.into());
                    return Ok(sessions);
                }
            };
            match read {
                Ok(id) => sessions.ids.push(id),
                Err(error) => sessions.fault = Some(error.into()),
            }
        }
    }

    /// Returns the row of a session as a line.
    pub fn session_line(&self, session: &str) -> Result<Vec<u8>> {
        let revert = if self.has_revert { "revert" } else { "NULL" };
        let select =
            format!("SELECT parent_id, title, directory, time_created, {revert} FROM session WHERE id = ?1");
        let line = self.connection.query_row(&select, [session], |row| {
            let revert = text_at(row, 4).and_then(|text| serde_json::from_str(&text).ok());
            Ok(json!({
                "table": "session", "id": session, "parent_id": text_at(row, 0), "title": text_at(row, 1),
                "directory": text_at(row, 2), "time_created": row.get::<_, Option<i64>>(3).ok().flatten(),
                "revert": revert.filter(|revert: &serde_json::Value| revert["messageID"].is_string()),
            }))
        })?;
        Ok(line.to_string().into_bytes())
    }

    /// Returns the next messages of a session and their parts as lines, and the cursor of the next
    /// page.
    pub fn message_lines(
        &self,
        session: &str,
        after: Option<Cursor>,
    ) -> Result<(Vec<Vec<u8>>, Option<Cursor>)> {
        let (at, id) = after.unwrap_or((i64::MIN, String::new()));
        let mut messages = self.connection.prepare_cached(
            "SELECT id, data, time_created FROM message
             WHERE session_id = ?1 AND (time_created, id) > (?2, ?3) ORDER BY time_created, id LIMIT ?4",
        )?;
        let (mut lines, mut last, mut page_bytes) = (Vec::new(), None, 0);
        let mut rows = messages.query(params![session, at, id, PAGE_MESSAGES])?;
        while let Some(row) = rows.next()? {
            let (id, at): (String, i64) = (row.get(0)?, row.get(2)?);
            lines.push(line("message", row, &id, Some(at))?);
            page_bytes += lines.last().map_or(0, Vec::len) + self.read_parts(&id, &mut lines)?;
            last = Some((at, id));
            if page_bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok((lines, last))
    }

    /// Appends the lines of a message's parts to `lines`. Returns their size in bytes.
    fn read_parts(&self, message: &str, lines: &mut Vec<Vec<u8>>) -> Result<usize> {
        let mut parts =
            self.connection.prepare_cached("SELECT id, data FROM part WHERE message_id = ?1 ORDER BY id")?;
        let mut rows = parts.query([message])?;
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            let id: String = row.get(0)?;
            lines.push(match bytes < MESSAGE_BYTES_MAX {
                true => line("part", row, &id, None)?,
                false => faulty_line("part", &id, None, "its message is too long"),
            });
            bytes += lines.last().map_or(0, Vec::len);
        }
        Ok(bytes)
    }
}

fn text_at(row: &Row<'_>, column: usize) -> Option<String> {
    row.get_ref(column).ok()?.as_str().ok().map(str::to_owned)
}

/// Formats a row as a line. If its data is not JSON, the line contains the error instead. The
/// importer repairs invalid UTF-8.
fn line(table: &str, row: &Row<'_>, id: &str, at: Option<i64>) -> rusqlite::Result<Vec<u8>> {
    let data = match row.get_ref(1)? {
        ValueRef::Text(data) if data.len() > BODY_BYTES_MAX => Err("its data is too long".to_owned()),
        ValueRef::Text(data) => serde_json::from_str::<&RawValue>(&String::from_utf8_lossy(data))
            .map(|_| data)
            .map_err(|error| format!("its data is not JSON: {error}")),
        ValueRef::Null => Err("it has no data".to_owned()),
        other => Err(format!("its data is {}, not text", other.data_type())),
    };
    let data = match data {
        Ok(data) => data,
        Err(why) => return Ok(faulty_line(table, id, at, &why)),
    };
    let head = json!({ "table": table, "id": id, "time_created": at }).to_string();
    let mut line = head.trim_end_matches('}').as_bytes().to_vec();
    line.extend_from_slice(b",\"data\":");
    // Line breaks occur only between JSON tokens: strings cannot contain them.
    line.extend(data.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    line.extend_from_slice(b"}\n");
    Ok(line)
}

fn faulty_line(table: &str, id: &str, at: Option<i64>, why: &str) -> Vec<u8> {
    json!({ "table": table, "id": id, "time_created": at, "fault": why }).to_string().into_bytes()
}
