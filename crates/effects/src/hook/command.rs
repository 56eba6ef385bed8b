//! A hook that runs a program: the event is written to its standard input, and the answer is read from its standard
//! output. The program has a clean environment. When it ends, on timeout, or if the caller drops the call, all processes
//! that it started are killed, or only its process group if there is no launcher. The program keeps the rights of Sapwood,
//! because the operator chose it, within resource limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use async_trait::async_trait;
use rustix::process::{Pid, Signal};
use sapwood_core::port::hook::{ANSWER_BYTES_MAX, Hook, HookAnswer, HookError, HookEvent};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use crate::sandbox::limits::{Profile, ResourceLimits};
use crate::sandbox::{Confinement, FileRights, Launcher, Network, ProgramInput, launcher_args, limit_note};
use crate::secret::Secret;
use crate::tool::process::find_program;

/// Maximum number of bytes of standard error to keep.
const STDERR_BYTES_MAX: usize = 4 << 10;
/// Variables of Sapwood's environment that are passed to the program.
const PASSED_VARIABLES: &[&str] = &["PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ"];
/// Minimum length of a value to redact. Shorter values cannot be distinguished from ordinary text.
const SECRET_BYTES_MIN: usize = 8;
/// Environment variable with the hook nesting depth, for a `sapwood` that the program starts.
pub const DEPTH_VARIABLE: &str = "SAPWOOD_HOOK_DEPTH";

/// A program with its arguments. Values in its environment may be secrets.
pub struct CommandHook {
    argv: Vec<String>,
    directory: PathBuf,
    env: BTreeMap<String, Secret>,
    launcher: Launcher,
    confinement: Confinement,
}

impl CommandHook {
    /// `argv` is the program followed by its arguments. No shell is used.
    pub fn new(
        argv: Vec<String>,
        directory: impl Into<PathBuf>,
        env: BTreeMap<String, Secret>,
    ) -> Result<Self, HookError> {
        if argv.first().is_none_or(|program| program.is_empty()) {
            return Err(HookError::Failed { why: "the command is empty".to_owned() });
        }
        let confinement =
            Confinement { profile: Profile::Hook, ..Confinement::new(FileRights::Unconfined, Network::Open) };
        Ok(Self { argv, directory: directory.into(), env, launcher: Launcher::None, confinement })
    }

    /// Start the program with a launcher, within these limits.
    pub fn with_limits(mut self, launcher: Launcher, limits: ResourceLimits, cgroups: Vec<PathBuf>) -> Self {
        self.launcher = launcher;
        self.confinement = Confinement { limits, cgroups, ..self.confinement };
        self
    }

    /// Remove the values of the program's environment from its error output, which is logged.
    fn without_secrets(&self, text: &str) -> String {
        let values = self.env.values().map(Secret::expose).filter(|value| value.len() >= SECRET_BYTES_MIN);
        values.fold(text.to_owned(), |text, value| text.replace(value, "[secret]"))
    }

    fn command(&self, program: &Path) -> Command {
        match &self.launcher {
            Launcher::Binary(binary) => {
                let mut command = Command::new(binary);
                command.args(launcher_args(&self.confinement, ProgramInput::Piped)).arg(program);
                command
            }
            Launcher::None => Command::new(program),
        }
    }

    fn spawn(&self, depth: u8) -> Result<Child, HookError> {
        let path = std::env::var("PATH").unwrap_or_default();
        let program = find_program(&self.argv[0], &path, &self.directory);
        let program = program.ok_or_else(|| failed(format!("no program {:.200}", self.argv[0])))?;
        let passed = PASSED_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        self.command(&program)
            .args(&self.argv[1..])
            .env_clear()
            .envs(passed)
            .envs(self.env.iter().map(|(name, value)| (name, value.expose())))
            .env(DEPTH_VARIABLE, depth.saturating_add(1).to_string())
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| failed(format!("failed to start {:.200}: {error}", self.argv[0])))
    }
}

fn failed(why: String) -> HookError {
    HookError::Failed { why }
}

#[async_trait]
impl Hook for CommandHook {
    async fn call(&self, event: &HookEvent) -> Result<HookAnswer, HookError> {
        let event_json = serde_json::to_vec(event).map_err(|error| failed(error.to_string()))?;
        let mut child = self.spawn(event.depth)?;
        let group = (self.launcher == Launcher::None).then(|| ProcessGroup::of(&child));
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let waited = async {
            let status = child.wait().await;
            // Remaining processes of the group would keep the streams open.
            drop(group);
            status
        };
        let ((), stdout, stderr, status) = tokio::join!(
            write_event(stdin, &event_json),
            read_some(out, ANSWER_BYTES_MAX + 1),
            read_end(err, STDERR_BYTES_MAX),
            waited,
        );
        let status = status.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            let message = self.without_secrets(&String::from_utf8_lossy(&stderr));
            return Err(failed(match limit_note(status.code(), &message) {
                Some(note) => format!("the program was stopped: {note}"),
                None => format!("the program exited with {status}: {}", message.trim()),
            }));
        }
        HookAnswer::read(&stdout)
    }

    fn describe(&self) -> String {
        self.argv.join(" ")
    }
}

/// Write the event. Ignores errors, because a program may exit without reading it.
async fn write_event(stdin: Option<ChildStdin>, text: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(text).await;
        let _ = stdin.shutdown().await;
    }
}

/// Read the beginning of a stream. The rest is read and discarded, so that the program does not block.
async fn read_some(stream: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> Vec<u8> {
    let mut start = Vec::new();
    let Some(mut stream) = stream else { return start };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(bytes) = stream.read(&mut buffer).await {
        if bytes == 0 {
            break;
        }
        let remaining = bytes_max - start.len();
        start.extend_from_slice(&buffer[..bytes.min(remaining)]);
    }
    start
}

/// Read a stream and keep its end, which usually tells why a program failed.
async fn read_end(stream: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> Vec<u8> {
    let mut end = Vec::new();
    let Some(mut stream) = stream else { return end };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
        end.extend_from_slice(&buffer[..bytes]);
        let surplus = end.len().saturating_sub(bytes_max);
        end.drain(..surplus);
    }
    end
}

/// The process group of a program without a launcher. Killed on drop.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may have exited already.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}
