//! A simulated disk that can lose power. It tracks which data must survive a power cut and which data may.
//!
//! A write, a truncation and a new name are guaranteed to survive only after a sync. The rules are at least as strict
//! as ext4 with its default options:
//!
//! - A sync of a file makes all its writes and its name durable. ext4 does this when a new file is synced,
//!   because the name is in the same journal transaction. POSIX alone would require a sync of the directory.
//! - A sync of the directory makes all added, removed and changed names durable.
//! - Unsynced data is lost ([`UnsyncedData::Lost`]), or random sectors of 512 bytes survive, regardless of the order of
//!   the writes ([`UnsyncedData::Random`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::trace::Step;
use crate::actors::SeededRng;

const SECTOR_BYTES: usize = 512;

/// Whether unsynced data survives a power cut: nothing, or a random part.
pub enum UnsyncedData<'a> {
    Lost,
    Random(&'a mut SeededRng),
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<Change>,
    /// The length after all pending changes.
    len: usize,
}

#[derive(Clone, Default)]
pub struct Platter {
    root: PathBuf,
    files: Vec<File>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
}

impl Platter {
    /// Starts with an empty directory.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), ..Self::default() }
    }

    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Create { path } if self.names.contains_key(path) => {}
            Step::Create { path } => {
                self.names.insert(path.clone(), self.files.len());
                self.files.push(File::default());
            }
            Step::Write { path, offset, bytes } => self.file(path).write(*offset, bytes),
            Step::Truncate { path, len } => self.file(path).change(Change::Truncate(*len)),
            Step::Sync { path } if *path == self.root => self.durable_names = self.names.clone(),
            Step::Sync { path } => {
                self.file(path).sync();
                self.durable_names.insert(path.clone(), self.names[path]);
            }
            Step::Unlink { path } => drop(self.names.remove(path)),
            Step::Rename { from, to } => {
                let file = self.names.remove(from).unwrap();
                self.names.insert(to.clone(), file);
            }
            Step::Stdout { .. } => {}
        }
    }

    fn file(&mut self, path: &Path) -> &mut File {
        let number = *self.names.get(path).unwrap_or_else(|| panic!("{} was never created", path.display()));
        &mut self.files[number]
    }

    /// Writes the files that would remain after a power cut to the directory `into`, which is emptied first.
    pub fn cut_power(&self, mut unsynced: UnsyncedData<'_>, into: &Path) {
        let _ = std::fs::remove_dir_all(into);
        std::fs::create_dir_all(into).unwrap();
        for (path, number) in self.surviving_names(&mut unsynced) {
            let bytes = self.files[number].surviving(&mut unsynced);
            std::fs::write(into.join(path.strip_prefix(&self.root).unwrap()), bytes).unwrap();
        }
    }

    fn surviving_names(&self, unsynced: &mut UnsyncedData<'_>) -> BTreeMap<PathBuf, usize> {
        let UnsyncedData::Random(rng) = unsynced else { return self.durable_names.clone() };
        let mut names = BTreeMap::new();
        for path in self.names.keys().chain(self.durable_names.keys()) {
            let from = if rng.coin() { &self.names } else { &self.durable_names };
            let is_durable = self.names.get(path) == self.durable_names.get(path);
            let number = if is_durable { self.names.get(path) } else { from.get(path) };
            if !names.contains_key(path) {
                names.insert(path.clone(), number.copied());
            }
        }
        names.into_iter().filter_map(|(path, number)| Some((path, number?))).collect()
    }
}

impl File {
    fn write(&mut self, offset: Option<usize>, bytes: &[u8]) {
        self.change(Change::Write(offset.unwrap_or(self.len), bytes.to_vec()));
    }

    fn change(&mut self, change: Change) {
        self.len = match &change {
            Change::Write(offset, bytes) => self.len.max(offset + bytes.len()),
            Change::Truncate(len) => *len,
        };
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write(offset, bytes) => put(&mut self.durable, offset, &bytes),
                Change::Truncate(len) => self.durable.resize(len, 0),
            }
        }
    }

    fn surviving(&self, unsynced: &mut UnsyncedData<'_>) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let UnsyncedData::Random(rng) = unsynced else { return bytes };
        for change in &self.pending {
            match (change, rng.below(3)) {
                (_, 0) => {}
                (Change::Truncate(len), _) => bytes.resize(*len, 0),
                (Change::Write(offset, new), 1) => put(&mut bytes, *offset, new),
                (Change::Write(offset, new), _) => put_some_sectors(&mut bytes, *offset, new, rng),
            }
        }
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

/// Applies a random selection of the disk sectors of a write.
fn put_some_sectors(bytes: &mut Vec<u8>, offset: usize, new: &[u8], rng: &mut SeededRng) {
    let mut at = 0;
    while at < new.len() {
        let end = new.len().min(at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES);
        if rng.coin() {
            put(bytes, offset + at, &new[at..end]);
        }
        at = end;
    }
}
