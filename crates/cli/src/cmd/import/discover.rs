//! Where the agents of this machine leave their sessions.

use std::path::{Path, PathBuf};

/// A variable that names a directory, what is under it, and where the directory is without the variable.
struct Place {
    variable: &'static str,
    under_home: &'static str,
    holds: &'static [&'static str],
}

const PLACES: &[Place] = &[
    Place { variable: "CLAUDE_CONFIG_DIR", under_home: ".claude", holds: &["projects"] },
    Place { variable: "CODEX_HOME", under_home: ".codex", holds: &["sessions", "archived_sessions"] },
    Place { variable: "PI_CODING_AGENT_DIR", under_home: ".pi/agent", holds: &["sessions"] },
    Place { variable: "XDG_DATA_HOME", under_home: ".local/share", holds: &["opencode/opencode.db"] },
    Place { variable: "GEMINI_CLI_HOME", under_home: ".gemini", holds: &["tmp"] },
    Place { variable: "OPERATOR_HOME", under_home: ".operator", holds: &["profiles"] },
];

/// What a role's sessions are kept under, in the directory one works in.
const ROLE_STATE: &str = ".a-society/state";

/// The usual places that are there.
pub fn usual_places(home: Option<&Path>, work: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for place in PLACES {
        let named = std::env::var_os(place.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(root) = named.or_else(|| home.map(|home| home.join(place.under_home))) else { continue };
        places.extend(place.holds.iter().map(|held| root.join(held)));
    }
    places.push(work.join(ROLE_STATE));
    places.retain(|place| place.exists());
    places
}
