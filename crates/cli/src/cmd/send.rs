//! `sapwood send`: runs one turn. On a terminal the turn is streamed; in a pipe only the answer is printed.

use std::io::Write;

use clap::Args;
use sapwood::engine::Subscription;
use sapwood::engine::turn::{IfRunning, OnWait, Running, SendOptions, Sent, TurnReport};
use sapwood::{Part, SessionId};
use serde_json::json;

use crate::app::App;
use crate::chat::headless::{self, TurnOutput};
use crate::chat::outcome::{approval_instructions, as_json, check};
use crate::chat::pick_session;
use crate::chat::screen::{Screen, ScreenMode};
use crate::chat::watch::{ApprovalChannel, SessionHandle, Watch};
use crate::failure::Result;
use crate::render::note;

/// Send a message and wait for the answer
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood send @last \"Summarise the open points\"
  sapwood send @last \"Now in French\" --model openai/gpt-5
  sapwood send @last \"Also run the tests\" --queue")]
pub struct SendArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Message text
    #[arg(allow_hyphen_values = true)]
    text: String,
    /// Model to use from now on: PROVIDER/NAME, or demo
    #[arg(long, value_name = "MODEL", conflicts_with = "queue")]
    model: Option<String>,
    /// Queue the message if a turn is running, instead of failing
    #[arg(long)]
    queue: bool,
}

pub async fn run(app: &mut App, args: SendArgs) -> Result<()> {
    app.open_backends()?;
    let session = app.session(&args.session).await?;
    // Do not change the model while a turn is open: the turn keeps its model, and sending fails below.
    let is_free = app.engine.directory().summary(&app.scope, &session).await?.open_turn.is_none();
    if let Some(model) = args.model.as_ref().filter(|_| is_free) {
        pick_session::change_model(app, &session, model).await?;
    }
    let turn = TurnSubscription::open(app, &session).await?;
    let if_running = if args.queue { IfRunning::Queue } else { IfRunning::Refuse };
    let options = SendOptions { if_running, on_wait: OnWait::Leave };
    match app.engine.turns().send(&app.scope, &session, vec![Part::text(args.text)], options).await? {
        Sent::Started(running) => deliver(app, turn.with(running), JsonOutput::Report).await,
        Sent::Queued(input) if app.out.is_json() => {
            app.out.json(&json!({ "session": session, "queued": input }))
        }
        Sent::Queued(_) => Ok(writeln!(app.out, "queued: the message will be sent after the running turn")?),
    }
}

/// The output of a turn with `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonOutput {
    /// One document at the end.
    Report,
    /// One line per event, as it happens.
    Events,
}

/// A subscription to a session, opened before its turn starts so that no event is missed.
pub struct TurnSubscription {
    session: SessionId,
    events: Subscription,
}

pub struct RunningTurn {
    session: SessionId,
    events: Subscription,
    running: Running,
}

impl TurnSubscription {
    pub async fn open(app: &App, session: &SessionId) -> Result<Self> {
        let head = app.engine.directory().summary(&app.scope, session).await?.head.seq;
        let events = app.engine.events().subscribe(&app.scope, session, head).await?;
        Ok(Self { session: session.clone(), events })
    }

    pub fn with(self, running: Running) -> RunningTurn {
        RunningTurn { session: self.session, events: self.events, running }
    }
}

/// Prints a turn until it ends or waits for approval, then its outcome.
pub async fn deliver(app: &mut App, turn: RunningTurn, json_output: JsonOutput) -> Result<()> {
    let RunningTurn { session, events, running } = turn;
    running.notice.iter().for_each(|notice| note(app.format(), notice));
    let handle =
        SessionHandle { engine: app.engine.clone(), scope: app.scope.clone(), session: session.clone() };
    let report = if !app.out.is_json() && ScreenMode::of_stdout() == ScreenMode::Rich {
        let mut screen = Screen::new(ScreenMode::Rich);
        let watch = Watch::new(handle, &mut screen, ApprovalChannel::Deferred, String::new());
        let watched = Box::pin(watch.run(running, events)).await?;
        if watched.has_output && !watched.report.waiting.is_empty() {
            screen.print(&[String::new()])?;
        }
        watched.report
    } else {
        let show = match (app.out.is_json(), json_output) {
            (false, _) => TurnOutput::Answer,
            (true, JsonOutput::Events) => TurnOutput::Events,
            (true, JsonOutput::Report) => TurnOutput::Nothing,
        };
        headless::follow(&handle, running, events, show, &mut app.out).await?
    };
    print_outcome(app, &session, &report, json_output)
}

fn print_outcome(
    app: &mut App,
    session: &SessionId,
    report: &TurnReport,
    json_output: JsonOutput,
) -> Result<()> {
    if app.out.is_json() {
        if json_output == JsonOutput::Report {
            app.out.json(&as_json(session, report))?;
            app.out.flush()?;
        }
    } else {
        report.waiting.iter().for_each(|pending| note(app.format(), &approval_instructions(pending)));
    }
    check(report)
}
