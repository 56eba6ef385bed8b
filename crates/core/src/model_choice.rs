//! Which model answers next. Pure: the caller resolves the chosen name and checks that it can be called.

use std::fmt;

use crate::agent::Agent;
use crate::settings::Settings;

/// The built-in model that needs no key. An answer of this model does not choose the model of later answers.
pub const DEMO_MODEL: &str = "demo";
/// Prefix of the model name in answers that a hook supplied.
const HOOK_PREFIX: &str = "hook/";

/// Who chose the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelOrigin {
    /// The current call names the model.
    Call,
    /// The model is the last one on the session's path.
    Path,
    /// The model is the last one on the session's path, and only imported entries name it.
    Import,
    /// The session's agent names the model.
    Agent,
    /// The model is the configured default.
    Default,
}

impl fmt::Display for ModelOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelOrigin::Call => "the model of this call",
            ModelOrigin::Path => "the session's last model",
            ModelOrigin::Import => "the last model of the imported session",
            ModelOrigin::Agent => "the agent's model",
            ModelOrigin::Default => "the default model",
        })
    }
}

/// A model and who chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// The name as it was given. An imported name may have another program's spelling.
    pub model: String,
    /// Who chose it. The caller turns [`ModelOrigin::Path`] into [`ModelOrigin::Import`] where that applies.
    pub origin: ModelOrigin,
}

/// Choose the model of the next answer: the one asked for in this call, else the path's last model, else the agent's,
/// else the default.
pub fn choose_model(call: Option<&str>, settings: &Settings, agent: &Agent, default: &str) -> ModelChoice {
    let choices = [
        (call, ModelOrigin::Call),
        (path_model(settings, agent), ModelOrigin::Path),
        (agent.model.as_deref(), ModelOrigin::Agent),
        (Some(default), ModelOrigin::Default),
    ];
    let chosen = choices.into_iter().find_map(|(model, origin)| Some((model?, origin)));
    let (model, origin) = chosen.unwrap_or((default, ModelOrigin::Default));
    ModelChoice { model: model.to_owned(), origin }
}

/// The last model of a path. The following answers choose no model:
///
/// 1. the answer of a fallback model, because the first model is tried again in the next turn;
/// 2. the answer of the demo model, because it answers where no model was chosen;
/// 3. the answer of a hook, because no model gave it.
fn path_model<'s>(settings: &'s Settings, agent: &Agent) -> Option<&'s str> {
    let asked = settings.model_asked.as_deref();
    let last = settings.model.as_deref().filter(|last| {
        let is_fallback = agent.fallback_chain.iter().any(|link| link.model == *last);
        !is_fallback && *last != DEMO_MODEL && !last.starts_with(HOOK_PREFIX)
    });
    last.or(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::ChainLink;

    fn settings(asked: Option<&str>, last: Option<&str>) -> Settings {
        let (model_asked, model) = (asked.map(str::to_owned), last.map(str::to_owned));
        Settings { model_asked, model, ..Settings::default() }
    }

    #[test]
    fn the_call_precedes_the_path_the_agent_and_the_default() {
        use ModelOrigin::{Agent as OfAgent, Call, Default, Path};
        let cases = [
            (Some("c"), Some("p"), Some("p"), Some("a"), ("c", Call)),
            (None, Some("p"), Some("p"), Some("a"), ("p", Path)),
            (None, None, Some("p"), Some("a"), ("p", Path)),
            (None, Some("asked"), Some("answered"), None, ("answered", Path)),
            (None, None, None, Some("a"), ("a", OfAgent)),
            (None, None, None, None, ("default", Default)),
        ];
        for (call, asked, last, of_agent, expected) in cases {
            let agent = Agent::default_with(of_agent.map(str::to_owned));
            let chosen = choose_model(call, &settings(asked, last), &agent, "default");
            assert_eq!((chosen.model.as_str(), chosen.origin), expected);
        }
    }

    #[test]
    fn a_fallback_the_demo_model_and_a_hook_choose_no_model() {
        let link = ChainLink { model: "spare".to_owned(), max_attempts: 1 };
        let agent = Agent { fallback_chain: vec![link], ..Agent::default_with(Some("a".to_owned())) };
        for last in ["spare", "demo", "hook/cache"] {
            let chosen = |asked| choose_model(None, &settings(asked, Some(last)), &agent, "default").model;
            assert_eq!(chosen(None), "a", "{last}");
            assert_eq!(chosen(Some("asked")), "asked", "{last}");
        }
        let chosen = choose_model(None, &settings(Some("demo"), Some("demo")), &agent, "default");
        assert_eq!((chosen.model.as_str(), chosen.origin), ("demo", ModelOrigin::Path));
    }
}
