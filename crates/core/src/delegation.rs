//! The record of a delegated task: which turn of which session started this one.

use serde::{Deserialize, Serialize};

use crate::content::Json;
use crate::entry::CustomInfo;
use crate::id::{SessionId, TurnId};

/// The `custom_type` of the record in the sub-session.
pub const DELEGATION_INFO: &str = "sapwood.delegation";

/// The origin of a sub-session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The session whose agent delegated the task.
    pub session: SessionId,
    /// The turn of that session.
    pub turn: TurnId,
}

impl Delegation {
    /// The entry that records the delegation.
    pub fn to_info(&self) -> CustomInfo {
        let data =
            serde_json::to_value(self).map_or_else(|_| Json::from(serde_json::Value::Null), Json::from);
        CustomInfo { custom_type: DELEGATION_INFO.to_owned(), data }
    }

    /// The delegation that an entry records.
    pub fn from_info(info: &CustomInfo) -> Option<Self> {
        let is_delegation = info.custom_type == DELEGATION_INFO;
        is_delegation.then(|| serde_json::from_str(info.data.get()).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TimestampMs;

    #[test]
    fn a_delegation_round_trips() {
        let turn = TurnId::mint(TimestampMs(1), 2);
        let delegation = Delegation { session: "s".parse().unwrap(), turn };
        assert_eq!(Delegation::from_info(&delegation.to_info()), Some(delegation));
    }
}
