//! Escapes through a race between check and use: a thread swaps a path while the tools use it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use sapwood_core::port::tool::FsScope;
use serde_json::json;

use super::{CANARY, assert_vault_unchanged, harness_with_vault};
use crate::tool_harness::text_of;

/// Number of calls per tool while the path changes.
const ROUNDS: usize = 400;

/// Swaps two names until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(name: PathBuf, spare: PathBuf) -> Self {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, swapped) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                exchange(&name, &spare);
                swapped.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, swaps, thread: Some(thread) }
    }

    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        assert!(self.swaps.load(Ordering::Relaxed) > 100, "the path was swapped too rarely");
    }
}

/// Exchange the names atomically, so that both always exist.
#[cfg(target_os = "linux")]
fn exchange(name: &Path, spare: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, name, CWD, spare, RenameFlags::EXCHANGE).unwrap();
}
#[cfg(not(target_os = "linux"))]
fn exchange(name: &Path, spare: &Path) {
    let third = spare.with_extension("third");
    fs::rename(name, &third).unwrap();
    fs::rename(spare, name).unwrap();
    fs::rename(&third, spare).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_becomes_a_link_does_not_lead_out() {
    let harness = harness_with_vault();
    for scope in [FsScope::Project, FsScope::Sandboxed] {
        let toolbox = harness.open(scope, &[]).await;
        let files = if scope == FsScope::Project { harness.project() } else { harness.scratch() };
        fs::create_dir(files.join("d")).unwrap();
        fs::write(files.join("d/secret"), "inside").unwrap();
        // Outside of the project, so that a walk does not find the link under its other name.
        let spare = harness.outside(&format!("spare-{scope:?}"));
        symlink(harness.outside("vault"), &spare).unwrap();
        let swapper = Swapper::start(files.join("d"), spare);
        for round in 0..ROUNDS {
            for (name, input) in [
                ("read_file", json!({"path": "d/secret"})),
                ("write_file", json!({"path": format!("d/new-{round}"), "content": "x"})),
                ("write_file", json!({"path": "d/secret", "content": "inside"})),
                ("list_directory", json!({"path": "d"})),
                ("search_text", json!({"pattern": "canary"})),
            ] {
                let text = text_of(&toolbox.call(name, input).await);
                assert!(!text.contains(CANARY), "{name} left the scope: {text}");
            }
        }
        swapper.finish();
        assert_vault_unchanged(&harness);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_becomes_a_link_to_a_protected_file_is_not_read() {
    let harness = harness_with_vault();
    harness.put(".env", CANARY);
    harness.put("f", "plain");
    symlink(".env", harness.project().join("g")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let swapper = Swapper::start(harness.project().join("f"), harness.project().join("g"));
    for _ in 0..ROUNDS {
        for (name, input) in [
            ("read_file", json!({"path": "f"})),
            ("search_text", json!({"pattern": "canary"})),
            ("edit_file", json!({"path": "f", "old_text": "canary", "new_text": "x"})),
        ] {
            let text = text_of(&toolbox.call(name, input).await);
            assert!(!text.contains(CANARY), "{name} read a protected file: {text}");
        }
    }
    swapper.finish();
    assert_eq!(fs::read_to_string(harness.project().join(".env")).unwrap(), CANARY);
}
