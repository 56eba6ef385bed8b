//! The records and the spending of one tenant in memory, and the checks that all stores share.

use std::collections::BTreeMap;

use sapwood_core::StoreError;
use sapwood_core::port::records::{
    RECORD_NAME_BYTES_MAX, RECORD_VALUE_BYTES_MAX, RECORDS_MAX, RecordKind, SPENDING_DAYS_KEPT, Spent,
    TenantRecord,
};
use sapwood_core::port::store::Result;
use serde::{Deserialize, Serialize};

/// Checks the sizes of a record.
pub fn check_record(name: &str, value: Option<&str>) -> Result<()> {
    let too_large = |what, limit| Err(StoreError::TooLarge { what, limit });
    if name.len() > RECORD_NAME_BYTES_MAX {
        return too_large("a record's name", RECORD_NAME_BYTES_MAX);
    }
    match value {
        Some(value) if value.len() > RECORD_VALUE_BYTES_MAX => {
            too_large("a record's value", RECORD_VALUE_BYTES_MAX)
        }
        _ => Ok(()),
    }
}

/// Checks the number of records of a kind before another one is added.
pub fn check_count(count: usize) -> Result<()> {
    if count >= RECORDS_MAX {
        return Err(StoreError::TooLarge { what: "the number of records", limit: RECORDS_MAX });
    }
    Ok(())
}

/// Returns the oldest day whose spending is kept when `day` is written.
pub fn oldest_day(day: u32) -> u32 {
    day.saturating_sub(SPENDING_DAYS_KEPT)
}

/// What a holder has spent on a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpentLine {
    pub day: u32,
    pub holder: String,
    #[serde(flatten)]
    pub spent: Spent,
}

#[derive(Debug, Clone, Default)]
pub struct RecordTable {
    records: BTreeMap<(RecordKind, String), String>,
    spent: BTreeMap<(u32, String), Spent>,
}

impl RecordTable {
    pub fn of(records: Vec<TenantRecord>, spent: Vec<SpentLine>) -> Self {
        Self {
            records: records.into_iter().map(|record| ((record.kind, record.name), record.value)).collect(),
            spent: spent.into_iter().map(|line| ((line.day, line.holder), line.spent)).collect(),
        }
    }

    pub fn put(&mut self, kind: RecordKind, name: &str, value: Option<String>) -> Result<()> {
        check_record(name, value.as_deref())?;
        let key = (kind, name.to_owned());
        match value {
            Some(value) => {
                if !self.records.contains_key(&key) {
                    check_count(self.list(kind).len())?;
                }
                self.records.insert(key, value);
            }
            None => drop(self.records.remove(&key)),
        }
        Ok(())
    }

    pub fn list(&self, wanted: RecordKind) -> Vec<TenantRecord> {
        let matching = self.records.iter().filter(|((kind, _), _)| *kind == wanted);
        matching
            .map(|((kind, name), value)| TenantRecord {
                kind: *kind,
                name: name.clone(),
                value: value.clone(),
            })
            .collect()
    }

    pub fn all(&self) -> impl Iterator<Item = TenantRecord> {
        RecordKind::ALL.into_iter().flat_map(|kind| self.list(kind))
    }

    pub fn add_spent(&mut self, day: u32, holders: &[String], spent: Spent) {
        self.spent.retain(|(kept, _), _| *kept >= oldest_day(day));
        for holder in holders {
            let total = self.spent.entry((day, holder.clone())).or_default();
            *total = total.plus(spent);
        }
    }

    pub fn spent(&self, day: u32, holder: &str) -> Spent {
        self.spent.get(&(day, holder.to_owned())).copied().unwrap_or_default()
    }

    pub fn spent_lines(&self) -> impl Iterator<Item = SpentLine> {
        self.spent.iter().map(|((day, holder), spent)| SpentLine {
            day: *day,
            holder: holder.clone(),
            spent: *spent,
        })
    }
}
