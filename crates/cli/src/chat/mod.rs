//! `sapwood chat`: a conversation in the terminal.
//!
//! Overview: [`prompt`] reads the user's input, [`command`] parses slash commands and [`slash_commands`] runs them.
//! [`watch`] follows a running turn, with key presses from [`keys`], the event [`view`] and the [`screen`] to draw
//! on. [`markdown`] renders streaming text. [`headless`] runs turns for programs, and [`outcome`] reports their
//! results. [`pick_session`] finds or creates the session.

mod command;
pub mod headless;
mod keys;
mod markdown;
pub mod outcome;
pub mod pick_session;
mod prompt;
pub mod screen;
mod slash_commands;
mod status;
mod view;
pub mod watch;

use std::collections::BTreeSet;
use std::time::Instant;

use sapwood::core::Kind;
use sapwood::core::content::ToolCall;
use sapwood::core::project::context::{Message, Role};
use sapwood::engine::turn::{IfRunning, OnWait, Running, SendOptions, Sent, TurnReport};
use sapwood::engine::{SessionEvent, Subscription};
use sapwood::{Part, SessionId};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{self, BOLD, DIM, GREEN, RED, YELLOW, clean, fit};

use command::Command;
use pick_session::Opening;
use prompt::{Prompt, Typed};
use screen::{Look, Screen};
use watch::{Asks, Line, Watch};

/// File name of the input history in Sapwood's home.
const HISTORY_FILE: &str = "chat-history";
/// Number of messages shown when a session is opened.
const RECALLED_MESSAGES: usize = 2;

/// An interactive chat.
pub struct Chat<'a> {
    app: &'a mut App,
    /// None until the first message, so that a chat without messages leaves no session.
    session: Option<SessionId>,
    /// Options for a session that does not exist yet.
    opening: Opening,
    /// Tools allowed for the duration of this chat.
    always: BTreeSet<String>,
    screen: Screen,
    prompt: Prompt,
    typed: String,
}

/// Whether the chat continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

impl<'a> Chat<'a> {
    pub fn new(app: &'a mut App, session: Option<SessionId>, opening: Opening) -> Result<Self> {
        crate::app::create_home(&app.place.home)?;
        let prompt = Prompt::new(app.place.home.join(HISTORY_FILE))?;
        let screen = Screen::new(Look::of_stdout());
        let (always, typed) = (BTreeSet::new(), String::new());
        Ok(Self { app, session, opening, always, screen, prompt, typed })
    }

    pub async fn run(mut self) -> Result<()> {
        self.greet().await?;
        if let Some(session) = self.session.clone() {
            self.enter(session).await?;
        }
        let mut interrupts = 0;
        loop {
            let initial = std::mem::take(&mut self.typed);
            let marker = if self.screen.look() == Look::Rich {
                format!("{GREEN}›{GREEN:#} ")
            } else {
                "> ".to_owned()
            };
            let line = match self.prompt.read(&marker, &initial).await? {
                Typed::Line(line) => line,
                Typed::Interrupted if interrupts == 0 => {
                    interrupts += 1;
                    self.say(format!("{DIM}press Ctrl-C again or Ctrl-D to end the chat{DIM:#}"))?;
                    continue;
                }
                Typed::Interrupted | Typed::End => break,
            };
            interrupts = 0;
            let next = match self.take_line(&line).await {
                Ok(next) => next,
                Err(failure) => {
                    self.complain(&failure)?;
                    Next::GoOn
                }
            };
            if next == Next::End {
                break;
            }
        }
        self.say_goodbye()
    }

    async fn take_line(&mut self, line: &str) -> Result<Next> {
        if line.trim().is_empty() {
            return Ok(Next::GoOn);
        }
        match command::parse(line) {
            Some(Ok(Command::Quit)) => Ok(Next::End),
            Some(command) => self.obey(command?).await.map(|()| Next::GoOn),
            None => self.speak(line).await.map(|()| Next::GoOn),
        }
    }

    fn line(&self, session: &SessionId) -> Line {
        Line { engine: self.app.engine.clone(), scope: self.app.scope.clone(), session: session.clone() }
    }

    /// Send a message and follow the turn.
    async fn speak(&mut self, text: &str) -> Result<()> {
        let session = self.session_to_speak_in().await?;
        let events = self.subscribe(&session).await?;
        let options = SendOptions { if_running: IfRunning::Queue, on_wait: OnWait::Stay };
        let parts = vec![Part::text(text.trim())];
        match self.app.engine.send(&self.app.scope, &session, parts, options).await {
            Ok(Sent::Started(running)) => self.watch(&session, running, events, Heard::OwnWords).await,
            Ok(Sent::Queued(_)) => self.say(format!(
                "{YELLOW}!{YELLOW:#} another process is running a turn in this session; your message is queued until it ends"
            )),
            // An earlier turn was interrupted: resume it first and keep the message.
            Err(sapwood::Error::TurnOpen { .. }) => {
                self.typed = text.to_owned();
                self.go_on_with_open_turn(&session).await
            }
            Err(error) => {
                self.typed = text.to_owned();
                Err(error.into())
            }
        }
    }

    async fn session_to_speak_in(&mut self) -> Result<SessionId> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let session = self.opening.clone().start(self.app).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    async fn subscribe(&self, session: &SessionId) -> Result<Subscription> {
        let head = self.app.engine.summary(&self.app.scope, session).await?.head.seq;
        Ok(self.app.engine.subscribe(&self.app.scope, session, head).await?)
    }

    async fn watch(
        &mut self,
        session: &SessionId,
        running: Running,
        mut events: Subscription,
        heard: Heard,
    ) -> Result<()> {
        let began = Instant::now();
        if let Some(notice) = &running.notice {
            self.say(format!("{YELLOW}!{YELLOW:#} {}", clean(notice)))?;
        }
        if heard == Heard::OwnWords {
            pass_own_words(&mut events).await?;
        }
        self.screen.settle(&[String::new()])?;
        let (line, typed) = (self.line(session), std::mem::take(&mut self.typed));
        let past = match heard {
            Heard::OwnWords => None,
            Heard::Nothing => Some(open_calls(self.app, session).await?),
        };
        let mut watch = Watch::new(line, &mut self.screen, Asks::Here(&mut self.always), typed);
        if let Some(calls) = past {
            watch = watch.with_past(calls);
        }
        let watched = Box::pin(watch.run(running, events)).await?;
        self.typed = watched.typed;
        if watched.has_shown {
            self.say(String::new())?;
        }
        self.sum_up(session, &watched.report, began).await
    }

    /// Print the result of the turn and its cost.
    async fn sum_up(&mut self, session: &SessionId, report: &TurnReport, began: Instant) -> Result<()> {
        let mut lines = Vec::new();
        if let Some(failure) = report.ended.as_ref().and_then(outcome::failure_of) {
            let style = if failure.code == "turn.cancelled" { YELLOW } else { RED };
            lines.push(format!(
                "  {style}{}{style:#}  {DIM}{}{DIM:#}",
                clean(&failure.message),
                failure.hint
            ));
        }
        let took_ms = began.elapsed().as_millis() as u64;
        lines.push(status::after_turn(self.app, session, report, took_ms).await?);
        lines.push(String::new());
        self.screen.settle(&lines)
    }

    /// Open a session: show its last messages, and resume its interrupted turn, if any.
    async fn enter(&mut self, session: SessionId) -> Result<()> {
        self.session = Some(session.clone());
        let summary = self.app.engine.summary(&self.app.scope, &session).await?;
        self.app.engine.note_open(&self.app.scope, &session).await?;
        self.recall(&session).await?;
        if summary.open_turn.is_some() {
            return self.go_on_with_open_turn(&session).await;
        }
        Ok(())
    }

    async fn go_on_with_open_turn(&mut self, session: &SessionId) -> Result<()> {
        let events = self.subscribe(session).await?;
        self.say(format!("{YELLOW}!{YELLOW:#} a turn was interrupted here and is resumed now"))?;
        match self.app.engine.resume(&self.app.scope, session, OnWait::Stay).await {
            Ok(Some(running)) => self.watch(session, running, events, Heard::Nothing).await,
            Ok(None) => Ok(()),
            Err(error) if error.code() == "session.leased" => self.say(format!(
                "{YELLOW}!{YELLOW:#} another process is running a turn in this session; new messages are queued until it ends"
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Show the last messages of a session for orientation.
    async fn recall(&mut self, session: &SessionId) -> Result<()> {
        let context = self.app.engine.context(&self.app.scope, session, None).await?;
        let is_said = |message: &&Message| message.role != Role::Tool && !message.text().trim().is_empty();
        let messages: Vec<_> = context.messages.iter().filter(is_said).collect();
        let mut lines = Vec::new();
        let skipped = messages.len().saturating_sub(RECALLED_MESSAGES);
        if skipped > 0 {
            lines.push(format!("{DIM}… {}{DIM:#}", render::plural(skipped as u64, "earlier message")));
            lines.push(String::new());
        }
        for message in &messages[skipped..] {
            lines.extend(self.recalled(message));
            lines.push(String::new());
        }
        self.screen.settle(&lines)
    }

    fn recalled(&self, message: &Message) -> Vec<String> {
        let (width, text) = (self.screen.width(), message.text());
        match message.role {
            Role::User => vec![format!("{GREEN}›{GREEN:#} {}", fit(&text, width.saturating_sub(2)))],
            Role::Assistant | Role::System | Role::Tool if self.screen.look() == Look::Plain => {
                clean(&text).lines().map(str::to_owned).collect()
            }
            Role::Assistant | Role::System | Role::Tool => {
                let mut markdown = markdown::Markdown::new(width);
                let mut lines = markdown.push(&text);
                lines.extend(markdown.finish());
                lines
            }
        }
    }

    async fn greet(&mut self) -> Result<()> {
        let model = match &self.session {
            Some(session) => status::model_of(self.app, session).await?,
            None => self.opening.agent.model.clone().unwrap_or_else(|| "demo".to_owned()),
        };
        let what = match &self.session {
            Some(session) => format!("session {session}"),
            None => format!("new session with agent {}", clean(&self.opening.agent.id)),
        };
        self.screen.settle(&[
            format!("{BOLD}Sapwood{BOLD:#} · {} · {DIM}{what}{DIM:#}", clean(&model)),
            format!("{DIM}/help · Alt-Enter starts a new line · Ctrl-C cancels · Ctrl-D quits{DIM:#}"),
            String::new(),
        ])
    }

    fn say_goodbye(&mut self) -> Result<()> {
        match self.session.clone() {
            Some(session) => self.say(format!("{DIM}resume with:{DIM:#} sapwood chat {session}")),
            None => Ok(()),
        }
    }

    fn say(&mut self, line: String) -> Result<()> {
        self.screen.settle(&[line])
    }

    fn complain(&mut self, failure: &Failure) -> Result<()> {
        if failure.exit == crate::failure::Exit::Closed {
            return Err(failure.clone());
        }
        self.say(format!("{RED}{}{RED:#}  {DIM}{}{DIM:#}", clean(&failure.message), failure.hint))
    }
}

/// Whether the turn begins with a message that is already on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    OwnWords,
    Nothing,
}

/// Skip the event of the user's own message, which is on the screen already. It is stored before the turn starts.
async fn pass_own_words(events: &mut Subscription) -> Result<()> {
    loop {
        match events.next().await? {
            SessionEvent::Entry(record) if record.meta.kind == Kind::UserMessage => return Ok(()),
            _ => {}
        }
    }
}

/// The calls of the last answer that a resumed turn may still have to run.
async fn open_calls(app: &App, session: &SessionId) -> Result<Vec<ToolCall>> {
    let context = app.engine.context(&app.scope, session, None).await?;
    let last = context.messages.iter().rfind(|message| message.role == Role::Assistant);
    let parts = last.map(|message| message.parts.as_slice()).unwrap_or_default();
    Ok(parts.iter().filter_map(Part::as_tool_call).cloned().collect())
}
