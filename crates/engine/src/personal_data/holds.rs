//! Legal holds. A held session, and everything of a held user, cannot be erased until the hold is released.

use std::fmt;
use std::str::FromStr;

use sapwood_core::id::{IdError, UserName};
use sapwood_core::port::records::RecordKind;
use sapwood_core::port::store::{AuditAction, AuditNote};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Principal, Scope, SessionId, TimestampMs};
use serde::{Deserialize, Serialize};

use super::{PersonalData, check_operator};
use crate::{EngineError, Result};

/// Maximum length of a reason, in characters.
const REASON_CHARS_MAX: usize = 400;

/// What a hold protects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldTarget {
    /// One session.
    Session(SessionId),
    /// All sessions and memories of a user.
    User(UserName),
}

impl fmt::Display for HoldTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldTarget::Session(session) => write!(f, "session:{session}"),
            HoldTarget::User(user) => write!(f, "user:{user}"),
        }
    }
}

impl FromStr for HoldTarget {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.split_once(':') {
            Some(("user", user)) => user.parse().map(HoldTarget::User),
            Some(("session", session)) => session.parse().map(HoldTarget::Session),
            _ => text.parse().map(HoldTarget::Session),
        }
    }
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Why the data must be kept.
    pub reason: Option<String>,
    /// When the hold was placed.
    pub at: TimestampMs,
    /// The principal that placed it.
    pub by: Principal,
}

/// A hold and what it protects: `session:ID` or `user:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedHold {
    /// What the hold protects.
    pub target: String,
    /// The hold.
    #[serde(flatten)]
    pub hold: Hold,
}

/// The holds of a tenant, read once for many checks.
pub(crate) struct HoldList(Vec<PlacedHold>);

impl HoldList {
    /// The target of a hold that protects this session, if there is one.
    pub fn of_session(&self, summary: &Summary) -> Option<&str> {
        let session = HoldTarget::Session(summary.id.clone()).to_string();
        self.find(&session).or_else(|| self.of_principal(&summary.owner))
    }

    /// The target of a hold that protects the data of this principal, if there is one.
    pub fn of_principal(&self, principal: &Principal) -> Option<&str> {
        match principal {
            Principal::User(user) => self.find(&HoldTarget::User(user.clone()).to_string()),
            _ => None,
        }
    }

    fn find(&self, target: &str) -> Option<&str> {
        self.0.iter().map(|placed| placed.target.as_str()).find(|held| *held == target)
    }
}

impl PersonalData<'_> {
    /// Place a hold. A repeated hold replaces the reason.
    pub async fn place_hold(
        self,
        scope: &Scope,
        target: &HoldTarget,
        reason: Option<String>,
    ) -> Result<PlacedHold> {
        check_operator(scope, "place a legal hold")?;
        if reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON_CHARS_MAX) {
            let why = format!("it is longer than {REASON_CHARS_MAX} characters");
            return Err(EngineError::Invalid { what: "the reason", why });
        }
        if let HoldTarget::Session(session) = target {
            self.engine.store.summary(scope, session).await?;
        }
        let hold = Hold { reason, at: self.engine.clock.now(), by: scope.principal.clone() };
        let value = serde_json::to_string(&hold).expect("a hold contains only strings and numbers");
        self.write_hold(scope, target, Some(value), "hold placed").await?;
        Ok(PlacedHold { target: target.to_string(), hold })
    }

    /// Release a hold. Returns whether there was one.
    pub async fn release_hold(self, scope: &Scope, target: &HoldTarget) -> Result<bool> {
        check_operator(scope, "release a legal hold")?;
        let is_held = self.hold_list(scope).await?.find(&target.to_string()).is_some();
        if is_held {
            self.write_hold(scope, target, None, "hold released").await?;
        }
        Ok(is_held)
    }

    async fn write_hold(
        self,
        scope: &Scope,
        target: &HoldTarget,
        value: Option<String>,
        what: &str,
    ) -> Result<()> {
        let (action, session) = match target {
            HoldTarget::Session(session) => (AuditAction::Edit, Some(session.clone())),
            HoldTarget::User(_) => (AuditAction::TenantChange, None),
        };
        let note = AuditNote { action, session, detail: Some(format!("{what} on {target}")) };
        let (store, now) = (&self.engine.store, self.engine.clock.now());
        Ok(store.put_record(scope, RecordKind::Hold, &target.to_string(), value, note, now).await?)
    }

    /// The holds of the tenant.
    pub async fn holds(self, scope: &Scope) -> Result<Vec<PlacedHold>> {
        check_operator(scope, "list legal holds")?;
        Ok(self.hold_list(scope).await?.0)
    }

    /// The holds, for the engine's own checks.
    pub(crate) async fn hold_list(self, scope: &Scope) -> Result<HoldList> {
        let records = self.engine.store.list_records(scope, RecordKind::Hold).await?;
        let holds = records.into_iter().map(|record| PlacedHold {
            // A hold with an unreadable value still protects its target.
            hold: serde_json::from_str(&record.value).unwrap_or(Hold {
                reason: None,
                at: TimestampMs(0),
                by: Principal::System,
            }),
            target: record.name,
        });
        Ok(HoldList(holds.collect()))
    }

    /// Fail if a hold protects the session.
    pub(crate) async fn check_not_held(self, scope: &Scope, summary: &Summary) -> Result<()> {
        match self.hold_list(scope).await?.of_session(summary) {
            Some(hold) => Err(EngineError::Held { what: summary.id.to_string(), hold: hold.to_owned() }),
            None => Ok(()),
        }
    }
}
