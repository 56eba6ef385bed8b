//! Content sniffing. The media type that an uploader declares is not trusted, because browsers act on it.

/// Media types that browsers may show inline. Everything else is served as an attachment.
const INLINE_TYPES: &[&str] =
    &["image/png", "image/jpeg", "image/gif", "image/webp", "text/plain; charset=utf-8", "application/json"];
/// Number of bytes of a text to inspect.
const INSPECTED_BYTES: usize = 8 << 10;
/// Prefix length needed for sniffing: the inspected bytes, and one byte to detect whether the text continues.
pub const SNIFFED_BYTES: usize = INSPECTED_BYTES + 1;

/// How a browser should treat the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Inline,
    Attachment,
}

/// Returns the media type to serve. `bytes` must contain at least the first [`SNIFFED_BYTES`] of the content. The
/// declared type only distinguishes JSON from other text.
pub fn served_type(bytes: &[u8], declared: &str) -> (&'static str, Disposition) {
    let media_type =
        magic(bytes).or_else(|| text_type(bytes, declared)).unwrap_or("application/octet-stream");
    let disposition =
        if INLINE_TYPES.contains(&media_type) { Disposition::Inline } else { Disposition::Attachment };
    (media_type, disposition)
}

fn magic(bytes: &[u8]) -> Option<&'static str> {
    let signatures: &[(&[u8], &'static str)] = &[
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b", "application/gzip"),
        (b"ID3", "audio/mpeg"),
        (b"OggS", "audio/ogg"),
        (b"fLaC", "audio/flac"),
    ];
    if let Some((_, media_type)) = signatures.iter().find(|(signature, _)| bytes.starts_with(signature)) {
        return Some(media_type);
    }
    match (bytes.get(..4), bytes.get(4..12)) {
        (Some(b"RIFF"), Some(rest)) if rest.ends_with(b"WEBP") => Some("image/webp"),
        (Some(b"RIFF"), Some(rest)) if rest.ends_with(b"WAVE") => Some("audio/wav"),
        (Some(_), Some(rest)) if rest.starts_with(b"ftyp") => Some("video/mp4"),
        _ => None,
    }
}

/// Returns a plain-text type for every text, including HTML, so that no browser runs it.
fn text_type(bytes: &[u8], declared: &str) -> Option<&'static str> {
    let prefix = &bytes[..bytes.len().min(INSPECTED_BYTES)];
    let is_text = match std::str::from_utf8(prefix) {
        Ok(_) => true,
        // The inspected prefix may end in the middle of a character.
        Err(error) => error.error_len().is_none() && prefix.len() < bytes.len(),
    };
    let has_controls = prefix.iter().any(|byte| *byte < 9 || (14..32).contains(byte) && *byte != 27);
    if !is_text || has_controls {
        return None;
    }
    let essence = declared.split(';').next().unwrap_or_default().trim();
    Some(if essence == "application/json" { "application/json" } else { "text/plain; charset=utf-8" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_never_served_as_html() {
        for page in ["<html><script>alert(1)</script>", "<svg onload=alert(1)>", "<?xml version='1.0'?>"] {
            for declared in ["text/html", "image/svg+xml", "image/png"] {
                let (media_type, _) = served_type(page.as_bytes(), declared);
                assert_eq!(media_type, "text/plain; charset=utf-8");
            }
        }
    }

    #[test]
    fn media_type_follows_the_content() {
        assert_eq!(served_type(b"\x89PNG\r\n\x1a\n....", "text/html"), ("image/png", Disposition::Inline));
        assert_eq!(served_type(b"%PDF-1.7", "application/pdf"), ("application/pdf", Disposition::Attachment));
        assert_eq!(served_type(b"\0\x01\x02", "image/png").0, "application/octet-stream");
        assert_eq!(served_type(b"{}", "application/json").0, "application/json");
    }
}
