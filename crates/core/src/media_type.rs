//! The media type of a file's content. A declared type is not trusted, because browsers and models act on it.

/// Number of bytes to inspect.
const INSPECTED_BYTES: usize = 8 << 10;
/// Prefix length needed for detection: the inspected bytes, and one byte to detect whether the text continues.
pub const SNIFFED_BYTES: usize = INSPECTED_BYTES + 1;
/// The type of text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The type of a Word document.
pub const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
/// The type of content that is not recognised.
pub const UNKNOWN: &str = "application/octet-stream";

/// Detect the media type of content. `bytes` must contain at least the first [`SNIFFED_BYTES`], or all of shorter
/// content. The declared type only distinguishes JSON from other text. HTML counts as plain text, so that no browser
/// runs it.
pub fn media_type(bytes: &[u8], declared: &str) -> &'static str {
    magic(bytes).or_else(|| text_type(bytes, declared)).unwrap_or(UNKNOWN)
}

fn magic(bytes: &[u8]) -> Option<&'static str> {
    let signatures: &[(&[u8], &'static str)] = &[
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"\x1f\x8b", "application/gzip"),
        (b"ID3", "audio/mpeg"),
        (b"OggS", "audio/ogg"),
        (b"fLaC", "audio/flac"),
    ];
    if let Some((_, media_type)) = signatures.iter().find(|(signature, _)| bytes.starts_with(signature)) {
        return Some(media_type);
    }
    if bytes.starts_with(b"PK\x03\x04") {
        return Some(zip_type(bytes));
    }
    match (bytes.get(..4), bytes.get(4..12)) {
        (Some(b"RIFF"), Some(rest)) if rest.ends_with(b"WEBP") => Some("image/webp"),
        (Some(b"RIFF"), Some(rest)) if rest.ends_with(b"WAVE") => Some("audio/wav"),
        (Some(_), Some(rest)) if rest.starts_with(b"ftyp") => Some("video/mp4"),
        _ => None,
    }
}

/// The type of a ZIP archive. The names of its first files tell a Word document from other archives.
fn zip_type(bytes: &[u8]) -> &'static str {
    let prefix = &bytes[..bytes.len().min(INSPECTED_BYTES)];
    let has_word_folder = prefix.windows(5).any(|window| window == b"word/");
    if has_word_folder { DOCX } else { "application/zip" }
}

/// The type of text, or `None` for other content.
fn text_type(bytes: &[u8], declared: &str) -> Option<&'static str> {
    let prefix = &bytes[..bytes.len().min(INSPECTED_BYTES)];
    let is_utf8 = match std::str::from_utf8(prefix) {
        Ok(_) => true,
        // The inspected prefix may end in the middle of a character.
        Err(error) => error.error_len().is_none() && prefix.len() < bytes.len(),
    };
    if !is_utf8 || has_control_bytes(bytes) {
        return None;
    }
    let essence = declared.split(';').next().unwrap_or_default().trim();
    Some(if essence == "application/json" { "application/json" } else { TEXT })
}

/// Whether the beginning of the content has control characters that text does not contain.
pub fn has_control_bytes(bytes: &[u8]) -> bool {
    let prefix = &bytes[..bytes.len().min(INSPECTED_BYTES)];
    prefix.iter().any(|byte| *byte < 9 || (14..32).contains(byte) && *byte != 27)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_plain_text() {
        for page in ["<html><script>alert(1)</script>", "<svg onload=alert(1)>", "<?xml version='1.0'?>"] {
            for declared in ["text/html", "image/svg+xml", "image/png"] {
                assert_eq!(media_type(page.as_bytes(), declared), TEXT);
            }
        }
    }

    #[test]
    fn the_type_follows_the_content() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n....", "text/html"), "image/png");
        assert_eq!(media_type(b"%PDF-1.7", "application/pdf"), "application/pdf");
        assert_eq!(media_type(b"\0\x01\x02", "image/png"), UNKNOWN);
        assert_eq!(media_type(b"{}", "application/json"), "application/json");
        assert_eq!(media_type(b"PK\x03\x04....word/document.xml", ""), DOCX);
        assert_eq!(media_type(b"PK\x03\x04....src/main.rs", ""), "application/zip");
    }
}
