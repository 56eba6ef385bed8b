//! The text of PDF files, page by page.

/// Extract the text in reading order, as far as the file records it. A scanned page has no text.
pub fn extract_text(document: &[u8]) -> Result<String, String> {
    let text = pdf_extract::extract_text_from_mem(document).map_err(|error| reason(&error))?;
    if text.trim().is_empty() {
        return Err("it contains no text; its pages may be images".to_owned());
    }
    Ok(text)
}

fn reason(error: &pdf_extract::OutputError) -> String {
    let why = error.to_string();
    match why.to_ascii_lowercase() {
        lower if lower.contains("password") || lower.contains("encrypt") => {
            "it is protected with a password".to_owned()
        }
        _ => format!("it is not a valid PDF file ({why})"),
    }
}
