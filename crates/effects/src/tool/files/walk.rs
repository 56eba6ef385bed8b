//! Walks the directories of a scope by their handles, so that a link created during the walk cannot lead out of the
//! scope. Skips files ignored by `.gitignore`, `.git` itself and, in the project scope, protected files. Does not
//! follow links.

use std::ffi::OsString;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cap_fs_ext::DirExt;
use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use sapwood_core::port::tool::FsScope;

use super::protected::is_protected;
use super::root::{Reader, Refusal, Root};
use crate::tool::blocking::StopSignal;

/// Maximum number of entries per walk.
const WALK_ENTRIES_MAX: usize = 200_000;
/// Maximum depth of a walk.
const WALK_DEPTH_MAX: usize = 64;
/// Maximum size of a `.gitignore` file.
const IGNORE_FILE_BYTES_MAX: u64 = 1 << 20;

/// A file found by the walk.
pub struct WalkedFile<'a> {
    /// The path as the model would write it.
    pub path: &'a str,
    pub dir: &'a Dir,
    pub name: &'a OsString,
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkEnd {
    All,
    /// The visitor stopped the walk.
    Enough,
    /// The time, entry or depth limit was reached.
    CutShort,
}

/// Visit every file below a directory, sorted by name.
pub fn walk_files(
    root: &Root,
    reader: &Reader<'_>,
    start: &str,
    stop: &StopSignal,
    visit: &mut dyn FnMut(&WalkedFile<'_>) -> ControlFlow<()>,
) -> Result<WalkEnd, Refusal> {
    let (dir, real) = root.open_dir(start)?;
    let shown = shown_start(start);
    let mut walk = Walk { root, reader, stop, visit, ignores: Vec::new(), entries_scanned: 0, is_cut: false };
    walk.read_ignores_above(&real);
    Ok(match walk.visit_dir(&dir, &real, &shown, WALK_DEPTH_MAX) {
        ControlFlow::Break(end) => end,
        ControlFlow::Continue(()) if walk.is_cut => WalkEnd::CutShort,
        ControlFlow::Continue(()) => WalkEnd::All,
    })
}

fn shown_start(start: &str) -> String {
    match start.trim_end_matches('/') {
        "" if start.starts_with('/') => "/".to_owned(),
        "" | "." => String::new(),
        start => format!("{start}/"),
    }
}

struct Walk<'a> {
    root: &'a Root,
    reader: &'a Reader<'a>,
    stop: &'a StopSignal,
    visit: &'a mut dyn FnMut(&WalkedFile<'_>) -> ControlFlow<()>,
    /// Ignore files, from the outermost directory to the innermost.
    ignores: Vec<Gitignore>,
    entries_scanned: usize,
    is_cut: bool,
}

impl Walk<'_> {
    fn visit_dir(&mut self, dir: &Dir, real: &Path, shown: &str, depth_left: usize) -> ControlFlow<WalkEnd> {
        if depth_left == 0 {
            self.is_cut = true;
            return ControlFlow::Continue(());
        }
        let Ok(entries) = dir.entries() else { return ControlFlow::Continue(()) };
        let mut names: Vec<(OsString, bool)> = Vec::new();
        for entry in entries.flatten() {
            self.count()?;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() || kind.is_file() {
                names.push((entry.file_name(), kind.is_dir()));
            }
        }
        names.sort();
        let ignores = self.ignores.len();
        self.read_ignore(dir, real);
        let end = names.iter().try_for_each(|(name, is_dir)| {
            let below =
                WalkPosition { real: real.join(name), shown: format!("{shown}{}", name.to_string_lossy()) };
            self.visit_entry(dir, name, *is_dir, &below, depth_left)
        });
        self.ignores.truncate(ignores);
        end
    }

    fn visit_entry(
        &mut self,
        dir: &Dir,
        name: &OsString,
        is_dir: bool,
        at: &WalkPosition,
        depth_left: usize,
    ) -> ControlFlow<WalkEnd> {
        if self.is_skipped(name, is_dir, &at.real) {
            return ControlFlow::Continue(());
        }
        if !is_dir {
            let found = WalkedFile { path: &at.shown, dir, name };
            return (self.visit)(&found).map_break(|()| WalkEnd::Enough);
        }
        match dir.open_dir_nofollow(name) {
            Ok(below) => self.visit_dir(&below, &at.real, &format!("{}/", at.shown), depth_left - 1),
            Err(_) => ControlFlow::Continue(()),
        }
    }

    fn count(&mut self) -> ControlFlow<WalkEnd> {
        self.entries_scanned += 1;
        if self.entries_scanned > WALK_ENTRIES_MAX || self.stop.is_set() {
            return ControlFlow::Break(WalkEnd::CutShort);
        }
        ControlFlow::Continue(())
    }

    fn is_skipped(&self, name: &OsString, is_dir: bool, real: &Path) -> bool {
        let is_protected_name = self.root.scope() == FsScope::Project && is_protected(Path::new(name));
        is_protected_name || name == ".git" || self.is_ignored(real, is_dir)
    }

    /// Whether a path is ignored. The innermost ignore file that matches takes precedence.
    fn is_ignored(&self, real: &Path, is_dir: bool) -> bool {
        for ignore in self.ignores.iter().rev() {
            match ignore.matched(real, is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    fn read_ignores_above(&mut self, real: &Path) {
        let above: Vec<&Path> = real.ancestors().skip(1).collect();
        for real in above.into_iter().rev() {
            if let Ok(dir) = self.root.open_real_dir(real) {
                self.read_ignore(&dir, real);
            }
        }
    }

    fn read_ignore(&mut self, dir: &Dir, real: &Path) {
        let Ok(opened) = self.reader.open_in(dir, ".gitignore".as_ref(), ".gitignore") else { return };
        let mut text = Vec::new();
        if opened.file.take(IGNORE_FILE_BYTES_MAX).read_to_end(&mut text).is_err() {
            return;
        }
        let mut builder = GitignoreBuilder::new(real);
        for line in String::from_utf8_lossy(&text).lines() {
            // Invalid lines are skipped, as in git.
            let _ = builder.add_line(None, line);
        }
        self.ignores.extend(builder.build());
    }
}

/// A path relative to the handle, and the same path as shown to the model.
struct WalkPosition {
    real: PathBuf,
    shown: String,
}
