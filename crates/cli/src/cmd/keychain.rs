//! `sapwood keychain`: stores a key in the OS keychain, or removes it. The key is read from stdin, because other users
//! can see command lines.

use std::io::{Read, Write};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::app::AppPaths;
use crate::args::Global;
use crate::failure::{Failure, Result};
use crate::render::Out;
use crate::{key, keychain};

/// Manage keys and secrets in the OS keychain
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood keychain set ANTHROPIC_API_KEY < key.txt
  sapwood keychain rm ANTHROPIC_API_KEY")]
pub struct KeychainArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read a key from stdin and store it
    #[command(after_help = "\
Examples:
  sapwood keychain set < store.key
  sapwood keychain set ANTHROPIC_API_KEY < key.txt")]
    Set {
        /// Key name such as ANTHROPIC_API_KEY, or the NAME of secret:NAME; default: the store's encryption key
        name: Option<String>,
    },
    /// Remove a key
    #[command(after_help = "\
Examples:
  sapwood keychain rm ANTHROPIC_API_KEY")]
    Rm {
        /// Key name; default: the store's encryption key
        name: Option<String>,
    },
}

pub fn run(args: &KeychainArgs, global: &Global) -> Result<()> {
    keychain::available()?;
    let (Action::Set { name } | Action::Rm { name }) = &args.action;
    let account = match name {
        Some(name) => checked_name(name)?,
        None => store_account(global)?,
    };
    let done = match args.action {
        Action::Set { .. } => {
            let text = read_stdin()?;
            key::checked(text.clone())?;
            keychain::put(&account, text.trim_end_matches(['\r', '\n']))?;
            "kept"
        }
        Action::Rm { .. } => {
            keychain::forget(&account)?;
            "forgotten"
        }
    };
    let mut out = Out::new(global.format());
    if out.is_json() {
        let kind = if name.is_some() { "name" } else { "store" };
        out.json(&json!({ kind: account, "key": done }))?;
    } else {
        match (&args.action, name) {
            (Action::Set { .. }, Some(_)) => writeln!(out, "stored the key {account}")?,
            (Action::Set { .. }, None) => {
                writeln!(out, "stored the key of {account}; set keychain = true in sapwood.toml to use it")?;
            }
            (Action::Rm { .. }, _) => writeln!(out, "removed the key {account}")?,
        }
    }
    Ok(out.flush()?)
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().take(key::KEY_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// Accepts only names of variables and secrets, which never collide with a store's account.
fn checked_name(name: &str) -> Result<String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        let hint = "use letters, digits and _, such as ANTHROPIC_API_KEY";
        return Err(Failure::usage(format!("{name:?} is not a valid key name"), hint));
    }
    Ok(name.to_owned())
}

fn store_account(global: &Global) -> Result<String> {
    let place = AppPaths::find(global)?;
    let path = place.path().filter(|_| place.url.starts_with("sqlite:"));
    let no_file = || {
        Failure::usage(
            format!("{} is not a file and has no encryption key", place.url),
            "use a sqlite: store",
        )
    };
    key::account_of(path.ok_or_else(no_file)?)
}
