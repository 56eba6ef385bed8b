//! `sapwood chat`: an interactive conversation, or a single prompt for scripts.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use sapwood::core::agent::Agent;
use sapwood::engine::turn::{OnWait, SendOptions, Sent};
use sapwood::{Part, SessionId};

use super::files::attach;
use super::new::directory;
use super::send::{TurnSubscription, deliver};
use super::session_options::StartArgs;
use crate::app::App;
use crate::chat::Chat;
use crate::chat::pick_session::{self, SessionTemplate};
use crate::failure::{Failure, Result};
use crate::render::{Format, note};

/// Seconds to wait for piped input if a prompt is given.
#[cfg(unix)]
const STDIN_WAIT_S: i64 = 3;
/// Maximum size of a prompt on stdin.
const STDIN_BYTES_MAX: u64 = 4 << 20;

/// Chat interactively, or one-shot with -p or piped input
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood chat
  sapwood chat --continue --model anthropic/claude-sonnet-4-5
  sapwood chat --file report.pdf -p \"Summarise the report\"
  git diff | sapwood chat -p \"Review this change\"")]
pub struct ChatArgs {
    /// Session to continue: id, unique prefix, or @last; default: a new session
    session: Option<String>,
    /// Continue the last session of this directory
    #[arg(long = "continue", short = 'c', conflicts_with = "session")]
    latest: bool,
    /// Agent of the new session
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Model to use from now on: PROVIDER/NAME, or demo
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Send this prompt, print the answer and exit; - reads it from stdin
    #[arg(long, short = 'p', value_name = "PROMPT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Add this file to the session's inputs; repeat it for several files
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    start: StartArgs,
}

pub async fn run(app: &mut App, args: ChatArgs) -> Result<()> {
    app.open_backends()?;
    let session = match &args.session {
        Some(given) => Some(app.session_to_read(given).await?),
        None if args.latest => Some(pick_session::latest_here(app).await?),
        None => None,
    };
    if let (Some(session), Some(agent)) = (&session, &args.agent) {
        let message = format!("session `{session}` already has an agent and cannot use `{agent}`");
        return Err(Failure::usage(message, "omit --agent, or start a new session with it"));
    }
    if let (Some(session), true) = (&session, args.start.is_given()) {
        let message =
            format!("session `{session}` already exists: its context and permissions are set at its start");
        let hint = "omit these options, or change the context with `sapwood set`";
        return Err(Failure::usage(message, hint));
    }
    let context = args.start.context(&directory(None)?)?;
    let template = SessionTemplate { agent: choose_agent(app, &args)?, context };
    check_files(&args.files)?;
    let prompt = read_prompt(args.prompt.as_deref())?;
    if let (Some(session), Some(model)) = (&session, &args.model) {
        pick_session::change_model(app, session, model).await?;
    }
    match prompt {
        Some(prompt) => send_prompt(app, session, template, &args.files, &prompt).await,
        None if app.format() == Format::Json => {
            Err(Failure::usage("--json requires a prompt", "give one with -p or on stdin"))
        }
        None if !std::io::stdout().is_terminal() => {
            Err(Failure::usage("stdout is not a terminal", "give a prompt with -p to print only the answer"))
        }
        None => Box::pin(Chat::new(app, session, template, args.files)?.run()).await,
    }
}

/// Check that the files exist before a session is created for them.
fn check_files(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let found = std::fs::metadata(path).map_err(|error| Failure::file(path, &error))?;
        if found.is_dir() {
            return Err(Failure::new("file.io", format!("{} is a directory", path.display())));
        }
    }
    Ok(())
}

fn choose_agent(app: &App, args: &ChatArgs) -> Result<Agent> {
    let mut agent = app.paths.agents().choose(args.agent.as_deref(), &app.paths.config)?;
    if let Some(model) = &args.model {
        agent.model = Some(app.engine.configuration().callable_model(model)?);
    }
    args.start.narrow(agent)
}

/// Joins the prompt and the piped input. Returns `None` for an interactive terminal without a prompt.
fn read_prompt(given: Option<&str>) -> Result<Option<String>> {
    let is_piped = !std::io::stdin().is_terminal();
    let has_prompt = given.is_some_and(|given| given != "-");
    let is_given = given.is_some();
    let piped = if has_prompt && is_piped && !is_stdin_ready() {
        note(Format::Text, "no input on stdin: continuing without it; use -p - to wait for it");
        String::new()
    } else if is_piped || is_given && !has_prompt {
        read_stdin()?
    } else {
        String::new()
    };
    let piped = piped.trim();
    let prompt = match given.filter(|given| *given != "-") {
        Some(given) if piped.is_empty() => given.trim().to_owned(),
        Some(given) => format!("{}\n\n{piped}", given.trim()),
        None if is_piped || is_given => piped.to_owned(),
        None => return Ok(None),
    };
    if prompt.is_empty() {
        return Err(Failure::usage("the prompt is empty", "give one with -p or on stdin"));
    }
    Ok(Some(prompt))
}

/// Reports whether stdin becomes readable within [`STDIN_WAIT_S`]. A parent process may leave a pipe open without
/// writing to it, and `-p` must not wait for it forever.
#[cfg(unix)]
fn is_stdin_ready() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = std::io::stdin();
    let wait = Timespec { tv_sec: STDIN_WAIT_S, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

#[cfg(not(unix))]
fn is_stdin_ready() -> bool {
    true
}

fn read_stdin() -> Result<String> {
    let failed = |error: std::io::Error| Failure::new("file.io", format!("failed to read stdin: {error}"));
    let mut text = String::new();
    let count = std::io::stdin().take(STDIN_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if count as u64 > STDIN_BYTES_MAX {
        let message = format!("the prompt on stdin exceeds the limit of {STDIN_BYTES_MAX} bytes");
        return Err(Failure::new("input.too_large", message));
    }
    Ok(text)
}

async fn send_prompt(
    app: &mut App,
    session: Option<SessionId>,
    template: SessionTemplate,
    files: &[PathBuf],
    prompt: &str,
) -> Result<()> {
    let session = match session {
        Some(session) => {
            app.engine.sessions().note_open(&app.scope, &session).await?;
            session
        }
        None => {
            let model = template.agent.model.clone().unwrap_or_else(|| app.default_model());
            let session = template.start(app).await?;
            note(app.format(), &format!("{model} · session {session}"));
            session
        }
    };
    for path in files {
        attach(app, &session, path).await?;
    }
    let turn = TurnSubscription::open(app, &session).await?;
    let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
    match app.engine.turns().send(&app.scope, &session, vec![Part::text(prompt)], options).await? {
        Sent::Started(running) => deliver(app, turn.with(running), super::send::JsonOutput::Events).await,
        Sent::Queued(_) => Ok(()),
    }
}
