//! Long projections as documents that are sent while the log is read: the context and the tree.

use axum::body::Bytes;
use sapwood::core::entry::SessionContext;
use sapwood::core::project::context::Message;
use sapwood::engine::context_reader::{ContextHead, ContextReader};
use sapwood::engine::tree_pages::TreeReader;
use serde::Serialize;
use serde_json::json;

use crate::chunked::{ChunkSource, JsonChunk, LongRead};
use crate::problem::Result;
use crate::request_id::RequestId;

/// Nodes per step of a tree.
const STEP_NODES: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentStage {
    Begin,
    Items,
    Over,
}

/// Whether each message is counted with the model's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    Exact,
    Estimate,
}

/// A message of a context, with its tokens if requested.
#[derive(Serialize)]
pub struct CountedMessage {
    #[serde(flatten)]
    pub message: Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

#[derive(Serialize)]
struct WrittenHead<'a> {
    system: &'a Option<String>,
    model: &'a Option<String>,
    thinking: &'a str,
    skills: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'a SessionContext>,
}

/// A context that is being written.
pub struct ContextDocument {
    read: LongRead,
    reader: ContextReader,
    counting: Counting,
    tokens: u64,
    system_tokens: u64,
    stage: DocumentStage,
    chunk: JsonChunk,
}

impl ContextDocument {
    pub fn new(read: LongRead, mut reader: ContextReader, counting: Counting) -> Self {
        let estimate = reader.head.system.as_ref().map_or(0, |system| system.len().div_ceil(4) as u64);
        let system_tokens = match counting {
            Counting::Exact => reader.count_system(),
            Counting::Estimate => estimate,
        };
        let (stage, chunk) = (DocumentStage::Begin, JsonChunk::default());
        Self { read, reader, counting, tokens: system_tokens, system_tokens, stage, chunk }
    }

    fn begin(&mut self) {
        let ContextHead { system, model, thinking, skills, session } = &self.reader.head;
        let head = WrittenHead { system, model, thinking, skills, context: session.as_ref() };
        let head = serde_json::to_string(&head).expect("strings serialize to JSON");
        self.chunk.text(head.strip_suffix('}').unwrap_or_default());
        self.chunk.text(",\"messages\":[");
        self.stage = DocumentStage::Items;
    }

    fn write(&mut self, message: Message) {
        let exact = (self.counting == Counting::Exact).then(|| self.reader.count(&message));
        self.tokens += exact.unwrap_or_else(|| message.tokens());
        self.chunk.item(&CountedMessage { message, tokens: exact });
    }

    fn finish(&mut self) {
        self.chunk.text(&format!("],\"tokens\":{}", self.tokens));
        if self.counting == Counting::Exact {
            self.chunk.text(&format!(",\"system_tokens\":{}", self.system_tokens));
        }
        self.chunk.text("}");
        self.stage = DocumentStage::Over;
    }
}

impl ChunkSource for ContextDocument {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.stage == DocumentStage::Begin {
            self.begin();
        }
        while self.stage == DocumentStage::Items && !self.chunk.is_full() {
            match self.reader.next().await? {
                Some(message) => self.write(message),
                None => self.finish(),
            }
        }
        self.read.recheck().await?;
        Ok(self.chunk.take())
    }

    fn release(&mut self) {
        self.reader.release();
    }

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}

/// A tree, or a page of it, that is being written.
pub struct TreeDocument {
    read: LongRead,
    reader: TreeReader,
    /// Nodes that may still be written.
    left: usize,
    stage: DocumentStage,
    chunk: JsonChunk,
}

impl TreeDocument {
    pub fn new(read: LongRead, reader: TreeReader, limit: usize) -> Self {
        Self { read, reader, left: limit, stage: DocumentStage::Begin, chunk: JsonChunk::default() }
    }

    async fn step(&mut self) -> Result<()> {
        let (nodes, has_more) = self.reader.next(STEP_NODES.min(self.left)).await?;
        self.left -= nodes.len();
        nodes.iter().for_each(|node| self.chunk.item(node));
        if !has_more || self.left == 0 {
            let next = has_more.then(|| format!(",\"next\":{}", self.reader.after()));
            self.chunk.text(&format!("]{}}}", next.unwrap_or_default()));
            self.stage = DocumentStage::Over;
        }
        Ok(())
    }
}

impl ChunkSource for TreeDocument {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.stage == DocumentStage::Begin {
            let (roots, leaf) = (json!(self.reader.roots), json!(self.reader.leaf));
            self.chunk.text(&format!("{{\"roots\":{roots},\"leaf\":{leaf},\"nodes\":["));
            self.stage = DocumentStage::Items;
        }
        while self.stage == DocumentStage::Items && !self.chunk.is_full() {
            self.step().await?;
        }
        self.read.recheck().await?;
        Ok(self.chunk.take())
    }

    fn release(&mut self) {}

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}
