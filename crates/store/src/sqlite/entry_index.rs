//! Where an entry is. Rows of `entries` lie in the order they came, over all sessions; `places` leads from a session and a
//! seq to the row.
//!
//! Sessions that are written at once lie far apart in `places`, and a commit writes whole pages: one for each of them. So
//! the newest places are kept in a small table of their own, `recent_places`, where they share a few pages, and are put into
//! `places` many at a time. Readers look at both, through the views `placed` and `log`.

use rusqlite::params;
use sapwood_core::port::store::Result;

use super::connection::StoreConnection;
use super::error::AtPath;

/// The places are settled whenever the rows pass a multiple of this, so no more than these are ever recent.
const RECENT_MAX: i64 = 1_024;
/// An append of so many entries fills pages of its own: they are settled at once.
const SETTLED_AT_ONCE: usize = 64;

/// The places of one append.
pub(super) struct Placing<'d> {
    db: &'d StoreConnection,
    insert: &'static str,
    /// The rows it has written, first and last.
    rows: Option<(i64, i64)>,
}

impl<'d> Placing<'d> {
    pub fn of(db: &'d StoreConnection, entries: usize) -> Self {
        let insert = match entries {
            SETTLED_AT_ONCE.. => "INSERT INTO places (key, arrival) VALUES (?1, ?2)",
            _ => "INSERT INTO recent_places (key, arrival) VALUES (?1, ?2)",
        };
        Self { db, insert, rows: None }
    }

    pub fn note(&mut self, key: i64, arrival: i64) -> Result<()> {
        self.db.prepare(self.insert)?.execute([key, arrival]).at(&self.db.path)?;
        self.rows = Some((self.rows.map_or(arrival, |(first, _)| first), arrival));
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        match self.rows {
            Some((first, last)) if (first - 1) / RECENT_MAX != last / RECENT_MAX => settle(self.db),
            _ => Ok(()),
        }
    }
}

fn settle(db: &StoreConnection) -> Result<()> {
    let take = "INSERT INTO places (key, arrival) SELECT key, arrival FROM recent_places ORDER BY key";
    db.prepare(take)?.execute([]).at(&db.path)?;
    db.prepare("DELETE FROM recent_places")?.execute([]).at(&db.path)?;
    Ok(())
}

/// The entry is gone.
pub(super) fn forget(db: &StoreConnection, key: i64) -> Result<()> {
    for sql in ["DELETE FROM places WHERE key = ?1", "DELETE FROM recent_places WHERE key = ?1"] {
        db.prepare(sql)?.execute([key]).at(&db.path)?;
    }
    Ok(())
}

/// How many entries cannot be found where they are, and how many places lead nowhere.
pub(super) fn count_wrong(db: &StoreConnection) -> Result<i64> {
    let sql = "SELECT (SELECT count(*) FROM entries e
                       WHERE e.arrival IS NOT (SELECT arrival FROM placed WHERE key = e.key))
                    + (SELECT count(*) FROM placed p
                       WHERE p.key IS NOT (SELECT key FROM entries WHERE arrival = p.arrival))";
    db.prepare(sql)?.query_row([], |row| row.get(0)).at(&db.path)
}

/// The rows themselves know whose they are.
pub(super) fn rebuild(db: &StoreConnection) -> Result<()> {
    db.in_transaction(|| {
        for table in ["places", "recent_places"] {
            db.conn.execute(&format!("DELETE FROM {table}"), params![]).at(&db.path)?;
        }
        let all = "INSERT INTO places (key, arrival) SELECT key, arrival FROM entries ORDER BY key";
        db.conn.execute(all, params![]).at(&db.path).map(|_| ())
    })
}
