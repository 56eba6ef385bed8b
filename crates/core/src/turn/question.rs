//! A question to a person, and why it is asked.

use crate::content::ToolCall;
use crate::port::tool::Touch;

/// A question to a person.
pub(super) struct Asking {
    pub question: String,
    /// The kind of the question, as stored in its details.
    pub kind: &'static str,
    /// Why a person has to be asked.
    pub why: Option<String>,
}

/// The question about a call that needs a person.
pub(super) fn question_of(call: &ToolCall, touch: Touch) -> Asking {
    if touch == Touch::Asks {
        let input = call.input.to_value();
        let question = input["question"].as_str().unwrap_or("The agent has a question.").to_owned();
        return Asking { question, kind: "question", why: None };
    }
    let input: String = call.input.get().chars().take(400).collect();
    let question = format!("May the agent call {} with {input}?", call.name);
    Asking { question, kind: "tool", why: Some("the session's approval mode requires an answer".to_owned()) }
}
