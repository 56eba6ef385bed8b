//! A path as rounds: input, tool calls, answer and artifacts. Grafts and digests show another session in this form. The
//! rounds are a pure fold of a path and its artifacts.

use std::fmt::Write;

use serde::Serialize;

use crate::content::{Part, joined_text};
use crate::entry::{Body, Entry};
use crate::id::Seq;

/// Maximum length of the input and of the answer in a digest line, in characters.
const LINE_CHARS_MAX: usize = 160;
/// Maximum length of a tool result in full rounds, in characters.
const RESULT_CHARS_MAX: usize = 2_000;

/// One model answer, with its input and its tool results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathRound {
    /// 1, 2, 3 … along the path.
    pub number: u32,
    #[serde(skip)]
    pub first: Seq,
    pub asked: Option<String>,
    pub answered: String,
    pub tools: Vec<String>,
    pub artifacts: Vec<String>,
    #[serde(skip)]
    results: Vec<String>,
}

/// The rounds of a path. `artifacts` contains the name and seq of each artifact, in log order.
pub fn rounds_of(path: &[Entry], artifacts: &[(Seq, String)]) -> Vec<PathRound> {
    let mut rounds: Vec<PathRound> = Vec::new();
    let mut asked: Vec<String> = Vec::new();
    for entry in path {
        match &entry.body {
            Body::UserMessage(_) | Body::CustomMessage(_) => asked.push(entry.body.text()),
            Body::AssistantMessage(message) => {
                let tools = message.parts.iter().filter_map(Part::as_tool_call).map(|call| call.name.clone());
                let asked = std::mem::take(&mut asked);
                rounds.push(PathRound {
                    number: u32::try_from(rounds.len() + 1).unwrap_or(u32::MAX),
                    first: entry.meta.seq,
                    asked: (!asked.is_empty()).then(|| asked.join("\n")),
                    answered: entry.body.text(),
                    tools: tools.collect(),
                    artifacts: Vec::new(),
                    results: Vec::new(),
                });
            }
            Body::ToolResult(result) => {
                if let Some(round) = rounds.last_mut() {
                    round.results.push(joined_text(&result.parts));
                }
            }
            _ => {}
        }
    }
    for (seq, name) in artifacts {
        if let Some(round) = rounds.iter_mut().rev().find(|round| round.first < *seq) {
            round.artifacts.push(name.clone());
        }
    }
    rounds
}

/// One line per round with its artifacts. Includes the newest rounds that fit.
pub fn digest(rounds: &[PathRound], chars_max: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut remaining = chars_max;
    for round in rounds.iter().rev() {
        let line = digest_line(round);
        let chars = line.chars().count() + 1;
        if chars > remaining {
            break;
        }
        remaining -= chars;
        lines.push(line);
    }
    if lines.len() < rounds.len() {
        lines.push(format!("… {} earlier rounds", rounds.len() - lines.len()));
    }
    lines.reverse();
    lines.join("\n")
}

pub fn digest_line(round: &PathRound) -> String {
    let mut line = format!("{}.", round.number);
    if let Some(asked) = &round.asked {
        let _ = write!(line, " asked: {}", one_line(asked));
    }
    if !round.tools.is_empty() {
        let _ = write!(line, " [tools: {}]", round.tools.join(", "));
    }
    if !round.answered.is_empty() {
        let _ = write!(line, " → {}", one_line(&round.answered));
    }
    if !round.artifacts.is_empty() {
        let _ = write!(line, " [artifacts: {}]", round.artifacts.join(", "));
    }
    line
}

/// Convert a text to one line of at most `LINE_CHARS_MAX` characters. Runs of whitespace become one space.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, LINE_CHARS_MAX)
}

fn cut(text: &str, chars_max: usize) -> String {
    let mut kept: String = text.chars().take(chars_max).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}

/// The full text of these rounds with long results shortened, cut to `chars_max` characters.
pub fn rounds_text(rounds: &[PathRound], chars_max: usize) -> String {
    let mut text = String::new();
    for round in rounds {
        let _ = writeln!(text, "Round {}", round.number);
        if let Some(asked) = &round.asked {
            let _ = writeln!(text, "User: {asked}");
        }
        if !round.answered.is_empty() {
            let _ = writeln!(text, "Assistant: {}", round.answered);
        }
        for (at, result) in round.results.iter().enumerate() {
            let tool = round.tools.get(at).map_or("tool", String::as_str);
            let _ = writeln!(text, "Result of {tool}: {}", cut(result, RESULT_CHARS_MAX));
        }
        if !round.artifacts.is_empty() {
            let _ = writeln!(text, "Artifacts: {}", round.artifacts.join(", "));
        }
    }
    cut(text.trim_end(), chars_max)
}
