//! The OS keychain: keys of stores, by the store's path; keys of models, by their variable; secrets, by their name. A build
//! without the feature `keychain` has none, and says so.

use crate::failure::{Failure, Result};

/// What ours are filed under.
#[cfg(feature = "keychain")]
const SERVICE: &str = "sapwood";

/// Whether this build can use it at all.
pub fn available() -> Result<()> {
    let missing = || Failure::new("build.feature", "this build of sapwood cannot use the keychain");
    cfg!(feature = "keychain").then_some(()).ok_or_else(missing)
}

/// What a name stands for, if the keychain has it.
#[cfg(feature = "keychain")]
pub fn find(name: &str) -> Result<Option<String>> {
    match entry(name)?.get_password() {
        Ok(value) => Ok(Some(value)),
        Err(keyring::Error::NoEntry) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

#[cfg(feature = "keychain")]
pub fn put(name: &str, value: &str) -> Result<()> {
    entry(name)?.set_password(value).map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
pub fn forget(name: &str) -> Result<()> {
    entry(name)?.delete_credential().map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
fn entry(name: &str) -> Result<keyring::Entry> {
    keyring::Entry::new(SERVICE, name).map_err(|error| failed(&error))
}

#[cfg(feature = "keychain")]
fn failed(error: &keyring::Error) -> Failure {
    match error {
        keyring::Error::NoEntry => Failure::new("key.missing", "the keychain has nothing of this name"),
        other => Failure::new("key.keychain", format!("the keychain cannot be used: {other}"))
            .with_hint("unlock it, or give the key by the environment or a file instead"),
    }
}

#[cfg(not(feature = "keychain"))]
pub fn find(_: &str) -> Result<Option<String>> {
    available().map(|()| None)
}

#[cfg(not(feature = "keychain"))]
pub fn put(_: &str, _: &str) -> Result<()> {
    available()
}

#[cfg(not(feature = "keychain"))]
pub fn forget(_: &str) -> Result<()> {
    available()
}
