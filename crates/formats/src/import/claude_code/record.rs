//! The records of a transcript.

use std::borrow::Cow;

use sapwood_core::BlobHash;
use sapwood_core::entry::Usage;
use serde::Deserialize;

use crate::import::blocks::Content;
use crate::import::steps::plausible_usage;
use crate::import::text::Time;

/// Maximum length of an id in memory. A longer id is replaced by its hash.
const ID_BYTES_MAX: usize = 256;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaudeRecord<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    pub(super) uuid: Option<String>,
    pub(super) parent_uuid: Option<String>,
    pub(super) logical_parent_uuid: Option<String>,
    pub(super) timestamp: Option<Time>,
    pub(super) session_id: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) agent_id: Option<String>,
    pub(super) is_sidechain: Option<bool>,
    pub(super) is_meta: Option<bool>,
    pub(super) is_compact_summary: Option<bool>,
    pub(super) is_api_error_message: Option<bool>,
    pub(super) subtype: Option<String>,
    pub(super) compact_metadata: Option<CompactMetadata>,
    pub(super) custom_title: Option<String>,
    pub(super) forked_from: Option<ForkedFrom>,
    #[serde(borrow)]
    pub(super) attachment: Option<Attachment<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<ClaudeMessage<'a>>,
}

impl ClaudeRecord<'_> {
    pub(super) fn shorten_ids(&mut self) {
        let message = self.message.as_mut().and_then(|message| message.id.as_mut());
        let ids = [&mut self.uuid, &mut self.parent_uuid, &mut self.logical_parent_uuid];
        if let Some(metadata) = &mut self.compact_metadata {
            metadata.preserved_segment = Some(metadata.take_segment());
        }
        let kept = self.compact_metadata.as_mut().and_then(|metadata| metadata.preserved_segment.as_mut());
        let kept = kept.into_iter().flat_map(PreservedSegment::uuids);
        let ids = ids.into_iter().chain(kept).flatten().chain(message);
        let long = ids.filter(|id| id.len() > ID_BYTES_MAX);
        for id in long {
            *id = BlobHash::of(id.as_bytes()).to_string();
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CompactMetadata {
    pub(super) trigger: Option<String>,
    pub(super) pre_tokens: Option<u64>,
    pub(super) post_tokens: Option<u64>,
    pub(super) preserved_segment: Option<PreservedSegment>,
    pub(super) preserved_messages: Option<PreservedMessages>,
}

impl CompactMetadata {
    /// Take the kept segment from either key.
    pub(super) fn take_segment(&mut self) -> PreservedSegment {
        let listed = self.preserved_messages.take().map(PreservedSegment::from);
        self.preserved_segment.take().or(listed).unwrap_or_default()
    }
}

/// The segment that a compaction keeps: its first and last record, and the record before it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreservedSegment {
    pub(super) head_uuid: Option<String>,
    pub(super) anchor_uuid: Option<String>,
    pub(super) tail_uuid: Option<String>,
}

impl PreservedSegment {
    fn uuids(&mut self) -> [&mut Option<String>; 3] {
        [&mut self.head_uuid, &mut self.anchor_uuid, &mut self.tail_uuid]
    }
}

/// The kept segment as a list of records.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreservedMessages {
    pub(super) anchor_uuid: Option<String>,
    pub(super) uuids: Vec<String>,
}

impl From<PreservedMessages> for PreservedSegment {
    fn from(mut kept: PreservedMessages) -> Self {
        let tail_uuid = kept.uuids.pop();
        let head_uuid = kept.uuids.into_iter().next().or_else(|| tail_uuid.clone());
        Self { head_uuid, anchor_uuid: kept.anchor_uuid, tail_uuid }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ForkedFrom {
    pub(super) session_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Attachment<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) prompt: Content<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ClaudeMessage<'a> {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<ClaudeUsage>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(default)]
pub(super) struct ClaudeUsage {
    pub(super) input_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cache_read_input_tokens: Option<u64>,
    pub(super) cache_creation_input_tokens: Option<u64>,
}

impl ClaudeUsage {
    pub(super) fn usage(self) -> Option<Usage> {
        let usage = Usage {
            input: self.input_tokens.unwrap_or(0),
            output: self.output_tokens.unwrap_or(0),
            cache_read: self.cache_read_input_tokens.unwrap_or(0),
            cache_write: self.cache_creation_input_tokens.unwrap_or(0),
            reasoning: 0,
        };
        plausible_usage(usage)
    }
}
