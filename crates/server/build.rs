//! Embeds the console: every file of `web/dist` becomes bytes of the binary. If it is missing or older than its
//! sources and Node is available, it is built first. Without Node, or with `SAPWOOD_CONSOLE=off`, the server is still
//! built, and `/` explains how to get the console.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The sources of the console. Everything else in `web/` is tests and tools.
const SOURCES: &[&str] = &["src", "index.html", "package.json", "package-lock.json", "vite.config.ts"];
/// How long to wait for a concurrent build of the console. An older lock is taken as abandoned.
const OTHERS_BUILD_MAX: Duration = Duration::from_secs(300);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Depth limit of asset directories.
const DEPTH_MAX: usize = 4;

fn main() {
    println!("cargo:rerun-if-env-changed=SAPWOOD_CONSOLE");
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let web = web.canonicalize().unwrap_or(web);
    let is_wanted = std::env::var("SAPWOOD_CONSOLE").map_or(true, |wish| wish != "off");
    if is_wanted
        && !is_fresh(&web)
        && let Err(why) = build_alone(&web)
    {
        println!("cargo:warning=building without the console: {why}; run `cargo xtask console` for details");
    }
    // A missing path would make cargo run this script for every build.
    for watched in SOURCES.iter().chain(&["dist"]).map(|name| web.join(name)).filter(|path| path.exists()) {
        println!("cargo:rerun-if-changed={}", watched.display());
    }
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).expect("cargo sets OUT_DIR");
    let table = keep_assets(&web.join("dist"), &out).expect("OUT_DIR is writable");
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

/// Builds under a lock: builds with different target directories share `web/`, so the second waits for the first.
fn build_alone(web: &Path) -> Result<(), String> {
    if !web.join("src").is_dir() {
        return Err("its sources are missing".to_owned());
    }
    let lock = web.join(".building");
    while fs::create_dir(&lock).is_err() {
        let age = modified(&lock).and_then(|at| at.elapsed().ok()).unwrap_or_default();
        if age > OTHERS_BUILD_MAX {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
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
    let done = Command::new("npm").args(args).current_dir(web).output();
    let done = done.map_err(|error| format!("failed to run npm ({error})"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("npm {} failed ({last})", args[0]))
}

/// Copies the files to `OUT_DIR`, so that a concurrent console build cannot change them, and lists them for the
/// compiler.
fn keep_assets(dist: &Path, out: &Path) -> std::io::Result<String> {
    let mut files = Vec::new();
    if dist.join("index.html").is_file() {
        collect(dist, 0, &mut files);
    }
    files.sort();
    let mut table = "pub static ASSETS: &[Asset] = &[\n".to_owned();
    for file in files.iter().filter(|file| !is_packed(file)) {
        let name = file.strip_prefix(dist).unwrap_or(file).to_string_lossy().replace('\\', "/");
        let kept = out.join(name.replace('/', "_"));
        fs::copy(file, &kept)?;
        let packed = PathBuf::from(format!("{}.gz", file.display()));
        let gzip = if packed.is_file() {
            let kept = PathBuf::from(format!("{}.gz", kept.display()));
            fs::copy(&packed, &kept)?;
            format!("Some(include_bytes!({kept:?}))")
        } else {
            "None".to_owned()
        };
        let _ =
            writeln!(table, "    Asset {{ path: {name:?}, bytes: include_bytes!({kept:?}), gzip: {gzip} }},");
    }
    table.push_str("];\n");
    Ok(table)
}

fn is_packed(file: &Path) -> bool {
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
