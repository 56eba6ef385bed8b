//! Deadlines of questions that wait for a person: when they are escalated, and when they expire.
//!
//! An agent sets the durations. The engine writes the resulting times into the question's entry, so that every process
//! applies the same deadlines. An expired question is answered `denied` by the system; the first answer counts.

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::entry::{ApprovalDeadlines, Body, CustomInfo};
use crate::id::TimestampMs;

/// The `custom_type` of the entry about an escalation.
pub const ESCALATION_INFO: &str = "sapwood.approval_escalated";
/// Longest time that a question may wait: 30 days.
pub const WAIT_S_MAX: u32 = 30 * 86_400;
/// Maximum length of the name that an escalation is addressed to, in bytes.
pub const ESCALATE_TO_BYTES_MAX: usize = 200;

/// How long an agent's question waits for a person. Without it, a question waits until it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalWait {
    /// Seconds after which the hook `on_approval` is called again, with `escalated` set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate_after_s: Option<u32>,
    /// Whom the escalation is addressed to. The hook receives it as `target`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate_to: Option<String>,
    /// Seconds after which the system answers `denied`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after_s: Option<u32>,
}

impl ApprovalWait {
    /// The deadlines of a question that is asked at this time. `None` if it waits without a limit.
    pub fn deadlines(&self, asked_at: TimestampMs) -> Option<ApprovalDeadlines> {
        let after = |seconds: u32| TimestampMs(asked_at.0.saturating_add(i64::from(seconds) * 1_000));
        let escalates_at = self.escalate_after_s.map(after);
        let expires_at = self.expire_after_s.map(after);
        let escalate_to = self.escalate_to.clone().filter(|_| escalates_at.is_some());
        (escalates_at.is_some() || expires_at.is_some()).then_some(ApprovalDeadlines {
            escalates_at,
            escalate_to,
            expires_at,
        })
    }

    /// The first mistake: the field and what is wrong with it.
    pub fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let is_valid =
            |seconds: Option<u32>| seconds.is_none_or(|seconds| (1..=WAIT_S_MAX).contains(&seconds));
        if !is_valid(self.escalate_after_s) {
            return Some(("approval_wait.escalate_after_s", "is not between 1 and 2592000"));
        }
        if !is_valid(self.expire_after_s) {
            return Some(("approval_wait.expire_after_s", "is not between 1 and 2592000"));
        }
        if self.escalate_after_s.zip(self.expire_after_s).is_some_and(|(escalate, expire)| escalate >= expire)
        {
            return Some(("approval_wait.escalate_after_s", "is not less than expire_after_s"));
        }
        match &self.escalate_to {
            Some(_) if self.escalate_after_s.is_none() => {
                Some(("approval_wait.escalate_to", "has no effect without escalate_after_s"))
            }
            Some(to) if to.trim().is_empty() || to.len() > ESCALATE_TO_BYTES_MAX => {
                Some(("approval_wait.escalate_to", "is empty or longer than 200 bytes"))
            }
            _ => None,
        }
    }
}

/// What a deadline requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Call the hooks again.
    Escalate,
    /// Answer `denied`.
    Expire,
}

/// Whether a question was escalated already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escalated {
    Yes,
    No,
}

impl ApprovalDeadlines {
    /// What is due at this time. Expiry has precedence: an expired question is not escalated any more.
    #[doc(hidden)]
    pub fn due(&self, escalated: Escalated, now: TimestampMs) -> Option<Due> {
        let is_past = |deadline: Option<TimestampMs>| deadline.is_some_and(|deadline| deadline <= now);
        match () {
            () if is_past(self.expires_at) => Some(Due::Expire),
            () if escalated == Escalated::No && is_past(self.escalates_at) => Some(Due::Escalate),
            () => None,
        }
    }

    /// The next deadline.
    #[doc(hidden)]
    pub fn next(&self, escalated: Escalated) -> Option<TimestampMs> {
        let escalates_at = self.escalates_at.filter(|_| escalated == Escalated::No);
        [escalates_at, self.expires_at].into_iter().flatten().min()
    }
}

/// The log entry about an escalation. The process that writes it calls the hooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escalation {
    /// The id of the approval.
    pub approval: String,
    /// Whom the escalation is addressed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl Escalation {
    /// The entry's body.
    pub fn to_info(&self) -> CustomInfo {
        let data = serde_json::to_value(self).unwrap_or_default();
        CustomInfo { custom_type: ESCALATION_INFO.to_owned(), data: Json::from_value(&data) }
    }

    /// The escalation that an entry records; `None` if it records something else.
    pub fn of_body(body: &Body) -> Option<Self> {
        let Body::CustomInfo(info) = body else { return None };
        (info.custom_type == ESCALATION_INFO).then(|| serde_json::from_str(info.data.get()).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(escalate: Option<u32>, to: Option<&str>, expire: Option<u32>) -> ApprovalWait {
        let escalate_to = to.map(str::to_owned);
        ApprovalWait { escalate_after_s: escalate, escalate_to, expire_after_s: expire }
    }

    #[test]
    fn a_question_is_escalated_once_and_then_expires() {
        let deadlines = wait(Some(10), Some("on-call"), Some(60)).deadlines(TimestampMs(5_000)).unwrap();
        let table = [
            (14_999, Escalated::No, None),
            (15_000, Escalated::No, Some(Due::Escalate)),
            (15_000, Escalated::Yes, None),
            (64_999, Escalated::Yes, None),
            (65_000, Escalated::Yes, Some(Due::Expire)),
            (65_000, Escalated::No, Some(Due::Expire)),
        ];
        for (now, escalated, expected) in table {
            assert_eq!(deadlines.due(escalated, TimestampMs(now)), expected, "{now} {escalated:?}");
        }
        assert_eq!(deadlines.next(Escalated::No), Some(TimestampMs(15_000)));
        assert_eq!(deadlines.next(Escalated::Yes), Some(TimestampMs(65_000)));
        assert_eq!(wait(None, None, None).deadlines(TimestampMs(0)), None);
    }

    #[test]
    fn impossible_waits_are_mistakes() {
        let field = |wait: ApprovalWait| wait.mistake().map(|(field, _)| field);
        assert_eq!(field(wait(Some(1), Some("ops"), Some(2))), None);
        assert_eq!(field(wait(Some(0), None, None)), Some("approval_wait.escalate_after_s"));
        assert_eq!(field(wait(Some(2), None, Some(2))), Some("approval_wait.escalate_after_s"));
        assert_eq!(field(wait(None, None, Some(WAIT_S_MAX + 1))), Some("approval_wait.expire_after_s"));
        assert_eq!(field(wait(None, Some("ops"), Some(2))), Some("approval_wait.escalate_to"));
        assert_eq!(field(wait(Some(1), Some(" "), None)), Some("approval_wait.escalate_to"));
    }

    #[test]
    fn an_escalation_round_trips() {
        let escalation = Escalation { approval: "s~1.1".to_owned(), to: Some("on-call".to_owned()) };
        assert_eq!(Escalation::of_body(&escalation.to_info().into()), Some(escalation));
    }
}
