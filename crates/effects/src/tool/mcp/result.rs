//! Converts a server's result to a tool output. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use sapwood_core::port::tool::{OutputPart, ToolOutput};

/// Maximum number of parts in a result.
const PARTS_MAX: usize = 256;

pub(super) fn read_result(result: CallToolResult) -> ToolOutput {
    let omitted = result.content.len().saturating_sub(PARTS_MAX);
    let mut parts: Vec<OutputPart> = result.content.into_iter().take(PARTS_MAX).map(read_block).collect();
    if omitted > 0 {
        parts.push(OutputPart::Text(format!("({omitted} more parts were omitted)")));
    }
    // Servers should repeat structured content as text. If a server does not, use the structured content as the output.
    if let (true, Some(value)) = (parts.is_empty(), result.structured_content) {
        parts.push(OutputPart::Text(value.to_string()));
    }
    ToolOutput { parts, is_error: result.is_error.unwrap_or(false) }
}

fn read_block(block: ContentBlock) -> OutputPart {
    match block {
        ContentBlock::Text(text) => OutputPart::Text(text.text),
        ContentBlock::Image(image) => read_media(image.mime_type, None, &image.data),
        ContentBlock::Audio(audio) => read_media(audio.mime_type, None, &audio.data),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                OutputPart::Text(format!("{uri}\n{text}"))
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let mime = mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                read_media(mime, Some(uri), &blob)
            }
            _ => OutputPart::Text("(a resource of an unknown kind)".to_owned()),
        },
        ContentBlock::ResourceLink(link) => OutputPart::Text(format!("resource {}: {}", link.name, link.uri)),
        _ => OutputPart::Text("(content of an unknown kind)".to_owned()),
    }
}

fn read_media(mime: String, name: Option<String>, data: &str) -> OutputPart {
    match STANDARD.decode(data) {
        Ok(bytes) => OutputPart::Media { mime, name, bytes },
        Err(_) => OutputPart::Text(format!("({mime} with invalid base64)")),
    }
}
