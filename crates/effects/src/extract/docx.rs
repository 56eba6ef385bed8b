//! The text of Word documents: paragraphs, line breaks, tabs, and tables with one row per line.

use std::io::{BufReader, Cursor, Read};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// Maximum size of the unpacked main part. A small archive can contain a huge part.
const PART_BYTES_MAX: u64 = 128 << 20;
const MAIN_PART: &str = "word/document.xml";

pub fn extract_text(document: &[u8]) -> Result<String, String> {
    let invalid = |error: zip::result::ZipError| format!("it is not a valid Word document ({error})");
    let mut archive = zip::ZipArchive::new(Cursor::new(document)).map_err(invalid)?;
    let part = archive.by_name(MAIN_PART).map_err(invalid)?;
    text_of(Reader::from_reader(BufReader::new(part.take(PART_BYTES_MAX))))
}

fn text_of(mut reader: Reader<impl std::io::BufRead>) -> Result<String, String> {
    let (mut text, mut buffer, mut is_text) = (String::new(), Vec::new(), false);
    loop {
        buffer.clear();
        let event = reader.read_event_into(&mut buffer);
        match event.map_err(|error| format!("its text is damaged ({error})"))? {
            Event::Start(tag) => {
                is_text = local_name(&tag) == "t";
                text.push_str(break_of(&tag));
            }
            Event::Empty(tag) => text.push_str(break_of(&tag)),
            Event::End(tag) => {
                is_text = false;
                match tag.local_name().as_ref() {
                    "p" | "tr" if !text.ends_with('\n') => text.push('\n'),
                    "tc" => end_cell(&mut text),
                    _ => {}
                }
            }
            Event::Text(part) if is_text => text.push_str(&part),
            Event::GeneralRef(reference) if is_text => text.push_str(&resolve(&reference)),
            Event::Eof => return Ok(text),
            _ => {}
        }
    }
}

fn local_name<'a>(tag: &'a BytesStart<'_>) -> &'a str {
    tag.local_name().into_inner()
}

/// The character that a tab or line break element represents.
fn break_of(tag: &BytesStart<'_>) -> &'static str {
    match local_name(tag) {
        "tab" => "\t",
        "br" | "cr" => "\n",
        _ => "",
    }
}

/// End a cell of a table: the paragraphs of a cell stay in the row's line.
fn end_cell(text: &mut String) {
    while text.ends_with('\n') {
        text.pop();
    }
    text.push('\t');
}

/// The character of an entity or a character reference.
fn resolve(name: &str) -> String {
    let code = match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        },
        None => None,
    };
    match (name, code.and_then(char::from_u32)) {
        (_, Some(character)) => character.to_string(),
        ("amp", _) => "&".to_owned(),
        ("lt", _) => "<".to_owned(),
        ("gt", _) => ">".to_owned(),
        ("quot", _) => "\"".to_owned(),
        ("apos", _) => "'".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_breaks_and_tables_become_lines() {
        let xml = r#"<w:document xmlns:w="w"><w:body>
            <w:p><w:r><w:t>Oaks </w:t></w:r><w:r><w:t xml:space="preserve">&amp; elms &#x2014; old</w:t></w:r></w:p>
            <w:p><w:r><w:t>a</w:t><w:br/><w:t>b</w:t><w:tab/><w:t>c</w:t></w:r></w:p>
            <w:tbl><w:tr><w:tc><w:p><w:r><w:t>x</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>y</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
            </w:body></w:document>"#;
        let text = text_of(Reader::from_reader(xml.as_bytes())).unwrap();
        assert_eq!(text, "Oaks & elms — old\na\nb\tc\nx\ty\t\n");
    }

    #[test]
    fn other_archives_are_refused() {
        assert!(extract_text(b"PK\x03\x04nonsense").unwrap_err().contains("not a valid Word document"));
    }
}
