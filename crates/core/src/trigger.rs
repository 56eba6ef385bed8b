//! Triggers: an event opens a session or sends input to one. Each trigger has a log session that records its
//! firings and their results. [`TriggerState`] is the fold of those entries, and [`next_steps`] computes the
//! next steps without side effects, so another server can take over after a crash.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::entry::{Body, EngineRecord, Entry, TriggerEvent};
use crate::id::{EntryId, Seq, SessionId, TimestampMs};

/// The id prefix of trigger logs and of the new sessions that triggers open.
pub const TRIGGER_PREFIX: &str = "trigger.";
/// Maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 48;
/// Maximum size of a payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Maximum length of one placeholder's replacement, in characters.
const FIELD_CHARS_MAX: usize = 16_000;
/// Maximum length of a prompt template, in bytes.
const PROMPT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of firings that run in parallel.
pub const PARALLEL_MAX: usize = 16;
/// Maximum debounce delay while further firings keep arriving, as a multiple of the debounce interval.
const DEBOUNCES_MAX: i64 = 10;
const HOUR_MS: i64 = 3_600_000;

/// What to do with a firing while an earlier firing is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflict {
    /// Wait for the earlier firing.
    #[default]
    Queue,
    /// Skip the firing.
    Skip,
    /// Run in parallel, in a separate session.
    Parallel,
}

/// What to do with scheduled times that passed while no server was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Fire once for all of them.
    #[default]
    Once,
    Skip,
}

/// The session that a firing is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TriggerTarget {
    /// A new session for each firing.
    New,
    /// The session with this id, which is created if it does not exist.
    Session(SessionId),
}

/// A trigger's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// 1 to 48 lower-case letters, digits and hyphens.
    pub name: String,
    pub target: TriggerTarget,
    /// The prompt, with placeholders: `{{payload.branch}}`, `{{payload}}`, `{{trigger}}`, `{{fired_at}}`.
    pub prompt: String,
    /// Firings closer together than this are merged.
    pub debounce_ms: u64,
    pub conflict: Conflict,
    /// Hourly limit. It stops endless loops of triggers that fire each other.
    pub per_hour_max: u32,
}

impl Trigger {
    /// Validate the trigger. Returns the first mistake, if any.
    pub fn mistake(&self) -> Option<String> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            return Some(format!(
                "its name must be 1 to {NAME_BYTES_MAX} lower-case letters, digits and hyphens"
            ));
        }
        if self.conflict == Conflict::Parallel && self.target != TriggerTarget::New {
            return Some(
                "conflict = \"parallel\" needs a new session for each firing: remove session".to_owned(),
            );
        }
        if self.per_hour_max == 0 {
            return Some("per_hour_max must be at least 1".to_owned());
        }
        if self.prompt.len() > PROMPT_BYTES_MAX {
            return Some(format!("its prompt is over {PROMPT_BYTES_MAX} bytes"));
        }
        unknown_placeholder(&self.prompt).map(|name| {
            format!("its prompt has an unknown placeholder {{{{{name}}}}}; use payload, payload.FIELD, trigger or fired_at")
        })
    }

    /// The id of the trigger's log session.
    pub fn log_id(&self) -> String {
        log_id(&self.name)
    }

    pub fn target_of(&self, firing: Seq) -> String {
        match &self.target {
            TriggerTarget::Session(session) => session.to_string(),
            TriggerTarget::New => format!("{}.{firing}", self.log_id()),
        }
    }

    /// The prompt of a firing, with placeholders replaced.
    pub fn render_prompt(&self, firing: &Firing) -> String {
        let mut text = String::new();
        for part in template_parts(&self.prompt) {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal),
                TemplatePart::Name("trigger") => text.push_str(&self.name),
                TemplatePart::Name("fired_at") => text.push_str(&firing.at.0.to_string()),
                TemplatePart::Name(path) => text.push_str(&field_text(&firing.payload, path)),
            }
        }
        text
    }
}

/// The id of the log session of the trigger with this name.
pub fn log_id(name: &str) -> String {
    format!("{TRIGGER_PREFIX}{name}")
}

enum TemplatePart<'a> {
    Text(&'a str),
    Name(&'a str),
}

fn template_parts(template: &str) -> Vec<TemplatePart<'_>> {
    let (mut found, mut rest) = (Vec::new(), template);
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, tail)) = after.split_once("}}") else { break };
        found.push(TemplatePart::Text(before));
        found.push(TemplatePart::Name(name.trim()));
        rest = tail;
    }
    found.push(TemplatePart::Text(rest));
    found
}

fn unknown_placeholder(template: &str) -> Option<String> {
    let is_known = |name: &str| {
        let is_field =
            name.strip_prefix("payload.").is_some_and(|path| path.split('.').all(|key| !key.is_empty()));
        matches!(name, "payload" | "trigger" | "fired_at") || is_field
    };
    template_parts(template).into_iter().find_map(|part| match part {
        TemplatePart::Name(name) if !is_known(name) => Some(name.chars().take(40).collect()),
        TemplatePart::Name(_) | TemplatePart::Text(_) => None,
    })
}

/// A payload field as text: strings unchanged, anything else as JSON.
fn field_text(payload: &Value, path: &str) -> String {
    let keys = path.split('.').skip(1);
    let found = keys.into_iter().fold(payload, |value, key| match value {
        Value::Array(items) => key.parse::<usize>().ok().and_then(|at| items.get(at)).unwrap_or(&Value::Null),
        value => &value[key],
    });
    let text = match found {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    text.chars().take(FIELD_CHARS_MAX).collect()
}

/// A trigger's cursor in its event source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggerCursor {
    /// The last scheduled time that was processed, or when the trigger was armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimestampMs>,
    /// The last processed entry of the watched session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The watched files and their last known state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<BTreeMap<String, String>>,
}

/// One entry of a trigger's log. A firing is identified by the seq of its `due` entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum TriggerNote {
    /// The trigger was armed and watches its source from the position `mark` on.
    Armed {
        mark: TriggerCursor,
    },
    /// The trigger fires.
    Due {
        payload: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<TriggerCursor>,
    },
    /// The prompt was queued in a session. `input` is its queue entry.
    Sent {
        firing: Seq,
        session: SessionId,
        input: EntryId,
    },
    /// The outcome: `completed`, `failed`, `waiting` …
    Ended {
        firing: Seq,
        outcome: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    Skipped {
        firing: Seq,
        why: String,
    },
}

impl TriggerNote {
    pub fn to_body(&self) -> Body {
        TriggerEvent::of(self).into()
    }

    /// Decode an entry; `None` for other entries.
    pub fn of_body(body: &Body) -> Option<Self> {
        TriggerEvent::read(body)
    }
}

impl std::fmt::Display for TriggerNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TriggerNote::Armed { .. } => f.write_str("armed"),
            TriggerNote::Due { payload, .. } => {
                write!(f, "fires: {}", payload.to_string().chars().take(200).collect::<String>())
            }
            TriggerNote::Sent { firing, session, .. } => {
                write!(f, "firing {firing} was sent to session {session}")
            }
            TriggerNote::Ended { firing, outcome, code: None } => write!(f, "firing {firing}: {outcome}"),
            TriggerNote::Ended { firing, outcome, code: Some(code) } => {
                write!(f, "firing {firing}: {outcome} ({code})")
            }
            TriggerNote::Skipped { firing, why } => write!(f, "firing {firing} was skipped: {why}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    pub seq: Seq,
    pub at: TimestampMs,
    pub payload: Value,
    /// Where the prompt was sent; `None` before it is sent.
    pub sent: Option<SentTo>,
}

/// A session, and the entry in its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentTo {
    pub session: SessionId,
    pub input: EntryId,
}

/// The latest firing that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastFiring {
    pub firing: Seq,
    pub at: TimestampMs,
    pub outcome: String,
    /// The stable error code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// The fold of a trigger's log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TriggerState {
    /// The last folded entry.
    pub head: Seq,
    pub mark: Option<TriggerCursor>,
    /// Firings that have not ended, oldest first.
    pub open: BTreeMap<Seq, Firing>,
    pub last: Option<LastFiring>,
    /// The times of the firings that were sent within the last hour.
    sent_at: VecDeque<TimestampMs>,
}

impl TriggerState {
    pub fn apply(&mut self, entry: &Entry) {
        self.head = entry.meta.seq;
        let (seq, at) = (entry.meta.seq, entry.meta.at);
        match TriggerNote::of_body(&entry.body) {
            None => {}
            Some(TriggerNote::Armed { mark }) => self.mark = Some(mark),
            Some(TriggerNote::Due { payload, mark }) => {
                self.open.insert(seq, Firing { seq, at, payload, sent: None });
                if mark.is_some() {
                    self.mark = mark;
                }
            }
            Some(TriggerNote::Sent { firing, session, input }) => {
                if let Some(firing) = self.open.get_mut(&firing) {
                    firing.sent = Some(SentTo { session, input });
                    self.sent_at.push_back(at);
                    let is_old = |sent: &TimestampMs| sent.0 < at.0 - HOUR_MS;
                    while self.sent_at.front().is_some_and(is_old) {
                        self.sent_at.pop_front();
                    }
                }
            }
            Some(TriggerNote::Ended { firing, outcome, code }) => self.close(firing, outcome, code),
            Some(TriggerNote::Skipped { firing, why }) => self.close(firing, format!("skipped: {why}"), None),
        }
    }

    fn close(&mut self, firing: Seq, outcome: String, code: Option<String>) {
        if let Some(Firing { seq, at, sent, .. }) = self.open.remove(&firing) {
            let session = sent.map(|sent| sent.session);
            self.last = Some(LastFiring { firing: seq, at, outcome, code, session });
        }
    }

    fn sent_in_hour(&self, now: TimestampMs) -> usize {
        self.sent_at.iter().filter(|sent| sent.0 >= now.0 - HOUR_MS).count()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Firing> {
        self.open.values().filter(|firing| firing.sent.is_none())
    }

    pub fn running(&self) -> impl Iterator<Item = &Firing> {
        self.open.values().filter(|firing| firing.sent.is_some())
    }
}

/// The next step for a firing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FiringStep {
    Send(Seq),
    Skip(Seq, String),
}

/// Compute the steps to take now, and the delay in milliseconds after which to check again if nothing else happens.
pub fn next_steps(
    trigger: &Trigger,
    state: &TriggerState,
    now: TimestampMs,
) -> (Vec<FiringStep>, Option<u64>) {
    let waiting: Vec<&Firing> = state.waiting().collect();
    let (Some(first), Some(newest)) = (waiting.first(), waiting.last()) else { return (Vec::new(), None) };
    if trigger.debounce_ms > 0 {
        let debounce = i64::try_from(trigger.debounce_ms).unwrap_or(i64::MAX);
        let quiet_at = newest.at.0.saturating_add(debounce);
        let latest = first.at.0.saturating_add(debounce.saturating_mul(DEBOUNCES_MAX));
        let remaining = quiet_at.min(latest) - now.0;
        if remaining > 0 {
            return (Vec::new(), Some(remaining.unsigned_abs()));
        }
        if waiting.len() > 1 {
            let merged =
                |firing: &&Firing| FiringStep::Skip(firing.seq, format!("merged into {}", newest.seq));
            return (waiting[..waiting.len() - 1].iter().map(merged).collect(), Some(0));
        }
    }
    let running = state.running().count();
    let capacity = match trigger.conflict {
        Conflict::Parallel => PARALLEL_MAX.saturating_sub(running),
        Conflict::Queue | Conflict::Skip => 1_usize.saturating_sub(running),
    };
    let allowed = (trigger.per_hour_max as usize).saturating_sub(state.sent_in_hour(now));
    let mut steps = Vec::new();
    for (at, firing) in waiting.iter().enumerate() {
        if at >= allowed {
            let why = format!("more than {} an hour", trigger.per_hour_max);
            steps.push(FiringStep::Skip(firing.seq, why));
        } else if at < capacity {
            steps.push(FiringStep::Send(firing.seq));
        } else if trigger.conflict == Conflict::Skip {
            steps.push(FiringStep::Skip(firing.seq, "an earlier firing is still running".to_owned()));
        }
    }
    (steps, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Meta;
    use crate::{Kind, Principal};

    fn trigger(conflict: Conflict, debounce_ms: u64) -> Trigger {
        let prompt = "{{payload.a}}".to_owned();
        let name = "t".to_owned();
        Trigger { name, target: TriggerTarget::New, prompt, debounce_ms, conflict, per_hour_max: 100 }
    }

    fn due() -> TriggerNote {
        TriggerNote::Due { payload: serde_json::json!({}), mark: None }
    }

    fn sent(firing: u32) -> TriggerNote {
        let input = EntryId::mint(TimestampMs(0), 0);
        TriggerNote::Sent { firing: Seq(firing), session: "s".parse().unwrap(), input }
    }

    fn ended(firing: u32) -> TriggerNote {
        TriggerNote::Ended { firing: Seq(firing), outcome: "completed".into(), code: None }
    }

    /// Fold the notes as entries one second apart.
    fn fold(notes: &[TriggerNote]) -> TriggerState {
        let mut state = TriggerState::default();
        for (at, note) in notes.iter().enumerate() {
            let seq = at as u32 + 1;
            let at = TimestampMs(i64::from(seq) * 1_000);
            let meta = Meta {
                seq: Seq(seq),
                id: EntryId::mint(at, 0),
                parent: None,
                at,
                by: Principal::System,
                turn: None,
                kind: Kind::TriggerEvent,
            };
            state.apply(&Entry { meta, body: note.to_body() });
        }
        state
    }

    fn steps(trigger: &Trigger, notes: &[TriggerNote], now_ms: i64) -> Vec<FiringStep> {
        next_steps(trigger, &fold(notes), TimestampMs(now_ms)).0
    }

    #[test]
    fn a_firing_is_sent_once() {
        let queue = trigger(Conflict::Queue, 0);
        assert_eq!(steps(&queue, &[due()], 9_000), [FiringStep::Send(Seq(1))]);
        assert_eq!(steps(&queue, &[due(), sent(1)], 9_000), []);
        assert_eq!(steps(&queue, &[due(), sent(1), ended(1)], 9_000), []);
    }

    #[test]
    fn a_second_firing_waits_is_skipped_or_runs_in_parallel() {
        let notes = [due(), sent(1), due(), due()];
        let skip = |seq| FiringStep::Skip(Seq(seq), "an earlier firing is still running".to_owned());
        assert_eq!(steps(&trigger(Conflict::Queue, 0), &notes, 9_000), []);
        assert_eq!(steps(&trigger(Conflict::Skip, 0), &notes, 9_000), [skip(3), skip(4)]);
        let both = [FiringStep::Send(Seq(3)), FiringStep::Send(Seq(4))];
        assert_eq!(steps(&trigger(Conflict::Parallel, 0), &notes, 9_000), both);
    }

    #[test]
    fn firings_close_together_are_merged_but_do_not_wait_forever() {
        let debounced = trigger(Conflict::Queue, 5_000);
        let (none, wait) = next_steps(&debounced, &fold(&[due(), due()]), TimestampMs(4_000));
        assert_eq!((none, wait), (Vec::new(), Some(3_000)));
        let merged = FiringStep::Skip(Seq(1), "merged into 2".to_owned());
        assert_eq!(steps(&debounced, &[due(), due()], 8_000), [merged]);
        // Although a firing arrives every second, one is sent eventually.
        let many: Vec<TriggerNote> = (0..60).map(|_| due()).collect();
        assert!(!steps(&debounced, &many, 60_000).is_empty());
    }

    #[test]
    fn firings_per_hour_are_limited() {
        let few = Trigger { per_hour_max: 1, ..trigger(Conflict::Queue, 0) };
        let notes = [due(), sent(1), ended(1), due()];
        assert_eq!(steps(&few, &notes, 9_000), [FiringStep::Skip(Seq(4), "more than 1 an hour".to_owned())]);
        assert_eq!(steps(&few, &notes, 9_000 + HOUR_MS), [FiringStep::Send(Seq(4))]);
    }

    #[test]
    fn placeholders_are_filled_in_from_the_payload() {
        let payload = r#"{"branch": "main", "build": {"log": ["a", "b"]}, "n": 3}"#;
        let firing = Firing {
            seq: Seq(7),
            at: TimestampMs(5),
            payload: serde_json::from_str(payload).unwrap(),
            sent: None,
        };
        let render = |prompt: &str| {
            Trigger { prompt: prompt.into(), ..trigger(Conflict::Queue, 0) }.render_prompt(&firing)
        };
        assert_eq!(render("{{trigger}}: {{ payload.branch }} at {{fired_at}}"), "t: main at 5");
        assert_eq!(render("{{payload.build.log.1}} {{payload.n}} [{{payload.none.x}}]"), "b 3 []");
        assert!(render("{{payload}}").contains("\"branch\""));
        assert_eq!(render("an open {{ stays"), "an open {{ stays");
    }

    #[test]
    fn trigger_mistakes_are_found() {
        assert_eq!(trigger(Conflict::Parallel, 0).mistake(), None);
        let fixed = TriggerTarget::Session("s".parse().unwrap());
        let mistakes = [
            Trigger { name: "A b".into(), ..trigger(Conflict::Queue, 0) },
            Trigger { target: fixed, ..trigger(Conflict::Parallel, 0) },
            Trigger { prompt: "{{secrets}}".into(), ..trigger(Conflict::Queue, 0) },
            Trigger { per_hour_max: 0, ..trigger(Conflict::Queue, 0) },
        ];
        assert!(mistakes.iter().all(|one| one.mistake().is_some()));
    }
}
