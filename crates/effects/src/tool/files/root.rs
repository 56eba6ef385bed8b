//! A directory that cannot be left. Every file tool works through a [`Root`]; it touches the file system below its
//! directory handle and nothing else.
//!
//! How a path is opened: it is cleaned as text, then resolved to its real path, and that real path is walked from the
//! root's handle one component at a time without following any link. What was checked (the real path's names) is thus what
//! is opened; a link that appears in between makes the walk fail.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cap_fs_ext::{DirExt, FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, FileType, Metadata, OpenOptions};
use sapwood_core::port::tool::FsScope;

use super::protected::is_protected;

/// Longest path, in bytes, and deepest, in components.
const PATH_BYTES_MAX: usize = 4_096;
const PATH_DEPTH_MAX: usize = 64;
/// Most entries looked at to find out whether a file with several names is a protected one.
const LINK_SEARCH_ENTRIES_MAX: usize = 200_000;
/// Tries to find a free name for a file that is being written.
const TEMP_NAMES_MAX: u32 = 16;

/// Why a path is not touched, in words for the model that asked.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{path} lies outside of what this session may touch, which is {root}")]
    Outside { path: String, root: String },
    #[error("{path} is protected: version control's own files, keys and credentials are not for tools")]
    Protected { path: String },
    #[error("{path} does not exist")]
    NotFound { path: String },
    #[error("{path} is {kind}, not {wanted}")]
    WrongKind { path: String, kind: &'static str, wanted: &'static str },
    #[error("{path} has other names (hard links), perhaps outside of this session's files: it is left alone")]
    Linked { path: String },
    #[error("{path} changed while it was being opened, or leads nowhere: a link is in the way")]
    Changed { path: String },
    #[error("{path} is no path that can be used: {why}")]
    Invalid { path: String, why: &'static str },
    #[error("{path}: {why}")]
    Io { path: String, why: io::Error },
}

/// A scope's directory, held open.
pub struct Root {
    dir: Dir,
    /// Its real path, for people and for commands.
    path: PathBuf,
    /// Where relative paths begin, below the handle: only `full` has its handle elsewhere than its beginning.
    start: PathBuf,
    scope: FsScope,
}

/// A regular file, open for reading.
pub struct OpenFile {
    pub file: File,
    pub bytes: u64,
}

impl Root {
    /// Opens the directory that a scope works in. `full` works there too, and reaches all the rest.
    pub fn open(path: &Path, scope: FsScope) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let (handle, start) = match scope {
            FsScope::Sandboxed | FsScope::Project => (path.clone(), PathBuf::new()),
            FsScope::Full => (PathBuf::from("/"), path.strip_prefix("/").unwrap_or(&path).to_owned()),
        };
        Ok(Self { dir: Dir::open_ambient_dir(handle, ambient_authority())?, path, start, scope })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn scope(&self) -> FsScope {
        self.scope
    }
    /// The whole path of a real path, for a program that is told where to work.
    pub fn path_of(&self, real: &Path) -> PathBuf {
        match self.scope {
            FsScope::Full => Path::new("/").join(real),
            FsScope::Sandboxed | FsScope::Project => self.path.join(real),
        }
    }
    pub fn reader(&self) -> Reader<'_> {
        Reader { root: self, protected_files: OnceCell::new() }
    }

    /// The real path of something that exists, from the handle.
    pub fn resolve(&self, given: &str) -> Result<PathBuf, Refusal> {
        let clean = self.clean(given)?;
        self.real_path(&clean, given)
    }

    pub fn open_dir(&self, given: &str) -> Result<(Dir, PathBuf), Refusal> {
        let real = self.resolve(given)?;
        Ok((self.walk_to(&real, given)?, real))
    }

    /// A path below the working directory, as text, whether or not it exists.
    pub fn relative_path(&self, given: &str) -> Result<PathBuf, Refusal> {
        let whole = self.path_of(&self.clean(given)?);
        whole.strip_prefix(&self.path).map(Path::to_owned).map_err(|_| self.outside(given))
    }

    /// Opens a directory by its real path.
    pub fn open_real_dir(&self, real: &Path) -> Result<Dir, Refusal> {
        self.walk_to(real, &real.to_string_lossy())
    }

    /// Puts a whole file in place of what was there, or nothing at all. Directories that are missing are made; the
    /// permissions of the file that was there are kept.
    pub fn write_file(&self, given: &str, content: &[u8]) -> Result<Wrote, Refusal> {
        let clean = self.clean(given)?;
        let io = |why| Refusal::Io { path: given.to_owned(), why };
        let (parent, name) = self.make_parent(&clean, given)?;
        let replaced = match parent.symlink_metadata(&name) {
            Ok(metadata) => Some(self.check_replaceable(given, metadata)?),
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(io(why)),
        };
        replace_whole(&parent, &name, content, replaced.as_ref()).map_err(io)?;
        Ok(if replaced.is_some() { Wrote::Replaced } else { Wrote::Created })
    }

    fn check_replaceable(&self, given: &str, metadata: Metadata) -> Result<Metadata, Refusal> {
        check_regular(given, metadata.file_type())?;
        if self.scope != FsScope::Full && metadata.nlink() > 1 {
            return Err(Refusal::Linked { path: given.to_owned() });
        }
        Ok(metadata)
    }

    /// The directory a file is to be written in, and the file's name there.
    fn make_parent(&self, clean: &Path, given: &str) -> Result<(Dir, OsString), Refusal> {
        let (existing, missing) = self.split_missing(clean, given)?;
        let mut names: Vec<&OsStr> = missing.iter().collect();
        let (parent, name) = match names.pop() {
            Some(name) => (existing, name.to_owned()),
            None => {
                let name = existing.file_name().map(OsStr::to_owned);
                let kind =
                    Refusal::WrongKind { path: given.to_owned(), kind: "a directory", wanted: "a file" };
                (existing.parent().unwrap_or(Path::new("")).to_owned(), name.ok_or(kind)?)
            }
        };
        let mut dir = self.walk_to(&parent, given)?;
        for name in names {
            match dir.create_dir(name) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Refusal::Io { path: given.to_owned(), why });
                }
                _ => dir = step_into(&dir, name, given)?,
            }
        }
        Ok((dir, name))
    }

    /// The real path of the longest part that exists, and the rest.
    fn split_missing(&self, clean: &Path, given: &str) -> Result<(PathBuf, PathBuf), Refusal> {
        let mut existing = clean.to_owned();
        loop {
            match self.real_path(&existing, given) {
                Ok(real) => {
                    let missing = clean.strip_prefix(&existing).unwrap_or(Path::new("")).to_owned();
                    return Ok((real, missing));
                }
                Err(Refusal::NotFound { .. }) if existing.pop() => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// The path as text: relative to the handle, with every `.` and `..` worked out, and below it.
    fn clean(&self, given: &str) -> Result<PathBuf, Refusal> {
        let invalid = |why| Err(Refusal::Invalid { path: given.escape_debug().take(100).collect(), why });
        if given.contains('\0') {
            return invalid("it has a NUL");
        }
        if given.is_empty() || given.len() > PATH_BYTES_MAX {
            return invalid("it is empty or longer than 4096 bytes");
        }
        let mut clean = if Path::new(given).is_absolute() { PathBuf::new() } else { self.start.clone() };
        for part in self.relative(given)?.components() {
            match part {
                Component::Normal(name) => clean.push(name),
                Component::CurDir | Component::RootDir => {}
                Component::ParentDir if clean.pop() || self.scope == FsScope::Full => {}
                Component::ParentDir | Component::Prefix(_) => return Err(self.outside(given)),
            }
        }
        if clean.components().count() > PATH_DEPTH_MAX {
            return invalid("it is deeper than 64 directories");
        }
        self.check_protected(&clean, given)?;
        Ok(clean)
    }

    fn relative<'a>(&self, given: &'a str) -> Result<&'a Path, Refusal> {
        let path = Path::new(given);
        if !path.is_absolute() || self.scope == FsScope::Full {
            return Ok(path);
        }
        path.strip_prefix(&self.path).map_err(|_| self.outside(given))
    }

    fn real_path(&self, clean: &Path, given: &str) -> Result<PathBuf, Refusal> {
        let at = if clean.as_os_str().is_empty() { Path::new(".") } else { clean };
        let real = match self.scope {
            FsScope::Full => std::fs::canonicalize(Path::new("/").join(at)),
            FsScope::Sandboxed | FsScope::Project => self.dir.canonicalize(at),
        };
        let real = real.map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => Refusal::NotFound { path: given.to_owned() },
            // cap-std says this without an error of the system's own when a link leads out.
            io::ErrorKind::PermissionDenied if why.raw_os_error().is_none() => self.outside(given),
            _ => Refusal::Io { path: given.to_owned(), why },
        })?;
        let real: PathBuf = real.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        self.check_protected(&real, given)?;
        Ok(real)
    }

    fn check_protected(&self, path: &Path, given: &str) -> Result<(), Refusal> {
        if self.scope == FsScope::Project && is_protected(path) {
            return Err(Refusal::Protected { path: given.to_owned() });
        }
        Ok(())
    }

    fn walk_to(&self, real: &Path, given: &str) -> Result<Dir, Refusal> {
        let dir = self.dir.try_clone().map_err(|why| Refusal::Io { path: given.to_owned(), why })?;
        real.iter().try_fold(dir, |dir, name| step_into(&dir, name, given))
    }

    fn outside(&self, given: &str) -> Refusal {
        let path = given.chars().take(PATH_BYTES_MAX).collect();
        Refusal::Outside { path, root: self.path.display().to_string() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrote {
    Created,
    Replaced,
}

/// Opens files for one call. What it learns about hard links is as old as the call at most.
pub struct Reader<'a> {
    root: &'a Root,
    /// Device and inode of every protected file, or nothing if there are too many to say.
    protected_files: OnceCell<Option<HashSet<(u64, u64)>>>,
}

impl Reader<'_> {
    pub fn open_file(&self, given: &str) -> Result<OpenFile, Refusal> {
        let real = self.root.resolve(given)?;
        let kind = Refusal::WrongKind { path: given.to_owned(), kind: "a directory", wanted: "a file" };
        let name = real.file_name().ok_or(kind)?;
        let parent = self.root.walk_to(real.parent().unwrap_or(Path::new("")), given)?;
        self.open_in(&parent, name, given)
    }

    /// Opens a file by its name in a directory that was walked to.
    pub fn open_in(&self, parent: &Dir, name: &OsStr, given: &str) -> Result<OpenFile, Refusal> {
        let io = |why| map_open_error(why, given);
        // Looked at before it is opened, because opening a device can already do something; and once more after.
        check_regular(given, parent.symlink_metadata(name).map_err(io)?.file_type())?;
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No).nonblock(true);
        let file = parent.open_with(name, &options).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        check_regular(given, metadata.file_type())?;
        self.check_links(&metadata, given)?;
        Ok(OpenFile { file, bytes: metadata.len() })
    }

    /// A file with several names may be one that is protected, or somebody else's.
    fn check_links(&self, metadata: &Metadata, given: &str) -> Result<(), Refusal> {
        if metadata.nlink() <= 1 || self.root.scope == FsScope::Full {
            return Ok(());
        }
        let linked = Refusal::Linked { path: given.to_owned() };
        if self.root.scope == FsScope::Sandboxed {
            return Err(linked);
        }
        let known = self.protected_files.get_or_init(|| find_protected_files(&self.root.dir));
        match known {
            None => Err(linked),
            Some(files) if files.contains(&(metadata.dev(), metadata.ino())) => {
                Err(Refusal::Protected { path: given.to_owned() })
            }
            Some(_) => Ok(()),
        }
    }
}

fn step_into(dir: &Dir, name: &OsStr, given: &str) -> Result<Dir, Refusal> {
    dir.open_dir_nofollow(name).map_err(|why| match why.kind() {
        io::ErrorKind::NotADirectory if is_link(dir, name) => Refusal::Changed { path: given.to_owned() },
        io::ErrorKind::NotADirectory => {
            Refusal::WrongKind { path: given.to_owned(), kind: "a file", wanted: "a directory" }
        }
        _ => map_open_error(why, given),
    })
}

fn is_link(dir: &Dir, name: &OsStr) -> bool {
    dir.symlink_metadata(name).is_ok_and(|metadata| metadata.is_symlink())
}

fn map_open_error(why: io::Error, given: &str) -> Refusal {
    let path = given.to_owned();
    let is_link = why.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    match why.kind() {
        io::ErrorKind::NotFound => Refusal::NotFound { path },
        _ if is_link => Refusal::Changed { path },
        _ => Refusal::Io { path, why },
    }
}

fn check_regular(given: &str, kind: FileType) -> Result<(), Refusal> {
    let path = given.to_owned();
    match kind {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_symlink() => Err(Refusal::Changed { path }),
        kind if kind.is_dir() => Err(Refusal::WrongKind { path, kind: "a directory", wanted: "a file" }),
        _ => Err(Refusal::WrongKind { path, kind: "a device, pipe or socket", wanted: "a file" }),
    }
}

/// Writes beside the target and moves the whole over it, so that no reader sees a half and no link is written through.
fn replace_whole(parent: &Dir, name: &OsStr, content: &[u8], replaced: Option<&Metadata>) -> io::Result<()> {
    let (mut file, temp) = create_temp(parent)?;
    let written = (|| {
        if let Some(metadata) = replaced {
            file.set_permissions(metadata.permissions())?;
        }
        file.write_all(content)?;
        file.sync_all()?;
        parent.rename(&temp, parent, name)
    })();
    if written.is_err() {
        // What went wrong is reported; a file left behind is not worth a second error.
        let _ = parent.remove_file(&temp);
    }
    written
}

fn create_temp(parent: &Dir) -> io::Result<(File, String)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).follow(FollowSymlinks::No);
    let mut tries = 0;
    loop {
        let temp = format!(".sapwood-{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        tries += 1;
        match parent.open_with(&temp, &options) {
            Ok(file) => return Ok((file, temp)),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists && tries < TEMP_NAMES_MAX => {}
            Err(why) => return Err(why),
        }
    }
}

/// Every protected file below a directory, or nothing where there is too much to look through.
fn find_protected_files(dir: &Dir) -> Option<HashSet<(u64, u64)>> {
    let mut found = ProtectedFiles { files: HashSet::new(), seen: 0 };
    found.gather(dir, Below::Open, PATH_DEPTH_MAX)?;
    Some(found.files)
}

/// Whether a directory's files are protected because it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    Open,
    Protected,
}

struct ProtectedFiles {
    files: HashSet<(u64, u64)>,
    seen: usize,
}

impl ProtectedFiles {
    /// As many handles are open at once as directories are nested, which is why the depth is bounded.
    fn gather(&mut self, dir: &Dir, below: Below, depth_left: usize) -> Option<()> {
        for entry in dir.entries().ok()? {
            let entry = entry.ok()?;
            self.seen += 1;
            if self.seen > LINK_SEARCH_ENTRIES_MAX || depth_left == 0 {
                return None;
            }
            let name = entry.file_name();
            let here = if is_protected(Path::new(&name)) { Below::Protected } else { below };
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                if let Ok(dir) = dir.open_dir_nofollow(&name) {
                    self.gather(&dir, here, depth_left - 1)?;
                }
            } else if kind.is_file() && here == Below::Protected {
                let metadata = entry.metadata().ok()?;
                self.files.insert((metadata.dev(), metadata.ino()));
            }
        }
        Some(())
    }
}
