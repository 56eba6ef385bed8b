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
use super::screen::{Look, Screen};
use super::view::View;
use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, clean, fit, plural};

/// Redraw interval of the live rows.
const TICK: Duration = Duration::from_millis(100);
/// Number of ticks to wait for a turn that consumes the queued messages.
const TICKS_FOR_NEXT: u32 = 20;
/// Maximum number of events processed before a redraw.
const EVENTS_AT_ONCE_MAX: usize = 256;
/// Maximum length of text typed during a turn.
const TYPED_BYTES_MAX: usize = 64 << 10;
/// Maximum number of lines shown of a question.
const QUESTION_LINES_MAX: usize = 60;

/// Where a turn's approval requests are answered.
pub enum Asks<'a> {
    /// In this chat, with the tools that are always allowed in it.
    Here(&'a mut BTreeSet<String>),
    /// Later, with another command or client.
    Later,
}

/// The engine, scope and session of a chat.
#[derive(Clone)]
pub struct Line {
    pub engine: Engine,
    pub scope: Scope,
    pub session: SessionId,
}

/// The result of following a turn.
pub struct Watched {
    pub report: TurnReport,
    /// Text that was typed but not sent.
    pub typed: String,
    /// Whether the turn printed anything.
    pub has_shown: bool,
}

/// A question on the screen.
struct Ask {
    pending: PendingApproval,
    /// The answer, or the reason for a denial, while it is typed.
    text: Option<String>,
}

impl Ask {
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

    /// The complete question, so that the user sees the whole call before answering.
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

    /// The keys that answer the question.
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
    line: Line,
    screen: &'a mut Screen,
    view: View,
    keys: Option<Keyboard>,
    asks: Asks<'a>,
    ask: Option<Ask>,
    typed: String,
    /// Sent messages that no turn has consumed yet.
    waiting: BTreeSet<EntryId>,
    is_cancelling: bool,
    is_turn_open: bool,
    /// Whether the turn started before it was followed, so that a question may already be pending.
    has_past: bool,
    /// Permanent lines that are not drawn yet.
    lines: Vec<String>,
}

impl<'a> Watch<'a> {
    pub fn new(line: Line, screen: &'a mut Screen, asks: Asks<'a>, typed: String) -> Self {
        let view = View::new(screen.look(), screen.width());
        let keys = Keyboard::open();
        let waiting = BTreeSet::new();
        Self {
            line,
            screen,
            view,
            keys,
            asks,
            ask: None,
            typed,
            waiting,
            is_cancelling: false,
            is_turn_open: true,
            has_past: false,
            lines: Vec::new(),
        }
    }

    /// Follow a resumed turn, with earlier calls whose results are pending.
    pub fn with_past(mut self, calls: impl IntoIterator<Item = ToolCall>) -> Self {
        calls.into_iter().for_each(|call| self.view.know_call(call));
        self.has_past = true;
        self
    }

    /// Follow the turn until it ends, and also the turns that consume queued messages.
    pub async fn run(mut self, running: Running, mut events: Subscription) -> Result<Watched> {
        let ended = running.ended();
        tokio::pin!(ended);
        let mut report: Option<TurnReport> = None;
        let mut ticks_since_report = 0;
        let mut tick = tokio::time::interval(TICK);
        if self.has_past {
            self.look_for_questions().await?;
        }
        loop {
            tokio::select! {
                event = events.next() => self.take_events(event?, &mut events).await?,
                key = next_key(&mut self.keys) => self.take_key(key).await?,
                _ = tokio::signal::ctrl_c() => self.cancel().await?,
                _ = tick.tick() => ticks_since_report += u32::from(report.is_some()),
                told = &mut ended, if report.is_none() => report = Some(told?),
            }
            if report.is_some() {
                while let Some(event) = events.try_next().await? {
                    self.take_events(event, &mut events).await?;
                }
                let is_left = report.as_ref().is_some_and(|report| report.ended.is_none());
                if is_left || !self.goes_on() || ticks_since_report > TICKS_FOR_NEXT && !self.is_turn_open {
                    break;
                }
            }
            self.draw()?;
        }
        self.lines.extend(self.view.finish());
        self.screen.settle(&std::mem::take(&mut self.lines))?;
        let typed = self.give_back_keyboard();
        let report = report.ok_or_else(|| sapwood::Error::TurnLost { session: self.line.session.clone() })?;
        Ok(Watched { report, typed, has_shown: self.view.has_shown() })
    }

    /// Whether to wait for another turn: messages that no turn has consumed start the next turn.
    fn goes_on(&self) -> bool {
        self.is_turn_open || !self.waiting.is_empty()
    }

    fn live(&self) -> Vec<String> {
        let width = self.screen.width();
        if let Some(ask) = &self.ask {
            return vec![ask.row(width)];
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
    async fn take_events(&mut self, first: SessionEvent, events: &mut Subscription) -> Result<()> {
        self.take_event(&first).await?;
        for _ in 0..EVENTS_AT_ONCE_MAX {
            let Some(event) = events.try_next().await? else { break };
            self.take_event(&event).await?;
        }
        self.draw()
    }

    /// Show the event first, so that a question appears below the lines that led to it.
    async fn take_event(&mut self, event: &SessionEvent) -> Result<()> {
        self.lines.extend(self.view.apply(event));
        if let SessionEvent::Entry(record) = event {
            match record.decode() {
                Ok(Body::ApprovalAsked(_)) => self.look_for_questions().await?,
                // The answer came from this chat or from another client.
                Ok(Body::ApprovalAnswered(given)) => {
                    if self.ask.as_ref().is_some_and(|ask| ask.pending.approval == given.approval) {
                        self.ask = None;
                    }
                    self.look_for_questions().await?;
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

    /// Show the next question. Calls of always allowed tools are approved at once.
    async fn look_for_questions(&mut self) -> Result<()> {
        let Asks::Here(always) = &self.asks else { return Ok(()) };
        if self.ask.is_some() {
            return Ok(());
        }
        let Line { engine, scope, session } = &self.line;
        for pending in engine.approvals(scope, session).await? {
            let ask = Ask::new(pending);
            if ask.tool().is_some_and(|tool| always.contains(tool)) {
                engine.answer(scope, &ask.pending.approval, ApprovalAnswer::Approved, None).await?;
                continue;
            }
            if let Some(call) = &ask.pending.call {
                self.view.know_call(call.clone());
            }
            let row = ask.row(self.screen.width());
            let mut lines = ask.lines(self.screen.width());
            if self.screen.look() == Look::Plain {
                // A plain screen has no live rows, so print the keys as a line.
                lines.push(row.clone());
            }
            self.lines.extend(self.view.notes(lines));
            self.ask = Some(ask);
            break;
        }
        Ok(())
    }

    async fn take_key(&mut self, key: KeyPress) -> Result<()> {
        if key == KeyPress::Interrupt {
            return self.cancel().await;
        }
        match self.ask.take() {
            Some(ask) => self.answer_with(ask, key).await,
            None => self.type_ahead(key).await,
        }
    }

    async fn cancel(&mut self) -> Result<()> {
        if self.is_cancelling {
            return Ok(());
        }
        self.is_cancelling = true;
        self.ask = None;
        self.view.set_waiting("cancelling");
        match self.line.engine.cancel(&self.line.scope, &self.line.session).await {
            // The turn ended before it was cancelled.
            Err(sapwood::Error::NoTurn { .. }) => Ok(()),
            cancelled => Ok(cancelled.map(drop)?),
        }
    }

    async fn answer_with(&mut self, mut ask: Ask, key: KeyPress) -> Result<()> {
        let is_question = ask.is_question();
        match (&mut ask.text, key) {
            (Some(text), KeyPress::Enter) if !text.trim().is_empty() || !is_question => {
                let reason = Some(text.trim().to_owned()).filter(|reason| !reason.is_empty());
                let answer = if is_question { ApprovalAnswer::Approved } else { ApprovalAnswer::Denied };
                return self.answer(&ask, answer, reason).await;
            }
            (Some(_), KeyPress::Escape) if !is_question => ask.text = None,
            (Some(text), key) => edit(text, key),
            (None, KeyPress::Text(letters)) => match letters.chars().next() {
                Some('y' | 'Y') => return self.answer(&ask, ApprovalAnswer::Approved, None).await,
                Some('n' | 'N') => return self.answer(&ask, ApprovalAnswer::Denied, None).await,
                Some('a' | 'A') if ask.tool().is_some() => {
                    if let (Asks::Here(always), Some(tool)) = (&mut self.asks, ask.tool()) {
                        always.insert(tool.to_owned());
                    }
                    return self.answer(&ask, ApprovalAnswer::Approved, None).await;
                }
                // Keep letters typed after `r` as the beginning of the reason.
                Some('r' | 'R') => ask.text = Some(letters[1..].to_owned()),
                _ => {}
            },
            (None, _) => {}
        }
        self.ask = Some(ask);
        Ok(())
    }

    async fn answer(&mut self, ask: &Ask, answer: ApprovalAnswer, reason: Option<String>) -> Result<()> {
        let Line { engine, scope, .. } = &self.line;
        let line = answer_line(ask, answer, reason.as_deref());
        match engine.answer(scope, &ask.pending.approval, answer, reason).await {
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
                match self.line.engine.steer(&self.line.scope, &self.line.session, parts).await {
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
    fn give_back_keyboard(&mut self) -> String {
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

fn answer_line(ask: &Ask, answer: ApprovalAnswer, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| fit(reason, 70)).unwrap_or_default();
    let line = match answer {
        ApprovalAnswer::Approved if ask.is_question() => format!("{GREEN}›{GREEN:#} {reason}"),
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
