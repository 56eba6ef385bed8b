//! A small file `FILE.head` next to the store: the newest entry that is known to be on disk. It
//! shows whether the end of the log was lost, for example with a deleted write-ahead log.
//!
//! The file is written when the write-ahead log was copied into the database and synced, and is
//! never synced itself. So the store contains at least what the file names: after a power failure
//! the file may be older than the store, but never newer. It is one sector, which disks write
//! as a whole.
//!
//! Its second line names the boot of the machine in which the store was last opened. If the machine
//! has not been restarted since, no write that a process completed can be missing.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rusqlite::OptionalExtension;
use sapwood_core::port::store::{Finding, Repair, Result};

use super::connection::StoreConnection;
use super::error::AtPath;
use crate::database::NamedDatabase;
use crate::permissions;

/// The size of the file: one sector.
const FILE_BYTES: usize = 512;
/// The name of the counter of erasures.
const ERASURES: &str = "erasures";
const HASH_CHARS: usize = 16;

/// The newest entry of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// The number of erasures. An erasure can remove the newest entries, so entries are only
    /// compared between two erasures.
    erasures: i64,
    /// The number of the row.
    arrival: i64,
    /// The id of the entry, in hexadecimal.
    id: String,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HeadFile {
    position: Position,
    pub boot: Option<String>,
}

/// What the file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredHead {
    Missing,
    Damaged,
    Valid(HeadFile),
}

pub(super) fn head_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".head");
    PathBuf::from(name)
}

impl Position {
    /// Reads the newest entry, in one snapshot.
    pub fn of(db: &StoreConnection) -> Result<Self> {
        let sql = "SELECT COALESCE((SELECT value FROM counters WHERE name = ?1), 0), COALESCE(max(arrival), 0),
                          COALESCE((SELECT hex(id) FROM entries ORDER BY arrival DESC LIMIT 1), '') FROM entries";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Self { erasures: row.get(0)?, arrival: row.get(1)?, id: row.get(2)? })
        };
        db.prepare(sql)?.query_row([ERASURES], read).at(&db.path)
    }

    fn is_before(&self, other: &Self) -> bool {
        (self.erasures, self.arrival) < (other.erasures, other.arrival)
    }
}

/// Counts an erasure. Call it in the transaction of the erasure.
pub(super) fn count_erasure(db: &StoreConnection) -> Result<()> {
    let sql = "INSERT INTO counters VALUES (?1, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1";
    db.execute(sql, [ERASURES]).map(|_| ())
}

pub(super) fn read(path: &Path) -> StoredHead {
    let mut text = String::new();
    let opened = fs::File::open(head_path(path));
    let Ok(file) = opened else { return StoredHead::Missing };
    if file.take(FILE_BYTES as u64 + 1).read_to_string(&mut text).is_err() {
        return StoredHead::Damaged;
    }
    // A power failure can leave a new file without its content.
    if text.bytes().all(|byte| byte == 0) {
        return StoredHead::Missing;
    }
    parse(&text).map_or(StoredHead::Damaged, StoredHead::Valid)
}

fn parse(text: &str) -> Option<HeadFile> {
    let mut lines = text.split('\n');
    let mut fields = checked(lines.next()?)?.split(' ');
    let (name, erasures, arrival) =
        (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let id = fields.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = lines.collect();
    let boot = match rest.first() {
        Some(line) if line.starts_with("boot ") => Some(checked(line)?.strip_prefix("boot ")?.to_owned()),
        _ => None,
    };
    let padding = rest.get(usize::from(boot.is_some())..)?;
    let is_padding = padding.iter().all(|line| line.bytes().all(|byte| byte == b' '));
    (name == "head" && is_padding).then_some(HeadFile { position: Position { erasures, arrival, id }, boot })
}

/// Returns a line without its checksum, if the checksum matches.
fn checked(line: &str) -> Option<&str> {
    let (content, hash) = line.rsplit_once(' ')?;
    (hash_of(content) == hash).then_some(content)
}

fn hash_of(content: &str) -> String {
    let mut hex = blake3::hash(content.as_bytes()).to_hex().to_string();
    hex.truncate(HASH_CHARS);
    hex
}

fn render(head: &HeadFile) -> String {
    let Position { erasures, arrival, id } = &head.position;
    let mut text = String::new();
    let position = format!("head {erasures} {arrival} {id}");
    let _ = writeln!(text, "{position} {}", hash_of(&position));
    if let Some(boot) = head.boot.as_ref().map(|boot| format!("boot {boot}")) {
        let _ = writeln!(text, "{boot} {}", hash_of(&boot));
    }
    format!("{text:FILE_BYTES$}")
}

/// Writes the file. A failure is ignored: the file is then older than the store, which is normal.
fn write(path: &Path, head: &HeadFile) {
    let text = render(head);
    if text.len() == FILE_BYTES {
        let opened =
            permissions::file_options().create(true).truncate(false).write(true).open(head_path(path));
        let _ = opened.and_then(|file| write_at_start(file, text.as_bytes()));
    }
}

#[cfg(unix)]
fn write_at_start(file: fs::File, bytes: &[u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)
}

#[cfg(not(unix))]
fn write_at_start(mut file: fs::File, bytes: &[u8]) -> std::io::Result<()> {
    std::io::Write::write_all(&mut file, bytes)
}

/// Notes the newest entry that is on disk. A newer entry in the file is kept, because it shows that
/// the store has lost entries. A damaged file is kept for `doctor`.
pub(super) fn advance(path: &Path, position: &Position) {
    let stored = match read(path) {
        StoredHead::Damaged => return,
        StoredHead::Missing => HeadFile::default(),
        StoredHead::Valid(stored) => stored,
    };
    if stored.position.is_before(position) {
        write(path, &HeadFile { position: position.clone(), boot: stored.boot });
    }
}

/// Notes that the store is in use in this boot of the machine.
pub(super) fn note_boot(path: &Path, boot: &str) {
    match read(path) {
        StoredHead::Valid(stored) if stored.boot.as_deref() == Some(boot) => {}
        StoredHead::Valid(stored) => write(path, &HeadFile { boot: Some(boot.to_owned()), ..stored }),
        StoredHead::Missing => {
            write(path, &HeadFile { boot: Some(boot.to_owned()), ..HeadFile::default() });
        }
        StoredHead::Damaged => {}
    }
}

/// Compares the store with its file. A repair accepts the store as it is.
pub(super) fn check(db: &StoreConnection, repair: Repair) -> Result<Vec<Finding>> {
    let what = match read(&db.path) {
        StoredHead::Missing => None,
        StoredHead::Damaged => Some("it is damaged; the store itself may be intact".to_owned()),
        StoredHead::Valid(head) => compare(db, &head.position)?,
    };
    let Some(what) = what else { return Ok(Vec::new()) };
    if repair == Repair::Yes {
        let _ = fs::remove_file(head_path(&db.path));
        advance(&db.path, &Position::of(db)?);
    }
    let place = head_path(&db.path).display().to_string();
    Ok(vec![Finding { place, ..db.finding("head", what, repair) }])
}

fn compare(db: &StoreConnection, head: &Position) -> Result<Option<String>> {
    let found = Position::of(db)?;
    if found.is_before(head) {
        return Ok(Some(format!(
            "the store had {} entries or more and now ends at {}: its end was lost, or the file was replaced by an \
             older copy",
            head.arrival, found.arrival
        )));
    }
    if found.erasures != head.erasures || head.arrival == 0 {
        return Ok(None);
    }
    let sql = "SELECT hex(id) FROM entries WHERE arrival = ?1";
    let id: Option<String> =
        db.prepare(sql)?.query_row([head.arrival], |row| row.get(0)).optional().at(&db.path)?;
    let is_same = id.as_ref() == Some(&head.id);
    Ok((!is_same).then(|| {
        format!(
            "entry {} of the store is another one: the end of the log was lost and written again",
            head.arrival
        )
    }))
}

/// Notes the newest entry after the store was closed. The last process to close a store copies the
/// write-ahead log into the database and removes it; only then is the entry known to be on disk.
pub(super) struct HeadOnClose {
    pub path: PathBuf,
    pub position: Option<Position>,
}

impl Drop for HeadOnClose {
    fn drop(&mut self) {
        let has_log = super::connection::wal_path(&self.path).exists();
        if let Some(position) = self.position.as_ref().filter(|_| !has_log && self.path.exists()) {
            advance(&self.path, position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> HeadFile {
        let position = Position { erasures: 2, arrival: 77, id: "0192AB".to_owned() };
        HeadFile { position, boot: Some("e1f2".to_owned()) }
    }

    #[test]
    fn every_flipped_bit_of_the_file_is_detected() {
        let text = render(&head());
        assert_eq!(parse(&text), Some(head()));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let parsed = String::from_utf8(bytes).ok().and_then(|text| parse(&text));
            assert_eq!(parsed, None, "bit {bit}");
        }
    }

    #[test]
    fn a_newer_entry_in_the_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let at = |arrival| Position { erasures: 0, arrival, id: "AA".to_owned() };
        for (arrival, stored) in [(5, 5), (4, 5), (9, 9)] {
            advance(&path, &at(arrival));
            note_boot(&path, "b");
            let boot = Some("b".to_owned());
            assert_eq!(read(&path), StoredHead::Valid(HeadFile { position: at(stored), boot }));
        }
    }
}
