//! `read_file`: returns lines of a text file, or an unchanged image or document.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::tool::{OutputPart, Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::root::{OpenFile, Refusal, Root};
use crate::tool::blocking::{StopSignal, run_blocking};
use crate::tool::{Tool, spec, text_field};

/// Maximum number of lines and bytes of text in one result.
const LINES_MAX: u64 = 2_000;
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a text file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of an image or document.
const MEDIA_BYTES_MAX: u64 = 10 << 20;
/// Number of bytes read to distinguish text from binary data.
const SNIFF_BYTES: u64 = 8 << 10;

pub struct ReadFile(Arc<Root>);

impl ReadFile {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "relative to the working directory"},
                "offset": {"type": "integer", "minimum": 1, "description": "first line to read, starting at 1"},
                "limit": {"type": "integer", "minimum": 1, "maximum": LINES_MAX, "description": "maximum number of lines"}
            },
            "required": ["path"],
            "additionalProperties": false
        });
        let description =
            "Reads a text file or a range of its lines. Images and PDFs are returned unchanged.";
        spec("read_file", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let path = text_field(input, "path").to_owned();
        let first = input["offset"].as_u64().unwrap_or(1);
        let limit = input["limit"].as_u64().unwrap_or(LINES_MAX).min(LINES_MAX);
        run_blocking(move |stop| {
            read(&root, &path, first, limit, stop)
                .unwrap_or_else(|refusal| ToolOutput::error(refusal.to_string()))
        })
        .await
    }
}

fn read(root: &Root, path: &str, first: u64, limit: u64, stop: &StopSignal) -> Result<ToolOutput, Refusal> {
    let opened = root.reader().open_file(path)?;
    let io = |why| Refusal::Io { path: path.to_owned(), why };
    let mut head = Vec::new();
    let OpenFile { mut file, bytes } = opened;
    (&mut file).take(SNIFF_BYTES).read_to_end(&mut head).map_err(io)?;
    if let Some(mime) = media_type(&head) {
        return read_media(path, mime, bytes, head, file).map_err(io);
    }
    if head.contains(&0) {
        return Ok(ToolOutput::error(format!("{path} is a binary file of {bytes} bytes")));
    }
    if bytes > FILE_BYTES_MAX {
        return Ok(ToolOutput::error(format!("{path} has {bytes} bytes, but the limit is {FILE_BYTES_MAX}")));
    }
    let text = BufReader::new(head.as_slice().chain(file.take(FILE_BYTES_MAX)));
    read_lines(path, text, first, limit, stop).map_err(io)
}

fn read_media(
    path: &str,
    mime: &str,
    bytes: u64,
    head: Vec<u8>,
    rest: impl Read,
) -> std::io::Result<ToolOutput> {
    if bytes > MEDIA_BYTES_MAX {
        let why = format!("{path} ({mime}) has {bytes} bytes, but the limit is {MEDIA_BYTES_MAX}");
        return Ok(ToolOutput::error(why));
    }
    let mut content = head;
    rest.take(MEDIA_BYTES_MAX).read_to_end(&mut content)?;
    let name = path.rsplit('/').next().map(str::to_owned);
    let media = OutputPart::Media { mime: mime.to_owned(), name, bytes: content };
    Ok(ToolOutput { parts: vec![media], is_error: false })
}

fn media_type(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        [b'%', b'P', b'D', b'F', b'-', ..] => Some("application/pdf"),
        _ => None,
    }
}

/// The lines read from a text file, and the total number of lines.
#[derive(Default)]
struct LineRange {
    text: Vec<u8>,
    kept: u64,
    total: u64,
    /// Whether a line exceeded the byte limit and was truncated or left out.
    is_cut: bool,
}

fn read_lines(
    path: &str,
    text: impl BufRead,
    first: u64,
    limit: u64,
    stop: &StopSignal,
) -> std::io::Result<ToolOutput> {
    let mut lines = LineRange::default();
    let mut text = text;
    let mut line = Vec::new();
    while !stop.is_set() {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        lines.total += 1;
        let is_wanted = lines.total >= first && lines.kept < limit;
        if is_wanted && !lines.is_cut {
            lines.keep(&line);
        }
    }
    if first > lines.total && lines.total > 0 {
        return Ok(ToolOutput::error(format!("{path} has only {} lines", lines.total)));
    }
    Ok(lines.into_output(first))
}

impl LineRange {
    fn keep(&mut self, line: &[u8]) {
        let remaining = TEXT_BYTES_MAX - self.text.len();
        if line.len() > remaining && self.kept > 0 {
            self.is_cut = true;
            return;
        }
        self.is_cut = line.len() > remaining;
        self.text.extend_from_slice(&line[..line.len().min(remaining)]);
        self.kept += 1;
    }

    fn into_output(self, first: u64) -> ToolOutput {
        let last = first + self.kept.max(1) - 1;
        let mut notes = Vec::new();
        if last < self.total {
            notes.push(format!(
                "lines {first} to {last} of {}; continue with offset {}",
                self.total,
                last + 1
            ));
        }
        if self.is_cut && self.kept == 1 {
            notes.push(format!("line {first} is longer than {TEXT_BYTES_MAX} bytes and was truncated"));
        }
        let text = String::from_utf8_lossy(&self.text);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            notes.push("some bytes are not UTF-8 and are shown as \u{fffd}".to_owned());
        }
        if self.total == 0 {
            notes.push("the file is empty".to_owned());
        }
        let mut parts = vec![OutputPart::Text(text.into_owned())];
        parts.extend((!notes.is_empty()).then(|| OutputPart::Text(format!("[{}]", notes.join("; ")))));
        ToolOutput { parts, is_error: false }
    }
}
