//! Paths and configuration, from options, environment and files.

use std::path::{Path, PathBuf};

use sapwood::effects::skill::SkillFolders;

use crate::agents::Agents;
use crate::config::{self, Config};
use crate::failure::{Failure, Result};
use crate::global_args::Global;

/// Paths and configuration, resolved before anything is opened.
pub struct AppPaths {
    pub url: String,
    pub config: Config,
    pub key_file: Option<PathBuf>,
    /// Sapwood's home directory. Created when something is stored in it.
    pub home: PathBuf,
    pub is_store_at_home: bool,
    /// The current directory.
    pub here: PathBuf,
}

impl AppPaths {
    pub fn find(global: &Global) -> Result<Self> {
        let home = home_dir(global)?;
        let here = std::env::current_dir().map_err(|error| Failure::file(Path::new("."), &error))?;
        let config = config::load(&here, &home)?;
        let key_file = global.key_file.clone().filter(|path| !path.as_os_str().is_empty());
        let key_file = key_file.or_else(|| config.key_file.clone());
        // An empty variable counts as unset, so that users can disable it for one command.
        let given = global.store.clone().filter(|url| !url.is_empty()).or_else(|| config.store.clone());
        let (url, is_store_at_home) = match given {
            Some(url) => (url, false),
            None => {
                let file = home.join("sapwood.db");
                // A store URL is UTF-8, so another path cannot be converted without loss.
                let not_text = || {
                    let message = format!("the path {} is not valid UTF-8", home.display());
                    Failure::usage(message, "set another directory with --home or SAPWOOD_HOME")
                };
                (format!("sqlite:{}", file.to_str().ok_or_else(not_text)?), true)
            }
        };
        Ok(Self { url, config, key_file, home, is_store_at_home, here })
    }

    pub fn agents(&self) -> Agents {
        Agents::of(&self.here, &self.home, &self.config)
    }

    /// Directories of skills, in order of precedence.
    pub fn skills(&self) -> SkillFolders {
        let project = self.config.project.as_deref().unwrap_or(&self.here);
        let mut dirs = vec![project.join(".sapwood/skills")];
        dirs.extend(self.config.skills.iter().cloned());
        dirs.push(self.home.join("skills"));
        SkillFolders::new(dirs)
    }

    /// The part of the store URL after the scheme: the path of a `sqlite:` or `jsonl:` store.
    pub fn store_path(&self) -> Option<&str> {
        self.url.split_once(':').map(|(_, path)| path).filter(|path| !path.is_empty())
    }
}

fn home_dir(global: &Global) -> Result<PathBuf> {
    if let Some(home) = global.home.clone().filter(|home| !home.as_os_str().is_empty()) {
        return Ok(home);
    }
    platform_data_dir().ok_or_else(|| {
        Failure::usage("found no data directory for this user", "set one with --home or SAPWOOD_HOME")
    })
}

fn platform_data_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Application Support/Sapwood"))
    } else if cfg!(windows) {
        var("LOCALAPPDATA").map(|data| data.join("Sapwood"))
    } else {
        let data = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|home| home.join(".local/share")));
        data.map(|data| data.join("sapwood"))
    }
}

/// Create the home directory. Sessions are private, so other users of the machine get no access.
pub fn create_home(home: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(home).map_err(|error| Failure::file(home, &error))
}
