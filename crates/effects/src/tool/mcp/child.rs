//! A server's program: started without a shell, with a clean environment, by the launcher. All processes that it started
//! are killed on drop, or only its process group if there is no launcher.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::programs::ServerProgram;
use crate::sandbox::{Launcher, ProgramInput, launcher_args};
use crate::secret::Secrets;

/// Variables that the program inherits. None of them contains a credential.
const INHERITED_VARIABLES: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT"];
/// Number of bytes of standard error to keep for error messages.
const STDERR_BYTES_KEPT: usize = 4 << 10;
/// Maximum number of waits for remaining standard error, and duration of each wait.
const STDERR_WAITS_MAX: u32 = 10;
const STDERR_WAIT_MS: u64 = 20;

/// A running program. Dropping it kills the program with all processes that it started.
pub(super) struct ServerChild {
    child: Child,
    launcher: Launcher,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Holds the lifeline of the launcher: the program's standard error.
    reader: JoinHandle<()>,
}

impl ServerChild {
    pub(super) fn start(
        program: &ServerProgram,
        env: &BTreeMap<String, String>,
        secrets: &Secrets,
    ) -> Result<(Self, ChildStdout, ChildStdin), String> {
        let mut command = command_of(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in env {
            let filled = secrets.expand(value).map_err(|error| format!("variable {name}: {error}"))?;
            command.env(name, filled.expose());
        }
        let name = program.path.display();
        let mut child = command.spawn().map_err(|error| format!("failed to start {name}: {error}"))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(format!("failed to open the pipes of {name}"));
        };
        let tail = Arc::new(Mutex::new(Vec::new()));
        let reader = tokio::spawn(capture_tail(stderr, tail.clone()));
        Ok((Self { child, launcher: program.launcher.clone(), stderr: tail, reader }, stdout, stdin))
    }

    /// The end of the program's standard error, for error messages. Waits briefly, because the pipe may still contain
    /// output of an exited program.
    pub(super) async fn stderr_tail(&self) -> String {
        for _ in 0..STDERR_WAITS_MAX {
            if self.reader.is_finished() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(STDERR_WAIT_MS)).await;
        }
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }

    /// Kill the program with all processes that it started. The launcher does this when its standard error is closed.
    pub(super) fn kill(&self) {
        if self.launcher != Launcher::None {
            self.reader.abort();
            return;
        }
        #[cfg(unix)]
        if let Some(pid) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command_of(program: &ServerProgram) -> Command {
    let mut command = match &program.launcher {
        Launcher::Binary(binary) => {
            let mut command = Command::new(binary);
            command.args(launcher_args(&program.confinement, ProgramInput::Piped)).arg(&program.path);
            command
        }
        Launcher::None => Command::new(&program.path),
    };
    command.args(&program.args).env_clear().current_dir(&program.directory);
    // A launcher that is killed cannot kill the program.
    command.kill_on_drop(program.launcher == Launcher::None);
    for name in INHERITED_VARIABLES {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    if let Some(home) = &program.home {
        command.env("HOME", home).env("TMPDIR", home.join("tmp"));
    }
    #[cfg(unix)]
    command.process_group(0);
    command
}

/// Read until the program closes the pipe, keeping the end. Without a reader, a program with much output would block.
async fn capture_tail(mut stderr: ChildStderr, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1_024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&buffer[..count]);
        let surplus = tail.len().saturating_sub(STDERR_BYTES_KEPT);
        tail.drain(..surplus);
    }
}
