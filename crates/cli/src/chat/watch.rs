//! Follows a running turn in the terminal: draws its events, cancels it, answers its questions, and sends further
//! messages to it.

use std::collections::BTreeSet;
use std::time::Duration;

use sapwood::core::content::ToolCall;
use sapwood::core::entry::{ApprovalAnswer, Body};
use sapwood::engine::turn::{PendingApproval, Running, TurnReport};
use sapwood::engine::{SessionEvent, Subscription};
use sapwood::{Engine, EntryId, Part, Scope, SessionId};

use super::keys::{KeyPress, Keyboard};
use super::screen::{Screen, ScreenMode};
use super::view::View;
use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, clean, fit, plural};

/// Redraw interval of the live rows.
const TICK: Duration = Duration::from_millis(100);
/// Number of ticks to wait, after a turn has ended, for the next turn to consume the queued messages.
const TICKS_FOR_NEXT: u32 = 20;
/// Maximum number of events processed before a redraw.
const EVENTS_AT_ONCE_MAX: usize = 256;
/// Maximum length of text typed during a turn.
const TYPED_BYTES_MAX: usize = 64 << 10;
/// Maximum number of lines shown of a question.
const QUESTION_LINES_MAX: usize = 60;

/// Where a turn's approval requests are answered.
pub enum ApprovalChannel<'a> {
    /// In this chat. The set contains the tools that the user always allows in this chat.
    Chat(&'a mut BTreeSet<String>),
    /// Later, with another command or client.
    Deferred,
}

/// The engine, scope and session of a chat.
#[derive(Clone)]
pub struct SessionHandle {
    pub engine: Engine,
    pub scope: Scope,
    pub session: SessionId,
}

/// The result of following a turn.
pub struct WatchResult {
    pub report: TurnReport,
    /// Text that was typed but not sent.
    pub typed: String,
    /// Whether the turn printed anything.
    pub has_output: bool,
}

/// A question on the screen.
struct ApprovalPrompt {
    pending: PendingApproval,
    /// The answer, or the reason for a denial, while it is typed.
    text: Option<String>,
}

impl ApprovalPrompt {
    fn new(pending: PendingApproval) -> Self {
        let text = (pending.kind == "question").then(String::new);
        Self { pending, text }
    }

    fn is_question(&self) -> bool {
        self.pending.kind == "question"
    }

    fn tool(&self) -> Option<&str> {
        self.pending.call.as_ref().filter(|_| self.pending.kind == "tool").map(|call| call.name.as_str())
    }

    /// The question, and for a tool call its input, at most `QUESTION_LINES_MAX` lines of it.
    fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = vec![match &self.pending.call {
            Some(call) if !self.is_question() => {
                format!(
                    "{YELLOW}?{YELLOW:#} allow {BOLD}{}{BOLD:#}?",
                    fit(&call.name, width.saturating_sub(16))
                )
            }
            _ => format!("{YELLOW}?{YELLOW:#} {BOLD}{}{BOLD:#}", clean(&self.pending.question)),
        }];
        if let Some(call) = self.pending.call.as_ref().filter(|_| !self.is_question()) {
            let mut fields = field_lines(&call.input.to_value());
            let more = fields.split_off(fields.len().min(QUESTION_LINES_MAX));
            lines.extend(fields.iter().map(|line| format!("    {CYAN}{}{CYAN:#}", clean(line))));
            if !more.is_empty() {
                lines.push(format!("    {DIM}… {}{DIM:#}", plural(more.len() as u64, "more line")));
            }
        }
        lines
    }

    /// The live row: the keys that answer the question, or the text typed so far.
    fn row(&self, width: usize) -> String {
        match (&self.text, self.is_question(), self.tool()) {
            (Some(text), true, _) => format!("{GREEN}›{GREEN:#} {}", tail(text, width.saturating_sub(3))),
            (Some(text), false, _) => {
                format!("  {DIM}why not?{DIM:#} {}", tail(text, width.saturating_sub(14)))
            }
            (None, _, Some(_)) => keys_row(&[("y", "yes"), ("a", "always in this chat"), NO, WHY_NOT]),
            (None, _, None) => keys_row(&[("y", "yes"), NO, WHY_NOT]),
        }
    }
}

const NO: (&str, &str) = ("n", "no");
const WHY_NOT: (&str, &str) = ("r", "no, and say why");

fn keys_row(keys: &[(&str, &str)]) -> String {
    let keys: Vec<String> = keys.iter().map(|(key, does)| format!("{BOLD}{key}{BOLD:#} {does}")).collect();
    format!("  {}", keys.join(" · "))
}

/// The fields of a call's input, one per line. Text keeps its line breaks.
fn field_lines(input: &serde_json::Value) -> Vec<String> {
    let serde_json::Value::Object(fields) = input else { return vec![input.to_string()] };
    let mut lines = Vec::new();
    for (name, value) in fields {
        match value {
            serde_json::Value::String(text) if text.contains('\n') => {
                lines.push(format!("{name}:"));
                lines.extend(text.lines().map(|line| format!("  {line}")));
            }
            serde_json::Value::String(text) => lines.push(format!("{name}: {text}")),
            other => lines.push(format!("{name}: {other}")),
        }
    }
    lines
}

/// The end of the typed text, on one row.
fn tail(text: &str, columns: usize) -> String {
    let line = clean(text).replace('\n', "↵");
    let count = line.chars().count();
    line.chars().skip(count.saturating_sub(columns)).collect()
}

pub struct Watch<'a> {
    handle: SessionHandle,
    screen: &'a mut Screen,
    view: View,
    keys: Option<Keyboard>,
    channel: ApprovalChannel<'a>,
    prompt: Option<ApprovalPrompt>,
    typed: String,
    /// Sent messages that no turn has consumed yet.
    waiting: BTreeSet<EntryId>,
    is_cancelling: bool,
    is_turn_open: bool,
    /// Whether this is a resumed turn, which may already have a pending question.
    is_resumed: bool,
    /// Permanent lines that are not drawn yet.
    lines: Vec<String>,
}

impl<'a> Watch<'a> {
    pub fn new(
        handle: SessionHandle,
        screen: &'a mut Screen,
        channel: ApprovalChannel<'a>,
        typed: String,
    ) -> Self {
        let view = View::new(screen.mode(), screen.width());
        let keys = Keyboard::open();
        let waiting = BTreeSet::new();
        Self {
            handle,
            screen,
            view,
            keys,
            channel,
            prompt: None,
            typed,
            waiting,
            is_cancelling: false,
            is_turn_open: true,
            is_resumed: false,
            lines: Vec::new(),
        }
    }

    /// Follow a resumed turn, with earlier calls whose results are pending.
    pub fn with_earlier_calls(mut self, calls: impl IntoIterator<Item = ToolCall>) -> Self {
        calls.into_iter().for_each(|call| self.view.register_call(call));
        self.is_resumed = true;
        self
    }

    /// Follow the turn until it ends, and also the turns that consume queued messages.
    pub async fn run(mut self, running: Running, mut events: Subscription) -> Result<WatchResult> {
        let ended = running.ended();
        tokio::pin!(ended);
        let mut report: Option<TurnReport> = None;
        let mut ticks_since_report = 0;
        let mut tick = tokio::time::interval(TICK);
        if self.is_resumed {
            self.show_next_question().await?;
        }
        loop {
            tokio::select! {
                event = events.next() => self.process_events(event?, &mut events).await?,
                key = next_key(&mut self.keys) => self.process_key(key).await?,
                _ = tokio::signal::ctrl_c() => self.cancel().await?,
                _ = tick.tick() => ticks_since_report += u32::from(report.is_some()),
                outcome = &mut ended, if report.is_none() => report = Some(outcome?),
            }
            if report.is_some() {
                while let Some(event) = events.try_next().await? {
                    self.process_events(event, &mut events).await?;
                }
                let is_waiting = report.as_ref().is_some_and(|report| report.ended.is_none());
                if is_waiting
                    || !self.expects_more_turns()
                    || ticks_since_report > TICKS_FOR_NEXT && !self.is_turn_open
                {
                    break;
                }
            }
            self.draw()?;
        }
        self.lines.extend(self.view.finish());
        self.screen.print(&std::mem::take(&mut self.lines))?;
        let typed = self.close_keyboard();
        let report =
            report.ok_or_else(|| sapwood::Error::TurnLost { session: self.handle.session.clone() })?;
        Ok(WatchResult { report, typed, has_output: self.view.has_output() })
    }

    /// Whether to wait for another turn: messages that no turn has consumed start the next turn.
    fn expects_more_turns(&self) -> bool {
        self.is_turn_open || !self.waiting.is_empty()
    }

    fn live(&self) -> Vec<String> {
        let width = self.screen.width();
        if let Some(prompt) = &self.prompt {
            return vec![prompt.row(width)];
        }
        let mut rows = self.view.live();
        if !self.typed.is_empty() {
            let typed = tail(&self.typed, width.saturating_sub(18));
            rows.push(format!("{GREEN}›{GREEN:#} {typed} {DIM}Enter sends it{DIM:#}"));
        }
        rows
    }

    fn draw(&mut self) -> Result<()> {
        let (lines, live) = (std::mem::take(&mut self.lines), self.live());
        self.screen.draw(&lines, live)
    }

    /// Process an event and all queued events, then draw once.
    async fn process_events(&mut self, first: SessionEvent, events: &mut Subscription) -> Result<()> {
        self.process_event(&first).await?;
        for _ in 0..EVENTS_AT_ONCE_MAX {
            let Some(event) = events.try_next().await? else { break };
            self.process_event(&event).await?;
        }
        self.draw()
    }

    /// Show the event before its question, so that the question appears below the related lines.
    async fn process_event(&mut self, event: &SessionEvent) -> Result<()> {
        self.lines.extend(self.view.apply(event));
        if let SessionEvent::Entry(record) = event {
            match record.decode() {
                Ok(Body::ApprovalAsked(_)) => self.show_next_question().await?,
                // The answer came from this chat or from another client.
                Ok(Body::ApprovalAnswered(given)) => {
                    if self.prompt.as_ref().is_some_and(|prompt| prompt.pending.approval == given.approval) {
                        self.prompt = None;
                    }
                    self.show_next_question().await?;
                }
                Ok(Body::InputTaken(taken)) => {
                    self.waiting.remove(&taken.input);
                }
                Ok(Body::TurnStarted(_)) => self.is_turn_open = true,
                Ok(Body::TurnEnded(_)) => self.is_turn_open = false,
                _ => {}
            }
        }
        Ok(())
    }

    /// Show the next pending question. Calls of tools in the allowed set are approved without a question.
    async fn show_next_question(&mut self) -> Result<()> {
        let ApprovalChannel::Chat(allowed_tools) = &self.channel else { return Ok(()) };
        if self.prompt.is_some() {
            return Ok(());
        }
        let SessionHandle { engine, scope, session } = &self.handle;
        for pending in engine.turn_control().approvals(scope, session).await? {
            let prompt = ApprovalPrompt::new(pending);
            if prompt.tool().is_some_and(|tool| allowed_tools.contains(tool)) {
                engine
                    .turn_control()
                    .answer(scope, &prompt.pending.approval, ApprovalAnswer::Approved, None)
                    .await?;
                continue;
            }
            if let Some(call) = &prompt.pending.call {
                self.view.register_call(call.clone());
            }
            let row = prompt.row(self.screen.width());
            let mut lines = prompt.lines(self.screen.width());
            if self.screen.mode() == ScreenMode::Plain {
                // A plain screen has no live rows, so print the keys as a line.
                lines.push(row.clone());
            }
            self.lines.extend(self.view.notes(lines));
            self.prompt = Some(prompt);
            break;
        }
        Ok(())
    }

    async fn process_key(&mut self, key: KeyPress) -> Result<()> {
        if key == KeyPress::Interrupt {
            return self.cancel().await;
        }
        match self.prompt.take() {
            Some(prompt) => self.answer_with(prompt, key).await,
            None => self.type_ahead(key).await,
        }
    }

    async fn cancel(&mut self) -> Result<()> {
        if self.is_cancelling {
            return Ok(());
        }
        self.is_cancelling = true;
        self.prompt = None;
        self.view.set_waiting("cancelling");
        match self.handle.engine.turn_control().cancel(&self.handle.scope, &self.handle.session).await {
            // The turn ended before it was cancelled.
            Err(sapwood::Error::NoTurn { .. }) => Ok(()),
            cancelled => Ok(cancelled.map(drop)?),
        }
    }

    async fn answer_with(&mut self, mut prompt: ApprovalPrompt, key: KeyPress) -> Result<()> {
        let is_question = prompt.is_question();
        match (&mut prompt.text, key) {
            (Some(text), KeyPress::Enter) if !text.trim().is_empty() || !is_question => {
                let reason = Some(text.trim().to_owned()).filter(|reason| !reason.is_empty());
                let answer = if is_question { ApprovalAnswer::Approved } else { ApprovalAnswer::Denied };
                return self.answer(&prompt, answer, reason).await;
            }
            (Some(_), KeyPress::Escape) if !is_question => prompt.text = None,
            (Some(text), key) => edit(text, key),
            (None, KeyPress::Text(letters)) => match letters.chars().next() {
                Some('y' | 'Y') => return self.answer(&prompt, ApprovalAnswer::Approved, None).await,
                Some('n' | 'N') => return self.answer(&prompt, ApprovalAnswer::Denied, None).await,
                Some('a' | 'A') if prompt.tool().is_some() => {
                    if let (ApprovalChannel::Chat(allowed_tools), Some(tool)) =
                        (&mut self.channel, prompt.tool())
                    {
                        allowed_tools.insert(tool.to_owned());
                    }
                    return self.answer(&prompt, ApprovalAnswer::Approved, None).await;
                }
                // Keep letters typed after `r` as the beginning of the reason.
                Some('r' | 'R') => prompt.text = Some(letters[1..].to_owned()),
                _ => {}
            },
            (None, _) => {}
        }
        self.prompt = Some(prompt);
        Ok(())
    }

    async fn answer(
        &mut self,
        prompt: &ApprovalPrompt,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<()> {
        let SessionHandle { engine, scope, .. } = &self.handle;
        let line = answer_line(prompt, answer, reason.as_deref());
        match engine.turn_control().answer(scope, &prompt.pending.approval, answer, reason).await {
            // Already answered by another client.
            Err(sapwood::Error::NoApproval { .. }) => return Ok(()),
            answered => answered?,
        };
        self.view.set_waiting("continuing");
        self.lines.extend(self.view.notes(vec![line]));
        self.draw()
    }

    async fn type_ahead(&mut self, key: KeyPress) -> Result<()> {
        let is_command = self.typed.starts_with('/');
        match key {
            // Slash commands run only after the turn.
            KeyPress::Enter if is_command || self.typed.trim().is_empty() => Ok(()),
            KeyPress::Enter => {
                let parts = vec![Part::text(self.typed.trim())];
                match self
                    .handle
                    .engine
                    .turn_control()
                    .steer(&self.handle.scope, &self.handle.session, parts)
                    .await
                {
                    Ok(input) => {
                        self.waiting.insert(input);
                        self.typed.clear();
                        Ok(())
                    }
                    // The turn is over: keep the text for the prompt.
                    Err(sapwood::Error::NoTurn { .. }) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            key => {
                edit(&mut self.typed, key);
                Ok(())
            }
        }
    }

    /// Close the keyboard and return the unsent text, so that it is not lost.
    fn close_keyboard(&mut self) -> String {
        if let Some(mut keys) = self.keys.take() {
            while let Some(key) = keys.try_next() {
                edit(&mut self.typed, key);
            }
        }
        std::mem::take(&mut self.typed)
    }
}

fn edit(text: &mut String, key: KeyPress) {
    match key {
        KeyPress::Text(more) if text.len() + more.len() <= TYPED_BYTES_MAX => text.push_str(&more),
        KeyPress::Backspace => {
            text.pop();
        }
        KeyPress::ClearLine => text.clear(),
        KeyPress::Text(_) | KeyPress::Enter | KeyPress::Interrupt | KeyPress::End | KeyPress::Escape => {}
    }
}

fn answer_line(prompt: &ApprovalPrompt, answer: ApprovalAnswer, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| fit(reason, 70)).unwrap_or_default();
    let line = match answer {
        ApprovalAnswer::Approved if prompt.is_question() => format!("{GREEN}›{GREEN:#} {reason}"),
        ApprovalAnswer::Approved => format!("  {GREEN}y{GREEN:#} allowed {reason}"),
        ApprovalAnswer::Denied if reason.is_empty() => format!("  {RED}n{RED:#} refused"),
        ApprovalAnswer::Denied => format!("  {RED}n{RED:#} refused: {reason}"),
    };
    line.trim_end().to_owned()
}

async fn next_key(keys: &mut Option<Keyboard>) -> KeyPress {
    match keys {
        Some(keyboard) => match keyboard.next().await {
            Some(key) => key,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
