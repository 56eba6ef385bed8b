//! `sapwood backup`: copies a whole store to one file, while the store is in use.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use sapwood::core::Store;
use sapwood::engine::migrate::{Item, Migration, MigrationTotal, Mode, inventory};
use sapwood::store::sqlite::contents::{ContentsRow, write_contents};
use sapwood::store::{Key, OpenOptions};
use serde_json::json;

use super::migrate::{Sessions, copy};
use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::key;
use crate::render::{Out, plural};
use crate::temp_store::{TempStore, dir_of};

/// Copy the whole store to one file and verify it
///
/// The backup contains the sessions, blobs, API keys, memories and audit logs of all tenants. Servers and turns may run
/// meanwhile: it contains everything that was acknowledged before it began. Each session is compared with its source, and
/// FILE appears only when it is complete. The backup of an encrypted store is encrypted with the same key. To encrypt the
/// backup of a JSONL or PostgreSQL store, set a key with SAPWOOD_KEY or --key-file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood backup sessions-2026-05-01.db
  sapwood --store postgres://me@db.example/sapwood backup /backups/sapwood.db --force
  sapwood restore sessions-2026-05-01.db")]
pub struct BackupArgs {
    /// File to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace an existing FILE, after the new backup is complete
    #[arg(long)]
    force: bool,
}

pub async fn run(args: BackupArgs, global: &Global) -> Result<()> {
    if args.file.exists() && !args.force {
        let message = format!("{} already exists", args.file.display());
        return Err(Failure::new("backup.exists", message).with_hint("choose another file, or use --force"));
    }
    if args.file.is_dir() {
        let message = format!("{} is a directory", args.file.display());
        return Err(Failure::usage(message, "name the file to write"));
    }
    let paths = AppPaths::find(global)?;
    let key = key_for(&paths, &args.file)?;
    let from = open_existing(&paths, key.clone())?;
    let mut out = Out::new(global.format());
    let prefix = format!(".{}", args.file.file_name().unwrap_or_default().to_string_lossy());
    let (temp, _) =
        TempStore::create(dir_of(&args.file), &prefix).map_err(|error| Failure::file(&args.file, &error))?;
    let url = url_of(temp.path())?;
    let options = OpenOptions { key: key.clone(), ..OpenOptions::default() };
    let to = sapwood::store::open(&url, options).map_err(sapwood::Error::from)?;
    let migration = Migration::new(from, to.clone(), Mode::Copy);
    let total = copy(migration, &mut out, Sessions::Problems).await?;
    let rows: Vec<ContentsRow> = inventory(&*to).await?.into_iter().map(to_row).collect();
    // The last reference closes the file, which moves the write-ahead log into it.
    drop(to);
    write_contents(temp.path(), key.as_ref(), &rows).map_err(sapwood::Error::from)?;
    if total.problems > 0 && args.file.exists() {
        let message = format!("{} could not be copied", plural(total.problems, "session"));
        let hint = format!("see the reasons above; the existing {} was kept", args.file.display());
        return Err(Failure::new("backup.problems", message).with_hint(hint));
    }
    let bytes = std::fs::metadata(temp.path()).map_or(0, |file| file.len());
    temp.persist(&args.file).map_err(|error| Failure::file(&args.file, &error))?;
    report(&mut out, &args.file, &total, bytes)
}

/// Opens the store. A store that does not exist has nothing to back up, and must not be created.
fn open_existing(paths: &AppPaths, key: Option<Key>) -> Result<std::sync::Arc<dyn Store>> {
    let is_local = paths.url.starts_with("sqlite:") || paths.url.starts_with("jsonl:");
    if let Some(path) = paths.store_path().filter(|path| is_local && !Path::new(path).exists()) {
        let message = format!("there is no store at {path}");
        return Err(Failure::new("file.not_found", message).with_hint("name the store with --store"));
    }
    let key = key.filter(|_| paths.url.starts_with("sqlite:"));
    let options = OpenOptions { key, ..OpenOptions::default() };
    Ok(sapwood::store::open(&paths.url, options).map_err(sapwood::Error::from)?)
}

/// Finds the key of the store, or the key of the file if the store cannot be encrypted.
pub fn key_for(paths: &AppPaths, file: &Path) -> Result<Option<Key>> {
    if paths.url.starts_with("sqlite:") {
        return key::find(paths);
    }
    key::find(&AppPaths { url: url_of(file)?, ..paths.clone() })
}

/// The URL of a SQLite file.
pub fn url_of(path: &Path) -> Result<String> {
    let not_text =
        || Failure::usage(format!("the path {} is not valid UTF-8", path.display()), "choose another");
    Ok(format!("sqlite:{}", path.to_str().ok_or_else(not_text)?))
}

/// Converts an item to a row of the list of contents.
pub fn to_row(item: Item) -> ContentsRow {
    (item.tenant.to_string(), item.name, item.count, item.hash)
}

fn report(out: &mut Out, file: &Path, total: &MigrationTotal, bytes: u64) -> Result<()> {
    if out.is_json() {
        let path = file.display().to_string();
        out.json(&json!({ "file": path, "bytes": bytes, "total": total }))?;
    } else {
        let counts = [
            plural(total.sessions, "session"),
            plural(total.entries, "entry"),
            plural(total.blobs, "blob"),
            plural(total.keys, "key"),
            plural(total.memories, "memory"),
        ];
        let size = bytes.div_ceil(1024);
        let verified = if total.problems == 0 { ", verified" } else { "" };
        writeln!(out, "{}: {} ({size} KB{verified})", file.display(), counts.join(", "))?;
    }
    out.flush()?;
    match total.problems {
        0 => Ok(()),
        problems => {
            let message = format!("{} could not be copied", plural(problems, "session"));
            let hint = "see the reasons above; the backup contains the other sessions";
            Err(Failure::new("backup.problems", message).with_hint(hint))
        }
    }
}
