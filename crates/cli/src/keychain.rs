//! The OS keychain. The account name is the path for a store's key, the variable for a provider's key, and the name for
//! a secret. Without the feature `keychain`, every access is an error.

use crate::failure::{Failure, Result};

/// Service name of Sapwood's keychain entries.
#[cfg(feature = "keychain")]
const SERVICE: &str = "sapwood";

/// Check that this build supports the keychain.
pub fn available() -> Result<()> {
    let missing = || Failure::new("build.feature", "this build of sapwood does not support the keychain");
    cfg!(feature = "keychain").then_some(()).ok_or_else(missing)
}

/// Look up a name. None if the keychain has no such entry.
#[cfg(feature = "keychain")]
pub fn find(name: &str) -> Result<Option<String>> {
    match entry(name)?.get_password() {
        Ok(value) => Ok(Some(value)),
        Err(keyring::Error::NoEntry) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

#[cfg(feature = "keychain")]
pub fn store(name: &str, value: &str) -> Result<()> {
    entry(name)?.set_password(value).map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
pub fn remove(name: &str) -> Result<()> {
    entry(name)?.delete_credential().map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
fn entry(name: &str) -> Result<keyring::Entry> {
    keyring::Entry::new(SERVICE, name).map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
fn failed(error: &keyring::Error) -> Failure {
    match error {
        keyring::Error::NoEntry => Failure::new("key.missing", "the keychain has no entry with this name"),
        other => Failure::new("key.keychain", format!("failed to access the keychain: {other}"))
            .with_hint("unlock it, or provide the key in the environment or a file instead"),
    }
}

#[cfg(not(feature = "keychain"))]
pub fn find(_: &str) -> Result<Option<String>> {
    available().map(|()| None)
}

#[cfg(not(feature = "keychain"))]
pub fn store(_: &str, _: &str) -> Result<()> {
    available()
}

#[cfg(not(feature = "keychain"))]
pub fn remove(_: &str) -> Result<()> {
    available()
}
