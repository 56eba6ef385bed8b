//! What a session was given and what it produced: the latest version of each name.

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
    pub by_name: BTreeMap<String, Artifact>,
}

impl Artifacts {
    pub fn apply(&mut self, entry: &Entry) {
        let Body::ArtifactPut(put) = &entry.body else { return };
        let version = self.by_name.get(&put.name).map_or(0, |artifact| artifact.version) + 1;
        let artifact = Artifact {
            name: put.name.clone(),
            usage: put.usage,
            content: put.content.clone(),
            version,
            seq: entry.meta.seq,
            at: entry.meta.at,
        };
        self.by_name.insert(put.name.clone(), artifact);
    }
}
