//! The file names in a tenant's directory.
//!
//! ```text
//! DIR/                                         the tenant `local`; others are in DIR/tenants/<name>/
//!   2026-11-15T22-19-18-123Z_<id>.jsonl        a session: a header, then one entry per line
//!   2026-11-15T22-19-18-123Z_<id>.jsonl.torn   unfinished batches that were cut off
//!   2026-11-15T22-19-18-123Z_<id>.jsonl.head   its length and end when it was last closed
//!   2026-11-15T22-19-18-123Z_<id>.jsonl.damaged   lines as they were before `doctor --repair`
//!   2026-11-15T22-19-18-123Z_<id>.lease        its lease and the fence
//!   2026-11-15T22-19-18-123Z_<id>.authority    which entries this store wrote itself
//!   2026-11-15T22-19-18-123Z_<id>.erased       entries of an erased session that forks need
//!   audit.jsonl  index.jsonl  memories.jsonl  store.lock  blobs/<hash>  blobs/<hash>.by
//!   uploads/<uuid>                             a blob that is not complete yet
//!   keys.jsonl                                 for all tenants, only in DIR itself
//! ```
//!
//! Ids contain no `/`, `~` or leading dot, so no name can leave the directory.

use std::path::{Path, PathBuf};

use sapwood_core::{BlobHash, SessionId, TenantId, TimestampMs};

pub const AUTHORITY_EXTENSION: &str = "authority";

#[derive(Debug, Clone)]
pub struct Layout {
    pub dir: PathBuf,
}

impl Layout {
    pub fn of(root: &Path, tenant: &TenantId) -> Self {
        if *tenant == TenantId::local() {
            return Self { dir: root.to_owned() };
        }
        Self { dir: root.join("tenants").join(tenant.as_str()) }
    }

    pub fn log(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.jsonl"))
    }
    pub fn torn(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.jsonl.torn"))
    }
    pub fn lease(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.lease"))
    }
    pub fn authority(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.{AUTHORITY_EXTENSION}"))
    }
    pub fn erased(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.erased"))
    }
    pub fn audit(&self) -> PathBuf {
        self.dir.join("audit.jsonl")
    }
    pub fn memories(&self) -> PathBuf {
        self.dir.join("memories.jsonl")
    }
    pub fn records(&self) -> PathBuf {
        self.dir.join("records.jsonl")
    }
    pub fn spending(&self) -> PathBuf {
        self.dir.join("spending.jsonl")
    }
    pub fn index(&self) -> PathBuf {
        self.dir.join("index.jsonl")
    }
    pub fn lock(&self) -> PathBuf {
        self.dir.join("store.lock")
    }
    pub fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }
    pub fn uploads(&self) -> PathBuf {
        self.dir.join("uploads")
    }
    pub fn blob(&self, blob: &BlobHash) -> PathBuf {
        self.blobs().join(blob.to_string())
    }
    pub fn blob_putters(&self, blob: &BlobHash) -> PathBuf {
        self.blobs().join(format!("{blob}.by"))
    }

    /// Returns an unused name for a new session's files. Entries of an erased session with the same
    /// time and id may be retained under the plain name.
    pub fn new_stem(&self, at: TimestampMs, id: &SessionId) -> String {
        let plain = format!("{}_{id}", file_time(at));
        let numbered = (2..).map(|number| format!("{plain}~{number}"));
        let is_free = |stem: &String| !self.erased(stem).exists() && !self.log(stem).exists();
        std::iter::once(plain.clone()).chain(numbered).find(is_free).unwrap_or(plain)
    }
}

/// Returns the session that a file with this name contains.
pub fn id_of_stem(stem: &str) -> Option<SessionId> {
    let (time, rest) = stem.split_once('_')?;
    if !time.ends_with('Z') || !time.starts_with(|char: char| char.is_ascii_digit()) {
        return None;
    }
    rest.split('~').next()?.parse().ok()
}

/// Formats a time as the start of a file name. It sorts by time and is valid on every file system.
fn file_time(at: TimestampMs) -> String {
    let ms = at.0.max(0);
    let (year, month, day) = date_of(ms.div_euclid(86_400_000));
    let of_day = ms.rem_euclid(86_400_000);
    let (seconds, millis) = (of_day / 1_000, of_day % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}-{millis:03}Z")
}

/// Converts a count of days since 1970 to year, month and day (Howard Hinnant's algorithm).
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_times_match_the_calendar() {
        assert_eq!(file_time(TimestampMs(0)), "1970-01-01T00-00-00-000Z");
        assert_eq!(file_time(TimestampMs(951_827_696_789)), "2000-02-29T12-34-56-789Z");
        assert_eq!(file_time(TimestampMs(1_763_245_158_123)), "2025-11-15T22-19-18-123Z");
        assert_eq!(file_time(TimestampMs(-5)), "1970-01-01T00-00-00-000Z");
    }

    #[test]
    fn a_session_id_is_parsed_from_its_file_name() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_owned() };
        let id: SessionId = "flow_1__owner.x".parse().unwrap();
        let stem = layout.new_stem(TimestampMs(5), &id);
        assert_eq!(id_of_stem(&stem), Some(id.clone()));
        std::fs::write(layout.erased(&stem), "").unwrap();
        let second = layout.new_stem(TimestampMs(5), &id);
        assert_ne!(second, stem);
        assert_eq!(id_of_stem(&second), Some(id));
        for other in ["audit", "index", "my_notes", "2026_x y", ""] {
            assert_eq!(id_of_stem(other), None, "{other}");
        }
    }
}
