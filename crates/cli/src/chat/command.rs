//! What can be said with a slash: the commands of a conversation, and any command of `sapwood` that begins with a session.
//! Pure.

use crate::failure::{Failure, Result};

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    Quit,
    /// Go back to before the last thing that was said.
    Undo,
    /// A new session that shares this one's path, from here on the one that is talked to.
    Fork {
        at: Option<String>,
    },
    /// A fresh session with the same agent, or with another one.
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
    /// The skills, or one of them on or off.
    Skill {
        words: Vec<String>,
    },
    Sessions,
    Open {
        session: String,
    },
    /// The same words as on the command line; the session goes behind the first.
    Run {
        words: Vec<String>,
    },
}

/// Name, what may follow, what it does.
type Row = (&'static str, &'static str, &'static str);

const OWN: &[Row] = &[
    ("help", "", "this list"),
    ("tree", "", "the branches of this session"),
    ("branch", "ENTRY", "go back to an entry; what follows hangs from there"),
    ("undo", "", "go back to before your last message, and edit it"),
    ("fork", "[ENTRY]", "go on in a new session that shares this one's path"),
    ("new", "[AGENT]", "begin a new session"),
    ("sessions", "", "your latest sessions"),
    ("open", "SESSION", "go on in another session"),
    ("clear", "", "empty the context; the log keeps everything"),
    ("compact", "[OPTIONS]", "let a summary stand in for the older part of the context"),
    ("model", "[NAME]", "show the model, or ask another one from now on"),
    ("agent", "[NAME]", "show this session's agent, or begin a session with another one"),
    ("skill", "[on|off NAME]", "show the skills, or make one active in this session"),
    ("cost", "", "tokens and cost, per model"),
    ("export", "[FILE]", "write this session to a file"),
    ("quit", "", "end; the session stays"),
];

/// Commands of `sapwood` that take a session first, and so need no more than their name here.
const PASSED_ON: &[&str] = &[
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

/// Another name for what is passed on.
const ALIASES: &[(&str, &str)] = &[("clear", "reset"), ("cost", "usage")];

pub fn names() -> impl Iterator<Item = &'static str> {
    let rest = PASSED_ON.iter().copied().filter(|name| OWN.iter().all(|(own, ..)| own != name));
    OWN.iter().map(|(name, ..)| *name).chain(rest)
}

/// Rows for the help: what to type, and what it does.
pub fn help() -> Vec<(String, &'static str)> {
    OWN.iter().map(|(name, rest, about)| (format!("/{name} {rest}").trim_end().to_owned(), *about)).collect()
}

/// None for what is no command but something to be said: a path such as `/etc/hosts`, two slashes.
pub fn parse(line: &str) -> Option<Result<Command>> {
    let words = line.trim().strip_prefix('/')?;
    let name = words.split_whitespace().next().unwrap_or_default();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return None;
    }
    Some(split(words).and_then(|words| command_of(&words)))
}

fn command_of(words: &[String]) -> Result<Command> {
    let (name, rest) = words.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    let one = || rest.first().cloned();
    let most = |count: usize| {
        if rest.len() > count {
            let message = format!("/{name} takes no {}", rest[count]);
            return Err(Failure::usage(message, "/help shows what each command takes"));
        }
        Ok(())
    };
    match name {
        "help" | "?" => most(0).map(|()| Command::Help),
        "quit" | "exit" | "q" => most(0).map(|()| Command::Quit),
        "skill" => most(2).map(|()| Command::Skill { words: rest.to_vec() }),
        "undo" => most(0).map(|()| Command::Undo),
        "fork" => most(1).map(|()| Command::Fork { at: one() }),
        "new" => most(1).map(|()| Command::New { agent: one() }),
        "agent" => most(1).map(|()| Command::Agent { name: one() }),
        "model" => most(1).map(|()| Command::Model { name: one() }),
        "export" => most(1).map(|()| Command::Export { file: one() }),
        "sessions" | "ls" => most(0).map(|()| Command::Sessions),
        "open" => {
            most(1)?;
            let session =
                one().ok_or_else(|| Failure::usage("which session?", "/sessions shows the latest"))?;
            Ok(Command::Open { session })
        }
        name => {
            let real = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, real)| real);
            let is_known = PASSED_ON.contains(&name) || real != name;
            if !is_known {
                return Err(Failure::usage(format!("there is no command /{name}"), "/help shows them all"));
            }
            let words = std::iter::once(real.to_owned()).chain(rest.iter().cloned());
            Ok(Command::Run { words: words.collect() })
        }
    }
}

/// Words as a shell would see them: quotes hold together, and nothing else is special.
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
        return Err(Failure::usage("a quote is not closed", "close it, or leave it out"));
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
        assert_eq!(parsed("/undo"), Command::Undo);
        assert_eq!(parsed(" /fork 3 "), Command::Fork { at: Some("3".into()) });
        assert_eq!(parsed("/clear"), Command::Run { words: vec!["reset".into()] });
        let words = vec!["branch".into(), "3".into(), "--summary".into(), "it was wrong".into()];
        assert_eq!(parsed("/branch 3 --summary \"it was wrong\""), Command::Run { words });
        assert!(parse("/etc/hosts is a file").is_none());
        assert!(parse("// comment").is_none());
        assert!(parse("hello").is_none());
    }

    #[test]
    fn what_is_not_known_is_said() {
        for line in ["/nonsense", "/undo now", "/open", "/branch \"3"] {
            assert!(parse(line).unwrap().is_err(), "{line}");
        }
    }

    #[test]
    fn every_name_that_is_offered_is_understood() {
        for name in names() {
            let line = format!("/{name} x");
            let bare = format!("/{name}");
            assert!(parse(&line).unwrap().is_ok() || parse(&bare).unwrap().is_ok(), "{name}");
        }
    }
}
