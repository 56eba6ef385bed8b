//! Default locations of the sessions of agents on this machine.

use std::path::{Path, PathBuf};

/// An agent's directory: the environment variable that overrides it, its default, and the subpaths with sessions.
struct AppPaths {
    variable: &'static str,
    /// Default directory, relative to the user's home. The variable overrides the directory or the home, see `names`.
    under_home: &'static str,
    names: Names,
    holds: &'static [&'static str],
}

/// The meaning of the variable: the agent's directory, or the home that contains it.
enum Names {
    Directory,
    Home,
}

const PLACES: &[AppPaths] = &[
    AppPaths {
        variable: "CLAUDE_CONFIG_DIR",
        under_home: ".claude",
        names: Names::Directory,
        holds: &["projects"],
    },
    AppPaths {
        variable: "CODEX_HOME",
        under_home: ".codex",
        names: Names::Directory,
        holds: &["sessions", "archived_sessions"],
    },
    AppPaths {
        variable: "PI_CODING_AGENT_DIR",
        under_home: ".pi/agent",
        names: Names::Directory,
        holds: &["sessions"],
    },
    AppPaths {
        variable: "XDG_DATA_HOME",
        under_home: ".local/share",
        names: Names::Directory,
        holds: &["opencode/opencode.db"],
    },
    AppPaths { variable: "GEMINI_CLI_HOME", under_home: ".gemini", names: Names::Home, holds: &["tmp"] },
    AppPaths {
        variable: "OPERATOR_HOME",
        under_home: ".operator",
        names: Names::Directory,
        holds: &["profiles"],
    },
];

/// Directory of role sessions, relative to the working directory.
const ROLE_STATE: &str = ".a-society/state";

/// Returns the default locations that exist.
pub fn usual_places(home: Option<&Path>, work: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for place in PLACES {
        let named = std::env::var_os(place.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = named.map(|named| match place.names {
            Names::Directory => named,
            Names::Home => named.join(place.under_home),
        });
        let Some(root) = named.or_else(|| home.map(|home| home.join(place.under_home))) else { continue };
        places.extend(place.holds.iter().map(|held| root.join(held)));
    }
    places.push(work.join(ROLE_STATE));
    places.retain(|place| place.exists());
    places
}
