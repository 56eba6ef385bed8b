//! What a session was given and what it produced: the latest version of each name. An input and an artifact may have the same
//! one: they are two.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::content::BlobRef;
use crate::entry::{ArtifactUse, Body, Entry};
use crate::id::{Seq, TimestampMs};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Artifact {
    pub name: String,
    pub usage: ArtifactUse,
    pub content: BlobRef,
    /// How often this name was put; the others are in the log.
    pub version: u32,
    pub seq: Seq,
    pub at: TimestampMs,
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
            version,
            seq: entry.meta.seq,
            at: entry.meta.at,
        };
        self.by_name.insert(key, artifact);
    }

    pub fn get(&self, usage: ArtifactUse, name: &str) -> Option<&Artifact> {
        self.by_name.get(&(usage, name.to_owned()))
    }

    /// What goes by this name, whatever it is used for: what was made here rather than what was given.
    pub fn named(&self, name: &str) -> Option<&Artifact> {
        self.get(ArtifactUse::Artifact, name).or_else(|| self.get(ArtifactUse::Input, name))
    }
}
