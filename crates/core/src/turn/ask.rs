//! How a turn asks a person: about one of its calls, or about the turn itself.

use super::machine::Machine;
use super::question::Asking;
use super::state::CONFIDENCE;
use super::{Effect, TurnStep};
use crate::content::{Json, ToolCall};
use crate::entry::ApprovalAsked;

impl Machine {
    /// Ask a person whether to continue with an answer that the model rated low.
    pub(super) fn ask_about_rating(&mut self, step: &mut TurnStep) {
        let percent = (self.state.rating.unwrap_or_default() * 100.0).round();
        let question = format!("The model is only {percent} % sure of this. Continue?");
        let given_up = match self.state.backtracks {
            0 => String::new(),
            1 => "; 1 earlier answer of this turn was given up".to_owned(),
            count => format!("; {count} earlier answers of this turn were given up"),
        };
        let why = format!("{}{given_up}", self.rating_text());
        // The round comes first: an entry after the question would show that the turn has continued.
        self.add_asked(step, why.clone());
        self.ask(step, Asking { question, kind: CONFIDENCE, why: Some(why) }, None);
        step.effects.push(Effect::AwaitPerson);
    }

    /// Add the entry that asks a person. The caller adds the effect if the turn has to wait.
    pub(super) fn ask(&mut self, step: &mut TurnStep, asking: Asking, call: Option<&ToolCall>) {
        let Asking { question, kind, why } = asking;
        let number = self.state.approvals_asked + 1;
        let turn = self.rules.turn.to_string();
        // Use the tail of the time-ordered id, which is its random part.
        let short = &turn[turn.len().saturating_sub(8)..];
        let approval = format!("{}~{short}.{number}", self.rules.session);
        let mut details = serde_json::json!({ "kind": kind, "tool": call.map(|call| &call.name) });
        if let Some(why) = why {
            details["why"] = why.into();
        }
        let details = Some(Json::from_value(&details));
        let call_id = call.map(|call| call.call_id.clone());
        self.add(step, ApprovalAsked { approval, question, call_id, details, deadlines: None });
    }
}
