//! Parses slash commands: the chat's own commands, and `sapwood` commands that it runs with its session. Pure.

use crate::failure::{Failure, Result};

#[derive(Debug, PartialEq, Eq)]
pub enum SlashCommand {
    Help,
    Quit,
    /// Move the leaf to the entry before the last user message.
    Undo,
    /// Fork the session and continue in the fork.
    Fork {
        at: Option<String>,
    },
    /// Start a new session with the named agent, or else with the configured agent.
    New {
        agent: Option<String>,
    },
    Agent {
        name: Option<String>,
    },
    Model {
        name: Option<String>,
    },
    Export {
        file: Option<String>,
    },
    /// List the skills, or turn a skill on or off.
    Skill {
        args: Vec<String>,
    },
    Sessions,
    Open {
        session: String,
    },
    /// Run a `sapwood` command, with the session inserted after the command name.
    Run {
        args: Vec<String>,
    },
}

/// A row of the help: name, arguments, description.
type HelpRow = (&'static str, &'static str, &'static str);

const CHAT_COMMANDS: &[HelpRow] = &[
    ("help", "", "show this list"),
    ("tree", "", "show the branches of this session"),
    ("branch", "ENTRY", "go back to an entry and continue from there"),
    ("undo", "", "go back to before your last message and edit it"),
    ("fork", "[ENTRY]", "continue in a new session that shares the path of this one"),
    ("new", "[AGENT]", "start a new session"),
    ("sessions", "", "list your latest sessions"),
    ("open", "SESSION", "switch to another session"),
    ("clear", "", "empty the context; the log keeps all entries"),
    ("compact", "[OPTIONS]", "replace older messages with a summary"),
    ("model", "[NAME]", "show the model, or switch to another one"),
    ("agent", "[NAME]", "show this session's agent, or start a session with another one"),
    ("skill", "[on|off NAME]", "list the skills, or turn one on or off in this session"),
    ("cost", "", "show tokens and cost per model"),
    ("export", "[FILE]", "write this session to a file"),
    ("quit", "", "end the chat; the session is kept"),
];

/// `sapwood` commands available as slash commands of the same name. Their first argument is a session.
const SESSION_COMMANDS: &[&str] = &[
    "tree",
    "branch",
    "compact",
    "uncompact",
    "prune",
    "trim",
    "show",
    "context",
    "feed",
    "ledger",
    "usage",
    "info",
    "ancestry",
    "archives",
    "members",
    "share",
    "label",
    "rename",
];

/// Aliases of `sapwood` commands.
const ALIASES: &[(&str, &str)] = &[("clear", "reset"), ("cost", "usage")];

pub fn names() -> impl Iterator<Item = &'static str> {
    let rest =
        SESSION_COMMANDS.iter().copied().filter(|name| CHAT_COMMANDS.iter().all(|(known, ..)| known != name));
    CHAT_COMMANDS.iter().map(|(name, ..)| *name).chain(rest)
}

/// Rows of the help: the command with its arguments, and its description.
pub fn help() -> Vec<(String, &'static str)> {
    CHAT_COMMANDS
        .iter()
        .map(|(name, rest, about)| (format!("/{name} {rest}").trim_end().to_owned(), *about))
        .collect()
}

/// Parse a line. Returns `None` for a message, which includes paths such as `/etc/hosts` and text after two slashes.
pub fn parse(line: &str) -> Option<Result<SlashCommand>> {
    let words = line.trim().strip_prefix('/')?;
    let name = words.split_whitespace().next().unwrap_or_default();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return None;
    }
    Some(split(words).and_then(|words| command_of(&words)))
}

fn command_of(words: &[String]) -> Result<SlashCommand> {
    let (name, rest) = words.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    let first_arg = || rest.first().cloned();
    let at_most = |count: usize| {
        if rest.len() > count {
            let message = format!("unexpected argument {} of /{name}", rest[count]);
            return Err(Failure::usage(message, "type /help to see the arguments of each command"));
        }
        Ok(())
    };
    match name {
        "help" | "?" => at_most(0).map(|()| SlashCommand::Help),
        "quit" | "exit" | "q" => at_most(0).map(|()| SlashCommand::Quit),
        "skill" => at_most(2).map(|()| SlashCommand::Skill { args: rest.to_vec() }),
        "undo" => at_most(0).map(|()| SlashCommand::Undo),
        "fork" => at_most(1).map(|()| SlashCommand::Fork { at: first_arg() }),
        "new" => at_most(1).map(|()| SlashCommand::New { agent: first_arg() }),
        "agent" => at_most(1).map(|()| SlashCommand::Agent { name: first_arg() }),
        "model" => at_most(1).map(|()| SlashCommand::Model { name: first_arg() }),
        "export" => at_most(1).map(|()| SlashCommand::Export { file: first_arg() }),
        "sessions" | "ls" => at_most(0).map(|()| SlashCommand::Sessions),
        "open" => {
            at_most(1)?;
            let session = first_arg().ok_or_else(|| {
                Failure::usage("the session is missing", "type /sessions to list the latest")
            })?;
            Ok(SlashCommand::Open { session })
        }
        name => {
            let target = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, target)| target);
            let is_known = SESSION_COMMANDS.contains(&name) || target != name;
            if !is_known {
                return Err(Failure::usage(format!("no command /{name}"), "type /help to list all commands"));
            }
            let words = std::iter::once(target.to_owned()).chain(rest.iter().cloned());
            Ok(SlashCommand::Run { args: words.collect() })
        }
    }
}

/// Split into words like a shell. Only quotes are special; backslashes are not.
fn split(text: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in text.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(Failure::usage("a quote is not closed", "close or remove it"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_and_a_name_is_a_command_and_a_path_is_not() {
        let parsed = |line| parse(line).unwrap().unwrap();
        assert_eq!(parsed("/undo"), SlashCommand::Undo);
        assert_eq!(parsed(" /fork 3 "), SlashCommand::Fork { at: Some("3".into()) });
        assert_eq!(parsed("/clear"), SlashCommand::Run { args: vec!["reset".into()] });
        let words = vec!["branch".into(), "3".into(), "--summary".into(), "it was wrong".into()];
        assert_eq!(parsed("/branch 3 --summary \"it was wrong\""), SlashCommand::Run { args: words });
        assert!(parse("/etc/hosts is a file").is_none());
        assert!(parse("// comment").is_none());
        assert!(parse("hello").is_none());
    }

    #[test]
    fn unknown_commands_and_arguments_are_errors() {
        for line in ["/nonsense", "/undo now", "/open", "/branch \"3"] {
            assert!(parse(line).unwrap().is_err(), "{line}");
        }
    }

    #[test]
    fn every_listed_command_is_parsed() {
        for name in names() {
            let line = format!("/{name} x");
            let bare = format!("/{name}");
            assert!(parse(&line).unwrap().is_ok() || parse(&bare).unwrap().is_ok(), "{name}");
        }
    }
}
