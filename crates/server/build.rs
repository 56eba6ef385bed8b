//! Embeds the console: the binary contains every file of `web/dist`. If `web/dist` is missing or older than its sources
//! and Node is available, this script builds it first. Without Node, or with `SAPWOOD_CONSOLE=off`, the binary has no
//! console, and `/` explains how to get it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The sources of the console. Everything else in `web/` is tests, tools or build output.
const SOURCES: &[&str] =
    &["src", "public", "index.html", "package.json", "package-lock.json", "vite.config.ts"];
/// How long to wait for a concurrent build of the console. An older lock is considered abandoned.
const CONCURRENT_BUILD_TIME_MAX: Duration = Duration::from_secs(300);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Depth limit of asset directories.
const DEPTH_MAX: usize = 4;

fn main() {
    println!("cargo:rerun-if-env-changed=SAPWOOD_CONSOLE");
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let web = web.canonicalize().unwrap_or(web);
    let is_wanted = std::env::var("SAPWOOD_CONSOLE").map_or(true, |value| value != "off");
    if is_wanted
        && !is_fresh(&web)
        && let Err(reason) = build_locked(&web)
    {
        println!(
            "cargo:warning=building without the console: {reason}; run `cargo xtask console` for details"
        );
    }
    // A missing path would make cargo run this script for every build.
    for watched in SOURCES.iter().chain(&["dist"]).map(|name| web.join(name)).filter(|path| path.exists()) {
        println!("cargo:rerun-if-changed={}", watched.display());
    }
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).expect("cargo sets OUT_DIR");
    let table = copy_assets(&web.join("dist"), &out).expect("OUT_DIR is writable");
    fs::write(out.join("assets.rs"), table).expect("OUT_DIR is writable");
}

fn is_fresh(web: &Path) -> bool {
    let built = modified(&web.join("dist/index.html"));
    built.is_some_and(|built| {
        SOURCES.iter().filter_map(|name| newest(&web.join(name), 0)).all(|at| at <= built)
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

fn newest(path: &Path, depth: usize) -> Option<SystemTime> {
    if !path.is_dir() || depth > DEPTH_MAX {
        return modified(path);
    }
    let entries = fs::read_dir(path).ok()?.filter_map(Result::ok);
    entries.filter_map(|entry| newest(&entry.path(), depth + 1)).max()
}

/// Builds the console under a lock, because builds with different target directories share `web/`.
fn build_locked(web: &Path) -> Result<(), String> {
    if !web.join("src").is_dir() {
        return Err("its sources are missing".to_owned());
    }
    let lock = web.join(".building");
    while fs::create_dir(&lock).is_err() {
        let age = modified(&lock).and_then(|at| at.elapsed().ok()).unwrap_or_default();
        if age > CONCURRENT_BUILD_TIME_MAX {
            break;
        }
        std::thread::sleep(LOCK_POLL_INTERVAL);
    }
    let built = if is_fresh(web) { Ok(()) } else { build(web) };
    let _ = fs::remove_dir(&lock);
    built
}

fn build(web: &Path) -> Result<(), String> {
    let installed = modified(&web.join("node_modules/.package-lock.json"));
    if installed < modified(&web.join("package-lock.json")) {
        run(web, &["install", "--no-save", "--no-audit", "--no-fund", "--fetch-retries=1"])?;
    }
    run(web, &["run", "build"])
}

fn run(web: &Path, args: &[&str]) -> Result<(), String> {
    let output = Command::new("npm").args(args).current_dir(web).output();
    let output = output.map_err(|error| format!("failed to run npm ({error})"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("npm {} failed ({last})", args[0]))
}

/// Copies the files to `OUT_DIR`, so that a concurrent console build cannot change them, and lists them for the
/// compiler.
fn copy_assets(dist: &Path, out: &Path) -> std::io::Result<String> {
    let mut files = Vec::new();
    if dist.join("index.html").is_file() {
        collect(dist, 0, &mut files);
    }
    files.sort();
    let mut table = "pub static ASSETS: &[Asset] = &[\n".to_owned();
    for file in files.iter().filter(|file| !is_gzip(file)) {
        let name = file.strip_prefix(dist).unwrap_or(file).to_string_lossy().replace('\\', "/");
        let copied = out.join(name.replace('/', "_"));
        fs::copy(file, &copied)?;
        let compressed = PathBuf::from(format!("{}.gz", file.display()));
        let gzip = if compressed.is_file() {
            let copied = PathBuf::from(format!("{}.gz", copied.display()));
            fs::copy(&compressed, &copied)?;
            format!("Some(include_bytes!({copied:?}))")
        } else {
            "None".to_owned()
        };
        let _ = writeln!(
            table,
            "    Asset {{ path: {name:?}, bytes: include_bytes!({copied:?}), gzip: {gzip} }},"
        );
    }
    table.push_str("];\n");
    Ok(table)
}

fn is_gzip(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "gz")
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() && depth < DEPTH_MAX {
            collect(&path, depth + 1, files);
        } else if path.is_file() {
            files.push(path);
        }
    }
}
