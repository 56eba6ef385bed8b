//! Build the model request from a durable context. Blobs are loaded and this turn's reasoning signatures are
//! added here; neither is ever stored in the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sapwood_core::content::BlobRef;
use sapwood_core::port::model::{Request, RequestMessage, RequestPart, Signature, Thinking};
use sapwood_core::port::skill::skills_prompt;
use sapwood_core::project::context::{Context, Message};
use sapwood_core::turn::confidence;
use sapwood_core::{BlobHash, Part};

use super::TurnContext;
use crate::Result;

/// Maximum number of media bytes in one request; older media is replaced by a placeholder.
const MEDIA_BYTES_MAX: u64 = 24 << 20;

impl TurnContext {
    pub(super) async fn request(
        &self,
        model: &str,
        context: &Context,
        system: Option<&str>,
    ) -> Result<Request> {
        let media = self.load_media(context).await?;
        let signatures = self.with_progress(|progress| progress.signatures.clone());
        let messages = context.messages.iter().map(|message| message_of(message, &media, &signatures));
        Ok(Request {
            model: model.to_owned(),
            system: system.map(str::to_owned),
            messages: messages.collect(),
            tools: self.specs.clone(),
            thinking: self.thinking.or_else(|| Thinking::from_name(&context.thinking)).unwrap_or_default(),
            temperature: self.agent.temperature,
            output_tokens_max: self.agent.max_tokens,
        })
    }

    pub(super) fn system(&self, context: &Context) -> Option<String> {
        let prompt = self.instructions.clone().or_else(|| context.system.clone());
        let prompt = prompt.or_else(|| self.agent.system_prompt.clone());
        let rating = self.agent.confidence.map(|_| confidence::INSTRUCTION.to_owned());
        let skills = skills_prompt(&self.skills);
        let parts: Vec<String> = prompt.into_iter().chain(skills).chain(rating).collect();
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }

    /// Load the newest media, up to the limit.
    async fn load_media(&self, context: &Context) -> Result<HashMap<BlobHash, Arc<[u8]>>> {
        let mut loaded: HashMap<BlobHash, Arc<[u8]>> = HashMap::new();
        let mut remaining_bytes = MEDIA_BYTES_MAX;
        let newest_first = context.messages.iter().rev().flat_map(|message| message.parts.iter());
        for part in newest_first {
            let Part::Media(media) = part else { continue };
            if loaded.contains_key(&media.blob) || media.bytes > remaining_bytes {
                continue;
            }
            // The size recorded in the entry may be wrong.
            if self.engine.store.blob_size(&self.scope, media.blob).await? > remaining_bytes {
                continue;
            }
            let bytes = self.engine.store.get_blob(&self.scope, media.blob).await?;
            remaining_bytes = remaining_bytes.saturating_sub(bytes.len() as u64);
            loaded.insert(media.blob, bytes.into());
        }
        Ok(loaded)
    }
}

type Media = HashMap<BlobHash, Arc<[u8]>>;

fn message_of(
    message: &Message,
    media: &Media,
    signatures: &HashMap<sapwood_core::EntryId, BTreeMap<usize, Signature>>,
) -> RequestMessage {
    let signed = message.entry.and_then(|(_, id)| signatures.get(&id));
    let part = |(at, part): (usize, &Part)| part_of(part, media, signed.and_then(|signed| signed.get(&at)));
    let parts: Vec<RequestPart> = message.parts.iter().enumerate().map(part).collect();
    let parts = match &message.answers {
        None => parts,
        Some(answers) => vec![RequestPart::ToolResult {
            call_id: answers.call_id.clone(),
            tool: answers.tool.clone().unwrap_or_default(),
            parts,
            is_error: answers.is_error,
        }],
    };
    RequestMessage { role: message.role, parts }
}

fn part_of(part: &Part, media: &Media, signature: Option<&Signature>) -> RequestPart {
    match part {
        Part::Text(text) => RequestPart::Text(text.text.clone()),
        Part::Reasoning(reasoning) => {
            RequestPart::Reasoning { text: reasoning.text.clone(), signature: signature.cloned() }
        }
        Part::ToolCall(call) => RequestPart::ToolCall(call.clone()),
        Part::Media(blob) => match media.get(&blob.blob) {
            Some(bytes) => {
                RequestPart::Media { mime: blob.mime.clone(), name: blob.name.clone(), bytes: bytes.clone() }
            }
            None => RequestPart::Text(placeholder(blob)),
        },
    }
}

fn placeholder(blob: &BlobRef) -> String {
    let name = blob.name.as_deref().unwrap_or("unnamed");
    format!("[{} {name}, {} bytes, omitted from this request]", blob.mime, blob.bytes)
}
