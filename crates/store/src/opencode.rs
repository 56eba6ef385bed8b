//! opencode's database, read only, for the importer in `sapwood-formats`: its rows as lines of JSON. It stands here because
//! this is the only crate that speaks SQL.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};
use sapwood_core::StoreError;
use sapwood_core::port::store::{BODY_BYTES_MAX, Result};
use serde_json::json;
use serde_json::value::RawValue;

/// How many messages one page holds.
const PAGE_MESSAGES: u32 = 200;

pub struct Database {
    connection: Connection,
    path: PathBuf,
}

/// Where a page ended: time and id of its last message.
pub type Cursor = (i64, String);

impl Database {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| failed(path, &error))?;
        Ok(Self { connection, path: path.to_owned() })
    }

    /// The ids of all sessions, oldest first.
    pub fn sessions(&self) -> Result<Vec<String>> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut select = self.connection.prepare("SELECT id FROM session ORDER BY time_created, id")?;
            select.query_map([], |row| row.get(0))?.collect()
        };
        read().map_err(|error| failed(&self.path, &error))
    }

    /// The line of a session itself.
    pub fn session_line(&self, session: &str) -> Result<Vec<u8>> {
        let read = self.connection.query_row(
            "SELECT parent_id, title, directory, time_created FROM session WHERE id = ?1",
            [session],
            |row| {
                let parent: Option<String> = row.get(0)?;
                let title: Option<String> = row.get(1)?;
                let directory: Option<String> = row.get(2)?;
                let at: Option<i64> = row.get(3)?;
                Ok(json!({
                    "table": "session", "id": session, "parent_id": parent, "title": title,
                    "directory": directory, "time_created": at,
                }))
            },
        );
        read.map(|line| line.to_string().into_bytes()).map_err(|error| failed(&self.path, &error))
    }

    /// The next messages of a session with their parts, as lines, and where to go on.
    pub fn message_lines(
        &self,
        session: &str,
        after: Option<Cursor>,
    ) -> Result<(Vec<Vec<u8>>, Option<Cursor>)> {
        self.read_lines(session, after).map_err(|error| failed(&self.path, &error))
    }

    fn read_lines(
        &self,
        session: &str,
        after: Option<Cursor>,
    ) -> rusqlite::Result<(Vec<Vec<u8>>, Option<Cursor>)> {
        let (at, id) = after.unwrap_or((i64::MIN, String::new()));
        let mut messages = self.connection.prepare_cached(
            "SELECT id, time_created, data, length(data) FROM message
             WHERE session_id = ?1 AND (time_created, id) > (?2, ?3) ORDER BY time_created, id LIMIT ?4",
        )?;
        let mut parts = self
            .connection
            .prepare_cached("SELECT id, data, length(data) FROM part WHERE message_id = ?1 ORDER BY id")?;
        let (mut lines, mut last) = (Vec::new(), None);
        let mut rows = messages.query(params![session, at, id, PAGE_MESSAGES])?;
        while let Some(row) = rows.next()? {
            let (id, at): (String, i64) = (row.get(0)?, row.get(1)?);
            lines.push(line("message", &id, Some(at), row.get(3)?, || row.get(2))?);
            let mut of_message = parts.query([&id])?;
            while let Some(row) = of_message.next()? {
                let part: String = row.get(0)?;
                lines.push(line("part", &part, None, row.get(2)?, || row.get(1))?);
            }
            last = Some((at, id));
        }
        Ok((lines, last))
    }
}

fn line(
    table: &str,
    id: &str,
    at: Option<i64>,
    length: Option<i64>,
    data: impl FnOnce() -> rusqlite::Result<String>,
) -> rusqlite::Result<Vec<u8>> {
    if length.unwrap_or(0) > BODY_BYTES_MAX as i64 {
        // The importer says that it does not know this table, by its name.
        return Ok(json!({ "table": format!("{table}: {id} is too long"), "id": id })
            .to_string()
            .into_bytes());
    }
    let data = data()?;
    let data =
        serde_json::from_str::<&RawValue>(&data).map_or("null", RawValue::get).replace(['\n', '\r'], " ");
    let head = json!({ "table": table, "id": id, "time_created": at }).to_string();
    Ok(format!("{},\"data\":{data}}}\n", head.trim_end_matches('}')).into_bytes())
}

fn failed(path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Backend { place: path.display().to_string(), what: error.to_string() }
}
