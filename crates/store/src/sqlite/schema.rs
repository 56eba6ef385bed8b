//! The file's layout. Migrations are forward only, run in place under the write lock, and refuse a newer file.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::error::{AtPath, BUSY_WAIT_MS};

/// "Sapw", so that `file` and we can tell a Sapwood file from any other SQLite database.
const APPLICATION_ID: i32 = 0x5361_7077;

type Script = &'static [&'static str];

/// A new file's layout, and the steps that lead to the same. The file's `user_version` counts how many were taken.
#[derive(Clone, Copy)]
struct Layout {
    newest: Script,
    /// Never change a step that was released.
    steps: &'static [Script],
}

impl Layout {
    fn version(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }
}

const LAYOUT: Layout = Layout {
    newest: &[LOG_2, COMMON, KEYS, MEMORIES, INDEX, PLACES, PIECES, AUDIT, LEASE_TERMS, AUTHORITY],
    steps: &[FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH],
};
const FIRST: Script = &[COMMON, LOG_1];
const SECOND: Script = &[SET_ASIDE_1, LOG_2, TEXTS_2, TAKE_OVER_1];
const THIRD: Script = &[KEYS];
const FOURTH: Script = &[MEMORIES];
const FIFTH: Script = &[DROP_TEXTS_2, INDEX];
const SIXTH: Script = &[PLACES];
const SEVENTH: Script = &[PIECES];
const EIGHTH: Script = &[AUDIT];
const NINTH: Script = &[LEASE_TERMS, AUTHORITY];

/// Between two tries for a lock that SQLite does not wait for.
const TRY_AGAIN_MS: u64 = 5;

/// Chosen by measurement, see docs/benchmarks.md.
const PAGE_BYTES: u32 = 4096;

/// Who may come in. The secret itself is nowhere: only its hash.
const KEYS: &str = "
CREATE TABLE keys (
  hash   BLOB NOT NULL UNIQUE,
  tenant INTEGER NOT NULL REFERENCES tenants (pk),
  id     TEXT NOT NULL,
  row    TEXT NOT NULL
);
CREATE INDEX keys_by_tenant ON keys (tenant, id);
";

/// What sessions taught, and which of them support it.
const MEMORIES: &str = "
CREATE TABLE memories (
  pk            INTEGER PRIMARY KEY,
  tenant        INTEGER NOT NULL REFERENCES tenants (pk),
  id            BLOB NOT NULL,
  owner         TEXT NOT NULL,
  superseded_by BLOB,
  row           TEXT NOT NULL
);
CREATE UNIQUE INDEX memories_by_id ON memories (tenant, id);
CREATE INDEX memories_by_owner ON memories (tenant, owner, id);
CREATE INDEX memories_superseded ON memories (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE TABLE memory_sources (
  tenant  INTEGER NOT NULL,
  session TEXT NOT NULL,
  memory  INTEGER NOT NULL REFERENCES memories (pk),
  PRIMARY KEY (tenant, session, memory)
) WITHOUT ROWID;
CREATE INDEX memory_sources_by_memory ON memory_sources (memory);
";

/// Blobs of more than one piece. Those of one are in their own row, as all of them were; a larger one that is still there is cut up
/// when it is read.
const PIECES: &str = "
-- A blob's pieces; without a size, those that have come so far. `at` is when the last one came, in seconds.
CREATE TABLE cuts (pk INTEGER PRIMARY KEY, at INTEGER NOT NULL, bytes INTEGER);
CREATE INDEX cuts_unfinished ON cuts (at) WHERE bytes IS NULL;
-- The key is the cut's pk, with the piece's number in the lowest 16 bits.
CREATE TABLE pieces (
  key     INTEGER PRIMARY KEY,
  packing INTEGER NOT NULL,
  hash    BLOB NOT NULL,
  data    BLOB NOT NULL
);
ALTER TABLE blobs ADD COLUMN cut INTEGER;
";

/// The audit as a table that grows at its end, where SQLite fills a page before it begins the next one.
const AUDIT: &str = "
ALTER TABLE audit RENAME TO audit_7;
-- The key is the tenant's pk, with the line's number in the lowest 40 bits.
CREATE TABLE audit (key INTEGER PRIMARY KEY, session TEXT, line TEXT NOT NULL);
INSERT INTO audit SELECT tenant << 40 | number, session, line FROM audit_7 ORDER BY tenant, number;
DROP TABLE audit_7;
DROP TABLE session_audit;
CREATE TABLE session_audit (session TEXT NOT NULL, key INTEGER NOT NULL, PRIMARY KEY (session, key)) WITHOUT ROWID;
INSERT INTO session_audit
  SELECT session, key FROM audit a
  WHERE session NOT NULL AND key <= (SELECT max(key) FROM audit WHERE key < ((a.key >> 40) + 1) << 40) / 4096 * 4096
  ORDER BY session, key;
";

/// Which part of each session this store wrote itself, see [`super::authority`]. NULL for sessions from before.
const AUTHORITY: &str = "ALTER TABLE sessions ADD COLUMN authority TEXT;";
/// When a lease was taken, by the time since which boot, and for how long. `timed_fence` is the fence of the lease that the
/// other three describe: a process of an earlier build that is still running changes the older columns alone.
const LEASE_TERMS: &str = "
ALTER TABLE leases ADD COLUMN boot TEXT;
ALTER TABLE leases ADD COLUMN taken_ms INTEGER;
ALTER TABLE leases ADD COLUMN ttl_ms INTEGER;
ALTER TABLE leases ADD COLUMN timed_fence INTEGER;
";

/// What has not changed since the first layout, or is changed by a later part of it.
const COMMON: &str = "
CREATE TABLE tenants (pk INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE principals (pk INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- A session. Its summary is a cache of its log, kept equal by every append. An erased session that forks still need
-- has no id: nothing finds it but their base.
CREATE TABLE sessions (
  pk         INTEGER PRIMARY KEY,
  tenant     INTEGER NOT NULL REFERENCES tenants (pk),
  id         TEXT,
  listed_at  INTEGER NOT NULL,
  parent     TEXT,
  base       INTEGER REFERENCES sessions (pk),
  base_seq   INTEGER,
  inherited  INTEGER NOT NULL DEFAULT 0,
  summary    TEXT
);
CREATE UNIQUE INDEX sessions_by_id ON sessions (tenant, id);
CREATE INDEX sessions_by_time ON sessions (tenant, listed_at, pk) WHERE id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_base ON sessions (base) WHERE base IS NOT NULL;

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('indexed', 0);

CREATE TABLE leases (
  session    INTEGER PRIMARY KEY REFERENCES sessions (pk),
  holder     TEXT NOT NULL,
  fence      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
);
CREATE TABLE answers (
  session INTEGER NOT NULL REFERENCES sessions (pk),
  key     TEXT NOT NULL,
  answer  TEXT NOT NULL,
  PRIMARY KEY (session, key)
) WITHOUT ROWID;

CREATE TABLE blobs (
  pk      INTEGER PRIMARY KEY,
  tenant  INTEGER NOT NULL REFERENCES tenants (pk),
  hash    BLOB NOT NULL,
  packing INTEGER NOT NULL,
  data    BLOB NOT NULL
);
CREATE UNIQUE INDEX blobs_by_hash ON blobs (tenant, hash);
CREATE TABLE blob_puts (
  blob      INTEGER NOT NULL REFERENCES blobs (pk),
  principal INTEGER NOT NULL REFERENCES principals (pk),
  PRIMARY KEY (blob, principal)
) WITHOUT ROWID;
CREATE TABLE blob_uses (
  key  INTEGER NOT NULL,
  blob INTEGER NOT NULL REFERENCES blobs (pk),
  PRIMARY KEY (key, blob)
) WITHOUT ROWID;
CREATE INDEX blob_uses_by_blob ON blob_uses (blob);

CREATE TABLE audit (
  tenant  INTEGER NOT NULL REFERENCES tenants (pk),
  number  INTEGER NOT NULL,
  session TEXT,
  line    TEXT NOT NULL,
  PRIMARY KEY (tenant, number)
) WITHOUT ROWID;
CREATE INDEX audit_by_session ON audit (tenant, session, number) WHERE session IS NOT NULL;
";

/// The log as it was, clustered by session.
const LOG_1: &str = "
-- The log. The key is the session's pk in the high half and the seq in the low half, so a session's entries lie together
-- and need no second index. depth, jump, messages and settings are the entry's links (see sapwood_core::tree); snapshot
-- holds the settings where they change. doc is the entry's number in the search index. The body is last, so that walking
-- over an entry does not read it.
CREATE TABLE entries (
  key      INTEGER PRIMARY KEY,
  id       BLOB NOT NULL,
  parent   INTEGER,
  at       INTEGER NOT NULL,
  by       INTEGER NOT NULL,
  kind     INTEGER NOT NULL,
  depth    INTEGER,
  jump     INTEGER,
  messages INTEGER,
  settings INTEGER,
  doc      INTEGER,
  turn     BLOB,
  snapshot TEXT,
  version  INTEGER NOT NULL,
  packing  INTEGER NOT NULL,
  body     BLOB NOT NULL
);
-- What is folded on its own: compactions, labels, rounds … Plain messages cost this index nothing.
CREATE INDEX entries_by_kind ON entries (kind, key) WHERE kind > 3;

-- Entries with text, in the order they were written, over all sessions; searches go through them newest first. The index
-- trails behind: what is numbered above `indexed` is added before a search, or when there is enough of it.
CREATE TABLE docs (doc INTEGER PRIMARY KEY, key INTEGER NOT NULL);
-- Each text's distinct words, without positions: a third of the size and twice as quick as with them.
CREATE VIRTUAL TABLE texts
  USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'unicode61 remove_diacritics 0');
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
";

/// The log: entries in the order they came, over all sessions, which is also their number in the search index.
const LOG_2: &str = "
-- The key is the session's pk in the high half and the seq in the low half. depth, jump, messages and settings are the
-- entry's links (see sapwood_core::tree); snapshot holds the settings where they change. The body is last, so that
-- walking over an entry does not read it.
CREATE TABLE entries (
  arrival  INTEGER PRIMARY KEY,
  key      INTEGER NOT NULL,
  id       BLOB NOT NULL,
  parent   INTEGER,
  at       INTEGER NOT NULL,
  by       INTEGER NOT NULL,
  kind     INTEGER NOT NULL,
  depth    INTEGER,
  jump     INTEGER,
  messages INTEGER,
  settings INTEGER,
  turn     BLOB,
  snapshot TEXT,
  version  INTEGER NOT NULL,
  packing  INTEGER NOT NULL,
  body     BLOB NOT NULL
);
CREATE UNIQUE INDEX entries_by_key ON entries (key);
-- What is folded on its own: compactions, labels, rounds … Plain messages cost this index nothing.
CREATE INDEX entries_by_kind ON entries (kind, key) WHERE kind > 3;
";

/// The search index as it was, in FTS5.
const TEXTS_2: &str = "
CREATE VIRTUAL TABLE texts USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'ascii');
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
";

/// The index is built anew, before the first search.
const DROP_TEXTS_2: &str = "
DROP TABLE texts;
UPDATE counters SET value = 0 WHERE name = 'indexed';
";

/// The search index: which words are in which texts, see [`super::index`]. It trails behind: what arrived after `indexed` is
/// added before a search, or when there is enough of it.
const INDEX: &str = "
CREATE TABLE segments (
  first       INTEGER PRIMARY KEY,
  last        INTEGER NOT NULL,
  texts       INTEGER NOT NULL,
  block_from  INTEGER NOT NULL,
  block_count INTEGER NOT NULL,
  directory   BLOB NOT NULL
);
CREATE TABLE blocks (pk INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
";

/// What scattered a page over the file for every session in a commit: where entries are, see [`super::places`], and which
/// lines of the audit are about a session, see [`super::audit`].
const PLACES: &str = "
CREATE TABLE places (key INTEGER PRIMARY KEY, arrival INTEGER NOT NULL);
CREATE TABLE recent_places (key INTEGER PRIMARY KEY, arrival INTEGER NOT NULL);
INSERT INTO places SELECT key, arrival FROM entries ORDER BY key;
DROP INDEX entries_by_key;

CREATE VIEW placed AS SELECT key, arrival FROM places UNION ALL SELECT key, arrival FROM recent_places;
-- The entries by their keys. Each half is joined on its own, so that SQLite looks them up, and merges them where they are
-- wanted in order.
CREATE VIEW log AS
  SELECT p.key AS key, e.arrival AS arrival, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot,
         version, packing, body
  FROM places p CROSS JOIN entries e ON e.arrival = p.arrival AND e.key = p.key
  UNION ALL
  SELECT p.key, e.arrival, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot,
         version, packing, body
  FROM recent_places p CROSS JOIN entries e ON e.arrival = p.arrival AND e.key = p.key;

CREATE TABLE session_audit (
  tenant  INTEGER NOT NULL,
  session TEXT NOT NULL,
  number  INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, number)
) WITHOUT ROWID;
INSERT INTO session_audit
  SELECT tenant, session, number FROM audit a
  WHERE session NOT NULL AND number <= (SELECT max(number) FROM audit WHERE tenant = a.tenant) / 1024 * 1024
  ORDER BY tenant, session, number;
DROP INDEX audit_by_session;
";

/// The index is built anew, as its numbers change.
const SET_ASIDE_1: &str = "
DROP TABLE docs;
DROP TABLE texts;
UPDATE counters SET value = 0 WHERE name = 'indexed';
DROP INDEX entries_by_kind;
ALTER TABLE entries RENAME TO entries_1;
";

/// Texts keep their order; an entry without one takes its place after the text that precedes it in its session.
const TAKE_OVER_1: &str = "
INSERT INTO entries
  SELECT place, key, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot, version, packing, body
  FROM (SELECT of_key, row_number() OVER (ORDER BY text, of_key) AS place
        FROM (SELECT key AS of_key, max(doc) OVER (PARTITION BY key >> 32 ORDER BY key) AS text FROM entries_1))
  CROSS JOIN entries_1 ON key = of_key;
DROP TABLE entries_1;
";

/// Brings a new or older file up to date.
pub(super) fn migrate(conn: &Connection, path: &Path) -> Result<()> {
    bring_up(conn, path, LAYOUT)
}

fn bring_up(conn: &Connection, path: &Path, layout: Layout) -> Result<()> {
    let found = read_stamps(conn).at(path)?;
    check_stamps(path, found, layout)?;
    if found.version == layout.version() {
        return Ok(());
    }
    if found.version == 0 {
        // Only takes effect on a file without pages yet; harmless otherwise.
        conn.pragma_update(None, "page_size", PAGE_BYTES).at(path)?;
        switch_to_wal(conn).at(path)?;
    }
    conn.execute_batch("BEGIN IMMEDIATE").at(path)?;
    let migrated = run_scripts(conn, path, layout);
    let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
    conn.execute_batch(end).at(path)?;
    migrated
}

/// When several processes make the same file at once, SQLite says "busy" here without waiting: so we wait.
fn switch_to_wal(conn: &Connection) -> rusqlite::Result<()> {
    let start = Instant::now();
    loop {
        match conn.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < Duration::from_millis(BUSY_WAIT_MS) =>
            {
                std::thread::sleep(Duration::from_millis(TRY_AGAIN_MS));
            }
            done => return done,
        }
    }
}

/// Whose file it is, and which layout it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamps {
    application: i32,
    version: u32,
    /// Tables, indexes and views.
    objects: i64,
}

/// Reads all of them in one snapshot: another process may be making the file between two statements.
fn read_stamps(conn: &Connection) -> rusqlite::Result<Stamps> {
    let snapshot = conn.unchecked_transaction()?;
    let stamps = stamps_in_transaction(&snapshot)?;
    snapshot.finish()?;
    Ok(stamps)
}

fn stamps_in_transaction(conn: &Connection) -> rusqlite::Result<Stamps> {
    Ok(Stamps {
        application: conn.pragma_query_value(None, "application_id", |row| row.get(0))?,
        version: conn.pragma_query_value(None, "user_version", |row| row.get(0))?,
        objects: conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?,
    })
}

fn check_stamps(path: &Path, found: Stamps, layout: Layout) -> Result<()> {
    let place = path.display().to_string();
    let is_ours = found.application == APPLICATION_ID;
    if !is_ours && (found.objects > 0 || found.application != 0) {
        let what = "is a SQLite database, but not one of Sapwood's; it was left alone".to_owned();
        return Err(StoreError::Damaged { place, what });
    }
    if found.version > layout.version() {
        return Err(StoreError::TooNew { place, found: found.version, known: layout.version() });
    }
    Ok(())
}

/// Runs inside the write lock. Another process may have migrated the file while we waited for it, to our layout or to a
/// newer one, so the stamps are read and checked again.
fn run_scripts(conn: &Connection, path: &Path, layout: Layout) -> Result<()> {
    let found = stamps_in_transaction(conn).at(path)?;
    check_stamps(path, found, layout)?;
    let scripts = match found.version {
        0 => std::slice::from_ref(&layout.newest),
        version => layout.steps.get(version as usize..).unwrap_or_default(),
    };
    for script in scripts.iter().copied().flatten() {
        conn.execute_batch(script).at(path)?;
    }
    conn.pragma_update(None, "application_id", APPLICATION_ID).at(path)?;
    conn.pragma_update(None, "user_version", layout.version()).at(path)
}

#[cfg(test)]
mod tests;
