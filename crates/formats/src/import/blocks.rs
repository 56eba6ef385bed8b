//! Content blocks of messages. One lenient type reads the formats of Anthropic, OpenAI and pi. Unknown keys are
//! ignored, including vendor signatures, so signatures are never stored (I12).

use std::borrow::Cow;
use std::fmt;

use sapwood_core::Json;
use sapwood_core::content::{Part, Reasoning};
use sapwood_core::entry::ToolResult;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::ProblemKind;
use super::steps::StepBatch;
use super::text::{arguments_json, decode_base64, decode_data_url, input_json, keep_json};
use crate::message::PARTS_MAX;

/// Return the approximate size of a part, including the bytes of its media, which stay in memory with it.
pub(super) fn part_bytes(part: &Part) -> usize {
    const FRAME_BYTES: usize = 64;
    FRAME_BYTES
        + match part {
            Part::Text(text) => text.text.len(),
            Part::Reasoning(reasoning) => reasoning.text.len(),
            Part::ToolCall(call) => call.input.get().len() + call.name.len() + call.call_id.len(),
            Part::Media(media) => 256 + usize::try_from(media.bytes).unwrap_or(usize::MAX / 2),
        }
}

/// Build the result of a call that was not interrupted.
pub(super) fn tool_result(
    call_id: String,
    tool: Option<String>,
    parts: Vec<Part>,
    is_error: bool,
) -> ToolResult {
    ToolResult { call_id, tool, parts, is_error, duration_ms: None, interrupted: false, full: None }
}

/// The content of a message: a string, a block, or several blocks.
#[derive(Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    Empty,
    Text(String),
    Blocks(Vec<Block<'a>>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Block<'a> {
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    pub text: Option<String>,
    pub thinking: Option<String>,
    pub redacted: Option<bool>,
    #[serde(alias = "callID")]
    pub id: Option<String>,
    pub name: Option<String>,
    #[serde(borrow)]
    pub input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
    /// Set by an export if it wrapped the arguments in an object, because pi and operator accept only objects.
    #[serde(alias = "bareInput")]
    bare_input: Flag,
    #[serde(alias = "tool_call_id", alias = "toolCallId")]
    pub tool_use_id: Option<String>,
    #[serde(borrow)]
    pub content: Content<'a>,
    pub is_error: Option<bool>,
    #[serde(borrow)]
    pub source: Option<MediaSource<'a>>,
    #[serde(borrow)]
    pub data: Option<Cow<'a, str>>,
    #[serde(alias = "mimeType", alias = "media_type", alias = "mime")]
    pub mime_type: Option<String>,
    #[serde(borrow)]
    pub image_url: Option<ImageUrl<'a>>,
    #[serde(alias = "filename")]
    pub file_name: Option<String>,
    #[serde(borrow)]
    pub url: Option<Cow<'a, str>>,
    title: LenientString,
    tool_name: LenientString,
    error_code: LenientString,
    stdout: LenientString,
    stderr: LenientString,
}

/// Whether the value is exactly `true`. Any other value is `false`, not an error.
#[derive(Debug, Default)]
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de RawValue>::deserialize(deserializer).map(|raw| Flag(raw.get() == "true"))
    }
}

/// Unwrap the input that an export wrapped in an object.
fn bare_input(raw: &RawValue) -> Json {
    #[derive(Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow)]
        input: &'a RawValue,
    }
    let inner = serde_json::from_str::<Wrapped<'_>>(raw.get()).ok();
    inner.and_then(|wrapped| keep_json(wrapped.input.get())).unwrap_or_else(|| input_json(Some(raw)))
}

/// A string. A value of another type is ignored, because sources use the same key for several types.
#[derive(Debug, Default)]
struct LenientString(Option<String>);

impl<'de> Deserialize<'de> for LenientString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        Ok(LenientString(serde_json::from_str(raw.get()).ok()))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MediaSource<'a> {
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    media_type: Option<String>,
    url: Option<String>,
}

/// OpenAI's two notations for an image URL.
#[derive(Debug)]
pub(super) struct ImageUrl<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ImageUrl<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            url: Cow<'a, str>,
        }
        let raw = <&'a RawValue>::deserialize(deserializer)?;
        let text = match raw.get().starts_with('{') {
            true => serde_json::from_str::<Object<'a>>(raw.get()).map(|object| object.url),
            false => serde_json::from_str::<String>(raw.get()).map(Cow::Owned),
        };
        text.map(ImageUrl).map_err(serde::de::Error::custom)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor(std::marker::PhantomData))
    }
}

struct ContentVisitor<'a>(std::marker::PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for ContentVisitor<'a> {
    type Value = Content<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an array of blocks")
    }
    fn visit_str<E>(self, text: &str) -> Result<Content<'a>, E> {
        Ok(Content::Text(text.to_owned()))
    }
    fn visit_string<E>(self, text: String) -> Result<Content<'a>, E> {
        Ok(Content::Text(text))
    }
    fn visit_unit<E>(self) -> Result<Content<'a>, E> {
        Ok(Content::Empty)
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Content<'a>, E> {
        Ok(Content::Text(flag.to_string()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Content<'a>, E> {
        Ok(Content::Text(number.to_string()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Content<'a>, E> {
        Ok(Content::Text(number.to_string()))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Content<'a>, E> {
        Ok(Content::Text(number.to_string()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Content<'a>, A::Error> {
        Block::deserialize(MapAccessDeserializer::new(map)).map(|block| Content::Blocks(vec![block]))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content<'a>, A::Error> {
        let mut blocks = Vec::new();
        while let Some(BlockElement(block)) = seq.next_element::<BlockElement<'a>>()? {
            if blocks.len() >= PARTS_MAX {
                return Err(serde::de::Error::custom(format!("the content has more than {PARTS_MAX} parts")));
            }
            blocks.push(block);
        }
        Ok(Content::Blocks(blocks))
    }
}

/// An element of an array of blocks: a block, or plain text.
struct BlockElement<'a>(Block<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for BlockElement<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let content = Content::deserialize(deserializer)?;
        Ok(BlockElement(match content {
            Content::Empty => Block::default(),
            Content::Text(text) => {
                Block { kind: Cow::Borrowed("text"), text: Some(text), ..Block::default() }
            }
            Content::Blocks(mut blocks) => blocks.pop().unwrap_or_default(),
        }))
    }
}

impl<'a> Content<'a> {
    pub(super) fn into_blocks(self) -> Vec<Block<'a>> {
        match self {
            Content::Empty => Vec::new(),
            Content::Text(text) => {
                vec![Block { kind: Cow::Borrowed("text"), text: Some(text), ..Block::default() }]
            }
            Content::Blocks(blocks) => blocks,
        }
    }

    /// Convert to the parts of a message. Empty blocks are dropped.
    pub(super) fn into_parts(self, batch: &mut StepBatch) -> Vec<Part> {
        self.into_blocks().into_iter().filter_map(|block| block.into_part(batch)).collect()
    }
}

impl Block<'_> {
    pub(super) fn is_result(&self) -> bool {
        self.kind == "tool_result"
    }

    /// Convert to a part. A block without an equivalent is reported.
    pub(super) fn into_part(self, batch: &mut StepBatch) -> Option<Part> {
        match self.kind.as_ref() {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => {
                self.text.filter(|text| !text.is_empty()).map(Part::text)
            }
            "refusal" => self.text.map(Part::text),
            "thinking" | "reasoning" => {
                let text = self.thinking.or(self.text).unwrap_or_default();
                let redacted = self.redacted.unwrap_or(false) || text.is_empty();
                Some(Part::Reasoning(Reasoning { text, redacted }))
            }
            "redacted_thinking" => Some(Part::Reasoning(Reasoning { text: String::new(), redacted: true })),
            // The provider runs these tools itself and puts the result in the same message, where a tool result is
            // not allowed. The call and its result are therefore imported as text.
            "server_tool_use" | "mcp_tool_use" => {
                let (name, input) = (self.name.unwrap_or_default(), input_json(self.input));
                Some(Part::text(format!("[{name}: {}]", input.get())))
            }
            kind if kind.ends_with("_tool_result") => Some(Part::text(self.result_text())),
            "tool_reference" => {
                self.tool_name.0.or(self.name).map(|tool| Part::text(format!("[tool: {tool}]")))
            }
            "tool_use" | "toolCall" | "tool_call" => {
                let input = match (self.input, self.arguments) {
                    (Some(raw), _) => input_json(Some(raw)),
                    (None, Some(raw)) if self.bare_input.0 => bare_input(raw),
                    (None, Some(raw)) if raw.get().starts_with('"') => {
                        arguments_json(&serde_json::from_str::<String>(raw.get()).unwrap_or_default())
                    }
                    (None, raw) => input_json(raw),
                };
                Some(Part::tool_call(self.id.unwrap_or_default(), self.name.unwrap_or_default(), input))
            }
            "image" | "document" | "image_url" | "input_image" | "audio" | "file" | "input_file"
            | "video" => self.into_media(batch),
            "" => None,
            other => {
                let why = format!(
                    "a block of type {:?} is not supported",
                    other.chars().take(40).collect::<String>()
                );
                batch.report(ProblemKind::PartSkipped { why });
                None
            }
        }
    }

    /// Render the result of a call that the provider ran as text: titles, addresses, and all text in the blocks.
    fn result_text(self) -> String {
        let tool = self.kind.trim_end_matches("_tool_result").to_owned();
        let mut texts = Vec::new();
        for block in self.content.into_blocks() {
            block.collect_text(&mut texts);
        }
        let word = if self.is_error == Some(true) { "error" } else { "result" };
        format!("[{tool} {word}]\n{}", texts.join("\n")).trim_end().to_owned()
    }

    fn collect_text(self, texts: &mut Vec<String>) {
        let link = self.url.map(Cow::into_owned);
        let about: Vec<String> = [self.title.0, link].into_iter().flatten().collect();
        let about = Some(about.join(": ")).filter(|about| !about.is_empty());
        let is_text = |source: &MediaSource<'_>| source.media_type.as_deref() == Some("text/plain");
        let page = self.source.filter(is_text).and_then(|source| source.data).map(Cow::into_owned);
        let candidates = [about, self.error_code.0, self.text, self.stdout.0, self.stderr.0, page];
        texts.extend(candidates.into_iter().flatten().filter(|text| !text.is_empty()));
        for block in self.content.into_blocks() {
            block.collect_text(texts);
        }
    }

    fn into_media(self, batch: &mut StepBatch) -> Option<Part> {
        let source = self.source.unwrap_or_default();
        let mime = source.media_type.or(self.mime_type);
        let link = self.image_url.map(|url| url.0).or(self.url);
        if let Some((mime, bytes)) = link.as_deref().and_then(decode_data_url) {
            return Some(batch.media(mime, bytes, self.file_name));
        }
        if let Some(data) = source.data.or(self.data) {
            if let Some(bytes) = decode_base64(&data) {
                let mime = mime.as_deref().unwrap_or("application/octet-stream");
                return Some(batch.media(mime, bytes, self.file_name));
            }
            batch.report(ProblemKind::PartSkipped { why: "the media is not valid base64".to_owned() });
            return None;
        }
        // The media is stored elsewhere. Import its link or file name as text.
        let link = source.url.or(link.map(Cow::into_owned)).or(self.file_name);
        link.map(|link| Part::text(format!("[{}: {link}]", self.kind)))
    }
}
