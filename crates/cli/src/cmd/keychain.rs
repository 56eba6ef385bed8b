//! `sapwood keychain`: puts a store's key into the OS keychain, or takes it out. The key comes from stdin, because a
//! command line can be read by others.

use clap::{Args, Subcommand};

use crate::args::Global;
use crate::failure::Result;

/// Keep a store's encryption key in the OS keychain
#[derive(Debug, Args)]
pub struct KeychainArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read a key from stdin and keep it for this store
    Set,
    /// Forget this store's key
    Rm,
}

#[cfg(feature = "encryption")]
pub fn run(args: &KeychainArgs, global: &Global) -> Result<()> {
    use std::io::{Read, Write};

    use crate::failure::Failure;
    use crate::key;

    let place = crate::wiring::Place::find(global)?;
    let no_file =
        || Failure::usage(format!("{} is no file and has no key", place.url), "give a sqlite: store");
    let store = place.path().filter(|_| place.url.starts_with("sqlite:")).ok_or_else(no_file)?;
    let entry = key::keychain_entry(store)?;
    let failed = |error| key::keychain_failed(&error);
    let done = match args.action {
        Action::Set => {
            let mut text = String::new();
            std::io::stdin().lock().take(key::KEY_BYTES_MAX as u64).read_to_string(&mut text)?;
            key::checked(text.clone())?;
            entry.set_password(text.trim_end_matches(['\r', '\n'])).map_err(failed)?;
            "kept"
        }
        Action::Rm => {
            entry.delete_credential().map_err(failed)?;
            "forgotten"
        }
    };
    let mut out = crate::render::Out::new(global.format());
    if out.is_json() {
        out.json(&serde_json::json!({ "store": store, "key": done }))?;
    } else {
        writeln!(out, "the key of {store} is {done}; keychain = true in sapwood.toml uses it")?;
    }
    Ok(out.flush()?)
}

#[cfg(not(feature = "encryption"))]
pub fn run(args: &KeychainArgs, _: &Global) -> Result<()> {
    let what = match args.action {
        Action::Set => "keep a key in",
        Action::Rm => "take a key out of",
    };
    let message = format!("this build of sapwood cannot {what} the keychain");
    Err(crate::failure::Failure::new("build.feature", message))
}
