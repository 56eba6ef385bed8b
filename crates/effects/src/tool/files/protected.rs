//! Protected file names, which tools refuse in the project scope: version control data, keys and credentials. Pure.
//!
//! Names are compared the way a lenient file system would: ignoring case, trailing dots and spaces, invisible
//! characters and alternate streams. This covers every spelling that opens a protected file.

use std::path::{Component, Path};
use std::sync::LazyLock;

use globset::{Glob, GlobSet, GlobSetBuilder};

/// Lower-case globs for one path component. Also passed to git: see [`exclusions`].
const PROTECTED: &[&str] = &[
    ".git",
    "git~[0-9]",
    ".hg",
    ".svn",
    ".env",
    ".env.*",
    ".env[-_]*",
    ".envrc",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.ppk",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".git-credentials",
    ".vault-token",
    "credentials",
    "credentials.json",
    "credentials.toml",
    "service-account*.json",
];

/// Example files, which are not protected: they contain no secrets, and agents need them.
const UNPROTECTED: &[&str] = &[".env.example", ".env.sample", ".env.template"];

static SET: LazyLock<GlobSet> = LazyLock::new(|| {
    let mut set = GlobSetBuilder::new();
    for pattern in PROTECTED {
        set.add(Glob::new(pattern).expect("PROTECTED contains valid globs"));
    }
    set.build().expect("PROTECTED is small")
});

/// Whether any component of a path is protected.
pub fn is_protected(path: &Path) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => is_protected_name(&name.to_string_lossy()),
        _ => false,
    })
}

fn is_protected_name(name: &str) -> bool {
    let name = plain_name(name);
    let before_stream = plain_name(name.split(':').next().unwrap_or_default());
    [name, before_stream].iter().any(|name| SET.is_match(name) && !UNPROTECTED.contains(&name.as_str()))
}

fn plain_name(name: &str) -> String {
    let visible: String = name.chars().filter(|c| !is_invisible(*c)).collect();
    visible.trim_end_matches(['.', ' ']).trim_start_matches(' ').to_lowercase()
}

/// Invisible characters that some file systems ignore in names.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{ad}')
}

/// Git pathspecs that exclude protected files, and also the example files.
pub fn exclusions() -> impl Iterator<Item = String> {
    PROTECTED.iter().flat_map(|glob| {
        [format!(":(top,exclude,icase,glob)**/{glob}"), format!(":(top,exclude,icase,glob)**/{glob}/**")]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_names_match_in_any_spelling_and_at_any_depth() {
        for path in [
            ".git/config",
            ".GIT/config",
            "a/.Git",
            "a/b/.ENV",
            ".env.local",
            ".env.",
            ".env ",
            ".env. .",
            "GIT~1",
            ".g\u{200c}it/x",
            ".env::$DATA",
            "x/.SSH/known_hosts",
            "deep/Server.KEY",
            "ID_RSA",
            "id_rsa.bak",
            "a.pem",
            "home/.aws/credentials",
            ".netrc",
            ".npmrc",
            "Credentials",
        ] {
            assert!(is_protected(Path::new(path)), "{path:?}");
        }
    }

    #[test]
    fn ordinary_names_are_not_protected() {
        for path in [
            "src/main.rs",
            ".github/ci.yml",
            ".gitignore",
            "environment",
            ".env.example",
            "keys.rs",
            "monkey",
            ".",
        ] {
            assert!(!is_protected(Path::new(path)), "{path:?}");
        }
    }
}
