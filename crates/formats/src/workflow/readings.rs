//! What roles are required to read: `required-readings.yaml` names readings, and an index says where each is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::WorkflowError;

/// Where the index is if the file does not say, beside it.
pub const INDEX_DEFAULT: &str = "index.yaml";

/// `required-readings.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequiredReadings {
    /// The file that maps names to paths, relative to this one.
    pub index: Option<String>,
    /// What everyone reads.
    pub all: Vec<String>,
    pub roles: BTreeMap<String, Vec<String>>,
    pub nodes: BTreeMap<String, Vec<String>>,
}

/// Names, and the files they stand for, relative to the index.
pub type Index = BTreeMap<String, String>;

/// What is required, and the texts of it that could be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    pub required: RequiredReadings,
    pub texts: BTreeMap<String, String>,
}

impl RequiredReadings {
    pub fn parse(text: &str) -> Result<Self, WorkflowError> {
        read("the required readings", text)
    }

    /// Every name, once.
    pub fn names(&self) -> Vec<&String> {
        let of_some = self.roles.values().chain(self.nodes.values()).flatten();
        let mut names: Vec<&String> = self.all.iter().chain(of_some).collect();
        names.sort();
        names.dedup();
        names
    }
}

pub fn parse_index(text: &str) -> Result<Index, WorkflowError> {
    read("the index of readings", text)
}

fn read<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, WorkflowError> {
    serde_saphyr::from_str(text)
        .map_err(|error: serde_saphyr::Error| WorkflowError::Invalid { why: format!("{what}: {error}") })
}
