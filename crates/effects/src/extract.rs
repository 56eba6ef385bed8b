//! Extracts the text of documents. [`extract_stdin`] runs in a child process: it reads a document from standard input and
//! writes its text to standard output. On Linux, the child drops its rights before it reads the first byte (see
//! [`crate::sandbox`]), because documents are untrusted and their parsers may have faults.

mod docx;
mod html;
mod pdf;

use std::io::{Read, Write};
use std::process::ExitCode;

use sapwood_core::port::document::{DOCUMENT_BYTES_MAX, DOCUMENT_TEXT_BYTES_MAX, DocumentFormat};

/// Exit status for a document that cannot be read. The reason is on standard error.
pub const DAMAGED: u8 = 3;
/// Stack of the parsing thread. The parsers of nested structures are recursive.
const STACK_BYTES: usize = 64 << 20;

/// Extract the text of the document on standard input.
pub fn extract_stdin(format: DocumentFormat) -> ExitCode {
    // A panic is reported below. Its own message would be part of the reason on standard error.
    std::panic::set_hook(Box::new(|_| {}));
    let parsing = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || read_and_extract(format));
    let extracted = match parsing.map(std::thread::JoinHandle::join) {
        Ok(Ok(extracted)) => extracted,
        Ok(Err(_)) => Err("its structure is damaged".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    match extracted.and_then(|text| write_text(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(DAMAGED)
        }
    }
}

fn read_and_extract(format: DocumentFormat) -> Result<String, String> {
    let mut document = Vec::new();
    let mut stdin = std::io::stdin().lock().take(DOCUMENT_BYTES_MAX);
    stdin.read_to_end(&mut document).map_err(|error| error.to_string())?;
    extract(format, &document)
}

fn write_text(text: &str) -> Result<(), String> {
    let shown = &text[..text.floor_char_boundary(DOCUMENT_TEXT_BYTES_MAX)];
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| error.to_string())
}

/// Extract the text of a document in this process, which must be the child process.
fn extract(format: DocumentFormat, document: &[u8]) -> Result<String, String> {
    let text = match format {
        DocumentFormat::Pdf => pdf::extract_text(document),
        DocumentFormat::Html => html::extract_text(document),
        DocumentFormat::Docx => docx::extract_text(document),
    }?;
    Ok(without_empty_runs(&text))
}

/// Collapse runs of empty lines, which layouts produce, and remove spaces at the ends of lines.
fn without_empty_runs(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut empty_lines = 0;
    for line in text.lines().map(str::trim_end) {
        empty_lines = if line.is_empty() { empty_lines + 1 } else { 0 };
        if empty_lines <= 1 && !(plain.is_empty() && line.is_empty()) {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_collapsed() {
        assert_eq!(without_empty_runs("\n\n a \n\n\n\nb\n"), " a\n\nb\n");
    }
}
