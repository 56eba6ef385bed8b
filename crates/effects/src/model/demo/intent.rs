//! Parses a request to the demo model: a phrase such as `read`, followed by its argument. Tool inputs use the field
//! names from the schemas of the request's tools.

use sapwood_core::port::tool::ToolSpec;
use serde_json::{Map, Value, json};

use super::words::WORDS_MAX;

/// Maximum number of tool calls per message.
const CALLS_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    Hello,
    /// Tool names with their inputs.
    Calls(Vec<(String, Value)>),
    /// The required tool is not available. Contains the requested action.
    NoTool(String),
    Words(usize),
    Think(String),
    Recall,
    Summary,
    /// Report the tool results that have arrived.
    Report,
    Other(String),
}

impl Intent {
    pub fn calls(&self) -> &[(String, Value)] {
        match self {
            Intent::Calls(calls) => calls,
            _ => &[],
        }
    }

    pub fn thought(&self) -> String {
        let what = match self {
            Intent::Calls(calls) => format!("This needs {} of the available tools.", calls.len()),
            Intent::Think(what) => {
                format!("What do I know about {what}? I should look at its parts and how they connect.")
            }
            Intent::Report => "The tools have returned, so I can report their results.".to_owned(),
            _ => "This needs no tool, so I can answer directly.".to_owned(),
        };
        format!("Let me see what the user wants. {what}")
    }
}

/// The phrases that request a call to one tool.
struct ToolPhrase {
    /// The request starts with one of these phrases.
    prefixes: &'static [&'static str],
    /// Tools that can serve the request. The first available one is used.
    tools: &'static [&'static str],
    /// Possible names of the input field for the argument. The first one in the tool's schema is used.
    fields: &'static [&'static str],
    /// Used if the request has no argument. `None` if an argument is required.
    default_argument: Option<&'static str>,
}

const TOOL_PHRASES: &[ToolPhrase] = &[
    ToolPhrase { prefixes: &["git status"], tools: &["git_status"], fields: &[], default_argument: Some("") },
    ToolPhrase {
        prefixes: &["git diff"],
        tools: &["git_diff"],
        fields: &["path"],
        default_argument: Some(""),
    },
    ToolPhrase {
        prefixes: &["git commit", "commit"],
        tools: &["git_commit"],
        fields: &["message"],
        default_argument: Some("Commit by the demo model"),
    },
    ToolPhrase {
        prefixes: &["read", "show me", "open"],
        tools: &["read_file"],
        fields: &["path", "file"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["list files in", "list", "ls"],
        tools: &["list_directory"],
        fields: &["path", "directory"],
        default_argument: Some("."),
    },
    ToolPhrase {
        prefixes: &["find files", "find"],
        tools: &["find_files"],
        fields: &["pattern", "glob"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["search for", "search", "grep"],
        tools: &["search_text"],
        fields: &["pattern", "query", "text", "regex"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["run", "execute"],
        tools: &["run_command"],
        fields: &["command", "cmd"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["fetch", "get"],
        tools: &["http_request"],
        fields: &["url"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["ask me", "ask"],
        tools: &["ask_user"],
        fields: &["question", "prompt"],
        default_argument: None,
    },
    ToolPhrase {
        prefixes: &["delegate"],
        tools: &["delegate"],
        fields: &["task", "prompt", "input"],
        default_argument: None,
    },
    ToolPhrase { prefixes: &["recall"], tools: &["recall"], fields: &["query"], default_argument: None },
];

pub fn parse_intent(text: &str, tools: &[ToolSpec]) -> Intent {
    let text = text.trim();
    let lower = text.to_lowercase();
    if asks_for_summary(&lower) {
        return Intent::Summary;
    }
    if let Some(count) = word_count(&lower) {
        return Intent::Words(count);
    }
    if let Some(intent) = parse_calls(text, tools) {
        return intent;
    }
    let begins = |words: &[&str]| words.iter().any(|word| begins_with_word(&lower, word));
    match () {
        () if text.is_empty() || begins(&["hello", "hi", "hey", "help", "what can you", "who are you"]) => {
            Intent::Hello
        }
        () if lower.contains("what is sapwood") => Intent::Hello,
        () if begins(&["think about", "think"]) => {
            let what = lower.trim_start_matches("think").trim().trim_start_matches("about").trim();
            Intent::Think(if what.is_empty() { "trees".to_owned() } else { what.to_owned() })
        }
        () if lower.contains("what did i say") || lower.contains("do you remember") => Intent::Recall,
        () => Intent::Other(text.to_owned()),
    }
}

/// Checks only the beginning and the last line, because the text in between may be the conversation to summarize.
fn asks_for_summary(lower: &str) -> bool {
    let last = lower.lines().last().unwrap_or_default();
    ["summarise", "summarize", "write the summary", "write a summary"]
        .iter()
        .any(|ask| begins_with_word(lower, ask) || begins_with_word(last, ask))
}

fn begins_with_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| rest.chars().next().is_none_or(|next| !next.is_alphanumeric()))
}

/// Parses `write 2000 words` and `give me 300 words about …`.
fn word_count(lower: &str) -> Option<usize> {
    let words: Vec<&str> = lower.split_whitespace().take(12).collect();
    let at =
        words.iter().position(|word| word.trim_matches(|letter: char| !letter.is_alphabetic()) == "words")?;
    let count = words.get(at.checked_sub(1)?)?.replace(['_', ','], "").parse::<usize>().ok()?;
    (count > 0).then_some(count.min(WORDS_MAX))
}

/// Parses several calls, joined by `and` or on separate lines.
fn parse_calls(text: &str, tools: &[ToolSpec]) -> Option<Intent> {
    if let Some(intent) = parse_write(text, tools) {
        return Some(intent);
    }
    let parts = text.split('\n').flat_map(|line| line.split(" and "));
    let read: Option<Vec<Result<(String, Value), String>>> = parts
        .filter(|part| !part.trim().is_empty())
        .take(CALLS_MAX)
        .map(|part| parse_call(part, tools))
        .collect();
    // An `and` may be part of a single request, so fall back to parsing the whole text as one request.
    let read =
        read.filter(|read| !read.is_empty()).or_else(|| parse_call(text, tools).map(|call| vec![call]))?;
    let calls: Result<Vec<(String, Value)>, String> = read.into_iter().collect();
    Some(match calls {
        Ok(calls) => Intent::Calls(calls),
        Err(what) => Intent::NoTool(what),
    })
}

/// Parses `write FILE: TEXT` and `write TEXT to FILE`.
fn parse_write(text: &str, tools: &[ToolSpec]) -> Option<Intent> {
    let rest = strip_word(text, "write").or_else(|| strip_word(text, "save"))?;
    let is_file = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    let by_colon = rest.split_once(':').map(|(path, text)| (path.trim(), text.trim()));
    let by_to = rest.rsplit_once(" to ").map(|(text, path)| (path.trim(), text.trim()));
    let (path, text) = [by_colon, by_to].into_iter().flatten().find(|(path, _)| is_file(path))?;
    let Some(tool) = tools.iter().find(|tool| tool.name == "write_file") else {
        return Some(Intent::NoTool(format!("write {path}")));
    };
    let mut input = Map::new();
    set_field(&mut input, tool, &["path", "file"], path);
    set_field(&mut input, tool, &["content", "text", "contents"], text);
    Some(Intent::Calls(vec![(tool.name.clone(), Value::Object(input))]))
}

/// Parses one call. Returns `None` if the text requests no tool, and an error if the requested tool is not available.
fn parse_call(text: &str, tools: &[ToolSpec]) -> Option<Result<(String, Value), String>> {
    let text = text.trim().trim_end_matches(['?', '!']);
    if let Some(rest) = strip_word(text, "use") {
        return parse_use(rest, tools);
    }
    for phrase in TOOL_PHRASES {
        let Some(rest) = phrase.prefixes.iter().find_map(|prefix| strip_word(text, prefix)) else { continue };
        let rest = rest.trim().trim_matches(['`', '"']);
        let argument = if rest.is_empty() { phrase.default_argument? } else { rest };
        let Some(tool) = tools.iter().find(|tool| phrase.tools.contains(&tool.name.as_str())) else {
            return Some(Err(text.to_owned()));
        };
        let mut input = Map::new();
        if !argument.is_empty() {
            set_field(&mut input, tool, phrase.fields, argument);
        }
        return Some(Ok((tool.name.clone(), Value::Object(input))));
    }
    None
}

/// Parses `use TOOL` and `use TOOL {"json": 1}`. Input that is not JSON is sent as a string, so that a schema can
/// reject it.
fn parse_use(rest: &str, tools: &[ToolSpec]) -> Option<Result<(String, Value), String>> {
    let (name, input) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), "{}"));
    let tool = tools.iter().find(|tool| tool.name == name);
    let looks_like_a_tool = name.contains('_') || input.trim_start().starts_with('{');
    match tool {
        Some(_) => {
            let input = serde_json::from_str(input).unwrap_or_else(|_| json!(input));
            Some(Ok((name.to_owned(), input)))
        }
        None if looks_like_a_tool => Some(Err(format!("use {name}"))),
        None => None,
    }
}

fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let head = text.get(..word.len())?;
    let rest = &text[word.len()..];
    let ends = rest.is_empty() || rest.starts_with(char::is_whitespace);
    (head.eq_ignore_ascii_case(word) && ends).then_some(rest)
}

/// Set the first of these fields that the tool's schema has. A command is split into words if the schema expects a
/// list or has a separate field for arguments.
fn set_field(input: &mut Map<String, Value>, tool: &ToolSpec, fields: &[&str], value: &str) {
    let schema = tool.input_schema.to_value();
    let properties = schema["properties"].as_object();
    let has = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
    let known = fields.iter().find(|field| has(field));
    let Some(field) = known.or(fields.first()) else { return };
    let words: Vec<&str> = value.split_whitespace().collect();
    let wants_list = schema["properties"][*field]["type"] == json!("array");
    if wants_list {
        input.insert((*field).to_owned(), json!(words));
    } else if *field == "command" && has("args") {
        input.insert((*field).to_owned(), json!(words.first()));
        input.insert("args".to_owned(), json!(words.get(1..).unwrap_or_default()));
    } else {
        input.insert((*field).to_owned(), json!(value));
    }
}
