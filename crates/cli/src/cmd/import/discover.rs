//! Default locations of the sessions of agents on this machine.

use std::path::{Path, PathBuf};

/// Where an agent stores its sessions: the variable that overrides the directory, the default, and the subpaths.
struct AgentLocation {
    variable: &'static str,
    /// Default directory, relative to the user's home.
    under_home: &'static str,
    variable_meaning: VariableMeaning,
    subpaths: &'static [&'static str],
}

/// What the environment variable contains: the agent's directory, or the home directory that contains it.
enum VariableMeaning {
    Directory,
    Home,
}

const LOCATIONS: &[AgentLocation] = &[
    AgentLocation {
        variable: "CLAUDE_CONFIG_DIR",
        under_home: ".claude",
        variable_meaning: VariableMeaning::Directory,
        subpaths: &["projects"],
    },
    AgentLocation {
        variable: "CODEX_HOME",
        under_home: ".codex",
        variable_meaning: VariableMeaning::Directory,
        subpaths: &["sessions", "archived_sessions"],
    },
    AgentLocation {
        variable: "PI_CODING_AGENT_DIR",
        under_home: ".pi/agent",
        variable_meaning: VariableMeaning::Directory,
        subpaths: &["sessions"],
    },
    AgentLocation {
        variable: "XDG_DATA_HOME",
        under_home: ".local/share",
        variable_meaning: VariableMeaning::Directory,
        subpaths: &["opencode/opencode.db"],
    },
    AgentLocation {
        variable: "GEMINI_CLI_HOME",
        under_home: ".gemini",
        variable_meaning: VariableMeaning::Home,
        subpaths: &["tmp"],
    },
    AgentLocation {
        variable: "OPERATOR_HOME",
        under_home: ".operator",
        variable_meaning: VariableMeaning::Directory,
        subpaths: &["profiles"],
    },
];

/// Directory of role sessions, relative to the working directory.
const ROLE_STATE: &str = ".a-society/state";

/// Returns the default locations that exist.
pub fn default_locations(home: Option<&Path>, work: &Path) -> Vec<PathBuf> {
    let mut locations = Vec::new();
    for location in LOCATIONS {
        let configured =
            std::env::var_os(location.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let configured = configured.map(|configured| match location.variable_meaning {
            VariableMeaning::Directory => configured,
            VariableMeaning::Home => configured.join(location.under_home),
        });
        let Some(root) = configured.or_else(|| home.map(|home| home.join(location.under_home))) else {
            continue;
        };
        locations.extend(location.subpaths.iter().map(|subpath| root.join(subpath)));
    }
    locations.push(work.join(ROLE_STATE));
    locations.retain(|location| location.exists());
    locations
}
