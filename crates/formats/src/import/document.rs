//! Files that are one JSON document. One that is damaged is read as far as it is good: what is not Unicode is mended, and
//! where the text ends or stops being JSON, it is cut behind the last whole record and closed there.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::steps::StepBatch;
use super::{LINE_BYTES_MAX, LineSplitter, PROBLEMS_MAX, Reader, Trouble, text};

/// Whether a line is one JSON value by itself.
pub(super) fn is_value(line: &[u8]) -> bool {
    let line = without_mark(line).trim_ascii();
    line.len() <= LINE_BYTES_MAX && !line.is_empty() && serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

/// Without the mark that some programs put before UTF-8.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Where a document's records are: a document that is cut is cut between two of them, or between two keys of what holds
/// them.
#[derive(Clone, Copy)]
pub(super) struct Records {
    /// Keys whose arrays hold records.
    pub of: &'static [&'static str],
    /// Keys whose arrays hold objects that hold records themselves.
    pub inside: &'static [&'static str],
}

/// Hands a document to `read`, which takes it in if it can. If it cannot, it gets what is good of it.
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
        // It is JSON, and not what it should be.
        Ok(()) => (error.line() as u64, Some(error.to_string())),
    };
    if let Some(good) = salvage.good.take() {
        // What cannot be read even so was reported before it was cut.
        let _ = read(&good.closed(&bytes), harvest);
    }
    harvest.line = line;
    harvest.report(why.map_or(Trouble::Torn, |why| Trouble::BadLine { why }));
}

/// A file that was taken for a document and has a record a line.
pub(super) fn read_lines(bytes: &[u8], reader: &mut impl Reader, harvest: &mut StepBatch) {
    let mut lines = LineSplitter::default();
    lines.push(bytes, |line, number| reader.push_line(line, number, harvest));
    lines.finish(|line, number| reader.push_line(line, number, harvest));
}

/// Whether a file whose first line is damaged has a record a line: its second one is JSON by itself.
pub(super) fn has_lines(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    lines.nth(1).is_some_and(|line| line.trim_ascii().starts_with(b"{") && is_value(line))
}

/// JSON's strings have no line breaks, so what is wrong with one is wrong with one line.
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

/// Where a document stops being one. No reason if it just ends.
struct Fault {
    at: usize,
    why: Option<String>,
}

/// How far a document is good, and what closes it there.
struct Good {
    end: usize,
    closing: Vec<u8>,
}

impl Good {
    fn closed(&self, bytes: &[u8]) -> Vec<u8> {
        [&bytes[..self.end], &self.closing].concat()
    }
}

/// Goes through what holds the records; the records themselves are read as a whole.
struct Salvage<'a> {
    bytes: &'a [u8],
    at: usize,
    records: Records,
    /// What closes what is open, innermost last. As deep as keys can name it: what is named is never inside itself.
    open: Vec<u8>,
    good: Option<Good>,
}

/// Deepest nesting of what holds records: objects in arrays of an object.
const HOLDERS_MAX: usize = 8;

impl Salvage<'_> {
    /// A value under a key, or the document itself.
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
            Some(_) => Err(self.fault("the document is over, and there is more")),
        }
    }

    fn enter(&mut self, closing: u8) -> Result<(), Fault> {
        if self.open.len() >= HOLDERS_MAX {
            return Err(self.fault("it is nested too deep"));
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

    /// Up to here it is good.
    fn mark(&mut self) {
        let good = self.good.get_or_insert_with(|| Good { end: 0, closing: Vec::new() });
        good.end = self.at;
        good.closing.clear();
        good.closing.extend(self.open.iter().rev());
    }

    /// The next byte that says something.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blank;
        self.bytes.get(self.at).copied()
    }

    /// At the end of the bytes nothing is wrong but that there are no more.
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
    fn a_document_that_is_cut_anywhere_keeps_its_whole_records() {
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
    fn what_is_no_json_ends_it_and_is_reported_by_its_line() {
        let text = b"[\n{\"n\":1},\n{\"n\":2},\n{\"n\" 3},\n{\"n\":4}\n]";
        assert_eq!(read(text), (Some(json!([{ "n": 1 }, { "n": 2 }])), vec![(4, "import.bad_line")]));
        assert_eq!(read(b"[1, 2] 3"), (Some(json!([1, 2])), vec![(1, "import.bad_line")]));
        assert_eq!(read(b"hello"), (None, vec![(1, "import.bad_line")]));
        assert_eq!(read(b" \n"), (None, Vec::new()));
    }

    #[test]
    fn a_mark_goes_and_what_is_not_unicode_is_mended_by_line() {
        let text = b"\xef\xbb\xbf[\n\"a\",\n\"b\xff\",\n\"c\\ud83d\"\n]";
        let (taken, problems) = read(text);
        assert_eq!(taken, Some(json!(["a", "b\u{fffd}", "c\u{fffd}"])));
        assert_eq!(problems, [(3, "import.mended"), (4, "import.mended")]);
    }
}
