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
pub enum Typed {
    Line(String),
    /// Ctrl-C. The editor discards the current line.
    Interrupted,
    /// Ctrl-D
    End,
}

struct Question {
    prompt: String,
    initial: String,
    answer: oneshot::Sender<Result<Typed>>,
}

pub struct Prompt {
    questions: mpsc::Sender<Question>,
}

impl Prompt {
    pub fn new(history: PathBuf) -> Result<Self> {
        let editor = make_editor(&history)?;
        let (questions, receiver) = mpsc::channel(1);
        std::thread::spawn(move || answer_questions(editor, receiver, &history));
        Ok(Self { questions })
    }

    /// Read a line, prefilled with `initial`.
    pub async fn read(&self, prompt: &str, initial: &str) -> Result<Typed> {
        let gone = || Failure::new("output.failed", "the line editor stopped");
        let (answer, answered) = oneshot::channel();
        let question = Question { prompt: prompt.to_owned(), initial: initial.to_owned(), answer };
        self.questions.send(question).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn make_editor(history: &Path) -> Result<Editor<Aide, FileHistory>> {
    let failed =
        |error: ReadlineError| Failure::new("output.failed", format!("failed to open the terminal: {error}"));
    let config = Config::builder()
        .max_history_size(HISTORY_LINES_MAX)
        .map_err(failed)?
        .history_ignore_space(true)
        .bracketed_paste(true)
        .build();
    let mut editor = Editor::<Aide, FileHistory>::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Aide));
    let new_line = KeyEvent(KeyCode::Enter, Modifiers::ALT);
    editor.bind_sequence(new_line, EventHandler::Simple(Cmd::Newline));
    // A history that is missing or unreadable counts as empty.
    let _ = editor.load_history(history);
    Ok(editor)
}

fn answer_questions(
    mut editor: Editor<Aide, FileHistory>,
    mut questions: mpsc::Receiver<Question>,
    history: &Path,
) {
    while let Some(question) = questions.blocking_recv() {
        let typed = editor.readline_with_initial(&question.prompt, (&question.initial, ""));
        let answer = match typed {
            Ok(line) => {
                let line = joined(&line);
                if editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    save_history(&mut editor, history);
                }
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => {
                Err(Failure::new("output.failed", format!("failed to read from the terminal: {error}")))
            }
        };
        let _ = question.answer.send(answer);
    }
}

/// Save the history with private permissions. Errors are ignored, because the chat works without a history.
fn save_history(editor: &mut Editor<Aide, FileHistory>, path: &Path) {
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
fn joined(line: &str) -> String {
    line.replace("\\\n", "\n")
}

/// Completes slash commands and continues lines.
struct Aide;

impl Helper for Aide {}
impl Highlighter for Aide {}

impl Hinter for Aide {
    type Hint = String;
}

impl Completer for Aide {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Some(begun) = line[..at].strip_prefix('/').filter(|begun| !begun.contains(' ')) else {
            return Ok((at, Vec::new()));
        };
        let fitting = command::names().filter(|name| name.starts_with(begun));
        let pairs =
            fitting.map(|name| Pair { display: format!("/{name}"), replacement: format!("/{name} ") });
        Ok((0, pairs.collect()))
    }
}

impl Validator for Aide {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\') && !context.input().ends_with("\\\\");
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}
