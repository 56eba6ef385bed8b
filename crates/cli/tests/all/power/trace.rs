//! The file system calls of a process, recorded by strace: the order of writes, syncs and acknowledgements.

use std::path::{Path, PathBuf};
use std::process::Command;

/// All system calls that can change a file or a directory, including calls that this harness does not support.
const CALLS: &str = "trace=openat,open,creat,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sync_file_range,\
                     ftruncate,truncate,fallocate,unlink,unlinkat,rename,renameat,renameat2,link,linkat,mmap,\
                     copy_file_range,sendfile";

/// One completed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Create {
        path: PathBuf,
    },
    /// A write at an offset, or at the end of the file if there is no offset.
    Write {
        path: PathBuf,
        offset: Option<usize>,
        bytes: Vec<u8>,
    },
    Truncate {
        path: PathBuf,
        len: usize,
    },
    /// A sync of a file or of a directory.
    Sync {
        path: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// A write to stdout.
    Stdout {
        bytes: Vec<u8>,
    },
}

/// Wraps a command in strace, which writes to `output`.
pub fn traced(inner: &Command, output: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-ttt", "-xx", "-s", "100000000", "-e", CALLS, "-o"]).arg(output);
    strace.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace.current_dir(inner.get_current_dir().unwrap());
    strace
}

/// Fails the test if strace does not work: without it the test would check nothing.
pub fn require_strace() {
    let ran = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    let why = match ran {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!(
        "this test needs strace and permission to trace its own children: apt-get install strace; in a container, \
         docker run --cap-add SYS_PTRACE. strace reported: {why}"
    );
}

/// Reads and merges traces of processes that ran at the same time. Only calls for paths under `root` count. The
/// shared-memory file of a SQLite database is ignored because SQLite recreates it after a crash.
pub fn read_traces(files: &[PathBuf], root: &Path) -> Vec<Step> {
    let mut steps: Vec<(f64, Step)> = Vec::new();
    for file in files {
        steps.extend(read_trace(&std::fs::read_to_string(file).unwrap(), root));
    }
    // The sort is stable, so the steps of each process stay in order.
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps.into_iter().map(|(_, step)| step).collect()
}

fn read_trace(text: &str, root: &Path) -> Vec<(f64, Step)> {
    let mut unfinished: Vec<(&str, String)> = Vec::new();
    let mut steps = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ').filter(|word| !word.is_empty());
        let thread = words.next().unwrap();
        let (time, rest) = line[thread.len()..].trim_start().split_once(' ').unwrap();
        let mut call = rest.to_owned();
        if let Some(begun) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.push((thread, begun.to_owned()));
            continue;
        }
        if rest.starts_with("<... ") {
            let at = unfinished.iter().position(|(other, _)| *other == thread).unwrap();
            call = unfinished.remove(at).1 + rest.split_once("resumed>").unwrap().1;
        }
        let step = read_call(&call).filter(|step| is_about(step, root));
        steps.extend(step.map(|step| (time.parse().unwrap(), step)));
    }
    steps
}

fn is_about(step: &Step, root: &Path) -> bool {
    let inside = |path: &Path| path.starts_with(root) && !path.to_string_lossy().ends_with("-shm");
    match step {
        Step::Stdout { .. } => true,
        Step::Create { path } | Step::Truncate { path, .. } | Step::Sync { path } | Step::Unlink { path } => {
            inside(path)
        }
        Step::Write { path, .. } => inside(path),
        Step::Rename { from, .. } => inside(from),
    }
}

/// Parses `name(arguments) = result`. Returns `None` for a call that failed or changed nothing.
fn read_call(call: &str) -> Option<Step> {
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    if result.starts_with('-') || result.starts_with('?') {
        return None;
    }
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let parts: Vec<&str> = arguments.split(", ").collect();
    let path = || path_of_fd(parts[0]);
    match name {
        "openat" => read_open(&parts, result),
        // The allocator opens system settings for reading.
        "open" if parts[1] == "O_RDONLY" => None,
        "write" if parts[0].starts_with("1<") => Some(Step::Stdout { bytes: unhex(parts[1]) }),
        "write" => Some(Step::Write { path: path()?, offset: None, bytes: written(parts[1], result) }),
        "pwrite64" => {
            let offset = Some(parts[3].parse().unwrap());
            Some(Step::Write { path: path()?, offset, bytes: written(parts[1], result) })
        }
        "fsync" | "fdatasync" => Some(Step::Sync { path: path()? }),
        "ftruncate" => Some(Step::Truncate { path: path()?, len: read_len(parts[1]) }),
        "unlink" => Some(Step::Unlink { path: quoted(parts[0]) }),
        "unlinkat" => Some(Step::Unlink { path: quoted(parts[1]) }),
        "rename" => Some(Step::Rename { from: quoted(parts[0]), to: quoted(parts[1]) }),
        "mmap" if !(arguments.contains("PROT_WRITE") && arguments.contains("MAP_SHARED")) => None,
        "mmap" => {
            let mapped = path_of_fd(parts[4])?;
            assert!(mapped.to_string_lossy().ends_with("-shm"), "{} is written by mmap", mapped.display());
            None
        }
        // Space that is reserved in a file without a name. A power cut frees it.
        "fallocate" if parts[0].ends_with("(deleted)") => None,
        other => panic!("this harness does not support {other}: {call}"),
    }
}

fn read_open(parts: &[&str], result: &str) -> Option<Step> {
    let path = path_of_fd(result)?;
    assert!(
        !parts[2].contains("O_TRUNC") || !path.is_absolute() || path.starts_with("/dev"),
        "{path:?} is truncated by open"
    );
    parts[2].contains("O_CREAT").then_some(Step::Create { path })
}

/// Parses a length, which strace may write in hex.
fn read_len(text: &str) -> usize {
    match text.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// Parses `4</path>`, with the path in hex.
fn path_of_fd(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once('<')?;
    Some(String::from_utf8(unhex(rest.split_once('>')?.0)).ok()?.into())
}

fn quoted(text: &str) -> PathBuf {
    String::from_utf8(unhex(text)).unwrap().into()
}

/// Returns the bytes that the call actually wrote.
fn written(text: &str, result: &str) -> Vec<u8> {
    let mut bytes = unhex(text);
    bytes.truncate(result.parse().unwrap());
    bytes
}

/// Decodes `"\x41\x42"`, with or without the quotes.
fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let text = text.trim_matches('"').as_bytes();
    let pairs = text.chunks_exact(4);
    assert!(pairs.remainder().is_empty(), "strace -xx writes every byte as \\xNN");
    pairs.map(|pair| digit(pair[2]) << 4 | digit(pair[3])).collect()
}
