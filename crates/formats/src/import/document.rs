//! Files that are one JSON document. A damaged document is read up to the damage: invalid UTF-8 is replaced, and a
//! truncated or invalid document is cut after the last complete record and closed there.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::steps::StepBatch;
use super::{LINE_BYTES_MAX, LineSplitter, PROBLEMS_MAX, ProblemKind, Reader, text};

/// Whether a line is a complete JSON value.
pub(super) fn is_value(line: &[u8]) -> bool {
    let line = strip_bom(line).trim_ascii();
    line.len() <= LINE_BYTES_MAX && !line.is_empty() && serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

fn strip_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The keys under which a document stores its records. A damaged document is cut between two records, or between two
/// keys of an object that contains records.
#[derive(Clone, Copy)]
pub(super) struct Records {
    /// Keys whose arrays contain records.
    pub keys: &'static [&'static str],
    /// Keys whose arrays contain objects that contain records.
    pub container_keys: &'static [&'static str],
}

/// Pass a document to `read`. If `read` fails, call `read` again with the valid beginning of the document.
pub(super) fn read_document(
    bytes: &[u8],
    records: Records,
    batch: &mut StepBatch,
    mut read: impl FnMut(&[u8], &mut StepBatch) -> Result<(), serde_json::Error>,
) {
    batch.line = 1;
    let bytes = strip_bom(bytes);
    if bytes.trim_ascii().is_empty() {
        return;
    }
    let bytes = repair_lines(bytes, batch);
    let Err(error) = read(&bytes, batch) else { return };
    let mut finder = PrefixFinder { bytes: &bytes, at: 0, records, open: Vec::new(), valid_prefix: None };
    let syntax_error = finder.take_value(None).and_then(|()| finder.expect_end());
    let (line, why) = match syntax_error {
        Err(syntax_error) => (line_at(&bytes, syntax_error.at), syntax_error.why),
        // Valid JSON, but not of the expected shape.
        Ok(()) => (error.line() as u64, Some(error.to_string())),
    };
    if let Some(valid_prefix) = finder.valid_prefix.take() {
        // The error of the whole document is reported below.
        let _ = read(&valid_prefix.closed(&bytes), batch);
    }
    batch.line = line;
    batch.report(why.map_or(ProblemKind::Torn, |why| ProblemKind::BadLine { why }));
}

/// Read a file that was detected as a document but has one record per line.
pub(super) fn read_lines(bytes: &[u8], reader: &mut impl Reader, batch: &mut StepBatch) {
    let mut lines = LineSplitter::default();
    lines.push(bytes, |line, number| reader.push_line(line, number, batch));
    lines.finish(|line, number| reader.push_line(line, number, batch));
}

/// Whether a file with a damaged first line has one record per line. If so, its second line is a JSON object.
pub(super) fn has_lines(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    lines.nth(1).is_some_and(|line| line.trim_ascii().starts_with(b"{") && is_value(line))
}

/// Replace invalid UTF-8 and unpaired surrogates, and report them by line. JSON strings have no line breaks, so an
/// error affects only one line.
fn repair_lines<'a>(bytes: &'a [u8], batch: &mut StepBatch) -> Cow<'a, [u8]> {
    let mut repaired: Option<Vec<u8>> = None;
    let mut from = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if let Some(repaired_line) = text::repair(line) {
            batch.line = number as u64 + 1;
            if batch.problems.len() < PROBLEMS_MAX {
                batch.report(ProblemKind::Repaired { what: text::damage_of(line) });
            }
            repaired.get_or_insert_with(|| bytes[..from].to_vec()).extend_from_slice(&repaired_line);
        } else if let Some(repaired) = &mut repaired {
            repaired.extend_from_slice(line);
        }
        from += line.len();
    }
    batch.line = 1;
    repaired.map_or(Cow::Borrowed(bytes), Cow::Owned)
}

fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The position where a document stops being valid. `why` is `None` if the document is truncated.
struct SyntaxError {
    at: usize,
    why: Option<String>,
}

/// The length of a document's valid beginning, and the brackets that close it.
struct ValidPrefix {
    end: usize,
    closing: Vec<u8>,
}

impl ValidPrefix {
    fn closed(&self, bytes: &[u8]) -> Vec<u8> {
        [&bytes[..self.end], &self.closing].concat()
    }
}

/// Finds the valid beginning of a document. It descends only into containers of records and skips each record as a
/// whole.
struct PrefixFinder<'a> {
    bytes: &'a [u8],
    at: usize,
    records: Records,
    /// Closing brackets of all open containers, innermost last. Bounded by [`CONTAINERS_MAX`].
    open: Vec<u8>,
    valid_prefix: Option<ValidPrefix>,
}

/// Maximum nesting of record containers, which are objects in arrays of an object.
const CONTAINERS_MAX: usize = 8;

impl PrefixFinder<'_> {
    /// Read the value of a key, or the document itself.
    fn take_value(&mut self, key: Option<&str>) -> Result<(), SyntaxError> {
        let is_root = self.open.is_empty();
        let has_records = key.is_some_and(|key| self.records.keys.contains(&key));
        let is_container = key.is_some_and(|key| self.records.container_keys.contains(&key));
        match self.peek() {
            Some(b'[') if is_root || has_records || is_container => self.take_array(is_container),
            Some(b'{') if is_root => self.take_object(),
            _ => self.skip_value(),
        }
    }

    fn take_array(&mut self, is_container: bool) -> Result<(), SyntaxError> {
        self.enter(b']')?;
        while self.peek() != Some(b']') {
            match self.peek() {
                Some(b'{') if is_container => self.take_object()?,
                _ => self.skip_value()?,
            }
            self.mark_valid();
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if self.peek() != Some(b']') {
                return Err(self.syntax_error("a comma or the array's end is missing"));
            }
        }
        self.leave();
        Ok(())
    }

    fn take_object(&mut self) -> Result<(), SyntaxError> {
        self.enter(b'}')?;
        while self.peek() != Some(b'}') {
            let from = self.at;
            self.skip_value()?;
            let key = serde_json::from_slice::<String>(&self.bytes[from..self.at]);
            let key = key.map_err(|error| self.syntax_error(&error.to_string()))?;
            if self.peek() != Some(b':') {
                return Err(self.syntax_error("a colon is missing"));
            }
            self.at += 1;
            self.take_value(Some(&key))?;
            self.mark_valid();
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if self.peek() != Some(b'}') {
                return Err(self.syntax_error("a comma or the object's end is missing"));
            }
        }
        self.leave();
        Ok(())
    }

    fn skip_value(&mut self) -> Result<(), SyntaxError> {
        self.peek();
        let mut values =
            serde_json::Deserializer::from_slice(&self.bytes[self.at..]).into_iter::<&RawValue>();
        match values.next() {
            Some(Ok(_)) => {
                self.at += values.byte_offset();
                Ok(())
            }
            Some(Err(error)) if !error.is_eof() => Err(self.syntax_error(&error.to_string())),
            Some(Err(_)) | None => Err(SyntaxError { at: self.bytes.len(), why: None }),
        }
    }

    fn expect_end(&mut self) -> Result<(), SyntaxError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.syntax_error("there is data after the end of the document")),
        }
    }

    fn enter(&mut self, closing: u8) -> Result<(), SyntaxError> {
        if self.open.len() >= CONTAINERS_MAX {
            return Err(self.syntax_error("it is nested too deeply"));
        }
        self.at += 1;
        self.open.push(closing);
        self.mark_valid();
        Ok(())
    }

    fn leave(&mut self) {
        self.at += 1;
        self.open.pop();
        self.mark_valid();
    }

    /// Record that the document is valid up to here.
    fn mark_valid(&mut self) {
        let valid_prefix =
            self.valid_prefix.get_or_insert_with(|| ValidPrefix { end: 0, closing: Vec::new() });
        valid_prefix.end = self.at;
        valid_prefix.closing.clear();
        valid_prefix.closing.extend(self.open.iter().rev());
    }

    /// Skip whitespace and return the next byte.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blank;
        self.bytes.get(self.at).copied()
    }

    /// Build an error. At the end of the input it has no reason, because the document is only truncated.
    fn syntax_error(&self, why: &str) -> SyntaxError {
        SyntaxError { at: self.at, why: Some(why.to_owned()).filter(|_| self.at < self.bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RECORDS: Records = Records { keys: &["messages", "old"], container_keys: &["archives"] };

    fn read(text: &[u8]) -> (Option<Value>, Vec<(u64, &'static str)>) {
        let (mut batch, mut taken) = (StepBatch::default(), None);
        read_document(text, RECORDS, &mut batch, |bytes, _| {
            taken = Some(serde_json::from_slice(bytes)?);
            Ok(())
        });
        (taken, batch.problems.iter().map(|problem| (problem.line, problem.what.code())).collect())
    }

    #[test]
    fn a_truncated_document_keeps_its_complete_records() {
        let whole = json!({ "id": "x", "archives": [{ "old": [{ "n": 1 }, { "n": 2 }], "by": "me" }],
            "messages": [{ "n": 3, "deep": [[1], { "a": [] }] }, { "n": 4 }], "end": true });
        let text = serde_json::to_string_pretty(&whole).unwrap();
        assert_eq!(read(text.as_bytes()), (Some(whole.clone()), Vec::new()));
        let records = |value: &Value| -> Vec<Value> {
            let old = value["archives"][0]["old"].as_array().cloned().unwrap_or_default();
            [old, value["messages"].as_array().cloned().unwrap_or_default()].concat()
        };
        for cut in 1..text.len() {
            let (taken, problems) = read(&text.as_bytes()[..cut]);
            let taken = taken.unwrap_or_else(|| panic!("cut at {cut}"));
            assert!(records(&whole).starts_with(&records(&taken)), "cut at {cut}: {taken}");
            assert_eq!(problems, [(line_at(text.as_bytes(), cut), "import.torn")], "cut at {cut}");
        }
        let late = text.len() - 3;
        assert_eq!(records(&read(&text.as_bytes()[..late]).0.unwrap()), records(&whole));
    }

    #[test]
    fn invalid_json_ends_the_document_and_is_reported_by_line() {
        let text = b"[\n{\"n\":1},\n{\"n\":2},\n{\"n\" 3},\n{\"n\":4}\n]";
        assert_eq!(read(text), (Some(json!([{ "n": 1 }, { "n": 2 }])), vec![(4, "import.bad_line")]));
        assert_eq!(read(b"[1, 2] 3"), (Some(json!([1, 2])), vec![(1, "import.bad_line")]));
        assert_eq!(read(b"hello"), (None, vec![(1, "import.bad_line")]));
        assert_eq!(read(b" \n"), (None, Vec::new()));
    }

    #[test]
    fn a_byte_order_mark_is_removed_and_invalid_utf8_is_replaced() {
        let text = b"\xef\xbb\xbf[\n\"a\",\n\"b\xff\",\n\"c\\ud83d\"\n]";
        let (taken, problems) = read(text);
        assert_eq!(taken, Some(json!(["a", "b\u{fffd}", "c\u{fffd}"])));
        assert_eq!(problems, [(3, "import.mended"), (4, "import.mended")]);
    }
}
