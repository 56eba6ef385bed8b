//! The document reader: runs [`crate::extract`] in a child process with an empty environment, within limits of time,
//! memory and output. On Linux, the child has no access to files or the network. A damaged or hostile document ends only
//! its child process.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::port::document::{
    DOCUMENT_BYTES_MAX, DOCUMENT_TEXT_BYTES_MAX, DocumentError, DocumentFormat, DocumentReader,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::extract::DAMAGED;
use crate::sandbox::{EXTRACT_TIME_MAX, Launcher, extract_args};

/// Maximum number of extractions at the same time. Further ones wait.
const EXTRACTIONS_MAX: usize = 2;
/// Maximum length of the reason that a child process reports.
const REASON_BYTES_MAX: u64 = 1_000;
/// Time added to the child's own limit of processor time, which does not count waiting.
const GRACE: Duration = Duration::from_secs(15);

/// Extracts text in child processes.
pub struct SandboxedReader {
    launcher: Launcher,
    running: Semaphore,
}

impl SandboxedReader {
    pub fn new(launcher: Launcher) -> Self {
        Self { launcher, running: Semaphore::new(EXTRACTIONS_MAX) }
    }

    fn spawn(&self, format: DocumentFormat) -> Result<Child, DocumentError> {
        let Launcher::Binary(binary) = &self.launcher else {
            let why = "this program cannot start a sandboxed process".to_owned();
            return Err(DocumentError::Unavailable { why });
        };
        Command::new(binary)
            .args(extract_args(format))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| DocumentError::Unavailable { why: error.to_string() })
    }
}

#[async_trait]
impl DocumentReader for SandboxedReader {
    async fn read_text(&self, format: DocumentFormat, document: Vec<u8>) -> Result<String, DocumentError> {
        let bytes = document.len() as u64;
        if bytes > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::TooLarge { bytes });
        }
        let _permit = self.running.acquire().await;
        let mut child = self.spawn(format)?;
        let limit = EXTRACT_TIME_MAX + GRACE;
        match tokio::time::timeout(limit, exchange(&mut child, &document)).await {
            Ok(finished) => finished.and_then(|(status, text, why)| result_of(status, text, &why)),
            Err(_) => {
                let why = format!("it took longer than {} s", limit.as_secs());
                Err(DocumentError::Stopped { why })
            }
        }
    }
}

/// Write the document, and read the text and the reason of a failure.
async fn exchange(
    child: &mut Child,
    document: &[u8],
) -> Result<(ExitStatus, Vec<u8>, String), DocumentError> {
    let failed = |error: std::io::Error| DocumentError::Unavailable { why: error.to_string() };
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A child that ends early closes the pipe. Its exit status shows why.
            let _ = stdin.write_all(document).await;
        }
    };
    let read_text = async {
        let mut text = Vec::new();
        match stdout {
            Some(stdout) => {
                stdout.take(DOCUMENT_TEXT_BYTES_MAX as u64).read_to_end(&mut text).await.map(|_| text)
            }
            None => Ok(text),
        }
    };
    let read_reason = async {
        let mut reason = Vec::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(REASON_BYTES_MAX).read_to_end(&mut reason).await;
        }
        String::from_utf8_lossy(&reason).trim().to_owned()
    };
    let ((), text, reason) = tokio::join!(write, read_text, read_reason);
    let status = child.wait().await.map_err(failed)?;
    Ok((status, text.map_err(failed)?, reason))
}

fn result_of(status: ExitStatus, text: Vec<u8>, why: &str) -> Result<String, DocumentError> {
    match status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Some(code) if code == i32::from(DAMAGED) => Err(DocumentError::Damaged { why: why.to_owned() }),
        Some(code) => Err(DocumentError::Unavailable {
            why: format!("the child process ended with status {code}: {why}"),
        }),
        // The kernel kills a process that exceeds its limits, and an allocation that fails aborts the process.
        None => Err(DocumentError::Stopped { why: "it needs too much memory or time".to_owned() }),
    }
}
