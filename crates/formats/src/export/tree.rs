//! The whole tree as pi's or operator's session file. Both formats have the same records with different key names. A
//! record's id is its seq in eight hexadecimal digits. Compactions and labels refer to entry ids, so the exporter
//! stores a table from entry ids to seqs, with 16 bytes per entry.
//!
//! pi treats the last line as the leaf. If the log's last entry is not the leaf, the exporter therefore writes an extra
//! line at the end. operator has `leaf` records. Entries without a counterpart are written as extension data.

use std::io::Write;

use sapwood_core::content::Part;
use sapwood_core::entry::{AssistantMessage, Details, Entry, Stance, Stop};
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::{Body, EntryId, Record, Seq, TimestampMs};
use serde_json::{Value, json};

use super::calls::ToolNames;
use super::messages::{Blobs, describe_media};
use super::{ExportError, OMITTED_SUMMARY};
use crate::import::pi::Dialect;
use crate::import::text::{encode_base64, write_rfc3339};

pub struct Exporter<W> {
    out: W,
    dialect: Dialect,
    /// Buffered until the first entry, which may contain the instructions for operator's header.
    header: Option<Value>,
    ids: Vec<EntryId>,
    calls: ToolNames,
    leaf: Option<Seq>,
    /// The leaf that a reader would infer from the lines so far.
    inferred_leaf: Option<Seq>,
    last_at: TimestampMs,
}

impl<W: Write> Exporter<W> {
    pub fn new(out: W, dialect: Dialect) -> Self {
        Self {
            out,
            dialect,
            header: None,
            ids: Vec::new(),
            calls: ToolNames::default(),
            leaf: None,
            inferred_leaf: None,
            last_at: TimestampMs::default(),
        }
    }

    pub fn header(&mut self, summary: &Summary) -> Result<(), ExportError> {
        let cwd = summary.cwd.as_deref().unwrap_or("/");
        let at = write_rfc3339(summary.created_at);
        let mut header = match self.dialect {
            Dialect::Pi => {
                json!({ "type": "session", "version": 3, "id": summary.id, "timestamp": at, "cwd": cwd })
            }
            Dialect::Operator => {
                json!({ "type": "session_header", "id": summary.id, "timestamp": at, "cwd": cwd })
            }
        };
        if let Some(parent) = summary.parent.as_ref() {
            header[self.key("parentSession")] = json!(parent.session);
        }
        self.header = Some(header);
        Ok(())
    }

    fn write_header(&mut self, first: Option<&Body>) -> Result<(), ExportError> {
        let Some(mut header) = self.header.take() else { return Ok(()) };
        let system = match first {
            Some(Body::Configured(configured)) => configured.system.clone(),
            Some(body) => {
                let mut settings = Settings::default();
                settings.apply(body);
                settings.system_prompt()
            }
            None => None,
        };
        if let Some(system) = system.filter(|_| self.dialect == Dialect::Operator) {
            header["system_prompt"] = json!(system);
        }
        self.write(&header)
    }

    /// Write the next record. Records must be in order. `blobs` contains the bytes of the media to embed.
    pub fn line(&mut self, record: &Record, blobs: &Blobs) -> Result<(), ExportError> {
        let seq = record.meta.seq;
        let entry = record.clone().into_entry().map_err(|source| ExportError::Unreadable { seq, source })?;
        self.write_header(Some(&entry.body))?;
        self.ids.push(entry.meta.id);
        self.last_at = entry.meta.at;
        match &entry.body {
            Body::LeafMoved(moved) => {
                self.leaf = moved.to.and_then(|to| self.seq_of(to));
                if self.dialect == Dialect::Operator {
                    let target = self.leaf.map(id_of);
                    self.record(&entry, "leaf", json!({ "target_id": target }))?;
                    self.inferred_leaf = self.leaf;
                }
                return Ok(());
            }
            body => {
                let (kind, fields) = self.fields(body, &entry, blobs);
                self.record(&entry, kind, fields)?;
            }
        }
        if entry.meta.kind.stance() == Stance::InTree {
            self.leaf = Some(seq);
            self.inferred_leaf = Some(seq);
        } else {
            self.inferred_leaf = entry.meta.parent;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<W, ExportError> {
        self.write_header(None)?;
        if self.dialect == Dialect::Pi && self.inferred_leaf != self.leaf {
            let at = write_rfc3339(self.last_at);
            let next = Seq(u32::try_from(self.ids.len()).unwrap_or(u32::MAX).saturating_add(1));
            self.write(&json!({
                "type": "custom", "id": id_of(next), "parentId": self.leaf.map(id_of), "timestamp": at,
                "customType": "sapwood.leaf", "data": {},
            }))?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn record(&mut self, entry: &Entry, kind: &str, fields: Value) -> Result<(), ExportError> {
        let mut record = json!({ "type": kind, "id": id_of(entry.meta.seq) });
        record[self.key("parentId")] = json!(entry.meta.parent.map(id_of));
        record["timestamp"] = json!(write_rfc3339(entry.meta.at));
        if let Value::Object(fields) = fields {
            for (name, value) in fields {
                record[self.key(&name)] = value;
            }
        }
        self.write(&record)
    }

    fn write(&mut self, value: &Value) -> Result<(), ExportError> {
        serde_json::to_writer(&mut self.out, value).map_err(std::io::Error::from)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    fn fields(&mut self, body: &Body, entry: &Entry, blobs: &Blobs) -> (&'static str, Value) {
        let at = entry.meta.at.0;
        match body {
            Body::UserMessage(user) => (
                "message",
                json!({ "message": { "role": "user", "content": blocks(&user.parts, blobs, self.dialect), "timestamp": at } }),
            ),
            Body::AssistantMessage(answer) => {
                self.calls.record(body);
                ("message", json!({ "message": self.assistant(answer, at, blobs) }))
            }
            Body::ToolResult(result) => {
                let name = self.calls.tool_of(result).unwrap_or("unknown").to_owned();
                let mut message = json!({ "role": self.value_name("toolResult"), "content": blocks(&result.parts, blobs, self.dialect), "timestamp": at });
                message[self.key("toolCallId")] = json!(result.call_id);
                message[self.key("toolName")] = json!(name);
                message[self.key("isError")] = json!(result.is_error);
                ("message", json!({ "message": message }))
            }
            Body::SystemNote(note) => (
                "custom_message",
                json!({ "customType": "sapwood.note", "content": note.text, "display": false }),
            ),
            Body::CustomMessage(custom) => {
                let mut fields = json!({ "customType": custom.custom_type, "content": blocks(&custom.parts, blobs, self.dialect), "display": custom.display });
                if let Some(details) = &custom.details {
                    fields["details"] = details.to_value();
                }
                ("custom_message", fields)
            }
            Body::Compaction(compaction) => {
                let kept = compaction.first_kept.and_then(|id| self.seq_of(id)).unwrap_or(entry.meta.seq);
                let summary = compaction.summary.as_deref().unwrap_or(OMITTED_SUMMARY);
                let mut fields = json!({ "summary": summary, "firstKeptEntryId": id_of(kept), "tokensBefore": compaction.tokens_before.unwrap_or(0) });
                self.put_files(&mut fields, &compaction.details);
                ("compaction", fields)
            }
            Body::BranchSummary(branch) => {
                let from = branch.from.and_then(|id| self.seq_of(id)).or(entry.meta.parent).map(id_of);
                let from = from.unwrap_or_else(|| "root".to_owned());
                let mut fields = json!({ "summary": branch.summary, "fromId": from });
                self.put_files(&mut fields, &branch.details);
                ("branch_summary", fields)
            }
            Body::ModelChanged(changed) => {
                let (provider, model) = provider_of(&changed.model);
                ("model_change", json!({ "provider": provider, "modelId": model }))
            }
            Body::ThinkingChanged(changed) => {
                ("thinking_level_change", json!({ "thinkingLevel": changed.level }))
            }
            Body::Label(label) => {
                let target = self.seq_of(label.target).map(id_of);
                ("label", json!({ "targetId": target, "label": label.text }))
            }
            Body::SessionNamed(named) => ("session_info", json!({ "name": named.title })),
            Body::CustomInfo(info) => {
                (self.custom(), json!({ "customType": info.custom_type, "data": info.data.to_value() }))
            }
            other => {
                let encoded = sapwood_core::entry::codec::encode(other);
                let data: Value = serde_json::from_slice(&encoded).unwrap_or(Value::Null);
                (
                    self.custom(),
                    json!({ "customType": format!("sapwood.{}", other.kind().as_str()), "data": data }),
                )
            }
        }
    }

    fn assistant(&self, answer: &AssistantMessage, at: i64, blobs: &Blobs) -> Value {
        let (provider, model) = provider_of(answer.model.as_deref().unwrap_or("unknown"));
        let usage = answer.usage.unwrap_or_default();
        let total = usage.input + usage.output + usage.cache_read + usage.cache_write;
        let dollars = answer.cost_nano_usd.unwrap_or(0) as f64 / 1e9;
        let mut counts = json!({ "input": usage.input, "output": usage.output });
        counts[self.key("cacheRead")] = json!(usage.cache_read);
        counts[self.key("cacheWrite")] = json!(usage.cache_write);
        counts[self.key("totalTokens")] = json!(total);
        let mut cost = json!({ "input": 0, "output": 0, "total": dollars });
        cost[self.key("cacheRead")] = json!(0);
        cost[self.key("cacheWrite")] = json!(0);
        counts["cost"] = cost;
        let stop = match answer.stop {
            Stop::Stop => "stop",
            Stop::Length => "length",
            Stop::ToolUse => self.value_name("toolUse"),
            Stop::ContentFilter | Stop::Error => "error",
            Stop::Aborted => "aborted",
        };
        let mut message = json!({
            "role": "assistant", "content": blocks(&answer.parts, blobs, self.dialect), "api": "unknown",
            "provider": provider, "model": model, "usage": counts, "timestamp": at,
        });
        message[self.key("stopReason")] = json!(stop);
        message
    }

    /// Add the files listed in a summary, in pi's format.
    fn put_files(&self, fields: &mut Value, details: &Details) {
        if details.files_read.is_empty() && details.files_changed.is_empty() {
            return;
        }
        let mut files = json!({});
        files[self.key("readFiles")] = json!(details.files_read);
        files[self.key("modifiedFiles")] = json!(details.files_changed);
        fields["details"] = files;
    }

    fn custom(&self) -> &'static str {
        match self.dialect {
            Dialect::Pi => "custom",
            Dialect::Operator => "custom_info",
        }
    }

    fn seq_of(&self, id: EntryId) -> Option<Seq> {
        let index = self.ids.binary_search(&id).ok()?;
        u32::try_from(index + 1).ok().map(Seq)
    }

    fn key(&self, name: &str) -> String {
        dialect_name(self.dialect, name)
    }

    fn value_name(&self, name: &'static str) -> &'static str {
        match (self.dialect, name) {
            (Dialect::Operator, "toolResult") => "tool_result",
            (Dialect::Operator, "toolUse") => "tool_use",
            (_, name) => name,
        }
    }
}

/// Convert pi's `parentId` to operator's `parent_id`.
fn dialect_name(dialect: Dialect, name: &str) -> String {
    if dialect == Dialect::Pi {
        return name.to_owned();
    }
    let mut snake = String::with_capacity(name.len() + 4);
    for ch in name.chars() {
        if ch.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(ch.to_ascii_lowercase());
    }
    snake
}

fn id_of(seq: Seq) -> String {
    format!("{:08x}", seq.0)
}

fn blocks(parts: &[Part], blobs: &Blobs, dialect: Dialect) -> Vec<Value> {
    let call_type = if dialect == Dialect::Pi { "toolCall" } else { "tool_call" };
    let block = |part: &Part| match part {
        Part::Text(text) => json!({ "type": "text", "text": text.text }),
        Part::Reasoning(reasoning) => json!({ "type": "thinking", "thinking": reasoning.text }),
        Part::ToolCall(call) => {
            let (input, mut block) = (call.input.to_value(), json!({ "type": call_type }));
            (block["id"], block["name"]) = (json!(call.call_id), json!(call.name));
            // Both formats accept only an object as arguments. `bareInput` tells an import to unwrap the object.
            match input.is_object() {
                true => block["arguments"] = input,
                false => {
                    block["arguments"] = json!({ "input": input });
                    block[dialect_name(dialect, "bareInput")] = json!(true);
                }
            }
            block
        }
        Part::Media(media) => match blobs.get(&media.blob).filter(|_| media.mime.starts_with("image/")) {
            Some(bytes) => {
                let mut image = json!({ "type": "image", "data": encode_base64(bytes) });
                image[dialect_name(dialect, "mimeType")] = json!(media.mime);
                image
            }
            None => json!({ "type": "text", "text": describe_media(media) }),
        },
    };
    parts.iter().map(block).collect()
}

/// Split a model name into pi's provider and model.
fn provider_of(model: &str) -> (&str, &str) {
    if let Some((provider, name)) = model.split_once('/') {
        return (if provider == "gemini" { "google" } else { provider }, name);
    }
    let provider = match model {
        model if model.starts_with("claude") => "anthropic",
        model if model.starts_with("gpt") || model.starts_with('o') => "openai",
        model if model.starts_with("gemini") => "google",
        _ => "unknown",
    };
    (provider, model)
}
