//! The index of entries by session and seq. Rows of `entries` are in order of arrival, over all
//! sessions. The table `places` maps a session and seq to the number of the row, its position.
//!
//! Sessions that are written at the same time are far apart in `places`, and a commit writes one
//! whole page for each of them. So the newest positions are first written to a small table,
//! `recent_places`, where they share a few pages, and are moved to `places` in bulk. Readers use
//! both tables through the views `placed` and `log`.

use rusqlite::params;
use sapwood_core::port::store::Result;

use super::connection::StoreConnection;
use super::error::AtPath;

/// Positions are moved from `recent_places` to `places` whenever the row number passes a multiple of
/// this, so that `recent_places` stays small.
const RECENT_POSITIONS_MAX: i64 = 1_024;
/// An append of at least this many entries fills whole pages, so its positions are written to
/// `places` directly.
const DIRECT_ENTRIES_MIN: usize = 64;

/// Writes the positions of the entries of one append.
pub(super) struct PositionWriter<'d> {
    db: &'d StoreConnection,
    insert: &'static str,
    /// The numbers of the first and the last row written so far.
    rows: Option<(i64, i64)>,
}

impl<'d> PositionWriter<'d> {
    pub fn of(db: &'d StoreConnection, entries: usize) -> Self {
        let insert = match entries {
            DIRECT_ENTRIES_MIN.. => "INSERT INTO places (key, arrival) VALUES (?1, ?2)",
            _ => "INSERT INTO recent_places (key, arrival) VALUES (?1, ?2)",
        };
        Self { db, insert, rows: None }
    }

    pub fn add(&mut self, key: i64, arrival: i64) -> Result<()> {
        self.db.execute(self.insert, [key, arrival])?;
        self.rows = Some((self.rows.map_or(arrival, |(first, _)| first), arrival));
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        match self.rows {
            Some((first, last)) if (first - 1) / RECENT_POSITIONS_MAX != last / RECENT_POSITIONS_MAX => {
                move_recent(self.db)
            }
            _ => Ok(()),
        }
    }
}

fn move_recent(db: &StoreConnection) -> Result<()> {
    let take = "INSERT INTO places (key, arrival) SELECT key, arrival FROM recent_places ORDER BY key";
    db.execute(take, [])?;
    db.execute("DELETE FROM recent_places", [])?;
    Ok(())
}

pub(super) fn remove(db: &StoreConnection, key: i64) -> Result<()> {
    for sql in ["DELETE FROM places WHERE key = ?1", "DELETE FROM recent_places WHERE key = ?1"] {
        db.execute(sql, [key])?;
    }
    Ok(())
}

/// Returns how many entries have a missing or wrong position, plus how many positions have no entry.
pub(super) fn count_wrong(db: &StoreConnection) -> Result<i64> {
    let sql = "SELECT (SELECT count(*) FROM entries e
                       WHERE e.arrival IS NOT (SELECT arrival FROM placed WHERE key = e.key))
                    + (SELECT count(*) FROM placed p
                       WHERE p.key IS NOT (SELECT key FROM entries WHERE arrival = p.arrival))";
    db.query_value(sql, [])
}

/// Rebuilds both tables from the keys in the rows of `entries`.
pub(super) fn rebuild(db: &StoreConnection) -> Result<()> {
    db.in_transaction(|| {
        for table in ["places", "recent_places"] {
            db.conn.execute(&format!("DELETE FROM {table}"), params![]).at(&db.path)?;
        }
        let all = "INSERT INTO places (key, arrival) SELECT key, arrival FROM entries ORDER BY key";
        db.conn.execute(all, params![]).at(&db.path).map(|_| ())
    })
}
