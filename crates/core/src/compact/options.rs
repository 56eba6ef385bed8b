//! Compaction options, from Rust, the command line or JSON. JSON is parsed strictly: an unknown key, a negative number
//! or a wrong type is an error with the name of the key.

use serde_json::Value;

use crate::entry::Strategy;

/// Default number of messages to keep.
pub const KEEP_LAST: u32 = 12;
/// Default number of tokens to keep.
pub const KEEP_RECENT_TOKENS: u64 = 20_000;
/// Maximum length of the instructions, in characters.
pub const INSTRUCTIONS_CHARS_MAX: usize = 4_000;
/// Minimum value of `tool_output_max_chars`: a shortened result needs space for its head, its tail and the snip note.
pub const TOOL_OUTPUT_CHARS_MIN: u32 = 80;

const KEYS: &[&str] = &[
    "keep_last",
    "keep_recent_tokens",
    "keep_first",
    "token_threshold",
    "tool_output_max_chars",
    "compact_strategy",
    "hard_limit_tokens",
    "hard_limit_strategy",
    "instructions",
];

/// How the archived part is turned into a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// One line per message.
    Truncate,
    /// Messages are kept; long tool output is replaced by its first line and size.
    #[default]
    ObservationMask,
    /// A model writes the summary.
    Llm,
    /// A compactor supplied by the caller writes the summary.
    Custom,
}

impl Method {
    /// The names of all methods, for error messages.
    pub const NAMES: &'static str = "truncate, observation_mask, llm or custom";

    /// The method with this name, such as `observation_mask`. `None` if there is no such method.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Truncate, Self::ObservationMask, Self::Llm, Self::Custom]
            .into_iter()
            .find(|method| method.strategy().as_str() == name)
    }

    /// The strategy that a compaction entry records.
    pub fn strategy(self) -> Strategy {
        match self {
            Method::Truncate => Strategy::Truncate,
            Method::ObservationMask => Strategy::ObservationMask,
            Method::Llm => Strategy::Llm,
            Method::Custom => Strategy::Custom,
        }
    }
}

/// Which archived messages the summary covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// All archived messages.
    #[default]
    Everything,
    /// Skip mere acknowledgements, empty messages and notes from the engine. Used from pressure level orange
    /// on.
    WithoutLowValue,
}

/// Options of a compaction. `docs/spec/compaction.md` describes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompactOptions {
    /// Number of messages to keep. If `keep_recent_tokens` is also set, the stricter limit applies.
    pub keep_last: Option<u32>,
    /// Number of tokens to keep, in whole messages. The last message is always kept.
    pub keep_recent_tokens: Option<u64>,
    /// Number of messages at the beginning that the summary keeps verbatim.
    pub keep_first: u32,
    /// Compact only if the context has more tokens than this.
    pub token_threshold: Option<u64>,
    /// Maximum length of a kept tool result. Longer results are shortened.
    pub tool_output_max_chars: Option<u32>,
    /// How older messages are replaced. The default is [`Method::ObservationMask`].
    pub compact_strategy: Method,
    /// If the compacted context is larger than this, `hard_limit_strategy` runs on it.
    pub hard_limit_tokens: Option<u64>,
    /// How messages are replaced to meet `hard_limit_tokens`. The default is [`Method::Truncate`].
    pub hard_limit_strategy: Option<Method>,
    /// What the summary should focus on.
    pub instructions: Option<String>,
    /// Set by the pressure level; not available in JSON.
    pub detail: Detail,
}

/// An invalid option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct OptionError {
    /// The option's key, cut to 64 characters.
    pub key: String,
    /// The reason.
    pub why: String,
}

impl OptionError {
    /// Create the error for the option `key`. The client chooses the key, so it is cut to 64 characters.
    pub fn new(key: &str, why: impl Into<String>) -> Self {
        Self { key: key.chars().take(64).collect(), why: why.into() }
    }
}

impl CompactOptions {
    /// Parse options from a JSON object. Unknown keys are refused.
    pub fn from_json(value: &Value) -> Result<Self, OptionError> {
        let Value::Object(fields) = value else {
            return Err(OptionError::new("options", format!("expected an object, not {}", kind_of(value))));
        };
        let mut options = Self::default();
        for (key, value) in fields {
            options.set(key, value)?;
        }
        options.checked()
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), OptionError> {
        match key {
            "keep_last" => self.keep_last = Some(count_of(key, value)?),
            "keep_recent_tokens" => self.keep_recent_tokens = Some(number_of(key, value)?),
            "keep_first" => self.keep_first = count_of(key, value)?,
            "token_threshold" => self.token_threshold = Some(number_of(key, value)?),
            "tool_output_max_chars" => self.tool_output_max_chars = Some(count_of(key, value)?),
            "compact_strategy" => self.compact_strategy = method_of(key, value)?,
            "hard_limit_tokens" => self.hard_limit_tokens = Some(number_of(key, value)?),
            "hard_limit_strategy" => self.hard_limit_strategy = Some(method_of(key, value)?),
            "instructions" => self.instructions = Some(text_of(key, value)?.to_owned()),
            _ => {
                return Err(OptionError::new(key, format!("unknown option; available: {}", KEYS.join(", "))));
            }
        }
        Ok(())
    }

    /// Check the ranges and combinations of the options.
    pub fn checked(self) -> Result<Self, OptionError> {
        let fail = |key: &str, why: &str| Err(OptionError::new(key, why));
        if self.tool_output_max_chars.is_some_and(|max| max < TOOL_OUTPUT_CHARS_MIN) {
            return fail("tool_output_max_chars", "it must be 80 or more");
        }
        if self.hard_limit_tokens == Some(0) {
            return fail("hard_limit_tokens", "it must be 1 or more");
        }
        if self.hard_limit_strategy.is_some() && self.hard_limit_tokens.is_none() {
            return fail("hard_limit_strategy", "it has no effect without hard_limit_tokens");
        }
        match &self.instructions {
            Some(text) if text.trim().is_empty() => fail("instructions", "it is empty"),
            Some(text) if text.chars().count() > INSTRUCTIONS_CHARS_MAX => {
                fail("instructions", "it is longer than 4000 characters")
            }
            _ => Ok(self),
        }
    }

    /// The limits on the kept messages: both defaults, or only the limits that the caller set.
    pub fn keep(&self) -> Keep {
        match (self.keep_last, self.keep_recent_tokens) {
            (None, None) => Keep { messages: Some(KEEP_LAST as usize), tokens: Some(KEEP_RECENT_TOKENS) },
            (messages, tokens) => Keep { messages: messages.map(|count| count as usize), tokens },
        }
    }
}

/// The limits on the kept messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Maximum number of messages; `None` for no limit.
    pub messages: Option<usize>,
    /// Maximum number of tokens; `None` for no limit.
    pub tokens: Option<u64>,
}

fn number_of(key: &str, value: &Value) -> Result<u64, OptionError> {
    if let Some(number) = value.as_u64() {
        return Ok(number);
    }
    let shown = if value.is_number() { value.to_string() } else { kind_of(value).to_owned() };
    Err(OptionError::new(key, format!("expected a whole number of 0 or more, not {shown}")))
}

fn count_of(key: &str, value: &Value) -> Result<u32, OptionError> {
    let number = number_of(key, value)?;
    u32::try_from(number).map_err(|_| OptionError::new(key, format!("{number} is over {}", u32::MAX)))
}

fn text_of<'a>(key: &str, value: &'a Value) -> Result<&'a str, OptionError> {
    let wrong = || OptionError::new(key, format!("expected a string, not {}", kind_of(value)));
    value.as_str().ok_or_else(wrong)
}

fn method_of(key: &str, value: &Value) -> Result<Method, OptionError> {
    parse_method(key, text_of(key, value)?)
}

pub fn parse_method(key: &str, name: &str) -> Result<Method, OptionError> {
    let unknown = || {
        let shown: String = name.chars().take(64).collect();
        OptionError::new(key, format!("{shown:?} is not one of {}", Method::NAMES))
    };
    Method::from_name(name).ok_or_else(unknown)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
