//! Full and read-only disks. Each test runs in its own mount namespace with a small tmpfs: the test binary executes
//! itself again there, and the mounts disappear when that process ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::actors::{Injector, LoggedMessage, SeededRng, assert_healthy, read_log, seed};
use crate::harness::World;
use crate::library::url;
use crate::serve::{request, serve};
use crate::torture::{FaultCount, rounds};

/// Environment variable that marks the process inside the mount namespace.
const INSIDE: &str = "SAPWOOD_TEST_MOUNTS";

#[test]
fn a_disk_that_fills_up_loses_no_acknowledged_message() {
    in_own_mounts("disk::a_disk_that_fills_up_loses_no_acknowledged_message", |scheme| {
        let mut count = FaultCount::new("full disks");
        for _ in 0..rounds(1) {
            count.add(fill_and_free(scheme));
        }
        count.print();
    });
}

/// Writes to a disk until it is full, frees space and writes again. Returns the number of acknowledged messages.
fn fill_and_free(scheme: &str) -> usize {
    let disk = SmallDisk::mount(scheme);
    let session = seed(&disk.world);
    disk.fill(400_000);
    let mut log = read_log(&disk.world, &session);
    log.extend(inject_until_full(&disk, &session));
    assert_eq!(read_log(&disk.world, &session), log);
    assert_healthy(&disk.world);
    disk.free_space();
    disk.world.add_messages(&session, &["u:there is room again"]);
    assert_eq!(read_log(&disk.world, &session)[..log.len()], log);
    assert_eq!(read_log(&disk.world, &session).len(), log.len() + 1);
    assert_healthy(&disk.world);
    log.len()
}

#[test]
fn a_disk_without_a_free_byte_is_reported_and_nothing_hangs() {
    in_own_mounts("disk::a_disk_without_a_free_byte_is_reported_and_nothing_hangs", |scheme| {
        let disk = SmallDisk::mount(scheme);
        let session = seed(&disk.world);
        disk.fill(usize::MAX);
        let long = "x".repeat(100_000);
        let error = disk.world.fail(1, &["inject", &session, "--role", "user", "--text", &long]);
        assert_eq!(error["code"], "store.disk_full");
        // Reading may also need some disk space. If so, it fails with the same code.
        let ran = disk.world.run(&["ls", "--json"]);
        assert!(ran.status == Some(0) || ran.error()["code"] == "store.disk_full", "{}", ran.stderr);
        disk.free_space();
        assert_eq!(disk.world.texts(&session, None), ["the first"]);
        disk.world.add_messages(&session, &["u:there is room again"]);
        assert_healthy(&disk.world);
    });
}

#[test]
fn a_session_can_be_erased_from_a_full_disk() {
    in_own_mounts("disk::a_session_can_be_erased_from_a_full_disk", |scheme| {
        // Large enough for the space that a server reserves.
        let disk = SmallDisk::mount_of(scheme, "320m");
        let session = seed(&disk.world);
        disk.world.ok(&["new", "--id", "other"]);
        disk.world.add_messages(&session, &[&format!("u:{}", "moss ".repeat(20_000))]);
        let served = serve(&disk.world, "127.0.0.1:0");
        assert_eq!(request(&served.addr, "GET", "/v1/sessions/other", None, "").0, 200);
        disk.fill(usize::MAX);
        for id in [session.as_str(), "other"] {
            let (status, answer) = request(&served.addr, "DELETE", &format!("/v1/sessions/{id}"), None, "");
            assert!((200..300).contains(&status), "{id}: {status} {answer}");
            assert_eq!(request(&served.addr, "GET", &format!("/v1/sessions/{id}"), None, "").0, 404);
        }
        assert!(!disk.contains(b"moss moss"), "the erased text is still on the disk");
        drop(served);
        disk.free_space();
        assert_healthy(&disk.world);
    });
}

#[test]
fn a_read_only_store_can_be_read() {
    in_own_mounts("disk::a_read_only_store_can_be_read", |scheme| {
        let disk = SmallDisk::mount(scheme);
        let session = seed(&disk.world);
        disk.world.add_messages(&session, &["u:ferns and moss"]);
        assert_eq!(disk.world.lines(&["search", "moss"]).len(), 1);
        disk.remount("ro");
        assert_eq!(disk.world.lines(&["ls"]).len(), 1);
        assert_eq!(disk.world.texts(&session, None), ["the first", "ferns and moss"]);
        assert_eq!(disk.world.lines(&["search", "moss"]).len(), 1);
        assert_eq!(read_log(&disk.world, &session).len(), 2);
        assert_healthy(&disk.world);
        for args in [
            &["inject", &session, "--role", "user", "--text", "more"][..],
            &["rename", &session, "a title"],
            &["erase", &session, "--yes"],
        ] {
            let error = disk.world.fail(1, args);
            assert_eq!(error["code"], "store.read_only", "{args:?}: {error}");
            assert!(error["message"].as_str().unwrap().contains("store."), "{error}");
        }
        disk.remount("rw");
        disk.world.add_messages(&session, &["u:more"]);
        assert_eq!(disk.world.texts(&session, None).len(), 3);
    });
}

/// A server must audit reads by operators. On the command line the reader already has access to the files.
#[test]
fn reads_that_cannot_be_audited_are_refused_by_a_server_but_not_on_the_command_line() {
    in_own_mounts(
        "disk::reads_that_cannot_be_audited_are_refused_by_a_server_but_not_on_the_command_line",
        |scheme| {
            let disk = SmallDisk::mount(scheme);
            let key_of = |args: &[&str]| {
                let made = disk.world.json(&[&["key", "new", "--user"], args].concat());
                made["key"].as_str().unwrap().to_owned()
            };
            let (ana, olga) = (key_of(&["ana"]), key_of(&["olga", "--scope", "operate"]));
            let served = serve(&disk.world, "127.0.0.1:0");
            request(&served.addr, "POST", "/v1/sessions", Some(&ana), "{\"id\":\"s\"}");
            let message = "{\"role\":\"user\",\"content\":\"moss\"}";
            assert_eq!(request(&served.addr, "POST", "/v1/sessions/s/entries", Some(&ana), message).0, 201);
            drop(served);
            disk.remount("ro");
            let served = serve(&disk.world, "127.0.0.1:0");
            for path in ["/v1/sessions/s", "/v1/sessions/s/context", "/v1/sessions/s/members"] {
                assert_eq!(request(&served.addr, "GET", path, Some(&ana), "").0, 200, "{path}");
                let (_, refused) = request(&served.addr, "GET", path, Some(&olga), "");
                assert_eq!(refused["code"], "store.read_only", "{path}: {refused}");
            }
            assert_eq!(disk.world.texts("s", None), ["moss"]);
        },
    );
}

#[test]
fn a_server_whose_disk_is_full_is_not_ready() {
    in_own_mounts("disk::a_server_whose_disk_is_full_is_not_ready", |scheme| {
        let disk = SmallDisk::mount(scheme);
        seed(&disk.world);
        let served = serve(&disk.world, "127.0.0.1:0");
        let becomes = |status: u16, code: &str| {
            let began = std::time::Instant::now();
            loop {
                let (found, answer) = request(&served.addr, "GET", "/readyz", None, "");
                if found == status && (code.is_empty() || answer["code"] == code) {
                    return;
                }
                assert!(began.elapsed().as_secs() < 120, "got {found}, expected {status} {code}: {answer}");
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        };
        becomes(200, "");
        disk.fill(usize::MAX);
        becomes(507, "store.disk_full");
        disk.free_space();
        becomes(200, "");
    });
}

#[test]
fn a_backup_that_does_not_fit_leaves_no_file() {
    in_own_mounts("disk::a_backup_that_does_not_fit_leaves_no_file", |scheme| {
        let disk = SmallDisk::mount(scheme);
        let world = World::new(scheme);
        let session = seed(&world);
        let mut rng = SeededRng::from_env();
        let mut injector = Injector::start(&world, &session, &[]);
        for _ in 0..40 {
            injector.send(&[&rng.letters(50_000)]);
        }
        injector.finish();
        let file = disk.root().join("backup.db").display().to_string();
        let error = world.fail(1, &["backup", &file]);
        assert_eq!(error["code"], "store.disk_full", "{error}");
        assert_eq!(std::fs::read_dir(disk.root()).unwrap().count(), 0, "a file remains");
        assert_healthy(&world);
    });
}

/// Appends messages until the disk is full. Returns the acknowledged messages.
fn inject_until_full(disk: &SmallDisk, session: &str) -> Vec<LoggedMessage> {
    let mut rng = SeededRng::from_env();
    let mut injector = Injector::start(&disk.world, session, &[]);
    let mut messages = Vec::new();
    for number in 1..=1_000 {
        let text = format!("message {number} {}", rng.letters(3_000));
        let Some(ack) = injector.send(&[&text]).pop() else { break };
        messages.push(LoggedMessage { ack, text });
    }
    let ran = injector.finish();
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let error = ran.error();
    assert_eq!(error["code"], "store.disk_full");
    assert!(error["message"].as_str().unwrap().contains(disk.root().to_str().unwrap()), "{error}");
    assert!(!messages.is_empty());
    messages
}

/// A small file system that contains a store.
struct SmallDisk {
    world: World,
}

impl SmallDisk {
    fn mount(scheme: &str) -> Self {
        Self::mount_of(scheme, "1m")
    }

    fn mount_of(scheme: &str, size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("mnt");
        std::fs::create_dir(&root).unwrap();
        let world = World { url: url(scheme, &root.join(format!("store.{scheme}"))), dir };
        let size = format!("size={size}");
        run("mount", &["-t", "tmpfs", "-o", &size, "sapwood-test", root.to_str().unwrap()]);
        Self { world }
    }

    fn root(&self) -> PathBuf {
        self.world.path("mnt")
    }

    /// Whether a file on the disk contains these bytes.
    fn contains(&self, text: &[u8]) -> bool {
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    dirs.push(path);
                } else if path.file_name().is_none_or(|name| name != "filler")
                    && std::fs::read(&path).unwrap().windows(text.len()).any(|part| part == text)
                {
                    return true;
                }
            }
        }
        false
    }

    fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), self.root().to_str().unwrap()]);
    }

    /// Fills this many bytes of disk space, or all free space.
    fn fill(&self, bytes: usize) {
        let mut filler = std::fs::File::create(self.root().join("filler")).unwrap();
        let page = [0; 4_096];
        for _ in 0..bytes / page.len() {
            if filler.write_all(&page).is_err() {
                return;
            }
        }
    }

    fn free_space(&self) {
        std::fs::remove_file(self.root().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.root()).status();
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a check on each store, in a process that may mount file systems.
fn in_own_mounts(test: &str, check: impl Fn(&str)) {
    if std::env::var_os(INSIDE).is_some() {
        for scheme in ["sqlite", "jsonl"] {
            eprintln!("--- {scheme}");
            check(scheme);
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    match ["-rm", "-m"].map(|flag| try_mount(flag, dir.path()).map(|()| flag)) {
        [Ok(flag), _] | [Err(_), Ok(flag)] => run_inside(flag, test),
        [Err(as_user), Err(as_root)] => {
            // Write straight to stderr: the output of eprintln! in a passing test is captured.
            let why = format!("SKIPPED {test}: not permitted to mount a file system: {as_user}; {as_root}");
            let _ = writeln!(std::io::stderr(), "{why}");
        }
    }
}

fn try_mount(flag: &str, dir: &Path) -> Result<(), String> {
    let output =
        Command::new("unshare").args([flag, "mount", "-t", "tmpfs", "sapwood-test"]).arg(dir).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

fn run_inside(flag: &str, test: &str) {
    let mut command = Command::new("unshare");
    command.arg(flag).arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = command.env(INSIDE, "yes").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "no test is named {test}: {stdout}");
    stdout.lines().filter(|line| line.starts_with("torture:")).for_each(|line| println!("{line}"));
}
