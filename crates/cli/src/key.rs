//! Finds the key of an encrypted store: in SAPWOOD_KEY, a key file, or the OS keychain, in this order. The key is
//! never read from the command line, which other users of the machine can see.

use std::path::Path;

use sapwood::store::Key;

use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::keychain;

/// Maximum length of a key in a file.
pub const KEY_BYTES_MAX: usize = 4096;

pub fn find(paths: &AppPaths) -> Result<Option<Key>> {
    if paths.url.starts_with("memory:") {
        return Ok(None);
    }
    let Some((source, key)) = find_in_sources(paths)? else { return Ok(None) };
    if !paths.url.starts_with("sqlite:") {
        let message = format!("{source} sets a key, but {} cannot be encrypted", paths.url);
        return Err(Failure::usage(message, "use a sqlite: store, or remove the key"));
    }
    if !cfg!(feature = "encryption") {
        let message = format!("{source} sets a key, but this build of sapwood does not support encryption");
        return Err(Failure::new("build.feature", message));
    }
    Ok(Some(key))
}

fn find_in_sources(paths: &AppPaths) -> Result<Option<(String, Key)>> {
    if let Some(text) = std::env::var_os("SAPWOOD_KEY").filter(|text| !text.is_empty()) {
        let not_text = |_| Failure::usage("SAPWOOD_KEY is not valid UTF-8", "set the key as UTF-8 text");
        let text = text.into_string().map_err(not_text)?;
        return Ok(Some(("SAPWOOD_KEY".to_owned(), Key::new(text))));
    }
    if let Some(path) = &paths.key_file {
        return Ok(Some((path.display().to_string(), from_file(path)?)));
    }
    match (paths.config.keychain, paths.store_path()) {
        (Some(true), Some(store)) => Ok(Some(("the keychain".to_owned(), from_keychain(store)?))),
        _ => Ok(None),
    }
}

fn from_file(path: &Path) -> Result<Key> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    refuse_readable_by_others(path, &metadata)?;
    if metadata.len() > KEY_BYTES_MAX as u64 {
        return Err(Failure::new(
            "input.too_large",
            format!("{} is not a key file: it is too large", path.display()),
        ));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse_key(text).map_err(|failure| failure.at(path.display()))
}

#[cfg(unix)]
fn refuse_readable_by_others(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("the key file {} is accessible to other users (mode {mode:03o})", path.display());
    Err(Failure::new("key.readable", message).with_hint(format!("chmod 600 {}", path.display())))
}

#[cfg(not(unix))]
fn refuse_readable_by_others(_: &Path, _: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

/// Parse a key, which must be one line without NUL bytes. Trailing line breaks are removed.
pub fn parse_key(mut text: String) -> Result<Key> {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.is_empty() {
        return Err(Failure::new("key.missing", "the key is empty"));
    }
    if text.contains(['\n', '\0']) {
        return Err(Failure::usage("the key contains a line break or a NUL byte", "put the key on one line"));
    }
    Ok(Key::new(text))
}

/// The account name of a store's key in the keychain: the store's absolute path.
pub fn account_of(store: &str) -> Result<String> {
    let path = std::path::absolute(store).map_err(|error| Failure::file(Path::new(store), &error))?;
    Ok(path.display().to_string())
}

fn from_keychain(store: &str) -> Result<Key> {
    let missing = || Failure::new("key.missing", "the keychain has no key for this store");
    parse_key(keychain::find(&account_of(store)?)?.ok_or_else(missing)?)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn key_file(mode: u32, text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_key_file_readable_by_others_is_refused_with_a_fix() {
        for mode in [0o640, 0o604, 0o660] {
            let failure = from_file(key_file(mode, "secret\n").path()).unwrap_err();
            assert_eq!(failure.code, "key.readable");
            assert!(failure.hint.starts_with("chmod 600 "), "{}", failure.hint);
        }
        assert!(from_file(key_file(0o600, "secret\n").path()).is_ok());
    }

    #[test]
    fn an_empty_key_is_missing() {
        assert_eq!(from_file(key_file(0o600, "\n").path()).unwrap_err().code, "key.missing");
    }
}
