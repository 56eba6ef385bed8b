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
mod mentions;
pub mod outcome;
pub mod pick_session;
mod prompt;
pub mod screen;
mod slash_commands;
mod status;
mod view;
pub mod watch;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use sapwood::core::Kind;
use sapwood::core::content::ToolCall;
use sapwood::core::project::context::{Message, Role};
use sapwood::engine::turn::{IfRunning, OnWait, Running, SendOptions, Sent, TurnReport};
use sapwood::engine::{SessionEvent, Subscription};
use sapwood::{Part, SessionId};

use crate::app::App;
use crate::cmd::files::attach;
use crate::failure::{Failure, Result};
use crate::render::{self, BOLD, DIM, GREEN, RED, YELLOW, clean, fit};

use command::SlashCommand;
use pick_session::SessionTemplate;
use prompt::{Prompt, PromptInput};
use screen::{Screen, ScreenMode};
use watch::{ApprovalChannel, SessionHandle, Watch};

/// File name of the input history in Sapwood's home.
const HISTORY_FILE: &str = "chat-history";
/// Number of messages shown when a session is opened.
const MESSAGES_SHOWN: usize = 2;

/// An interactive chat.
pub struct Chat<'a> {
    app: &'a mut App,
    /// None until the first message, so that a chat without messages leaves no session.
    session: Option<SessionId>,
    /// Options for a session that does not exist yet.
    template: SessionTemplate,
    /// Tools that the user always allows. Cleared by `/new` and `/agent NAME`.
    allowed_tools: BTreeSet<String>,
    screen: Screen,
    prompt: Prompt,
    /// Files to add to the session with the next message.
    files: Vec<PathBuf>,
    /// Text that was typed but not sent. The next prompt starts with it.
    typed: String,
}

/// Whether the chat continues after a line of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChatFlow {
    Continue,
    End,
}

impl<'a> Chat<'a> {
    pub fn new(
        app: &'a mut App,
        session: Option<SessionId>,
        template: SessionTemplate,
        files: Vec<PathBuf>,
    ) -> Result<Self> {
        crate::app_paths::create_home(&app.paths.home)?;
        let prompt = Prompt::new(app.paths.home.join(HISTORY_FILE))?;
        let screen = Screen::new(ScreenMode::of_stdout());
        let (allowed_tools, typed) = (BTreeSet::new(), String::new());
        Ok(Self { app, session, template, allowed_tools, screen, prompt, files, typed })
    }

    pub async fn run(mut self) -> Result<()> {
        self.print_header().await?;
        if let Some(session) = self.session.clone() {
            self.open_session(session).await?;
        }
        let mut interrupts = 0;
        loop {
            let initial = std::mem::take(&mut self.typed);
            let marker = if self.screen.mode() == ScreenMode::Rich {
                format!("{GREEN}›{GREEN:#} ")
            } else {
                "> ".to_owned()
            };
            let line = match self.prompt.read(&marker, &initial).await? {
                PromptInput::Line(line) => line,
                PromptInput::Interrupted if interrupts == 0 => {
                    interrupts += 1;
                    self.print_line(format!("{DIM}press Ctrl-C again or Ctrl-D to end the chat{DIM:#}"))?;
                    continue;
                }
                PromptInput::Interrupted | PromptInput::End => break,
            };
            interrupts = 0;
            let next = match self.run_line(&line).await {
                Ok(next) => next,
                Err(failure) => {
                    self.print_failure(&failure)?;
                    ChatFlow::Continue
                }
            };
            if next == ChatFlow::End {
                break;
            }
        }
        self.print_resume_hint()
    }

    async fn run_line(&mut self, line: &str) -> Result<ChatFlow> {
        if line.trim().is_empty() {
            return Ok(ChatFlow::Continue);
        }
        match command::parse(line) {
            Some(Ok(SlashCommand::Quit)) => Ok(ChatFlow::End),
            Some(command) => self.run_slash_command(command?).await.map(|()| ChatFlow::Continue),
            None => self.send_message(line).await.map(|()| ChatFlow::Continue),
        }
    }

    fn handle(&self, session: &SessionId) -> SessionHandle {
        SessionHandle {
            engine: self.app.engine.clone(),
            scope: self.app.scope.clone(),
            session: session.clone(),
        }
    }

    /// Send a message and follow the turn.
    async fn send_message(&mut self, text: &str) -> Result<()> {
        let session = self.ensure_session().await?;
        self.add_files(&session, text).await?;
        let events = self.subscribe(&session).await?;
        let options = SendOptions { if_running: IfRunning::Queue, on_wait: OnWait::Stay };
        let parts = vec![Part::text(text.trim())];
        match self.app.engine.turns().send(&self.app.scope, &session, parts, options).await {
            Ok(Sent::Started(running)) => self.watch(&session, running, events, TurnOrigin::NewMessage).await,
            Ok(Sent::Queued(_)) => self.print_line(format!(
                "{YELLOW}!{YELLOW:#} another process is running a turn in this session; your message is queued until it ends"
            )),
            // An earlier turn was interrupted: resume it, and put the message back in the prompt.
            Err(sapwood::Error::TurnOpen { .. }) => {
                self.typed = text.to_owned();
                self.resume_open_turn(&session).await
            }
            Err(error) => {
                self.typed = text.to_owned();
                Err(error.into())
            }
        }
    }

    /// Add the files of `--file` and the files that the message mentions as `@path` to the session's inputs.
    async fn add_files(&mut self, session: &SessionId, text: &str) -> Result<()> {
        let mentions = mentions::find(text, std::path::Path::is_file);
        for path in &mentions.missing {
            self.print_line(format!("{YELLOW}!{YELLOW:#} no file {}; it is sent as text", clean(path)))?;
        }
        let files: Vec<PathBuf> = std::mem::take(&mut self.files).into_iter().chain(mentions.files).collect();
        for path in files {
            if let Some(added) = attach(self.app, session, &path).await? {
                self.print_line(format!("{DIM}added {}{DIM:#}", clean(&added)))?;
            }
        }
        Ok(())
    }

    async fn ensure_session(&mut self) -> Result<SessionId> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let session = self.template.clone().start(self.app).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    async fn subscribe(&self, session: &SessionId) -> Result<Subscription> {
        let head = self.app.engine.directory().summary(&self.app.scope, session).await?.head.seq;
        Ok(self.app.engine.events().subscribe(&self.app.scope, session, head).await?)
    }

    async fn watch(
        &mut self,
        session: &SessionId,
        running: Running,
        mut events: Subscription,
        origin: TurnOrigin,
    ) -> Result<()> {
        let began = Instant::now();
        if let Some(notice) = &running.notice {
            self.print_line(format!("{YELLOW}!{YELLOW:#} {}", clean(notice)))?;
        }
        if origin == TurnOrigin::NewMessage {
            skip_own_message(&mut events).await?;
        }
        self.screen.print(&[String::new()])?;
        let (handle, typed) = (self.handle(session), std::mem::take(&mut self.typed));
        let earlier_calls = match origin {
            TurnOrigin::NewMessage => None,
            TurnOrigin::Resumed => Some(open_calls(self.app, session).await?),
        };
        let mut watch =
            Watch::new(handle, &mut self.screen, ApprovalChannel::Chat(&mut self.allowed_tools), typed);
        if let Some(calls) = earlier_calls {
            watch = watch.with_earlier_calls(calls);
        }
        let result = Box::pin(watch.run(running, events)).await?;
        self.typed = result.typed;
        if result.has_output {
            self.print_line(String::new())?;
        }
        self.print_summary(session, &result.report, began).await
    }

    /// Print the result of the turn and its cost.
    async fn print_summary(
        &mut self,
        session: &SessionId,
        report: &TurnReport,
        began: Instant,
    ) -> Result<()> {
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
        self.screen.print(&lines)
    }

    /// Open a session: show its last messages, and resume its interrupted turn, if any.
    async fn open_session(&mut self, session: SessionId) -> Result<()> {
        self.session = Some(session.clone());
        let summary = self.app.engine.directory().summary(&self.app.scope, &session).await?;
        self.app.engine.sessions().note_open(&self.app.scope, &session).await?;
        self.show_last_messages(&session).await?;
        if summary.open_turn.is_some() {
            return self.resume_open_turn(&session).await;
        }
        Ok(())
    }

    async fn resume_open_turn(&mut self, session: &SessionId) -> Result<()> {
        let events = self.subscribe(session).await?;
        self.print_line(format!("{YELLOW}!{YELLOW:#} a turn was interrupted here and is resumed now"))?;
        match self.app.engine.turns().resume(&self.app.scope, session, OnWait::Stay).await {
            Ok(Some(running)) => self.watch(session, running, events, TurnOrigin::Resumed).await,
            Ok(None) => Ok(()),
            Err(error) if error.code() == "session.leased" => self.print_line(format!(
                "{YELLOW}!{YELLOW:#} another process is running a turn in this session; new messages are queued until it ends"
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Show the last messages of a session for orientation.
    async fn show_last_messages(&mut self, session: &SessionId) -> Result<()> {
        let context = self.app.engine.views().context(&self.app.scope, session, None).await?;
        let has_text = |message: &&Message| message.role != Role::Tool && !message.text().trim().is_empty();
        let messages: Vec<_> = context.messages.iter().filter(has_text).collect();
        let mut lines = Vec::new();
        let skipped = messages.len().saturating_sub(MESSAGES_SHOWN);
        if skipped > 0 {
            lines.push(format!("{DIM}… {}{DIM:#}", render::plural(skipped as u64, "earlier message")));
            lines.push(String::new());
        }
        for message in &messages[skipped..] {
            lines.extend(self.render_message(message));
            lines.push(String::new());
        }
        self.screen.print(&lines)
    }

    fn render_message(&self, message: &Message) -> Vec<String> {
        let (width, text) = (self.screen.width(), message.text());
        match message.role {
            Role::User => vec![format!("{GREEN}›{GREEN:#} {}", fit(&text, width.saturating_sub(2)))],
            Role::Assistant | Role::System | Role::Tool if self.screen.mode() == ScreenMode::Plain => {
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

    async fn print_header(&mut self) -> Result<()> {
        let model = match &self.session {
            Some(session) => status::model_of(self.app, session).await?,
            None => self.template.agent.model.clone().unwrap_or_else(|| self.app.default_model()),
        };
        let what = match &self.session {
            Some(session) => format!("session {session}"),
            None => format!("new session with agent {}", clean(&self.template.agent.id)),
        };
        self.screen.print(&[
            format!("{BOLD}Sapwood{BOLD:#} · {} · {DIM}{what}{DIM:#}", clean(&model)),
            format!("{DIM}/help · Alt-Enter starts a new line · Ctrl-C cancels · Ctrl-D quits{DIM:#}"),
            String::new(),
        ])
    }

    fn print_resume_hint(&mut self) -> Result<()> {
        match self.session.clone() {
            Some(session) => self.print_line(format!("{DIM}resume with:{DIM:#} sapwood chat {session}")),
            None => Ok(()),
        }
    }

    fn print_line(&mut self, line: String) -> Result<()> {
        self.screen.print(&[line])
    }

    fn print_failure(&mut self, failure: &Failure) -> Result<()> {
        if failure.exit == crate::failure::Exit::Closed {
            return Err(failure.clone());
        }
        self.print_line(format!("{RED}{}{RED:#}  {DIM}{}{DIM:#}", clean(&failure.message), failure.hint))
    }
}

/// How the turn started. A new message is already on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnOrigin {
    NewMessage,
    Resumed,
}

/// Skip the events up to and including the user's own message, which is already on the screen.
async fn skip_own_message(events: &mut Subscription) -> Result<()> {
    loop {
        match events.next().await? {
            SessionEvent::Entry(record) if record.meta.kind == Kind::UserMessage => return Ok(()),
            _ => {}
        }
    }
}

/// The tool calls of the last answer, which a resumed turn may still have to run.
async fn open_calls(app: &App, session: &SessionId) -> Result<Vec<ToolCall>> {
    let context = app.engine.views().context(&app.scope, session, None).await?;
    let last = context.messages.iter().rfind(|message| message.role == Role::Assistant);
    let parts = last.map(|message| message.parts.as_slice()).unwrap_or_default();
    Ok(parts.iter().filter_map(Part::as_tool_call).cloned().collect())
}
