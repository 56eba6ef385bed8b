//! How browsers may treat content. The media type that an uploader declares is not trusted, because browsers act on it.

pub use sapwood::core::media_type::SNIFFED_BYTES;
use sapwood::core::media_type::media_type;

/// Media types that browsers may show inline. Everything else is served as an attachment.
const INLINE_TYPES: &[&str] =
    &["image/png", "image/jpeg", "image/gif", "image/webp", "text/plain; charset=utf-8", "application/json"];

/// How a browser should treat the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Inline,
    Attachment,
}

/// Returns the media type to serve. `bytes` must contain at least the first [`SNIFFED_BYTES`] of the content. The
/// declared type only distinguishes JSON from other text.
pub fn served_type(bytes: &[u8], declared: &str) -> (&'static str, Disposition) {
    let media_type = media_type(bytes, declared);
    let disposition =
        if INLINE_TYPES.contains(&media_type) { Disposition::Inline } else { Disposition::Attachment };
    (media_type, disposition)
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
    fn only_listed_types_are_shown_inline() {
        assert_eq!(served_type(b"\x89PNG\r\n\x1a\n....", "text/html"), ("image/png", Disposition::Inline));
        assert_eq!(served_type(b"%PDF-1.7", "application/pdf"), ("application/pdf", Disposition::Attachment));
        assert_eq!(served_type(b"\0\x01\x02", "image/png").1, Disposition::Attachment);
    }
}
