//! Externally damaged files: intact data can be read, damage is reported, and no command increases the damage. A failed
//! command changes no file.

mod jsonl;
mod sqlite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::World;

/// Reads the files of a directory, except those that SQLite recreates on every open.
fn bytes_in(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file() && !path.to_string_lossy().ends_with("-shm"));
    files.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

/// Runs commands that must fail with this code without changing a byte. Returns their error messages.
fn assert_refused(world: &World, dir: &Path, session: &str, code: &str) -> Vec<String> {
    let before = bytes_in(dir);
    let commands = [
        &["context", session][..],
        &["events", session],
        &["inject", session, "--role", "user", "--text", "more"],
        &["rename", session, "a title"],
    ];
    let messages = commands.map(|args| {
        let error = world.fail(1, args);
        assert_eq!(error["code"], code, "{args:?}: {error}");
        error["message"].as_str().unwrap().to_owned()
    });
    assert!(bytes_in(dir) == before, "a command that failed changed a file");
    messages.into()
}

/// Checks that the doctor reports a problem and changes nothing. Returns its output.
fn assert_reported(world: &World, dir: &Path) -> String {
    let before = bytes_in(dir);
    let ran = world.run(&["doctor", "--json"]);
    assert_eq!(ran.status, Some(1), "{}", ran.out());
    let code = ran.error()["code"].as_str().unwrap().to_owned();
    assert!(code == "doctor.findings" || code.starts_with("store."), "{code}");
    assert!(bytes_in(dir) == before, "the doctor changed a file");
    ran.out() + &ran.stderr
}
