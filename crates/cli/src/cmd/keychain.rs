//! `sapwood keychain`: stores a key in the OS keychain, or removes it. The key is read from stdin, because other users
//! can see command lines.

use std::io::{Read, Write};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::global_args::Global;
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
    command: KeychainCommand,
}

#[derive(Debug, Subcommand)]
enum KeychainCommand {
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
    let (KeychainCommand::Set { name } | KeychainCommand::Rm { name }) = &args.command;
    let account = match name {
        Some(name) => parse_name(name)?,
        None => store_account(global)?,
    };
    let done = match args.command {
        KeychainCommand::Set { .. } => {
            let text = read_stdin()?;
            key::parse_key(text.clone())?;
            keychain::store(&account, text.trim_end_matches(['\r', '\n']))?;
            "kept"
        }
        KeychainCommand::Rm { .. } => {
            keychain::remove(&account)?;
            "forgotten"
        }
    };
    let mut out = Out::new(global.format());
    if out.is_json() {
        let kind = if name.is_some() { "name" } else { "store" };
        out.json(&json!({ kind: account, "key": done }))?;
    } else {
        match (&args.command, name) {
            (KeychainCommand::Set { .. }, Some(_)) => writeln!(out, "stored the key {account}")?,
            (KeychainCommand::Set { .. }, None) => {
                writeln!(out, "stored the key of {account}; set keychain = true in sapwood.toml to use it")?;
            }
            (KeychainCommand::Rm { .. }, _) => writeln!(out, "removed the key {account}")?,
        }
    }
    Ok(out.flush()?)
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().take(key::KEY_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// Checks that the name has only letters, digits and underscores, so that it cannot equal a store's
/// account, which is a path.
fn parse_name(name: &str) -> Result<String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        let hint = "use letters, digits and _, such as ANTHROPIC_API_KEY";
        return Err(Failure::usage(format!("{name:?} is not a valid key name"), hint));
    }
    Ok(name.to_owned())
}

fn store_account(global: &Global) -> Result<String> {
    let paths = AppPaths::find(global)?;
    let path = paths.store_path().filter(|_| paths.url.starts_with("sqlite:"));
    let no_file = || {
        Failure::usage(
            format!("{} is not a file and has no encryption key", paths.url),
            "use a sqlite: store",
        )
    };
    key::account_of(path.ok_or_else(no_file)?)
}
