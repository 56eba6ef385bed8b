//! Overrides of the session's agent for one turn: another model, other instructions, tools that the caller runs. They
//! are logged when the turn begins, so that any process that resumes the turn uses the same terms.

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::entry::{Body, EngineRecord, TurnTerms};
use crate::port::model::Thinking;
use crate::port::tool::{Replay, ToolSpec, Touch};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Replaces the session's system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<CallersTool>,
}

/// A tool that the caller runs. The turn ends with the call, and the next turn starts with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallersTool {
    pub name: String,
    #[serde(default)]
    pub description: String,
    pub input_schema: Json,
}

impl CallersTool {
    pub fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            touch: Touch::Callers,
            replay: Replay::Never,
        }
    }
}

impl Terms {
    /// The entry for the log; `None` if there are no overrides.
    pub fn to_body(&self) -> Option<Body> {
        (*self != Self::default()).then(|| TurnTerms::of(self).into())
    }

    /// Read the terms from a turn's entries.
    pub fn of<'a>(bodies: impl IntoIterator<Item = &'a Body>) -> Self {
        bodies.into_iter().find_map(TurnTerms::read).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_round_trip_and_empty_terms_write_no_entry() {
        let schema = Json::parse(r#"{"type":"object"}"#).unwrap();
        let tool =
            CallersTool { name: "weather".to_owned(), description: String::new(), input_schema: schema };
        let terms = Terms {
            model: Some("demo".to_owned()),
            temperature: Some(0.5),
            tools: vec![tool],
            ..Terms::default()
        };
        let info = terms.to_body().unwrap();
        assert_eq!(Terms::of(&[info]), terms);
        assert_eq!(Terms::default().to_body(), None);
        assert_eq!(Terms::of(&[]), Terms::default());
    }
}
