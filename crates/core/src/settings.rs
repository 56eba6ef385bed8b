//! Two folds that other folds use: the settings of a path and the labels of a log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::entry::{Body, Entry};
use crate::id::EntryId;

/// The settings for model calls. The last change on the path wins; an answer also sets the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The current model: the last one that was set or that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The requested model. Another model may have answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_asked: Option<String>,
    /// The reasoning effort; `None` means `off`. See [`Settings::thinking_level`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The names of the active skills; `None` if they were never set on the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<Vec<String>>,
    /// The system prompt, before its variables are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The values of the system prompt's variables, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The frozen agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Json>,
}

impl Settings {
    /// Apply the next entry of the path. Bodies that do not change settings are ignored.
    pub fn apply(&mut self, body: &Body) {
        match body {
            Body::ModelChanged(changed) => {
                self.model = Some(changed.model.clone());
                self.model_asked.clone_from(&self.model);
            }
            Body::ThinkingChanged(changed) => self.thinking = Some(changed.level.clone()),
            Body::SkillsChanged(changed) => self.skills = Some(changed.active.clone()),
            Body::ContextChanged(changed) => {
                replace_if_given(&mut self.system, &changed.system);
                replace_if_given(&mut self.cwd, &changed.cwd);
                replace_if_given(&mut self.agent, &changed.agent);
                if let Some(variables) = &changed.variables {
                    self.variables.clone_from(variables);
                }
            }
            Body::AssistantMessage(message) => replace_if_given(&mut self.model, &message.model),
            _ => {}
        }
    }

    /// The system prompt with each `{{ctx.NAME}}` replaced. Unknown names stay unchanged.
    pub fn system_prompt(&self) -> Option<String> {
        let system = self.system.as_deref()?;
        let mut prompt = String::with_capacity(system.len());
        let mut rest = system;
        while let Some((before, name, after)) = next_variable(rest) {
            prompt.push_str(before);
            match self.variables.get(name) {
                Some(value) => prompt.push_str(value),
                None => prompt.push_str(&rest[before.len()..rest.len() - after.len()]),
            }
            rest = after;
        }
        prompt.push_str(rest);
        Some(prompt)
    }

    /// The reasoning effort, `off` by default.
    pub fn thinking_level(&self) -> &str {
        self.thinking.as_deref().unwrap_or("off")
    }
}

/// The names of a prompt's variables.
pub fn variables_in(prompt: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = prompt;
    while let Some((_, name, after)) = next_variable(rest) {
        names.push(name);
        rest = after;
    }
    names
}

/// Split at the first `{{ctx.NAME}}`: the text before it, the name, and the text after it.
fn next_variable(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find("{{") {
        let start = from + found;
        let inside = &text[start + 2..];
        let end = inside.find("}}")?;
        let name = inside[..end].trim().strip_prefix("ctx.").filter(|name| is_name(name));
        match name {
            Some(name) => return Some((&text[..start], name, &inside[end + 2..])),
            None => from = start + 1,
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.'))
}

fn replace_if_given<T: Clone>(current: &mut Option<T>, given: &Option<T>) {
    if given.is_some() {
        current.clone_from(given);
    }
}

/// The labels of entries. The last label wins; a label entry without text removes the label.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(BTreeMap<EntryId, String>);

impl Labels {
    pub fn fold<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut labels = Self::default();
        for entry in entries {
            labels.apply(&entry.body);
        }
        labels
    }

    pub fn apply(&mut self, body: &Body) {
        let Body::Label(label) = body else { return };
        match &label.text {
            Some(text) => self.0.insert(label.target, text.clone()),
            None => self.0.remove(&label.target),
        };
    }

    pub fn get(&self, id: EntryId) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }

    /// The entries with this label.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = EntryId> + 'a {
        self.0.iter().filter(move |(_, name)| *name == text).map(|(id, _)| *id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (EntryId, &str)> {
        self.0.iter().map(|(id, text)| (*id, text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_variables_are_replaced() {
        let variables = [("project", "sapwood"), ("who", "{{ctx.project}}")];
        let filled = |system: &str| {
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            Settings { system: Some(system.to_owned()), variables, ..Settings::default() }.system_prompt()
        };
        let cases = [
            ("about {{ctx.project}}, {{ ctx.project }}.", "about sapwood, sapwood."),
            ("values are not expanded: {{ctx.who}}", "values are not expanded: {{ctx.project}}"),
            ("{{ctx.unknown}} and {{other}} stay", "{{ctx.unknown}} and {{other}} stay"),
            ("{{{ctx.project}}} {{ctx.}} {{", "{sapwood} {{ctx.}} {{"),
            ("{{ a {{ctx.project}}", "{{ a sapwood"),
        ];
        for (system, expected) in cases {
            assert_eq!(filled(system).unwrap(), expected);
        }
        assert_eq!(variables_in("{{ctx.a}} {{b}} {{ ctx.c-d }}"), ["a", "c-d"]);
    }
}
