//! `sapwood keychain`: puts a key into the OS keychain, or takes it out. It comes from stdin, because a command line can be
//! read by others.

use std::io::{Read, Write};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::app::AppPaths;
use crate::args::Global;
use crate::failure::{Failure, Result};
use crate::render::Out;
use crate::{key, keychain};

/// Keep keys in the OS keychain: of this store, of models, and secrets
#[derive(Debug, Args)]
pub struct KeychainArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read a key from stdin and keep it
    Set {
        /// A model's key such as ANTHROPIC_API_KEY, or the NAME of a secret:NAME; the store's key if not given
        name: Option<String>,
    },
    /// Forget a key
    Rm { name: Option<String> },
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
        let how = if name.is_some() { "" } else { "; keychain = true in sapwood.toml uses it" };
        writeln!(out, "the key of {account} is {done}{how}")?;
    }
    Ok(out.flush()?)
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().take(key::KEY_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// A name as variables and secrets have it: then it is no store's.
fn checked_name(name: &str) -> Result<String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        let hint = "use letters, digits and _, such as ANTHROPIC_API_KEY";
        return Err(Failure::usage(format!("{name:?} cannot be the name of a key"), hint));
    }
    Ok(name.to_owned())
}

fn store_account(global: &Global) -> Result<String> {
    let place = AppPaths::find(global)?;
    let path = place.path().filter(|_| place.url.starts_with("sqlite:"));
    let no_file =
        || Failure::usage(format!("{} is no file and has no key", place.url), "give a sqlite: store");
    key::account_of(path.ok_or_else(no_file)?)
}
