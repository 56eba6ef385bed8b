//! The `[sandbox]` table of `sapwood.toml`: what the programs that Sapwood starts may use.

use std::path::{Path, PathBuf};

use sapwood::effects::sandbox::Network;
use sapwood::effects::sandbox::limits::{MIB, Profile, ResourceLimits};
use sapwood::effects::tool::mcp::{McpFiles, McpProfile};
use serde::Deserialize;

/// The `[sandbox]` table. Its limits apply to every profile that does not set its own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    pub memory_mb: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_s: Option<u64>,
    pub file_mb: Option<u64>,
    pub open_files: Option<u64>,
    /// Directories for control groups that the operator has delegated to Sapwood.
    pub cgroups: Vec<PathBuf>,
    pub command: ProfileSettings,
    pub mcp: ProfileSettings,
    pub hook: ProfileSettings,
}

/// One of the tables `[sandbox.command]`, `[sandbox.mcp]` and `[sandbox.hook]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileSettings {
    pub memory_mb: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_s: Option<u64>,
    pub file_mb: Option<u64>,
    pub open_files: Option<u64>,
    /// Whether programs may use the network. Not for hooks.
    pub network: Option<bool>,
    /// Further paths to read. Not for hooks.
    pub read: Vec<PathBuf>,
    /// Further paths to read and write. Only for MCP programs.
    pub write: Vec<PathBuf>,
    /// Which files programs can access. Only for MCP programs.
    pub files: Option<FilesSetting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FilesSetting {
    Confined,
    Open,
}

impl SandboxSettings {
    /// The first mistake: a limit of zero, or a key that does not apply to its table.
    pub fn mistake(&self) -> Option<String> {
        let limits = [self.memory_mb, self.processes, self.cpu_s, self.file_mb, self.open_files];
        if let Some(mistake) = zero_limit("sandbox", limits) {
            return Some(mistake);
        }
        let (command, hook) = (&self.command, &self.hook);
        let wrong = [
            ("sandbox.command.write", !command.write.is_empty()),
            ("sandbox.command.files", command.files.is_some()),
            ("sandbox.hook.network", hook.network.is_some()),
            ("sandbox.hook.read", !hook.read.is_empty()),
            ("sandbox.hook.write", !hook.write.is_empty()),
            ("sandbox.hook.files", hook.files.is_some()),
        ];
        if let Some((key, _)) = wrong.into_iter().find(|(_, is_set)| *is_set) {
            return Some(format!("{key} is not a setting: see docs/spec/tools.md for those of each table"));
        }
        self.profiles().into_iter().find_map(|(profile, table)| {
            let limits = [table.memory_mb, table.processes, table.cpu_s, table.file_mb, table.open_files];
            zero_limit(&format!("sandbox.{}", profile.as_str()), limits)
        })
    }

    fn profiles(&self) -> [(Profile, &ProfileSettings); 3] {
        [(Profile::Command, &self.command), (Profile::Mcp, &self.mcp), (Profile::Hook, &self.hook)]
    }

    fn profile(&self, profile: Profile) -> &ProfileSettings {
        match profile {
            Profile::Command => &self.command,
            Profile::Mcp => &self.mcp,
            Profile::Hook => &self.hook,
        }
    }

    /// The limits of a profile: its own, else those of `[sandbox]`, else the defaults.
    pub fn limits(&self, profile: Profile) -> ResourceLimits {
        let own = self.profile(profile);
        let defaults = ResourceLimits::for_machine(sapwood::effects::sandbox::physical_memory_bytes());
        let in_bytes = |own: Option<u64>, shared: Option<u64>, default: u64| {
            own.or(shared).map_or(default, |mib| mib.saturating_mul(MIB))
        };
        ResourceLimits {
            memory_bytes_max: in_bytes(own.memory_mb, self.memory_mb, defaults.memory_bytes_max),
            processes_max: own.processes.or(self.processes).unwrap_or(defaults.processes_max),
            cpu_seconds_max: own.cpu_s.or(self.cpu_s).unwrap_or(defaults.cpu_seconds_max),
            file_bytes_max: in_bytes(own.file_mb, self.file_mb, defaults.file_bytes_max),
            open_files_max: own.open_files.or(self.open_files).unwrap_or(defaults.open_files_max),
        }
    }

    /// Whether commands may use the network in the scopes that restrict them.
    pub fn command_network(&self) -> Network {
        if self.command.network == Some(true) { Network::Open } else { Network::Denied }
    }

    pub fn mcp_profile(&self) -> McpProfile {
        let mcp = &self.mcp;
        McpProfile {
            limits: self.limits(Profile::Mcp),
            network: if mcp.network == Some(false) { Network::Denied } else { Network::Open },
            files: if mcp.files == Some(FilesSetting::Open) { McpFiles::Open } else { McpFiles::Confined },
            read: mcp.read.clone(),
            write: mcp.write.clone(),
            ..McpProfile::default()
        }
    }

    /// Make paths absolute. `~/` is the user's home directory.
    pub fn resolve_paths(&mut self, dir: &Path) {
        let home = std::env::home_dir();
        let lists = [&mut self.command.read, &mut self.mcp.read, &mut self.mcp.write, &mut self.cgroups];
        for path in lists.into_iter().flatten() {
            *path = match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => home.join(rest),
                _ => dir.join(&*path),
            };
        }
    }
}

fn zero_limit(table: &str, limits: [Option<u64>; 5]) -> Option<String> {
    let names = ["memory_mb", "processes", "cpu_s", "file_mb", "open_files"];
    let zero = names.into_iter().zip(limits).find(|(_, limit)| *limit == Some(0));
    zero.map(|(name, _)| format!("{table}.{name} is zero, so that no program could run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SandboxSettings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_profile_uses_its_own_limit_then_the_shared_one_then_the_default() {
        let settings = read("memory_mb = 100\nprocesses = 9\n[mcp]\nmemory_mb = 200\n");
        let (command, mcp) = (settings.limits(Profile::Command), settings.limits(Profile::Mcp));
        assert_eq!((command.memory_bytes_max, mcp.memory_bytes_max), (100 * MIB, 200 * MIB));
        assert_eq!((command.processes_max, mcp.processes_max), (9, 9));
        assert_eq!(command.cpu_seconds_max, ResourceLimits::default().cpu_seconds_max);
    }

    #[test]
    fn mcp_programs_have_a_network_and_commands_have_none_unless_configured() {
        let settings = read("");
        assert_eq!(
            (settings.command_network(), settings.mcp_profile().network),
            (Network::Denied, Network::Open)
        );
        let settings = read("[command]\nnetwork = true\n[mcp]\nnetwork = false\n");
        assert_eq!(
            (settings.command_network(), settings.mcp_profile().network),
            (Network::Open, Network::Denied)
        );
    }

    #[test]
    fn settings_that_do_not_apply_and_limits_of_zero_are_mistakes() {
        for (text, key) in [
            ("[hook]\nnetwork = false", "sandbox.hook.network"),
            ("[command]\nwrite = [\"/\"]", "sandbox.command.write"),
            ("cpu_s = 0", "sandbox.cpu_s"),
            ("[mcp]\nprocesses = 0", "sandbox.mcp.processes"),
        ] {
            let mistake = read(text).mistake().unwrap();
            assert!(mistake.contains(key), "{mistake}");
        }
        assert_eq!(read("[mcp]\nfiles = \"open\"").mistake(), None);
    }

    #[test]
    fn paths_are_relative_to_the_file_or_to_the_home_directory() {
        let mut settings = read("[mcp]\nread = [\"~/x\", \"y\", \"/z\"]");
        settings.resolve_paths(Path::new("/dir"));
        let home = std::env::home_dir().unwrap();
        assert_eq!(settings.mcp.read, [home.join("x"), "/dir/y".into(), "/z".into()]);
    }
}
