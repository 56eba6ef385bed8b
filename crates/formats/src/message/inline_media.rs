//! Media inside a message as base64: images, recordings and files. The log only refers to blobs, so the bytes are
//! collected, and the caller stores them before it appends the message.

use sapwood_core::BlobHash;
use sapwood_core::content::BlobRef;
use sapwood_core::media_type::{UNKNOWN, media_type};
use sapwood_core::port::store::BLOB_BYTES_MAX;

use super::fields::{Fields, type_of};
use super::{DURATION_MS_MAX, MessageError, Result};
use crate::import::text::{decode_base64, decode_data_url};

/// Maximum number of inline media in a message.
const MEDIA_MAX: usize = 100;

/// The bytes of the media that a message contains.
#[derive(Default)]
pub(super) struct MediaSink {
    pub blobs: Vec<Vec<u8>>,
}

impl MediaSink {
    /// Read a part with media inline, in OpenAI's or Anthropic's format. Media by URL is refused.
    pub(super) fn read(&mut self, part: &mut Fields<'_>, kind: &str) -> Result<BlobRef> {
        let refused = MessageError::InlineMedia { at: part.location() };
        match kind {
            "image_url" | "input_image" => {
                let url = text_or_field(part, "image_url", "url")?.ok_or(refused)?;
                self.data_url(&url, None, part)
            }
            "image" | "document" => {
                let name = part.name("title")?;
                let mut source = part.object("source")?.ok_or(refused)?;
                if source.text("type")?.as_deref() != Some("base64") {
                    return Err(MessageError::InlineMedia { at: source.location() });
                }
                let (mime, data) = (source.required_name("media_type")?, source.required_text("data")?);
                self.base64(&data, &mime, name, &source)
            }
            "file" | "input_file" => {
                let mut nested = part.object("file")?;
                let file = nested.as_mut().unwrap_or(part);
                let name = file.name("filename")?;
                let data = file.text("file_data")?.ok_or(refused)?;
                self.data_url(&data, name, file)
            }
            "input_audio" => {
                let mut audio = part.object("input_audio")?.ok_or(refused)?;
                let mime = format!("audio/{}", audio.required_name("format")?);
                let data = audio.required_text("data")?;
                self.base64(&data, &mime, None, &audio)
            }
            _ => Err(refused),
        }
    }

    /// Read a part in Sapwood's format with `data` instead of `blob`.
    pub(super) fn read_own(&mut self, part: &mut Fields<'_>) -> Result<BlobRef> {
        let (mime, name) = (part.required_name("mime")?, part.name("name")?);
        let duration_ms = part.number("duration_ms", DURATION_MS_MAX)?;
        let data = part.required_text("data")?;
        Ok(BlobRef { duration_ms, ..self.base64(&data, &mime, name, part)? })
    }

    fn data_url(&mut self, url: &str, name: Option<String>, part: &Fields<'_>) -> Result<BlobRef> {
        if !url.starts_with("data:") {
            return Err(MessageError::InlineMedia { at: part.location() });
        }
        let (mime, bytes) = decode_data_url(url).ok_or_else(|| not_base64(part))?;
        self.store(bytes, mime, name, part)
    }

    fn base64(&mut self, data: &str, mime: &str, name: Option<String>, part: &Fields<'_>) -> Result<BlobRef> {
        let bytes = decode_base64(data).ok_or_else(|| not_base64(part))?;
        self.store(bytes, mime, name, part)
    }

    fn store(
        &mut self,
        bytes: Vec<u8>,
        mime: &str,
        name: Option<String>,
        part: &Fields<'_>,
    ) -> Result<BlobRef> {
        if self.blobs.len() >= MEDIA_MAX {
            return Err(MessageError::TooMany { at: "content".to_owned(), max: MEDIA_MAX });
        }
        if bytes.is_empty() || bytes.len() > BLOB_BYTES_MAX {
            return Err(MessageError::Empty { at: part.location() });
        }
        // The declared type is only used for content that is not recognised.
        let detected = media_type(&bytes, mime);
        let mime = if detected == UNKNOWN { mime } else { detected };
        let content = BlobRef {
            blob: BlobHash::of(&bytes),
            mime: mime.to_owned(),
            name,
            bytes: bytes.len() as u64,
            duration_ms: None,
        };
        self.blobs.push(bytes);
        Ok(content)
    }
}

/// A text, or the text in a field of an object.
fn text_or_field(part: &mut Fields<'_>, key: &str, field: &str) -> Result<Option<String>> {
    match part.peek(key).map(type_of) {
        Some("an object") => match part.object(key)? {
            Some(mut object) => object.text(field),
            None => Ok(None),
        },
        Some(_) => part.text(key),
        None => Ok(None),
    }
}

fn not_base64(part: &Fields<'_>) -> MessageError {
    MessageError::Invalid { at: part.location(), why: "its data is not valid base64".to_owned() }
}
