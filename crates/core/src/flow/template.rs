//! Prompt templates: their placeholders, and the default prompts of the improvement pass.

/// The default prompt for a role in the improvement pass.
pub const REFLECT: &str = "The work is done. Review your work in this run: what went well, what went wrong, what \
    was missing or unclear in what you were given, and what should be done differently next time. Write your findings.";
/// The default prompt for the feedback role.
pub const FEEDBACK_WORK: &str = "Below are the findings of every role of a run that you did not take part in. Write \
    feedback for the owner of this flow: what to change, and why, the most important first.";

/// The prefix of a placeholder that names a variable.
pub const VARIABLE_PREFIX: &str = "ctx.";

/// The names of the `{{NAME}}` placeholders, in text order.
pub fn template_names(template: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = template;
    while let Some((_, after)) = rest.split_once("{{") {
        let Some((name, tail)) = after.split_once("}}") else { break };
        names.push(name.trim().to_owned());
        rest = tail;
    }
    names
}
