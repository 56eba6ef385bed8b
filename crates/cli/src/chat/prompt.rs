//! The input prompt: a line editor with history, completion and multi-line input. It runs in a separate
//! thread, so that it does not block other tasks.
//!
//! Alt-Enter, or a backslash at the end, starts a new line. Pasted text keeps its line breaks.

use std::path::{Path, PathBuf};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Config, Context, Editor, EventHandler, Helper, KeyCode, KeyEvent, Modifiers};
use tokio::sync::{mpsc, oneshot};

use super::command;
use crate::failure::{Failure, Result};

/// Maximum number of lines in the history.
const HISTORY_LINES_MAX: usize = 2_000;

#[derive(Debug, PartialEq, Eq)]
pub enum PromptInput {
    Line(String),
    /// Ctrl-C. The editor discards the current line.
    Interrupted,
    /// Ctrl-D
    End,
}

struct ReadRequest {
    prompt: String,
    initial: String,
    reply: oneshot::Sender<Result<PromptInput>>,
}

pub struct Prompt {
    requests: mpsc::Sender<ReadRequest>,
}

impl Prompt {
    pub fn new(history: PathBuf) -> Result<Self> {
        let editor = make_editor(&history)?;
        let (requests, receiver) = mpsc::channel(1);
        std::thread::spawn(move || serve_requests(editor, receiver, &history));
        Ok(Self { requests })
    }

    /// Read a line, prefilled with `initial`.
    pub async fn read(&self, prompt: &str, initial: &str) -> Result<PromptInput> {
        let stopped = || Failure::new("output.failed", "the line editor stopped");
        let (reply, receiver) = oneshot::channel();
        let request = ReadRequest { prompt: prompt.to_owned(), initial: initial.to_owned(), reply };
        self.requests.send(request).await.map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }
}

fn make_editor(history: &Path) -> Result<Editor<PromptHelper, FileHistory>> {
    let failed =
        |error: ReadlineError| Failure::new("output.failed", format!("failed to open the terminal: {error}"));
    let config = Config::builder()
        .max_history_size(HISTORY_LINES_MAX)
        .map_err(failed)?
        .history_ignore_space(true)
        .bracketed_paste(true)
        .build();
    let mut editor = Editor::<PromptHelper, FileHistory>::with_config(config).map_err(failed)?;
    editor.set_helper(Some(PromptHelper));
    let new_line = KeyEvent(KeyCode::Enter, Modifiers::ALT);
    editor.bind_sequence(new_line, EventHandler::Simple(Cmd::Newline));
    // A history that is missing or unreadable counts as empty.
    let _ = editor.load_history(history);
    Ok(editor)
}

fn serve_requests(
    mut editor: Editor<PromptHelper, FileHistory>,
    mut requests: mpsc::Receiver<ReadRequest>,
    history: &Path,
) {
    while let Some(request) = requests.blocking_recv() {
        let typed = editor.readline_with_initial(&request.prompt, (&request.initial, ""));
        let reply = match typed {
            Ok(line) => {
                let line = join_continued_lines(&line);
                if editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    save_history(&mut editor, history);
                }
                Ok(PromptInput::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(PromptInput::Interrupted),
            Err(ReadlineError::Eof) => Ok(PromptInput::End),
            Err(error) => {
                Err(Failure::new("output.failed", format!("failed to read from the terminal: {error}")))
            }
        };
        let _ = request.reply.send(reply);
    }
}

/// Save the history with private permissions. Errors are ignored, because the chat works without a history.
fn save_history(editor: &mut Editor<PromptHelper, FileHistory>, path: &Path) {
    if !path.exists() {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let _ = options.open(path);
    }
    let _ = editor.append_history(path);
}

/// Remove the backslashes that continue a line.
fn join_continued_lines(line: &str) -> String {
    line.replace("\\\n", "\n")
}

/// Completes slash commands and continues lines.
struct PromptHelper;

impl Helper for PromptHelper {}
impl Highlighter for PromptHelper {}

impl Hinter for PromptHelper {
    type Hint = String;
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Some(prefix) = line[..at].strip_prefix('/').filter(|prefix| !prefix.contains(' ')) else {
            return Ok((at, Vec::new()));
        };
        let matching = command::names().filter(|name| name.starts_with(prefix));
        let pairs =
            matching.map(|name| Pair { display: format!("/{name}"), replacement: format!("/{name} ") });
        Ok((0, pairs.collect()))
    }
}

impl Validator for PromptHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_continued = context.input().ends_with('\\') && !context.input().ends_with("\\\\");
        Ok(if is_continued { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}
