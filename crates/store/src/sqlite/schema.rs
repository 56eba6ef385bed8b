//! The layout of the file. Migrations are forward-only, run in place under the write lock, and
//! reject a newer file.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::error::{AtPath, BUSY_WAIT_MS};
use super::records::TABLES as RECORDS;
use super::seal;

/// "Sapw", so that `file` and Sapwood can distinguish a Sapwood file from other SQLite databases.
const APPLICATION_ID: i32 = 0x5361_7077;

type Script = &'static [&'static str];

/// The layout of a new file, and the migration steps that produce the same layout. The file's
/// `user_version` counts the steps.
#[derive(Clone, Copy)]
struct SchemaLayout {
    newest: Script,
    /// Never change a released step.
    steps: &'static [Script],
}

impl SchemaLayout {
    fn version(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }
}

const LAYOUT: SchemaLayout = SchemaLayout {
    newest: &[
        LOG_2,
        COMMON,
        KEYS,
        MEMORIES,
        INDEX,
        PLACES,
        PIECES,
        AUDIT,
        LEASE_TERMS,
        AUTHORITY,
        PROOFS,
        RECORDS,
    ],
    steps: &[FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH, TENTH, ELEVENTH],
};
const FIRST: Script = &[COMMON, LOG_1];
const SECOND: Script = &[RENAME_LOG_1, LOG_2, TEXTS_2, COPY_LOG_1];
const THIRD: Script = &[KEYS];
const FOURTH: Script = &[MEMORIES];
const FIFTH: Script = &[DROP_TEXTS_2, INDEX];
const SIXTH: Script = &[PLACES];
const SEVENTH: Script = &[PIECES];
const EIGHTH: Script = &[AUDIT];
const NINTH: Script = &[LEASE_TERMS, AUTHORITY];
/// Marks that the file may contain entries of log format 3, which earlier versions cannot read.
const TENTH: Script = &[];
/// Adds the proofs of entries and the records of a tenant. Also marks that the pages of the file may have checksums, which earlier versions would not
/// update.
const ELEVENTH: Script = &[PROOFS, RECORDS];

/// Delay between two attempts to get a lock that SQLite does not wait for.
const RETRY_DELAY_MS: u64 = 5;

/// Page size of a new file.
const PAGE_BYTES: u32 = 4096;

/// API keys. Only the hash of the secret is stored.
const KEYS: &str = "
CREATE TABLE keys (
  hash   BLOB NOT NULL UNIQUE,
  tenant INTEGER NOT NULL REFERENCES tenants (pk),
  id     TEXT NOT NULL,
  row    TEXT NOT NULL
);
CREATE INDEX keys_by_tenant ON keys (tenant, id);
";

/// Memories, and the sessions that support them.
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

/// Blobs of more than one chunk. A blob of one chunk is stored in its row, as all blobs were in
/// earlier layouts. A larger blob that is still in its row is split when it is read.
const PIECES: &str = "
-- The pieces of a blob. While `bytes` is NULL, the upload is unfinished. `at` is the time of the
-- last piece, in seconds.
CREATE TABLE cuts (pk INTEGER PRIMARY KEY, at INTEGER NOT NULL, bytes INTEGER);
CREATE INDEX cuts_unfinished ON cuts (at) WHERE bytes IS NULL;
-- The key is the pk of the cut, with the piece's number in the lowest 16 bits.
CREATE TABLE pieces (
  key     INTEGER PRIMARY KEY,
  packing INTEGER NOT NULL,
  hash    BLOB NOT NULL,
  data    BLOB NOT NULL
);
ALTER TABLE blobs ADD COLUMN cut INTEGER;
";

/// The audit log as a table that grows at its end, so that SQLite fills each page before it starts the
/// next one.
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

/// The hash of each entry, see [`super::proofs`]. NULL for entries that an earlier version wrote.
const PROOFS: &str = "
ALTER TABLE entries ADD COLUMN proof BLOB;
DROP VIEW log;
CREATE VIEW log AS
  SELECT p.key AS key, e.arrival AS arrival, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot,
         version, packing, body, proof
  FROM places p CROSS JOIN entries e ON e.arrival = p.arrival AND e.key = p.key
  UNION ALL
  SELECT p.key, e.arrival, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot,
         version, packing, body, proof
  FROM recent_places p CROSS JOIN entries e ON e.arrival = p.arrival AND e.key = p.key;
";

/// Which entries of each session this store wrote itself, see [`super::authority`]. NULL for
/// sessions that an earlier version created.
const AUTHORITY: &str = "ALTER TABLE sessions ADD COLUMN authority TEXT;";
/// When a lease was acquired (boot id and time since that boot), and its TTL. `timed_fence` is the
/// fence of the lease that the other three columns describe: a running process of an earlier build
/// updates only the older columns.
const LEASE_TERMS: &str = "
ALTER TABLE leases ADD COLUMN boot TEXT;
ALTER TABLE leases ADD COLUMN taken_ms INTEGER;
ALTER TABLE leases ADD COLUMN ttl_ms INTEGER;
ALTER TABLE leases ADD COLUMN timed_fence INTEGER;
";

/// Tables of the first layout that are still in use. Later parts change some of them.
const COMMON: &str = "
CREATE TABLE tenants (pk INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE principals (pk INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- A session. Its summary is a cache of its log and is updated by every append. An erased session
-- that forks still need has no id and is only reachable as their base.
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

/// The log of layout 1, clustered by session.
const LOG_1: &str = "
-- The log. The key is the session's pk in the high half and the seq in the low half. So a session's entries are adjacent
-- and need no second index. depth, jump, messages and settings are the entry's links (see sapwood_core::tree). snapshot
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
-- Kinds that are read on their own: compactions, labels, rounds … The index skips plain messages.
CREATE INDEX entries_by_kind ON entries (kind, key) WHERE kind > 3;

-- Entries with text, in the order they were written, over all sessions; searches scan them newest
-- first. The index lags behind: texts numbered above `indexed` are added before a search, or when
-- there are enough of them.
CREATE TABLE docs (doc INTEGER PRIMARY KEY, key INTEGER NOT NULL);
-- The distinct words of each text, without positions: a third of the size and twice as fast as with
-- positions.
CREATE VIRTUAL TABLE texts
  USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'unicode61 remove_diacritics 0');
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
";

/// The log: entries in order of arrival, over all sessions. The arrival is also the number of an
/// entry in the search index.
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
-- Kinds that are read on their own: compactions, labels, rounds … The index skips plain messages.
CREATE INDEX entries_by_kind ON entries (kind, key) WHERE kind > 3;
";

/// The search index of layout 2, in FTS5.
const TEXTS_2: &str = "
CREATE VIRTUAL TABLE texts USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'ascii');
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
";

/// Drops the search index of layout 2. The new index is built before the first search.
const DROP_TEXTS_2: &str = "
DROP TABLE texts;
UPDATE counters SET value = 0 WHERE name = 'indexed';
";

/// The search index: which words are in which texts, see [`super::index`]. It lags behind the log:
/// texts that arrived after `indexed` are added before a search, or when there are enough of them.
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

/// Replaces two indexes for which each commit wrote one page per session: the positions of entries,
/// see [`super::entry_index`], and the audit lines of a session, see [`super::audit`].
const PLACES: &str = "
CREATE TABLE places (key INTEGER PRIMARY KEY, arrival INTEGER NOT NULL);
CREATE TABLE recent_places (key INTEGER PRIMARY KEY, arrival INTEGER NOT NULL);
INSERT INTO places SELECT key, arrival FROM entries ORDER BY key;
DROP INDEX entries_by_key;

CREATE VIEW placed AS SELECT key, arrival FROM places UNION ALL SELECT key, arrival FROM recent_places;
-- The entries by key. Each half is joined separately, so that SQLite uses lookups, and merges the
-- halves where order matters.
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

/// Renames the old log and drops its search index, which is rebuilt because the numbers of texts
/// change.
const RENAME_LOG_1: &str = "
DROP TABLE docs;
DROP TABLE texts;
UPDATE counters SET value = 0 WHERE name = 'indexed';
DROP INDEX entries_by_kind;
ALTER TABLE entries RENAME TO entries_1;
";

/// Copies the old log. Texts keep their order. An entry without text is placed after the text that
/// precedes it in its session.
const COPY_LOG_1: &str = "
INSERT INTO entries
  SELECT place, key, id, parent, at, by, kind, depth, jump, messages, settings, turn, snapshot, version, packing, body
  FROM (SELECT of_key, row_number() OVER (ORDER BY text, of_key) AS place
        FROM (SELECT key AS of_key, max(doc) OVER (PARTITION BY key >> 32 ORDER BY key) AS text FROM entries_1))
  CROSS JOIN entries_1 ON key = of_key;
DROP TABLE entries_1;
";

/// Migrates a new or older file to the current layout.
pub(super) fn migrate(conn: &Connection, path: &Path) -> Result<()> {
    migrate_to(conn, path, LAYOUT)
}

fn migrate_to(conn: &Connection, path: &Path, layout: SchemaLayout) -> Result<()> {
    let found = read_markers(conn).at(path)?;
    check_markers(path, found, layout)?;
    if found.version == layout.version() {
        return Ok(());
    }
    if found.version == 0 {
        // These only take effect on a file that has no pages yet, and are harmless otherwise.
        seal::prepare_new(conn);
        conn.pragma_update(None, "page_size", PAGE_BYTES).at(path)?;
        switch_to_wal(conn).at(path)?;
    }
    conn.execute_batch("BEGIN IMMEDIATE").at(path)?;
    let migrated = run_scripts(conn, path, layout);
    let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
    conn.execute_batch(end).at(path)?;
    migrated
}

/// Switches the file to write-ahead logging. When several processes create the same file at once,
/// SQLite returns "busy" without waiting, so this function retries.
fn switch_to_wal(conn: &Connection) -> rusqlite::Result<()> {
    let start = Instant::now();
    loop {
        match conn.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < Duration::from_millis(BUSY_WAIT_MS) =>
            {
                std::thread::sleep(Duration::from_millis(RETRY_DELAY_MS));
            }
            done => return done,
        }
    }
}

/// The markers that identify a Sapwood file and its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileMarkers {
    application: i32,
    version: u32,
    /// The number of tables, indexes and views.
    objects: i64,
}

/// Reads all markers in one snapshot: another process may be creating the file between two
/// statements.
fn read_markers(conn: &Connection) -> rusqlite::Result<FileMarkers> {
    let snapshot = conn.unchecked_transaction()?;
    let markers = markers_in_transaction(&snapshot)?;
    snapshot.finish()?;
    Ok(markers)
}

fn markers_in_transaction(conn: &Connection) -> rusqlite::Result<FileMarkers> {
    Ok(FileMarkers {
        application: conn.pragma_query_value(None, "application_id", |row| row.get(0))?,
        version: version_of(conn)?,
        objects: conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?,
    })
}

fn check_markers(path: &Path, found: FileMarkers, layout: SchemaLayout) -> Result<()> {
    let place = path.display().to_string();
    let is_ours = found.application == APPLICATION_ID;
    if !is_ours && (found.objects > 0 || found.application != 0) {
        let what = "it is a SQLite database, but not a Sapwood store; it was not changed".to_owned();
        return Err(StoreError::Damaged { place, what });
    }
    if found.version > layout.version() {
        return Err(StoreError::TooNew { place, found: found.version, known: layout.version() });
    }
    Ok(())
}

pub(super) fn newest() -> u32 {
    LAYOUT.version()
}

pub(super) fn version_of(conn: &Connection) -> rusqlite::Result<u32> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Runs the scripts under the write lock. While this process waited for the lock, another process
/// may have migrated the file to this or a newer layout, so the markers are read and checked again.
fn run_scripts(conn: &Connection, path: &Path, layout: SchemaLayout) -> Result<()> {
    let found = markers_in_transaction(conn).at(path)?;
    check_markers(path, found, layout)?;
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
