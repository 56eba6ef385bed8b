//! A session's inputs and artifacts: the latest version of each name. An input and an artifact with the same name are
//! separate.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::content::BlobRef;
use crate::entry::{ArtifactPut, ArtifactUse, Body, Entry};
use crate::id::{Seq, TimestampMs};

/// The latest version of a session's input or artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Artifact {
    pub name: String,
    pub usage: ArtifactUse,
    pub content: BlobRef,
    /// Where a snippet was retrieved from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The number of versions of this name. Earlier versions are in the log.
    pub version: u32,
    pub seq: Seq,
    pub at: TimestampMs,
}

impl Artifact {
    /// The entry that puts this version.
    pub fn as_put(&self) -> ArtifactPut {
        let (name, usage) = (self.name.clone(), self.usage);
        ArtifactPut { name, usage, content: self.content.clone(), source: self.source.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Artifacts {
    pub by_name: BTreeMap<(ArtifactUse, String), Artifact>,
}

impl Artifacts {
    pub fn apply(&mut self, entry: &Entry) {
        let Body::ArtifactPut(put) = &entry.body else { return };
        let key = (put.usage, put.name.clone());
        let version = self.by_name.get(&key).map_or(0, |artifact| artifact.version) + 1;
        let artifact = Artifact {
            name: put.name.clone(),
            usage: put.usage,
            content: put.content.clone(),
            source: put.source.clone(),
            version,
            seq: entry.meta.seq,
            at: entry.meta.at,
        };
        self.by_name.insert(key, artifact);
    }

    /// The inputs, sorted by name.
    pub fn inputs(&self) -> impl Iterator<Item = &Artifact> {
        self.by_name.values().filter(|artifact| artifact.usage == ArtifactUse::Input)
    }

    pub fn get(&self, usage: ArtifactUse, name: &str) -> Option<&Artifact> {
        self.by_name.get(&(usage, name.to_owned()))
    }

    /// Find an artifact or input by name. Artifacts take precedence.
    pub fn named(&self, name: &str) -> Option<&Artifact> {
        self.get(ArtifactUse::Artifact, name).or_else(|| self.get(ArtifactUse::Input, name))
    }
}
