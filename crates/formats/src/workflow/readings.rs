//! Required readings of roles. `required-readings.yaml` lists readings by name, and an index maps the names to files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::WorkflowError;

/// Default path of the index, relative to the file that lists the readings.
pub const INDEX_DEFAULT: &str = "index.yaml";

/// The content of `required-readings.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequiredReadings {
    /// The index file that maps names to paths, relative to this file.
    pub index: Option<String>,
    /// Readings for all roles.
    pub all: Vec<String>,
    pub roles: BTreeMap<String, Vec<String>>,
    pub nodes: BTreeMap<String, Vec<String>>,
}

/// Reading names and their files, relative to the index.
pub type ReadingIndex = BTreeMap<String, String>;

/// The required readings, and the texts that could be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    pub required: RequiredReadings,
    pub texts: BTreeMap<String, String>,
}

impl RequiredReadings {
    pub fn parse(text: &str) -> Result<Self, WorkflowError> {
        read("the required readings", text)
    }

    /// Return the names of all readings, sorted and without duplicates.
    pub fn names(&self) -> Vec<&String> {
        let of_some = self.roles.values().chain(self.nodes.values()).flatten();
        let mut names: Vec<&String> = self.all.iter().chain(of_some).collect();
        names.sort();
        names.dedup();
        names
    }
}

pub fn parse_index(text: &str) -> Result<ReadingIndex, WorkflowError> {
    read("the index of readings", text)
}

fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, WorkflowError> {
    serde_saphyr::from_str(text)
        .map_err(|error: serde_saphyr::Error| WorkflowError::Invalid { why: format!("{what}: {error}") })
}
