//! `sapwood restore`: copies a backup into a store.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use sapwood::core::Store;
use sapwood::core::port::store::{ListFilter, Repair};
use sapwood::engine::migrate::{Migration, MigrationTotal, Mode, inventory};
use sapwood::store::sqlite::contents::{ContentsRow, read_contents};
use sapwood::store::{Key, OpenOptions};
use sapwood::{Principal, Scope};
use serde_json::json;

use super::backup::{key_for, to_row, url_of};
use super::migrate::{Sessions, copy};
use crate::app_paths::{AppPaths, create_home};
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::render::{Out, plural};
use crate::temp_store::TempStore;

/// Copy a backup into the store and verify it
///
/// The backup is checked first: a damaged or incomplete file changes nothing. Restored sessions keep their agents, owners and
/// open turns. The store must have no sessions; with --merge, sessions that it lacks are added, and sessions that it has
/// are extended if they are a prefix of those in the backup. FILE is not changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood --store sqlite:new.db restore sessions-2026-05-01.db
  sapwood --store postgres://me@db.example/sapwood restore /backups/sapwood.db
  sapwood restore sessions-2026-05-01.db --merge")]
pub struct RestoreArgs {
    /// File that `sapwood backup` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Add to a store that already has sessions
    #[arg(long)]
    merge: bool,
}

pub async fn run(args: RestoreArgs, global: &Global) -> Result<()> {
    let paths = AppPaths::find(global)?;
    let key = key_for(&paths, &args.file)?;
    let (temp, mut copy_file) = TempStore::create(&std::env::temp_dir(), "sapwood-restore")
        .map_err(|error| Failure::file(&std::env::temp_dir(), &error))?;
    // Opening a store can change its file, so the backup itself is never opened.
    let mut file = File::open(&args.file).map_err(|error| Failure::file(&args.file, &error))?;
    std::io::copy(&mut file, &mut copy_file).map_err(|error| Failure::file(temp.path(), &error))?;
    drop(copy_file);
    let from = open_backup(&temp, &args.file, key.clone()).await?;
    let to = open_target(&paths, key)?;
    if !args.merge && has_sessions(&*to).await? {
        let message = "the store already has sessions";
        let hint = "name a new store with --store, or add the backup to this one with --merge";
        return Err(Failure::new("restore.not_empty", message).with_hint(hint));
    }
    let mut out = Out::new(global.format());
    let migration = Migration::new(from, to, Mode::Copy);
    let total = copy(migration, &mut out, Sessions::Problems).await?;
    report(&mut out, &args.file, &total)
}

/// Opens the working copy of a backup, checks it, and compares its content with the list that `sapwood backup` wrote.
async fn open_backup(temp: &TempStore, file: &Path, key: Option<Key>) -> Result<Arc<dyn Store>> {
    let damaged = |error: sapwood::Error| match error.code() {
        "store.locked" | "store.too_new" | "store.disk_full" => Failure::from(error).at(file.display()),
        _ => damaged(file, &error.to_string()),
    };
    let listed = read_contents(temp.path(), key.as_ref()).map_err(|error| damaged(error.into()))?;
    let Some(listed) = listed else {
        let message = format!("{} is not a backup, or it is incomplete", file.display());
        let hint =
            format!("to copy a store, run `sapwood migrate --from sqlite:{} --to URL`", file.display());
        return Err(Failure::new("backup.invalid", message).with_hint(hint));
    };
    let options = OpenOptions { key, ..OpenOptions::default() };
    let store =
        sapwood::store::open(&url_of(temp.path())?, options).map_err(|error| damaged(error.into()))?;
    for tenant in store.list_tenants().await.map_err(|error| damaged(error.into()))? {
        let scope = Scope::operator(tenant, Principal::System);
        let findings = store.check(&scope, Repair::No).await.map_err(|error| damaged(error.into()))?;
        if let Some(finding) = findings.first() {
            return Err(self::damaged(file, &finding.what));
        }
    }
    let found = inventory(&*store).await.map_err(damaged)?;
    compare(file, &listed, &found.into_iter().map(to_row).collect::<Vec<_>>())?;
    Ok(store)
}

fn damaged(file: &Path, why: &str) -> Failure {
    let message = format!("{} is damaged: {why}", file.display());
    Failure::new("backup.damaged", message).with_hint("use another backup; the store was not changed")
}

fn compare(file: &Path, listed: &[ContentsRow], found: &[ContentsRow]) -> Result<()> {
    let (mut listed, mut found) = (listed.to_vec(), found.to_vec());
    listed.sort_unstable();
    found.sort_unstable();
    if listed == found {
        return Ok(());
    }
    let differing =
        listed.iter().find(|row| !found.contains(row)).or(found.iter().find(|row| !listed.contains(row)));
    let name = differing.map_or_else(String::new, |(tenant, name, ..)| format!("{name} of tenant {tenant}"));
    Err(damaged(file, &format!("{name} differs from the list of contents")))
}

fn open_target(paths: &AppPaths, key: Option<Key>) -> Result<Arc<dyn Store>> {
    if paths.is_store_at_home {
        create_home(&paths.home)?;
    }
    let key = key.filter(|_| paths.url.starts_with("sqlite:"));
    let options = OpenOptions { key, ..OpenOptions::default() };
    Ok(sapwood::store::open(&paths.url, options).map_err(sapwood::Error::from)?)
}

async fn has_sessions(store: &dyn Store) -> Result<bool> {
    let filter = ListFilter { limit: 1, ..ListFilter::default() };
    for tenant in store.list_tenants().await.map_err(sapwood::Error::from)? {
        let scope = Scope::operator(tenant, Principal::System);
        if !store.list(&scope, &filter).await.map_err(sapwood::Error::from)?.items.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn report(out: &mut Out, file: &Path, total: &MigrationTotal) -> Result<()> {
    if out.is_json() {
        out.json(&json!({ "file": file.display().to_string(), "total": total }))?;
    } else {
        let verified =
            if total.problems == 0 { "; all logs and contexts are identical to the backup" } else { "" };
        let (sessions, entries) = (plural(total.sessions, "session"), plural(total.entries, "entry"));
        writeln!(out, "restored {sessions}, {entries} from {}{verified}", file.display())?;
    }
    out.flush()?;
    match total.problems {
        0 => Ok(()),
        problems => {
            let message = format!("{} could not be restored", plural(problems, "session"));
            Err(Failure::new("restore.problems", message)
                .with_hint("see the reasons above; the others were restored"))
        }
    }
}
