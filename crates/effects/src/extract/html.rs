//! The text of HTML pages: headings, paragraphs, lists and tables, without markup and scripts.

/// Number of columns at which paragraphs are wrapped.
const COLUMNS: usize = 120;

pub fn extract_text(document: &[u8]) -> Result<String, String> {
    let page = String::from_utf8_lossy(document);
    html2text::config::plain()
        .link_footnotes(true)
        .string_from_read(page.as_bytes(), COLUMNS)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::extract_text;

    #[test]
    fn text_is_kept_and_scripts_and_styles_are_not() {
        let page = b"<html><head><style>p { color: red }</style><script>steal()</script></head>\
            <body><h1>Oaks &amp; elms</h1><p>They live <b>long</b>.<p>Caf\xc3\xa9</body>";
        let text = extract_text(page).unwrap();
        assert!(text.contains("Oaks & elms") && text.contains("Café"), "{text}");
        assert!(text.contains("live") && text.contains("long"), "{text}");
        assert!(!text.contains("steal") && !text.contains("color"), "{text}");
    }
}
