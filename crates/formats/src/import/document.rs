//! Files that are one JSON document. A damaged document is read as far as it is valid: invalid UTF-8 is
//! replaced, and a truncated or invalid document is cut after the last complete record and closed there.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::steps::StepBatch;
use super::{LINE_BYTES_MAX, LineSplitter, PROBLEMS_MAX, Reader, Trouble, text};

/// Whether a line is a complete JSON value.
pub(super) fn is_value(line: &[u8]) -> bool {
    let line = without_mark(line).trim_ascii();
    line.len() <= LINE_BYTES_MAX && !line.is_empty() && serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

/// Strip a UTF-8 byte order mark.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Where a document has its records. A damaged document is cut between two records, or between two keys of an
/// object that contains them.
#[derive(Clone, Copy)]
pub(super) struct Records {
    /// Keys whose arrays contain records.
    pub of: &'static [&'static str],
    /// Keys whose arrays contain objects that contain records.
    pub inside: &'static [&'static str],
}

/// Pass a document to `read`. If `read` fails, pass it the valid beginning of the document instead.
pub(super) fn read_document(
    bytes: &[u8],
    records: Records,
    harvest: &mut StepBatch,
    mut read: impl FnMut(&[u8], &mut StepBatch) -> Result<(), serde_json::Error>,
) {
    harvest.line = 1;
    let bytes = without_mark(bytes);
    if bytes.trim_ascii().is_empty() {
        return;
    }
    let bytes = mend(bytes, harvest);
    let Err(error) = read(&bytes, harvest) else { return };
    let mut salvage = Salvage { bytes: &bytes, at: 0, records, open: Vec::new(), good: None };
    let fault = salvage.take_value(None).and_then(|()| salvage.expect_end());
    let (line, why) = match fault {
        Err(fault) => (line_at(&bytes, fault.at), fault.why),
        // Valid JSON, but not of the expected shape.
        Ok(()) => (error.line() as u64, Some(error.to_string())),
    };
    if let Some(good) = salvage.good.take() {
        // The error was already reported before the document was cut.
        let _ = read(&good.closed(&bytes), harvest);
    }
    harvest.line = line;
    harvest.report(why.map_or(Trouble::Torn, |why| Trouble::BadLine { why }));
}

/// Read a file with one record per line that was mistaken for a document.
pub(super) fn read_lines(bytes: &[u8], reader: &mut impl Reader, harvest: &mut StepBatch) {
    let mut lines = LineSplitter::default();
    lines.push(bytes, |line, number| reader.push_line(line, number, harvest));
    lines.finish(|line, number| reader.push_line(line, number, harvest));
}

/// Whether a file with a damaged first line has one record per line: its second line must be JSON.
pub(super) fn has_lines(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    lines.nth(1).is_some_and(|line| line.trim_ascii().starts_with(b"{") && is_value(line))
}

/// Replace invalid UTF-8 and report it by line. JSON strings have no line breaks, so an error affects only
/// one line.
fn mend<'a>(bytes: &'a [u8], harvest: &mut StepBatch) -> Cow<'a, [u8]> {
    let mut mended: Option<Vec<u8>> = None;
    let mut from = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if let Some(good) = text::mend(line) {
            harvest.line = number as u64 + 1;
            if harvest.problems.len() < PROBLEMS_MAX {
                harvest.report(Trouble::Mended { what: text::fault_of(line) });
            }
            mended.get_or_insert_with(|| bytes[..from].to_vec()).extend_from_slice(&good);
        } else if let Some(mended) = &mut mended {
            mended.extend_from_slice(line);
        }
        from += line.len();
    }
    harvest.line = 1;
    mended.map_or(Cow::Borrowed(bytes), Cow::Owned)
}

fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The position where a document stops being valid. `why` is `None` if the document is truncated.
struct Fault {
    at: usize,
    why: Option<String>,
}

/// The length of a document's valid beginning, and the brackets that close it.
struct Good {
    end: usize,
    closing: Vec<u8>,
}

impl Good {
    fn closed(&self, bytes: &[u8]) -> Vec<u8> {
        [&bytes[..self.end], &self.closing].concat()
    }
}

/// Walks through the containers of records. Each record is read as a whole.
struct Salvage<'a> {
    bytes: &'a [u8],
    at: usize,
    records: Records,
    /// Closing brackets of all open containers, innermost last. The depth is bounded, because containers are
    /// found by key and cannot contain themselves.
    open: Vec<u8>,
    good: Option<Good>,
}

/// Maximum nesting of record containers: objects in arrays of an object.
const HOLDERS_MAX: usize = 8;

impl Salvage<'_> {
    /// Read the value of a key, or the document itself.
    fn take_value(&mut self, key: Option<&str>) -> Result<(), Fault> {
        let is_root = self.open.is_empty();
        let holds = key.is_some_and(|key| self.records.of.contains(&key));
        let inside = key.is_some_and(|key| self.records.inside.contains(&key));
        match self.peek() {
            Some(b'[') if is_root || holds || inside => self.take_array(inside),
            Some(b'{') if is_root => self.take_object(),
            _ => self.skip_value(),
        }
    }

    fn take_array(&mut self, inside: bool) -> Result<(), Fault> {
        self.enter(b']')?;
        while self.peek() != Some(b']') {
            match self.peek() {
                Some(b'{') if inside => self.take_object()?,
                _ => self.skip_value()?,
            }
            self.mark();
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if self.peek() != Some(b']') {
                return Err(self.fault("a comma or the array's end is missing"));
            }
        }
        self.leave();
        Ok(())
    }

    fn take_object(&mut self) -> Result<(), Fault> {
        self.enter(b'}')?;
        while self.peek() != Some(b'}') {
            let from = self.at;
            self.skip_value()?;
            let key = serde_json::from_slice::<String>(&self.bytes[from..self.at]);
            let key = key.map_err(|error| self.fault(&error.to_string()))?;
            if self.peek() != Some(b':') {
                return Err(self.fault("a colon is missing"));
            }
            self.at += 1;
            self.take_value(Some(&key))?;
            self.mark();
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if self.peek() != Some(b'}') {
                return Err(self.fault("a comma or the object's end is missing"));
            }
        }
        self.leave();
        Ok(())
    }

    fn skip_value(&mut self) -> Result<(), Fault> {
        self.peek();
        let mut values =
            serde_json::Deserializer::from_slice(&self.bytes[self.at..]).into_iter::<&RawValue>();
        match values.next() {
            Some(Ok(_)) => {
                self.at += values.byte_offset();
                Ok(())
            }
            Some(Err(error)) if !error.is_eof() => Err(self.fault(&error.to_string())),
            Some(Err(_)) | None => Err(Fault { at: self.bytes.len(), why: None }),
        }
    }

    fn expect_end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault("there is data after the end of the document")),
        }
    }

    fn enter(&mut self, closing: u8) -> Result<(), Fault> {
        if self.open.len() >= HOLDERS_MAX {
            return Err(self.fault("it is nested too deeply"));
        }
        self.at += 1;
        self.open.push(closing);
        self.mark();
        Ok(())
    }

    fn leave(&mut self) {
        self.at += 1;
        self.open.pop();
        self.mark();
    }

    /// Record that the document is valid up to here.
    fn mark(&mut self) {
        let good = self.good.get_or_insert_with(|| Good { end: 0, closing: Vec::new() });
        good.end = self.at;
        good.closing.clear();
        good.closing.extend(self.open.iter().rev());
    }

    /// Skip whitespace and return the next byte.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blank;
        self.bytes.get(self.at).copied()
    }

    /// Build an error. At the end of the bytes it has no reason, because the document is only truncated.
    fn fault(&self, why: &str) -> Fault {
        Fault { at: self.at, why: Some(why.to_owned()).filter(|_| self.at < self.bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RECORDS: Records = Records { of: &["messages", "old"], inside: &["archives"] };

    fn read(text: &[u8]) -> (Option<Value>, Vec<(u64, &'static str)>) {
        let (mut harvest, mut taken) = (StepBatch::default(), None);
        read_document(text, RECORDS, &mut harvest, |bytes, _| {
            taken = Some(serde_json::from_slice(bytes)?);
            Ok(())
        });
        (taken, harvest.problems.iter().map(|problem| (problem.line, problem.what.code())).collect())
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
