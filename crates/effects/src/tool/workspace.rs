//! The files and the environment in which a session's tools run their programs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sapwood_core::port::tool::FsScope;

use super::files::root::Root;
use crate::sandbox::limits::{Profile, ResourceLimits};
use crate::sandbox::{Confinement, FileRights, Launcher, Network};

/// Files that every confined program may read: the system's programs and the files they need to start.
const SYSTEM_FILES: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitAuthor {
    pub name: String,
    pub address: String,
}

/// The files that a session's tools work on, and the environment of its programs.
pub struct ToolWorkspace {
    pub(super) root: Arc<Root>,
    /// `HOME` of every program.
    pub(super) home: PathBuf,
    pub(super) launcher: Launcher,
    pub(super) search_path: String,
    pub(super) extra_env: BTreeMap<String, String>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) network: Network,
    pub(super) limits: ResourceLimits,
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) git_author: GitAuthor,
}

impl ToolWorkspace {
    /// The complete environment of a program. Inherits no variables from Sapwood's environment.
    pub(super) fn env(&self) -> BTreeMap<String, String> {
        let home = self.home.display().to_string();
        let mut env: BTreeMap<String, String> = [
            ("PATH", self.search_path.as_str()),
            ("HOME", &home),
            ("TMPDIR", &format!("{home}/tmp")),
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
            ("NO_COLOR", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        env.extend(self.extra_env.clone());
        env
    }

    /// The rights of a command: unrestricted in scope `full`, else limited to the session's files.
    pub(super) fn confinement(&self) -> Confinement {
        match self.root.scope() {
            FsScope::Full => self.confine(FileRights::Open, Network::Open),
            FsScope::Sandboxed | FsScope::Project => {
                let write = vec![self.root.path().to_owned(), self.home.clone()];
                let files = FileRights::Confined { read: self.readable_files(), write };
                self.confine(files, self.network)
            }
        }
    }

    /// The rights of a program that only reads.
    pub(super) fn reading_confinement(&self) -> Confinement {
        let mut read = self.readable_files();
        read.push(self.root.path().to_owned());
        self.confine(FileRights::Confined { read, write: Vec::new() }, Network::Denied)
    }

    fn confine(&self, files: FileRights, network: Network) -> Confinement {
        let (limits, cgroups) = (self.limits, self.cgroups.clone());
        Confinement { files, network, profile: Profile::Command, limits, cgroups }
    }

    fn readable_files(&self) -> Vec<PathBuf> {
        system_files(&self.search_path).chain(self.readable.clone()).collect()
    }
}

/// The system's files, and the directories of a search path.
pub(super) fn system_files(search_path: &str) -> impl Iterator<Item = PathBuf> {
    SYSTEM_FILES.iter().map(PathBuf::from).chain(std::env::split_paths(search_path))
}
