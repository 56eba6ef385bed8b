//! The key and the address of answer links. The key is a secret from the configuration, or a file in Sapwood's home that
//! is created when it is first needed.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use sapwood::core::port::clock::Clock;
use sapwood::core::port::hook::HookName;
use sapwood::core::port::links::AnswerLinks;
use sapwood::effects::answer_link::{KEY_BYTES_MIN, SignedLinks};
use sapwood::effects::secret::Secret;

use crate::app_paths::{AppPaths, create_home};
use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::providers::find_secrets;

/// The address of a local server.
pub const LOCAL_URL: &str = "http://127.0.0.1:7420";
const KEY_FILE: &str = "link.key";

/// Whether a hook receives questions, and with them answer links.
pub fn are_used_by_hooks(config: &Config) -> bool {
    config.hooks.iter().any(|hook| hook.on.all().contains(&HookName::OnApproval))
}

/// Open the signer of answer links. `default_url` is the server's address if the configuration has none.
pub fn open(paths: &AppPaths, default_url: &str) -> Result<Arc<dyn AnswerLinks>> {
    let settings = paths.config.server.clone().unwrap_or_default();
    let url = settings.public_url.as_deref().unwrap_or(default_url);
    if !(url.starts_with("https://") || url.starts_with("http://")) {
        return Err(invalid("public_url must begin with https:// or http://"));
    }
    let key = match settings.link_secret.as_deref() {
        None => key_file(paths)?,
        Some(reference) => {
            let name = reference.strip_prefix("secret:");
            let name = name.ok_or_else(|| invalid("link_secret must be \"secret:NAME\""))?;
            find_secrets().resolve(name).map_err(|error| invalid(&error.to_string()))?
        }
    };
    let links = SignedLinks::new(&key, url);
    let too_short = || invalid(&format!("the key of answer links needs at least {KEY_BYTES_MIN} bytes"));
    Ok(Arc::new(links.ok_or_else(too_short)?))
}

fn invalid(why: &str) -> Failure {
    Failure::new("config.invalid", format!("server: {why}"))
}

/// Read the key file, or create it.
fn key_file(paths: &AppPaths) -> Result<Secret> {
    create_home(&paths.home)?;
    let path = paths.home.join(KEY_FILE);
    let failed = |error: std::io::Error| Failure::file(&path, &error);
    match create_key(&path) {
        Ok(key) => Ok(key),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Ok(Secret::new(std::fs::read_to_string(&path).map_err(failed)?.trim()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Create the key file, readable only by its owner. The file gets its name after it is complete, so that no process
/// reads a part of the key.
fn create_key(path: &Path) -> std::io::Result<Secret> {
    if path.exists() {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let key = format!("{:032x}{:032x}", sapwood::SystemClock.random(), sapwood::SystemClock.random());
    let mut file = tempfile_in(path)?;
    file.0.write_all(key.as_bytes())?;
    file.0.sync_all()?;
    let linked = std::fs::hard_link(&file.1, path);
    std::fs::remove_file(&file.1)?;
    linked.map(|()| Secret::new(key))
}

fn tempfile_in(path: &Path) -> std::io::Result<(std::fs::File, std::path::PathBuf)> {
    let name = path.with_extension(format!("{:016x}", sapwood::SystemClock.random() as u64));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    Ok((options.open(&name)?, name))
}
