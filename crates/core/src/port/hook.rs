//! The hook port: external code that decides about an event in advance or is notified after it. The event's name
//! determines which answers a hook may return, and [`HookName::check`] validates them without side effects. The engine
//! decides which hooks run, in which order, and with which deadline.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::entry::{Body, EngineRecord, HookRan};
use crate::id::{SessionId, TenantId, TimestampMs, TurnId};
use crate::scope::Principal;

/// Maximum size of a hook's answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Maximum length of a refusal's reason, in characters; the rest is cut.
pub const REASON_CHARS_MAX: usize = 1_000;
/// Maximum number of actions in one answer.
pub const ACTIONS_MAX: usize = 4;
/// Maximum length of a text in an event, in characters. The log has the full text.
pub const EVENT_TEXT_CHARS_MAX: usize = 16_000;

macro_rules! names {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// When a hook is called.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum HookName {
            $(#[doc = $doc] $variant,)*
        }

        impl HookName {
            /// All names.
            pub const ALL: &'static [HookName] = &[$(HookName::$variant,)*];

            /// The name in configuration files and JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(HookName::$variant => $name,)* }
            }
            /// The hook name with this text; `None` if it is unknown.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(HookName::$variant),)* _ => None }
            }
        }
    };
}

names! {
    SessionStart    "session_start"    "A session was created.";
    SessionEnd      "session_end"      "A session was closed, archived or erased.";
    BeforeSend      "before_send"      "Input is about to be sent, or added to a running turn.";
    BeforeTurn      "before_turn"      "A turn has started, and its model has not been called yet.";
    AfterTurn       "after_turn"       "A turn has ended.";
    BeforeModel     "before_model"     "A model is about to be called.";
    AfterModel      "after_model"      "A model has answered.";
    BeforeTool      "before_tool"      "A tool is about to run.";
    AfterTool       "after_tool"       "A tool has run, or was refused.";
    BeforeCompact   "before_compact"   "A context is about to be compacted.";
    AfterCompact    "after_compact"    "A context was compacted.";
    BeforeBranch    "before_branch"    "The leaf is about to be moved.";
    AfterBranch     "after_branch"     "The leaf was moved.";
    BeforeFork      "before_fork"      "A session is about to be forked.";
    AfterFork       "after_fork"       "A session was forked.";
    BeforeExport    "before_export"    "A session is about to be exported.";
    OnError         "on_error"         "A turn failed, or could not continue.";
    OnLowConfidence "on_low_confidence" "An answer was rated below its agent's threshold.";
    OnApproval      "on_approval"      "A question waits for a person, or was escalated.";
    OnPressure      "on_pressure"      "The level of token pressure has changed, and is not green.";
    OnArchive       "on_archive"       "A session was archived.";
    OnMemory        "on_memory"        "A memory was learned from a session, strengthened or superseded.";
}

impl std::fmt::Display for HookName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An event that has happened or is about to happen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HookEvent {
    /// When the hook is called.
    pub hook: HookName,
    /// The session of the event.
    pub session: SessionId,
    /// The session's tenant.
    pub tenant: TenantId,
    /// The principal that caused the event.
    pub by: Principal,
    /// When the event happened.
    pub at: TimestampMs,
    /// The turn of the event, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The nesting depth: the number of hook actions in the chain that led to this event.
    pub depth: u8,
    /// Whether this is a dry run that only shows the hook's answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rehearsal: bool,
    /// The event's fields, which depend on its name.
    pub data: Value,
}

/// A hook's decision about an event that is about to happen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Continue unchanged.
    #[default]
    GoOn,
    /// Do not perform the action.
    Refuse { reason: String },
    /// Continue with these fields replaced.
    Change { data: Value },
    /// Use this result instead of performing the action.
    Supply { data: Value },
}

/// An action in another session, with the rights of the principal that installed the hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum HookAction {
    /// Open a session. With a text, its first turn begins.
    Open {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<SessionId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// Begin a turn in an existing session.
    Send { session: SessionId, text: String },
}

/// A hook's answer: its decision and its actions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookAnswer {
    /// The decision. Hooks that run after an event can only continue.
    pub verdict: Verdict,
    /// Actions in other sessions.
    pub actions: Vec<HookAction>,
}

impl From<Verdict> for HookAnswer {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, actions: Vec::new() }
    }
}

impl From<()> for HookAnswer {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// The wire form of an answer. Unknown fields are refused.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AnswerJson {
    verdict: Option<String>,
    reason: Option<String>,
    data: Option<Value>,
    actions: Vec<HookAction>,
}

impl HookAnswer {
    /// Parse the answer of a program or a server. An empty answer means to continue.
    pub fn read(bytes: &[u8]) -> Result<Self, HookError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(HookError::Answer { why: format!("it is over {ANSWER_BYTES_MAX} bytes") });
        }
        if bytes.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let invalid = |error: serde_json::Error| HookError::Answer { why: error.to_string() };
        let parsed: AnswerJson = serde_json::from_slice(bytes).map_err(invalid)?;
        let missing = |what: &str| HookError::Answer { why: format!("it has no {what}") };
        let verdict = match (parsed.verdict.as_deref().unwrap_or("go_on"), parsed.reason, parsed.data) {
            ("go_on", None, None) => Verdict::GoOn,
            ("refuse", Some(reason), None) => Verdict::Refuse { reason },
            ("change", None, Some(data)) => Verdict::Change { data },
            ("supply", None, Some(data)) => Verdict::Supply { data },
            ("refuse", None, _) => return Err(missing("reason")),
            ("change" | "supply", _, None) => return Err(missing("data")),
            ("go_on" | "refuse" | "change" | "supply", ..) => {
                return Err(HookError::Answer {
                    why: "it has fields that its verdict does not allow".into(),
                });
            }
            (other, ..) => {
                let why = format!("its verdict is {other:.40?}, but must be go_on, refuse, change or supply");
                return Err(HookError::Answer { why });
            }
        };
        Ok(Self { verdict, actions: parsed.actions })
    }
}

/// A hook that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The hook did not answer within its time limit.
    #[error("it took longer than {after_ms} ms")]
    TimedOut { after_ms: u64 },
    /// The hook's answer is not valid.
    #[error("its answer is not valid: {why}")]
    Answer { why: String },
    /// The hook returned an error.
    #[error("{why}")]
    Failed { why: String },
}

/// A hook implementation. Dropping the future stops its work.
#[async_trait]
pub trait Hook: Send + Sync {
    /// Decide about an action before it is performed, or react to an event.
    async fn call(&self, event: &HookEvent) -> Result<HookAnswer, HookError>;
    /// The hook's command or address, for display.
    fn describe(&self) -> String;
}

/// A field that an answer may contain, and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Text(&'static str),
    Object(&'static str),
    Flag(&'static str),
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Field::Text(name) | Field::Object(name) | Field::Flag(name) => name,
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Field::Text(_) => value.as_str().is_some_and(|text| !text.trim().is_empty()),
            Field::Object(_) => value.is_object(),
            Field::Flag(_) => value.is_boolean(),
        }
    }
}

impl HookName {
    /// Whether the hook returns a decision. Other hooks are only notified.
    pub fn asks(self) -> bool {
        self.as_str().starts_with("before_")
    }

    fn changes(self) -> &'static [Field] {
        match self {
            HookName::BeforeSend => &[Field::Text("text")],
            HookName::BeforeModel => &[Field::Text("system")],
            HookName::BeforeTool => &[Field::Object("input")],
            HookName::BeforeCompact | HookName::BeforeBranch => &[Field::Text("summary")],
            _ => &[],
        }
    }

    fn supplies(self) -> &'static [Field] {
        match self {
            HookName::BeforeModel => &[Field::Text("text")],
            HookName::BeforeTool => &[Field::Text("text"), Field::Flag("is_error")],
            HookName::BeforeCompact => &[Field::Text("summary")],
            _ => &[],
        }
    }

    /// Check that a hook of this name may return this answer.
    pub fn check(self, answer: &HookAnswer) -> Result<(), HookError> {
        let wrong = |why: String| Err(HookError::Answer { why });
        if answer.actions.len() > ACTIONS_MAX {
            return wrong(format!("it has more than {ACTIONS_MAX} actions"));
        }
        match &answer.verdict {
            Verdict::GoOn => Ok(()),
            _ if !self.asks() => wrong(format!("{self} is only notified: its verdict must be go_on")),
            Verdict::Refuse { reason } if reason.trim().is_empty() => wrong("its reason is empty".to_owned()),
            Verdict::Refuse { .. } => Ok(()),
            Verdict::Change { data } => self.check_fields("change", self.changes(), data),
            Verdict::Supply { data } => self.check_fields("supply", self.supplies(), data),
        }
    }

    fn check_fields(self, verdict: &str, fields: &[Field], data: &Value) -> Result<(), HookError> {
        let wrong = |why: String| Err(HookError::Answer { why });
        let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
        let (Some(first), Some(given)) = (fields.first(), data.as_object()) else {
            return match fields {
                [] => wrong(format!("{self} has nothing to {verdict}")),
                _ => wrong("its data is not an object".to_owned()),
            };
        };
        if !given.contains_key(first.name()) {
            return wrong(format!("its data has no {}", first.name()));
        }
        for (key, value) in given {
            match fields.iter().find(|field| field.name() == key) {
                None => {
                    return wrong(format!(
                        "its data has {key:.40?}, but {self} allows only {}",
                        names.join(", ")
                    ));
                }
                Some(field) if !field.accepts(value) => return wrong(format!("{key} has the wrong type")),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Sample data of an event of this name, for a dry run.
    pub fn sample(self) -> Value {
        match self {
            HookName::SessionStart => json!({"title": "An example", "agent": "default"}),
            HookName::SessionEnd => json!({"how": "closed"}),
            HookName::BeforeSend => json!({"text": "Hello"}),
            HookName::BeforeTurn => json!({"text": "Hello", "agent": "default"}),
            HookName::AfterTurn => json!({"outcome": "completed", "code": null, "text": "Hello to you."}),
            HookName::BeforeModel => json!({"model": "demo", "system": "You are helpful.", "messages": 1}),
            HookName::AfterModel => json!({"model": "demo", "text": "Hello to you.", "calls": []}),
            HookName::BeforeTool => {
                json!({"tool": "write_file", "call_id": "1", "input": {"path": "a.txt", "content": "x"}})
            }
            HookName::AfterTool => {
                json!({"tool": "write_file", "call_id": "1", "is_error": false, "text": "Wrote a.txt."})
            }
            HookName::BeforeCompact => json!({"trigger": "manual", "archived": 12, "text": "user: Hello"}),
            HookName::AfterCompact => json!({"trigger": "manual", "summary": "They said hello."}),
            HookName::BeforeBranch => {
                json!({"to": "entry-id", "summary": "The first approach failed.", "text": "user: Try the cache."})
            }
            HookName::AfterBranch => json!({"to": "entry-id", "seq": 9}),
            HookName::BeforeFork => json!({"fork": "example-fork"}),
            HookName::AfterFork => json!({"fork": "example-fork"}),
            HookName::BeforeExport => json!({"format": "markdown"}),
            HookName::OnError => json!({"code": "model.unreachable", "message": "no answer"}),
            HookName::OnLowConfidence => json!({"confidence": 0.2}),
            HookName::OnApproval => json!({
                "approval": "example~1a2b3c4d.1", "kind": "tool", "question": "Run write_file?",
                "tool": "write_file", "input": {"path": "a.txt", "content": "x"}, "escalated": false,
                "target": null, "expires_at": null, "link": null,
            }),
            HookName::OnPressure => {
                json!({"level": "orange", "used_tokens": 90_000, "window_tokens": 100_000})
            }
            HookName::OnArchive => json!({"title": "An example"}),
            HookName::OnMemory => json!({"kind": "fact", "text": "The build runs on Linux."}),
        }
    }
}

/// The log entry about a hook that failed, acted in another session, or returned a decision other than to continue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookNote {
    /// The name under which the hook was installed.
    pub by: String,
    pub hook: HookName,
    pub result: HookResult,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The fields that the hook changed or supplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookResult {
    Refused,
    Changed,
    Supplied,
    Failed,
    /// The hook opened another session or sent input to one.
    Acted,
}

impl HookResult {
    pub fn as_str(self) -> &'static str {
        match self {
            HookResult::Refused => "refused",
            HookResult::Changed => "changed",
            HookResult::Supplied => "supplied",
            HookResult::Failed => "failed",
            HookResult::Acted => "acted",
        }
    }
}

impl HookNote {
    pub fn to_body(&self) -> Body {
        HookRan::of(self).into()
    }

    /// Decode an entry; `None` for other entries.
    pub fn of_body(body: &Body) -> Option<Self> {
        HookRan::read(body)
    }
}

impl std::fmt::Display for HookNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}) {}", self.by, self.hook, self.result.as_str())?;
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

/// Cut a text to the length that an event allows.
pub fn event_text(text: &str) -> String {
    text.chars().take(EVENT_TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HookAnswer, HookError> {
        HookAnswer::read(text.as_bytes())
    }

    #[test]
    fn names_round_trip() {
        assert_eq!(HookName::ALL.len(), 22);
        for name in HookName::ALL {
            assert_eq!(HookName::from_name(name.as_str()), Some(*name));
            assert_eq!(serde_json::to_value(name).unwrap(), json!(name.as_str()));
            assert!(name.sample().is_object());
        }
    }

    #[test]
    fn answers_are_parsed_strictly() {
        assert_eq!(read(" \n").unwrap(), HookAnswer::default());
        assert_eq!(read("{}").unwrap(), HookAnswer::default());
        let refused = read(r#"{"verdict": "refuse", "reason": "no"}"#).unwrap();
        assert_eq!(refused.verdict, Verdict::Refuse { reason: "no".into() });
        for bad in [
            "no json",
            r#"{"verdict": "perhaps"}"#,
            r#"{"verdict": "refuse"}"#,
            r#"{"verdict": "go_on", "reason": "x"}"#,
            r#"{"verdict": "change"}"#,
            r#"{"verdcit": "refuse", "reason": "no"}"#,
            r#"{"actions": [{"do": "erase", "session": "s"}]}"#,
            r#"{"actions": [{"do": "send", "session": "s", "text": "t", "as": "root"}]}"#,
        ] {
            assert!(matches!(read(bad), Err(HookError::Answer { .. })), "{bad}");
        }
        assert!(read(&" ".repeat(ANSWER_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn each_event_accepts_only_its_own_fields() {
        let change = |data| HookAnswer::from(Verdict::Change { data });
        let supply = |data| HookAnswer::from(Verdict::Supply { data });
        assert!(HookName::BeforeTool.check(&change(json!({"input": {}}))).is_ok());
        assert!(HookName::BeforeTool.check(&change(json!({"input": "rm"}))).is_err());
        assert!(HookName::BeforeTool.check(&change(json!({"tool": "run_command"}))).is_err());
        assert!(HookName::BeforeTool.check(&supply(json!({"text": "x", "is_error": true}))).is_ok());
        assert!(HookName::BeforeModel.check(&change(json!({"system": "s"}))).is_ok());
        assert!(HookName::BeforeModel.check(&change(json!({"model": "dear"}))).is_err());
        assert!(HookName::BeforeTurn.check(&change(json!({"text": "x"}))).is_err());
        for name in HookName::ALL {
            let refusal = HookAnswer::from(Verdict::Refuse { reason: "no".into() });
            assert_eq!(name.check(&refusal).is_ok(), name.asks(), "{name}");
            assert!(name.check(&HookAnswer::default()).is_ok());
        }
    }

    #[test]
    fn a_note_round_trips_through_the_log() {
        let note = HookNote {
            by: "guard".into(),
            hook: HookName::BeforeTool,
            result: HookResult::Refused,
            why: Some("no".into()),
            data: None,
        };
        assert_eq!(HookNote::of_body(&note.to_body()), Some(note));
    }
}
