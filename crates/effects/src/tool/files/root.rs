//! A directory handle that paths cannot escape. Every file tool works through a [`Root`], which accesses the file
//! system only below its directory handle.
//!
//! To open a path, the root normalizes it as text and resolves it to its real path. It then opens the real path from
//! the handle, one component at a time, without following links. The opened path is therefore always the checked path:
//! if a link is created in between, opening fails.

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

use super::identity::{FileId, find_protected_files, shared_devices};
use super::protected::is_protected;

/// Maximum length of a path, in bytes, and maximum depth, in components.
const PATH_BYTES_MAX: usize = 4_096;
const PATH_DEPTH_MAX: usize = 64;
/// Maximum number of attempts to find a free temporary file name.
const TEMP_NAMES_MAX: u32 = 16;

/// Why a path is refused, worded for the model.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{path} is outside of this session's scope, {root}")]
    Outside { path: String, root: String },
    #[error("{path} is protected: tools cannot access version control data, keys or credentials")]
    Protected { path: String },
    #[error("{path} does not exist")]
    NotFound { path: String },
    #[error("{path} is {kind}, not {wanted}")]
    WrongKind { path: String, kind: &'static str, wanted: &'static str },
    #[error(
        "{path} cannot be accessed: it has other hard links, which may be outside of this session's files"
    )]
    Linked { path: String },
    #[error("{path} is a broken link, or changed while it was being opened")]
    Changed { path: String },
    #[error("{path} is not a valid path: {why}")]
    Invalid { path: String, why: &'static str },
    #[error("{path}: {why}")]
    Io { path: String, why: io::Error },
}

/// An open handle to a scope's directory.
pub struct Root {
    dir: Dir,
    /// The real path, for messages and for commands.
    path: PathBuf,
    /// Base of relative paths, below the handle. Differs from the handle's directory only in scope `full`.
    start: PathBuf,
    scope: FsScope,
}

/// A regular file, open for reading.
pub struct OpenFile {
    pub file: File,
    pub bytes: u64,
}

impl Root {
    /// Open the working directory of a scope. In scope `full`, all other paths can also be reached.
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
    /// The absolute path for a real path, for use as a program's working directory.
    pub fn path_of(&self, real: &Path) -> PathBuf {
        match self.scope {
            FsScope::Full => Path::new("/").join(real),
            FsScope::Sandboxed | FsScope::Project => self.path.join(real),
        }
    }
    pub fn reader(&self) -> Reader<'_> {
        Reader { root: self, protected_files: OnceCell::new(), shared_devices: OnceCell::new() }
    }

    /// The real path of an existing file or directory, relative to the handle.
    pub fn resolve(&self, given: &str) -> Result<PathBuf, Refusal> {
        let clean = self.normalise(given)?;
        self.real_path(&clean, given)
    }

    pub fn open_dir(&self, given: &str) -> Result<(Dir, PathBuf), Refusal> {
        let real = self.resolve(given)?;
        Ok((self.walk_to(&real, given)?, real))
    }

    /// The path relative to the working directory, as text. The file need not exist.
    pub fn relative_path(&self, given: &str) -> Result<PathBuf, Refusal> {
        let absolute = self.path_of(&self.normalise(given)?);
        absolute.strip_prefix(&self.path).map(Path::to_owned).map_err(|_| self.outside(given))
    }

    /// Open a directory by its real path.
    pub fn open_real_dir(&self, real: &Path) -> Result<Dir, Refusal> {
        self.walk_to(real, &real.to_string_lossy())
    }

    /// Replace a file atomically. Creates missing directories and keeps the permissions of the replaced file.
    pub fn write_file(&self, given: &str, content: &[u8]) -> Result<WriteOutcome, Refusal> {
        let clean = self.normalise(given)?;
        let io = |why| Refusal::Io { path: given.to_owned(), why };
        let (parent, name) = self.create_parent(&clean, given)?;
        let replaced = match parent.symlink_metadata(&name) {
            Ok(metadata) => Some(self.check_replaceable(given, metadata)?),
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(io(why)),
        };
        replace_atomically(&parent, &name, content, replaced.as_ref()).map_err(io)?;
        Ok(if replaced.is_some() { WriteOutcome::Replaced } else { WriteOutcome::Created })
    }

    fn check_replaceable(&self, given: &str, metadata: Metadata) -> Result<Metadata, Refusal> {
        check_regular(given, metadata.file_type())?;
        if self.scope != FsScope::Full && metadata.nlink() > 1 {
            return Err(Refusal::Linked { path: given.to_owned() });
        }
        Ok(metadata)
    }

    /// The directory to write a file in, and the file's name. Creates the directory if necessary.
    fn create_parent(&self, clean: &Path, given: &str) -> Result<(Dir, OsString), Refusal> {
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

    /// The real path of the longest existing prefix, and the rest.
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

    /// Normalize the path as text: relative to the handle, with `.` and `..` resolved. Fails if the path is outside the
    /// handle.
    fn normalise(&self, given: &str) -> Result<PathBuf, Refusal> {
        let invalid = |why| Err(Refusal::Invalid { path: given.escape_debug().take(100).collect(), why });
        if given.contains('\0') {
            return invalid("it contains a NUL character");
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
            return invalid("it has more than 64 components");
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
            // cap-std reports a link to a path outside the directory without an OS error code.
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
pub enum WriteOutcome {
    Created,
    Replaced,
}

/// Opens files during one call. Caches the result of the scan for protected files for this call only.
pub struct Reader<'a> {
    root: &'a Root,
    /// Device and inode of every protected file, or `None` if the scan failed or reached a limit.
    protected_files: OnceCell<Option<HashSet<FileId>>>,
    /// Devices that are mounted several times in the scope.
    shared_devices: OnceCell<HashSet<u64>>,
}

impl Reader<'_> {
    pub fn open_file(&self, given: &str) -> Result<OpenFile, Refusal> {
        let real = self.root.resolve(given)?;
        let kind = Refusal::WrongKind { path: given.to_owned(), kind: "a directory", wanted: "a file" };
        let name = real.file_name().ok_or(kind)?;
        let parent = self.root.walk_to(real.parent().unwrap_or(Path::new("")), given)?;
        self.open_in(&parent, name, given)
    }

    /// Open a file by its name in an already opened directory.
    pub fn open_in(&self, parent: &Dir, name: &OsStr, given: &str) -> Result<OpenFile, Refusal> {
        let io = |why| map_open_error(why, given);
        // Check before opening, because opening a device can have side effects, and again after opening.
        check_regular(given, parent.symlink_metadata(name).map_err(io)?.file_type())?;
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No).nonblock(true);
        let file = parent.open_with(name, &options).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        check_regular(given, metadata.file_type())?;
        self.check_links(&metadata, given)?;
        Ok(OpenFile { file, bytes: metadata.len() })
    }

    /// Refuse a changed file of a repository that is another name of a protected file, or may be one. The path is
    /// relative to the working directory. Links and files that do not exist are accepted.
    pub fn check_identity(&self, path: &Path) -> Result<(), Refusal> {
        let given = path.to_string_lossy();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let Ok(parent) = self.root.walk_to(&self.root.start.join(parent), &given) else { return Ok(()) };
        match parent.symlink_metadata(name) {
            Ok(metadata) if metadata.is_file() => self.check_links(&metadata, &given),
            _ => Ok(()),
        }
    }

    /// Refuse a file with several names if it may be a protected file or a file outside of the scope. Another name is a
    /// hard link, or lies in another mount of the same device.
    fn check_links(&self, metadata: &Metadata, given: &str) -> Result<(), Refusal> {
        let has_links = metadata.nlink() > 1;
        let linked = Refusal::Linked { path: given.to_owned() };
        match self.root.scope {
            FsScope::Full => return Ok(()),
            FsScope::Sandboxed => return if has_links { Err(linked) } else { Ok(()) },
            FsScope::Project => {}
        }
        let shared = self.shared_devices.get_or_init(|| shared_devices(&self.root.path));
        if !has_links && !shared.contains(&metadata.dev()) {
            return Ok(());
        }
        let known = self.protected_files.get_or_init(|| find_protected_files(&self.root.dir));
        match known {
            // The project is too large to scan. Only the operator can mount, so a file with one link is accepted.
            None if has_links => Err(linked),
            Some(files) if files.contains(&(metadata.dev(), metadata.ino())) => {
                Err(Refusal::Protected { path: given.to_owned() })
            }
            None | Some(_) => Ok(()),
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

/// Write a temporary file in the target's directory and rename it, so that readers see no partial file and no link is
/// followed.
fn replace_atomically(
    parent: &Dir,
    name: &OsStr,
    content: &[u8],
    replaced: Option<&Metadata>,
) -> io::Result<()> {
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
        // Report the original error, and ignore a failure to remove the temporary file.
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
