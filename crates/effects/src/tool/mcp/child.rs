//! A server's program: started without a shell, with a clean environment, in a process group that is killed on drop.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::secret::Secrets;

/// Variables that the program inherits. None of them contains a credential.
const INHERITED_VARIABLES: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT"];
/// Number of bytes of standard error to keep for error messages.
const STDERR_BYTES_KEPT: usize = 4 << 10;
/// Maximum number of waits for remaining standard error, and duration of each wait.
const STDERR_WAITS_MAX: u32 = 10;
const STDERR_WAIT_MS: u64 = 20;

/// A running program. Dropping it kills the program's process group.
pub(super) struct ServerChild {
    child: Child,
    stderr: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl ServerChild {
    pub(super) fn start(
        command: &str,
        args: &[String],
        env: &BTreeMap<String, String>,
        cwd: Option<&str>,
        secrets: &Secrets,
    ) -> Result<(Self, ChildStdout, ChildStdin), String> {
        let mut program = Command::new(command);
        program.args(args).env_clear().kill_on_drop(true);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        program.current_dir(cwd.map_or_else(std::env::temp_dir, Into::into));
        for name in INHERITED_VARIABLES {
            program.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        for (name, value) in env {
            let filled = secrets.expand(value).map_err(|error| format!("variable {name}: {error}"))?;
            program.env(name, filled.expose());
        }
        #[cfg(unix)]
        program.process_group(0);
        let mut child = program.spawn().map_err(|error| format!("failed to start {command}: {error}"))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(format!("failed to open the pipes of {command}"));
        };
        let tail = Arc::new(Mutex::new(Vec::new()));
        let reader = tokio::spawn(capture_tail(stderr, tail.clone()));
        Ok((Self { child, stderr: tail, reader }, stdout, stdin))
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

    /// Kill the whole process group.
    pub(super) fn kill(&self) {
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
