//! Converts events to lines. Text is rendered while it streams, a tool call is one line with its outcome, and reasoning
//! is one dim line. Pure, except for the clock that counts the seconds of the current activity.
//!
//! Text from models and tools is untrusted and cleaned before it is shown.

use std::time::Instant;

use sapwood::Part;
use sapwood::core::content::{ToolCall, joined_text};
use sapwood::core::entry::{AssistantMessage, Body, Compaction, Round, RoundStatus, ToolResult, UserMessage};
use sapwood::core::pressure::Pressure;
use sapwood::engine::{FragmentKind, SessionEvent};

use super::markdown::Markdown;
use super::screen::{LIVE_ROWS_MAX, ScreenMode};
use crate::render::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, clean, fit};

/// Maximum number of live rows for text that is not final yet.
const PENDING_ROWS_MAX: usize = LIVE_ROWS_MAX - 2;
/// Maximum width of a tool's input.
const INPUT_COLUMNS_MAX: usize = 60;
/// Maximum length of the buffered reasoning, of which only one line is shown.
const REASONING_BYTES_MAX: usize = 4_096;
const SPINNER: &[char] = &['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// The current activity.
enum Activity {
    Thinking,
    Writing,
    Calling(String),
    Running(Vec<String>),
    Waiting(String),
}

/// The kind of the previous line, which determines blank lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PreviousLine {
    Nothing,
    Text,
    Tool,
}

pub struct View {
    mode: ScreenMode,
    width: usize,
    markdown: Markdown,
    /// In plain mode, the current incomplete line.
    line: String,
    /// The part of the streaming message that has been shown.
    streamed: String,
    reasoning: String,
    /// Whether the reasoning of the streaming message has been shown.
    is_reasoning_shown: bool,
    calls: Vec<ToolCall>,
    activity: Activity,
    since: Instant,
    previous: PreviousLine,
    out: Vec<String>,
}

impl View {
    pub fn new(mode: ScreenMode, width: usize) -> Self {
        Self {
            mode,
            width,
            markdown: Markdown::new(width),
            line: String::new(),
            streamed: String::new(),
            reasoning: String::new(),
            is_reasoning_shown: false,
            calls: Vec::new(),
            activity: Activity::Thinking,
            since: Instant::now(),
            previous: PreviousLine::Nothing,
            out: Vec::new(),
        }
    }

    /// Apply one event and return the permanent lines.
    pub fn apply(&mut self, event: &SessionEvent) -> Vec<String> {
        match event {
            SessionEvent::Fragment(fragment) => self.apply_fragment(&fragment.kind),
            // An unreadable entry cannot be shown. Commands that read the log report it.
            SessionEvent::Entry(record) => {
                if let Ok(body) = record.decode() {
                    self.apply_entry(&body);
                }
            }
        }
        std::mem::take(&mut self.out)
    }

    /// End the turn and return the remaining lines.
    pub fn finish(&mut self) -> Vec<String> {
        self.end_text();
        std::mem::take(&mut self.out)
    }

    /// Add lines of the chat itself, such as a question and its answer, after the lines of the turn so far.
    pub fn notes(&mut self, lines: Vec<String>) -> Vec<String> {
        self.end_text();
        lines.into_iter().for_each(|line| self.tool_line(line));
        std::mem::take(&mut self.out)
    }

    /// The live rows: text that is not final yet, and the current activity.
    pub fn live(&self) -> Vec<String> {
        let mut rows = match self.mode {
            ScreenMode::Rich => self.markdown.pending(PENDING_ROWS_MAX),
            ScreenMode::Plain => Vec::new(),
        };
        let seconds = self.since.elapsed().as_secs();
        let tick = (self.since.elapsed().as_millis() / 100) as usize % SPINNER.len();
        let activity = match &self.activity {
            Activity::Thinking if !self.reasoning.trim().is_empty() => last_line(&self.reasoning).to_owned(),
            Activity::Thinking => "thinking".to_owned(),
            Activity::Writing => "writing".to_owned(),
            Activity::Calling(name) => format!("calling {name}"),
            Activity::Running(ids) => format!("running {}", self.names(ids)),
            Activity::Waiting(what) => what.clone(),
        };
        let time = format!(" · {seconds} s · Ctrl-C cancels");
        let activity = fit(&activity, self.width.saturating_sub(time.len() + 3));
        rows.push(format!("{CYAN}{}{CYAN:#} {DIM}{activity}{time}{DIM:#}", SPINNER[tick]));
        rows
    }

    /// Register a call that was made before this view was created.
    pub fn register_call(&mut self, call: ToolCall) {
        if !self.calls.iter().any(|known| known.call_id == call.call_id) {
            self.calls.push(call);
        }
    }

    pub fn has_output(&self) -> bool {
        self.previous != PreviousLine::Nothing
    }

    pub fn set_waiting(&mut self, what: &str) {
        self.activity = Activity::Waiting(what.to_owned());
    }

    fn names(&self, ids: &[String]) -> String {
        let call = |id: &String| self.calls.iter().find(|call| call.call_id == *id);
        let names: Vec<String> = ids
            .iter()
            .filter_map(call)
            .map(|call| format!("{} {}", call.name, short_input(call)).trim_end().to_owned())
            .collect();
        names.join(", ")
    }

    fn apply_fragment(&mut self, news: &FragmentKind) {
        match news {
            FragmentKind::Token { text } => {
                self.end_reasoning();
                self.activity = Activity::Writing;
                self.show_text(text);
            }
            FragmentKind::Reasoning { text } => {
                self.activity = Activity::Thinking;
                if self.reasoning.len() < REASONING_BYTES_MAX {
                    self.reasoning.push_str(text);
                }
            }
            FragmentKind::ToolCall { name, .. } => {
                self.activity = Activity::Calling(clean(name).into_owned())
            }
            FragmentKind::ToolRunning { call_id, .. } => match &mut self.activity {
                Activity::Running(ids) => ids.push(call_id.clone()),
                _ => self.activity = Activity::Running(vec![call_id.clone()]),
            },
            FragmentKind::Failover { from, to, why } => {
                let line = format!("{from} failed ({why}): trying {to}");
                self.warn(&line);
            }
            FragmentKind::Retrying { model, after_ms, why } => {
                let seconds = after_ms.div_ceil(1_000);
                self.activity = Activity::Waiting(format!("retrying {model} in {seconds} s: {why}"));
            }
            FragmentKind::Compacting => self.activity = Activity::Waiting("compacting".to_owned()),
            FragmentKind::OverBudget { text } => self.warn(text),
            FragmentKind::Waiting { .. } => self.activity = Activity::Waiting("waiting for you".to_owned()),
            // The log has an entry for each level that needs a warning.
            FragmentKind::Pressure { .. } => {}
        }
    }

    fn warn(&mut self, text: &str) {
        self.end_text();
        self.tool_line(format!("  {YELLOW}!{YELLOW:#} {}", fit(text, self.width.saturating_sub(4))));
    }

    fn apply_entry(&mut self, body: &Body) {
        match body {
            Body::AssistantMessage(message) => self.apply_assistant_message(message),
            Body::ToolResult(result) => self.apply_tool_result(result),
            Body::UserMessage(message) => self.apply_user_message(message),
            Body::Compaction(compaction) => self.apply_compaction(compaction),
            Body::Round(round) => self.apply_round(round),
            Body::PressureChanged(_) => {
                if let Some(warning) = Pressure::of_body(body).and_then(|pressure| pressure.warning()) {
                    self.warn(&warning);
                }
            }
            _ => {}
        }
    }

    /// Process the complete message and show the text that was not streamed.
    fn apply_assistant_message(&mut self, message: &AssistantMessage) {
        let whole = joined_text(&message.parts);
        if self.reasoning.is_empty() && !self.is_reasoning_shown {
            let thoughts = message.parts.iter().filter_map(|part| match part {
                Part::Reasoning(reasoning) => Some(reasoning.text.as_str()),
                _ => None,
            });
            self.reasoning = thoughts.collect::<Vec<_>>().join(" ");
        }
        self.end_reasoning();
        if let Some(rest) = whole.strip_prefix(self.streamed.as_str()) {
            let rest = rest.to_owned();
            self.show_text(&rest);
        }
        self.end_text();
        self.is_reasoning_shown = false;
        self.calls.extend(message.parts.iter().filter_map(Part::as_tool_call).cloned());
        self.activity = Activity::Thinking;
    }

    fn apply_tool_result(&mut self, result: &ToolResult) {
        let call = self.calls.iter().position(|call| call.call_id == result.call_id);
        let call = call.map(|at| self.calls.remove(at));
        let name = call.as_ref().map(|call| call.name.as_str()).or(result.tool.as_deref()).unwrap_or("tool");
        let name = fit(name, 40);
        let input = call.as_ref().map(short_input).unwrap_or_default();
        let time = result.duration_ms.map(duration).unwrap_or_default();
        let (mark, style) = match (result.is_error, result.interrupted) {
            (_, true) => ('∅', YELLOW),
            (true, _) => ('✗', RED),
            (false, _) => ('✓', GREEN),
        };
        let columns_left =
            self.width.saturating_sub(name.chars().count() + input.chars().count() + time.len() + 10);
        let why = match (result.is_error || result.interrupted, columns_left) {
            (true, 12..) => format!("  {style}{}{style:#}", fit(&joined_text(&result.parts), columns_left)),
            _ => String::new(),
        };
        self.end_text();
        let input = if input.is_empty() { input } else { format!(" {input}") };
        let line = format!("  {style}{mark}{style:#} {BOLD}{name}{BOLD:#}{input}{why}  {DIM}{time}{DIM:#}");
        self.tool_line(line);
        if let Activity::Running(ids) = &mut self.activity {
            ids.retain(|id| *id != result.call_id);
            if ids.is_empty() {
                self.activity = Activity::Thinking;
            }
        }
    }

    /// Show a message that was sent while the turn ran.
    fn apply_user_message(&mut self, message: &UserMessage) {
        self.end_text();
        let text = fit(&joined_text(&message.parts), self.width.saturating_sub(2));
        self.tool_line(format!("{GREEN}›{GREEN:#} {text}"));
    }

    fn apply_compaction(&mut self, compaction: &Compaction) {
        self.end_text();
        let by = compaction.strategy.as_str();
        self.tool_line(format!("  {DIM}⊟ older messages were compacted ({by}){DIM:#}"));
    }

    /// Say why an answer was discarded. The next answer follows.
    fn apply_round(&mut self, round: &Round) {
        if let Some(why) = given_up(round) {
            self.end_text();
            let line = fit(&why, self.width.saturating_sub(4));
            self.tool_line(format!("  {YELLOW}↶{YELLOW:#} {line}"));
        }
    }

    fn show_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.streamed.is_empty() && self.previous != PreviousLine::Nothing {
            self.out.push(String::new());
        }
        self.streamed.push_str(text);
        let lines = match self.mode {
            ScreenMode::Rich => self.markdown.push(text),
            ScreenMode::Plain => self.push_plain(text),
        };
        self.out.extend(lines);
        self.previous = PreviousLine::Text;
    }

    fn push_plain(&mut self, text: &str) -> Vec<String> {
        self.line.push_str(&clean(text));
        let Some((whole, rest)) = self.line.rsplit_once('\n') else { return Vec::new() };
        let (lines, rest) = (whole.split('\n').map(str::to_owned).collect(), rest.to_owned());
        self.line = rest;
        lines
    }

    fn end_text(&mut self) {
        self.end_reasoning();
        self.out.extend(self.markdown.finish());
        if !self.line.is_empty() {
            self.out.push(std::mem::take(&mut self.line));
        }
        self.streamed.clear();
    }

    fn end_reasoning(&mut self) {
        let text = std::mem::take(&mut self.reasoning);
        if text.trim().is_empty() {
            return;
        }
        self.is_reasoning_shown = true;
        let line = fit(text.trim(), self.width.saturating_sub(4));
        self.tool_line(format!("  {DIM}∴ {line}{DIM:#}"));
    }

    fn tool_line(&mut self, line: String) {
        if self.previous == PreviousLine::Text {
            self.out.push(String::new());
        }
        self.out.push(line.trim_end().to_owned());
        self.previous = PreviousLine::Tool;
    }
}

/// Why the answer of a round was discarded, for users; `None` for other rounds.
pub fn given_up(round: &Round) -> Option<String> {
    let is_given_up = round.result.as_ref().is_some_and(|result| result.status == RoundStatus::Backtracked);
    let why = round.reason.as_deref().unwrap_or("its rating was too low");
    is_given_up.then(|| format!("this answer was given up, and the model tries again: {}", clean(why)))
}

fn last_line(text: &str) -> &str {
    text.trim_end().rsplit('\n').next().unwrap_or_default()
}

/// A short description of a call: its most informative field, or the whole input.
pub fn short_input(call: &ToolCall) -> String {
    const INFORMATIVE_FIELDS: &[&str] =
        &["path", "command", "pattern", "query", "url", "name", "title", "question"];
    let value = call.input.to_value();
    let field = INFORMATIVE_FIELDS.iter().find_map(|key| value.get(key)).and_then(serde_json::Value::as_str);
    let text = match (field, &value) {
        (Some(text), _) => text.to_owned(),
        (None, serde_json::Value::Object(fields)) if fields.is_empty() => String::new(),
        (None, _) => call.input.get().to_owned(),
    };
    fit(&text, INPUT_COLUMNS_MAX)
}

pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        _ => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use sapwood::core::Json;

    use super::*;

    fn view() -> View {
        View::new(ScreenMode::Plain, 80)
    }

    fn shown(view: &mut View, body: Body) -> String {
        view.apply_entry(&body);
        let lines = std::mem::take(&mut view.out);
        anstream::adapter::strip_str(&lines.join("\n")).to_string()
    }

    fn answer(parts: Vec<Part>) -> Body {
        Body::AssistantMessage(AssistantMessage {
            parts,
            model: None,
            usage: None,
            cost_nano_usd: None,
            stop: Default::default(),
        })
    }

    fn result(text: &str, is_error: bool) -> Body {
        Body::ToolResult(ToolResult {
            call_id: "c".into(),
            tool: None,
            parts: vec![Part::text(text)],
            is_error,
            duration_ms: Some(1_234),
            interrupted: false,
            full: None,
        })
    }

    #[test]
    fn a_tool_is_one_line_with_its_outcome() {
        let mut view = view();
        let call = Part::tool_call("c", "read_file", Json::parse(r#"{"path": "a.txt"}"#).unwrap());
        assert_eq!(shown(&mut view, answer(vec![Part::text("I look."), call.clone()])), "I look.");
        assert_eq!(shown(&mut view, result("fine", false)), "\n  ✓ read_file a.txt  1.2 s");
        shown(&mut view, answer(vec![call]));
        assert_eq!(shown(&mut view, result("not\nthere", true)), "  ✗ read_file a.txt  not there  1.2 s");
    }

    #[test]
    fn streamed_text_is_not_shown_twice_and_other_text_is_shown() {
        let mut view = view();
        view.apply_fragment(&FragmentKind::Token { text: "Hello, ".into() });
        assert_eq!(shown(&mut view, answer(vec![Part::text("Hello, you.")])), "Hello, you.");
        view.apply_fragment(&FragmentKind::Token { text: "Twice".into() });
        assert_eq!(shown(&mut view, answer(vec![Part::text("Twice")])), "\nTwice");
    }

    #[test]
    fn an_answer_that_was_given_up_says_why() {
        let mut view = view();
        shown(&mut view, answer(vec![Part::text("Perhaps.")]));
        let result = sapwood::core::entry::RoundResult {
            status: RoundStatus::Backtracked,
            tokens: 1,
            cost_nano_usd: None,
        };
        let action = sapwood::core::entry::Action {
            kind: sapwood::core::entry::ActionKind::Answer,
            what: String::new(),
        };
        let reason = Some("rated 0.10".to_owned());
        let round =
            Round { number: 1, action, result: Some(result), reason, confidence: Some(0.1), trace_id: None };
        let line = shown(&mut view, Body::Round(round));
        assert_eq!(line, "\n  ↶ this answer was given up, and the model tries again: rated 0.10");
    }

    #[test]
    fn reasoning_is_one_short_line() {
        let mut view = view();
        let thought = format!("First\n{}", "word ".repeat(50));
        view.apply_fragment(&FragmentKind::Reasoning { text: thought.clone() });
        view.apply_fragment(&FragmentKind::Token { text: "So".into() });
        let reasoning = sapwood::core::content::Reasoning { text: thought, redacted: false };
        let text = shown(&mut view, answer(vec![Part::Reasoning(reasoning), Part::text("So.")]));
        assert_eq!(text.matches('∴').count(), 1, "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("  ∴ First word") && lines[0].ends_with('…'), "{text}");
        assert_eq!(lines.last(), Some(&"So."));
    }

    #[test]
    fn names_and_results_contain_no_control_sequences() {
        let mut view = view();
        let call = Part::tool_call("c", "\u{1b}[2J", Json::parse(r#"{"path": "\u001b]0;x\u0007"}"#).unwrap());
        shown(&mut view, answer(vec![call]));
        view.apply_entry(&result("\u{1b}[31m", true));
        let line = view.out.join("");
        assert!(
            !line.contains("\u{1b}[2J") && !line.contains("\u{1b}]") && !line.contains('\u{7}'),
            "{line:?}"
        );
    }
}
