//! What the programs of MCP servers may use: the operator's profile, narrowed by the agent's limits and by what a server
//! declares.

use std::path::{Component, Path, PathBuf};

use sapwood_core::port::tool::{FsScope, ServerSandbox, ToolGrant};

use crate::sandbox::limits::{Profile, ResourceLimits};
use crate::sandbox::{Confinement, FileRights, Launcher, Network};
use crate::tool::process::find_program;
use crate::tool::workspace::{ToolWorkspace, system_files};

/// The operator's rules for MCP programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpProfile {
    pub limits: ResourceLimits,
    pub network: Network,
    pub files: McpFiles,
    /// Further paths that programs may read, and that they may read and write.
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// The user's home directory, for paths that begin with `~/`.
    pub user_home: Option<PathBuf>,
}

/// Which files an MCP program can access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum McpFiles {
    /// The system's programs, its own program, the session's files and the listed paths.
    #[default]
    Confined,
    /// All files of Sapwood itself, with the user's home directory.
    Open,
}

impl Default for McpProfile {
    fn default() -> Self {
        Self {
            limits: ResourceLimits::default(),
            network: Network::Open,
            files: McpFiles::Confined,
            read: Vec::new(),
            write: Vec::new(),
            user_home: std::env::home_dir(),
        }
    }
}

/// How one session starts the programs of its MCP servers.
#[derive(Debug, Clone)]
pub struct McpPrograms {
    pub launcher: Launcher,
    pub profile: McpProfile,
    pub cgroups: Vec<PathBuf>,
    /// Working directory of the programs: the session's files.
    pub directory: PathBuf,
    /// Home directory of confined programs.
    pub home: PathBuf,
}

/// A program to start, with its rights.
pub struct ServerProgram {
    pub launcher: Launcher,
    pub path: PathBuf,
    pub args: Vec<String>,
    pub directory: PathBuf,
    /// The home directory, if it is not the user's.
    pub home: Option<PathBuf>,
    pub confinement: Confinement,
}

impl ServerProgram {
    /// A note for error messages. A program that may not read its own files often fails without saying so.
    pub fn confinement_note(&self) -> &'static str {
        match self.confinement.files {
            FileRights::Confined { .. } if self.launcher.confines() => {
                "; the program is sandboxed: if it needs further files, list them under read or write in \
                 [sandbox.mcp] of your sapwood.toml"
            }
            _ => "",
        }
    }
}

impl McpPrograms {
    pub fn new(profile: &McpProfile, grant: &ToolGrant, workspace: &ToolWorkspace) -> Self {
        let files = if grant.fs_scope == FsScope::Full { McpFiles::Open } else { profile.files };
        let limits = profile.limits.narrowed(&grant.sandbox);
        Self {
            launcher: workspace.launcher.clone(),
            profile: McpProfile { files, limits, ..profile.clone() },
            cgroups: workspace.cgroups.clone(),
            directory: workspace.root.path().to_owned(),
            home: workspace.home.clone(),
        }
    }

    /// Find a server's program and decide its rights.
    pub(super) fn find(
        &self,
        command: &str,
        args: &[String],
        declared: Option<&ServerSandbox>,
    ) -> Result<ServerProgram, String> {
        let search_path = std::env::var("PATH").unwrap_or_default();
        let path = find_program(command, &search_path, &self.directory)
            .ok_or_else(|| format!("failed to start {command}: no such program"))?;
        let declared = declared.cloned().unwrap_or_default();
        let files = match self.profile.files {
            McpFiles::Open if declared.read.is_none() && declared.write.is_none() => FileRights::Open,
            McpFiles::Open | McpFiles::Confined => {
                let mut read = self.declared_paths(declared.read.as_deref(), Access::Read)?;
                let mut write = self.declared_paths(declared.write.as_deref(), Access::Write)?;
                read.extend(system_files(&search_path).chain(files_of_program(&path, args)));
                write.extend([self.directory.clone(), self.home.clone()]);
                FileRights::Confined { read, write }
            }
        };
        let network = if declared.network == Some(false) { Network::Denied } else { self.profile.network };
        Ok(ServerProgram {
            launcher: self.launcher.clone(),
            path,
            args: args.to_vec(),
            directory: self.directory.clone(),
            home: (files != FileRights::Open && self.launcher.confines()).then(|| self.home.clone()),
            confinement: Confinement {
                files,
                network,
                profile: Profile::Mcp,
                limits: self.profile.limits,
                cgroups: self.cgroups.clone(),
            },
        })
    }

    /// The operator's paths, or those of them that a server declares.
    fn declared_paths(&self, declared: Option<&[String]>, access: Access) -> Result<Vec<PathBuf>, String> {
        let McpProfile { read, write, files, .. } = &self.profile;
        let allowed: Vec<&PathBuf> = match access {
            Access::Read => read.iter().chain(write).collect(),
            Access::Write => write.iter().collect(),
        };
        let Some(declared) = declared else {
            return Ok(allowed.into_iter().cloned().collect());
        };
        let is_allowed = |path: &PathBuf| {
            *files == McpFiles::Open || allowed.iter().any(|allowed| real(path).starts_with(real(allowed)))
        };
        let mut paths = Vec::new();
        for text in declared {
            let path = self.absolute(text)?;
            if !is_allowed(&path) {
                return Err(format!(
                    "sandbox.{0} of the server lists {text}, which is not inside a path of {0} in [sandbox.mcp] of \
                     sapwood.toml",
                    access.key()
                ));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    fn absolute(&self, text: &str) -> Result<PathBuf, String> {
        let path = match (text.strip_prefix("~/"), &self.profile.user_home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        };
        let has_parent = path.components().any(|part| part == Component::ParentDir);
        match path.is_absolute() && !has_parent {
            true => Ok(path),
            false => Err(format!("sandbox: {text} is not an absolute path without ..")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Access {
    fn key(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// The path without links, or the path itself if it does not exist.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The program and the files among its arguments, such as a script.
fn files_of_program(path: &Path, args: &[String]) -> impl Iterator<Item = PathBuf> {
    let named = args.iter().map(PathBuf::from).filter(|arg| arg.is_absolute() && arg.is_file());
    [path.to_owned(), real(path)].into_iter().chain(named.collect::<Vec<_>>())
}
