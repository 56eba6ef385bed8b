//! Runs one program to completion: without a shell, with only the given environment, through the launcher, within
//! limits. Dropping the future kills the program and all processes that it started, or only its process group if there
//! is no launcher.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};

use crate::sandbox::{Confinement, Launcher, ProgramInput, launcher_args, limit_note};

/// Number of bytes usually kept from the beginning and from the end of each stream.
pub const KEPT_BYTES: usize = 128 << 10;
/// Maximum length of a stream. Longer streams are closed, which ends most programs.
const STREAM_BYTES_MAX: u64 = 256 << 20;
/// Time for the launcher to kill its processes before it is killed itself.
const GRACE: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 << 10;

pub struct Program {
    pub path: PathBuf,
    pub args: Vec<String>,
    pub directory: PathBuf,
    pub env: BTreeMap<String, String>,
    pub confinement: Confinement,
    pub time_max: Duration,
    /// Number of bytes kept from the beginning and from the end of each stream.
    pub kept_bytes: usize,
}

pub struct ProgramResult {
    pub end: ProgramEnd,
    pub stdout: CapturedOutput,
    pub stderr: CapturedOutput,
    pub took: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramEnd {
    Exited(i32),
    Killed,
    TimedOut,
    /// The supervisor stopped the program at a limit, and explains it.
    LimitReached(String),
}

/// The beginning and the end of a stream.
pub struct CapturedOutput {
    kept_bytes: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    bytes: u64,
}

impl CapturedOutput {
    fn new(kept_bytes: usize) -> Self {
        Self { kept_bytes, head: Vec::new(), tail: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let (first, rest) = chunk.split_at(chunk.len().min(self.kept_bytes - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.kept_bytes);
        self.tail.drain(..over);
    }

    /// All bytes of the stream, or `None` if some were omitted.
    pub fn complete(&self) -> Option<Vec<u8>> {
        let is_complete = self.bytes == (self.head.len() + self.tail.len()) as u64;
        is_complete.then(|| self.head.iter().chain(&self.tail).copied().collect())
    }

    pub fn text(&self) -> String {
        let omitted = self.bytes - (self.head.len() + self.tail.len()) as u64;
        let head = String::from_utf8_lossy(&self.head).into_owned();
        let tail = String::from_utf8_lossy(&self.tail.iter().copied().collect::<Vec<u8>>()).into_owned();
        if omitted == 0 { head + &tail } else { format!("{head}\n[… {omitted} bytes omitted …]\n{tail}") }
    }
}

/// Find a program like a shell does. A name without a slash is searched only on the given search path, never in the
/// working directory.
pub fn find_program(name: &str, search_path: &str, directory: &Path) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(directory.join(name)).filter(|path| is_executable(path));
    }
    let search_dirs = std::env::split_paths(search_path).filter(|dir| dir.is_absolute());
    search_dirs.map(|dir| dir.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

pub async fn run(launcher: &Launcher, program: &Program) -> io::Result<ProgramResult> {
    let began = Instant::now();
    let mut child = spawn(launcher, program)?;
    let mut lifeline = Lifeline::of(&mut child, launcher);
    let captured = || CapturedOutput::new(program.kept_bytes);
    let (mut stdout, mut stderr) = (captured(), captured());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let unsupervised = lifeline.group.filter(|_| !lifeline.is_supervised);
    let end = {
        let work = async {
            let streams = async { tokio::join!(capture(out, &mut stdout), capture(err, &mut stderr)) };
            let waited = async {
                let status = child.wait().await;
                // Remaining processes of the group would keep the streams open.
                kill_process_group(unsupervised);
                status
            };
            tokio::join!(streams, waited).1
        };
        tokio::pin!(work);
        match tokio::time::timeout(program.time_max, &mut work).await {
            Ok(status) => status?.code().map_or(ProgramEnd::Killed, ProgramEnd::Exited),
            Err(_) => {
                lifeline.close();
                if tokio::time::timeout(GRACE, &mut work).await.is_err() {
                    lifeline.kill_group();
                }
                ProgramEnd::TimedOut
            }
        }
    };
    lifeline.disarm();
    let end = with_reached_limit(end, &stderr.text());
    Ok(ProgramResult { end, stdout, stderr, took: began.elapsed() })
}

fn with_reached_limit(end: ProgramEnd, stderr: &str) -> ProgramEnd {
    match end {
        ProgramEnd::Exited(code) => match limit_note(Some(code), stderr) {
            Some(note) => ProgramEnd::LimitReached(note.to_owned()),
            None => ProgramEnd::Exited(code),
        },
        end => end,
    }
}

fn spawn(launcher: &Launcher, program: &Program) -> io::Result<Child> {
    let mut command = match launcher {
        Launcher::Binary(binary) => {
            let mut command = Command::new(binary);
            command.args(launcher_args(&program.confinement, ProgramInput::Empty)).arg(&program.path);
            command.stdin(Stdio::piped());
            command
        }
        Launcher::None => {
            let mut command = Command::new(&program.path);
            command.stdin(Stdio::null());
            command
        }
    };
    command
        .args(&program.args)
        .env_clear()
        .envs(&program.env)
        .current_dir(&program.directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Read a stream to its end. A read error counts as the end.
async fn capture(stream: Option<impl AsyncRead + Unpin>, captured: &mut CapturedOutput) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; READ_BYTES];
    while captured.bytes < STREAM_BYTES_MAX {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => captured.push(&chunk[..bytes]),
        }
    }
}

/// Kills the program on drop. A launcher kills the program when the pipe closes. A program without a launcher is killed
/// with its process group.
struct Lifeline {
    pipe: Option<ChildStdin>,
    group: Option<Pid>,
    is_supervised: bool,
}

impl Lifeline {
    fn of(child: &mut Child, launcher: &Launcher) -> Self {
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        Self { pipe: child.stdin.take(), group, is_supervised: *launcher != Launcher::None }
    }

    fn close(&mut self) {
        self.pipe = None;
        if !self.is_supervised {
            self.kill_group();
        }
    }

    fn kill_group(&mut self) {
        kill_process_group(self.group.take());
    }

    /// Forget the process: it was reaped, so its pid may be reused.
    fn disarm(&mut self) {
        self.group = None;
        self.pipe = None;
    }
}

fn kill_process_group(group: Option<Pid>) {
    if let Some(group) = group {
        // The group may have exited in the meantime.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.close();
    }
}
