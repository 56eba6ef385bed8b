//! Splits content into numbered lines, chunk by chunk, and selects a range of them. A line that is too long is split, so
//! that every part of a text has a line number.

use std::ops::ControlFlow;

use super::InputFormat;

/// Maximum length of a line in bytes. The rest of a longer line counts as further lines.
pub const LINE_BYTES_MAX: usize = 2_000;

/// Splits a stream of chunks into lines.
pub struct LineSplitter {
    format: InputFormat,
    pending: Vec<u8>,
}

impl LineSplitter {
    /// Start at the beginning of content in UTF-8 or Latin-1.
    pub fn new(format: InputFormat) -> Self {
        Self { format, pending: Vec::new() }
    }

    /// Split the next chunk, and call `each` with every complete line.
    pub fn push(&mut self, chunk: &[u8], mut each: impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            if self.pending.ends_with(b"\n") {
                let line = std::mem::take(&mut self.pending);
                self.split_long(&line, true, &mut each)?;
            } else if self.pending.len() > 2 * LINE_BYTES_MAX {
                let line = std::mem::take(&mut self.pending);
                let rest = self.split_long(&line, false, &mut each)?;
                self.pending = line[line.len() - rest..].to_vec();
            }
        }
        ControlFlow::Continue(())
    }

    /// Pass the last line, which has no line break.
    pub fn finish(mut self, mut each: impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        let line = std::mem::take(&mut self.pending);
        match line.is_empty() {
            true => ControlFlow::Continue(()),
            false => self.split_long(&line, true, &mut each).map_continue(drop),
        }
    }

    /// Pass a line in parts of at most [`LINE_BYTES_MAX`]. Returns how many bytes are left: none if the line is
    /// complete.
    fn split_long(
        &self,
        line: &[u8],
        is_complete: bool,
        each: &mut impl FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<(), usize> {
        let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
        rest = rest.strip_suffix(b"\r").filter(|_| is_complete).unwrap_or(rest);
        while rest.len() > LINE_BYTES_MAX {
            let (part, after) = rest.split_at(self.floor_boundary(rest));
            each(&self.decode(part))?;
            rest = after;
        }
        match is_complete {
            true => each(&self.decode(rest)).map_continue(|()| 0),
            false => ControlFlow::Continue(rest.len()),
        }
    }

    /// The last position up to [`LINE_BYTES_MAX`] that does not split a character.
    fn floor_boundary(&self, line: &[u8]) -> usize {
        let is_continuation = |at: &usize| line[*at] & 0b1100_0000 == 0b1000_0000;
        match self.format {
            InputFormat::Latin1 => LINE_BYTES_MAX,
            // A character of UTF-8 has at most four bytes.
            _ => (LINE_BYTES_MAX - 3..=LINE_BYTES_MAX)
                .rev()
                .find(|at| !is_continuation(at))
                .unwrap_or(LINE_BYTES_MAX),
        }
    }

    fn decode(&self, line: &[u8]) -> String {
        match self.format {
            InputFormat::Latin1 => line.iter().copied().map(char::from).collect(),
            _ => String::from_utf8_lossy(line).into_owned(),
        }
    }
}

/// Selects a range of lines, up to a number of bytes.
pub struct LineWindow {
    from: usize,
    lines_max: usize,
    bytes_max: usize,
    seen: usize,
    /// The selected lines, each with a line break.
    pub text: String,
    /// The number of selected lines.
    pub lines: usize,
    /// Whether there are more lines after the range.
    pub has_more: bool,
}

impl LineWindow {
    /// Select at most `lines_max` lines and `bytes_max` bytes, but at least one line. `from` is the number of the first
    /// line, from 1.
    pub fn new(from: usize, lines_max: usize, bytes_max: usize) -> Self {
        Self { from, lines_max, bytes_max, seen: 0, text: String::new(), lines: 0, has_more: false }
    }

    /// Take the next line. Breaks after the range.
    pub fn push(&mut self, line: &str) -> ControlFlow<()> {
        self.seen += 1;
        if self.seen < self.from {
            return ControlFlow::Continue(());
        }
        if self.lines == self.lines_max || (self.lines > 0 && self.text.len() + line.len() > self.bytes_max) {
            self.has_more = true;
            return ControlFlow::Break(());
        }
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1;
        ControlFlow::Continue(())
    }

    /// The number of lines pushed so far. If [`LineWindow::push`] never broke, this is the total number of lines.
    pub fn seen(&self) -> usize {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(format: InputFormat, chunks: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut found) = (LineSplitter::new(format), Vec::new());
        for chunk in chunks {
            let _ = splitter.push(chunk, |line| {
                found.push(line.to_owned());
                ControlFlow::Continue(())
            });
        }
        let _ = splitter.finish(|line| {
            found.push(line.to_owned());
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn lines_do_not_depend_on_the_chunks() {
        let text = format!("one\r\n\ntwo {}\nlast", "ö".repeat(3 * LINE_BYTES_MAX));
        let whole = lines(InputFormat::Utf8, &[text.as_bytes()]);
        assert_eq!(
            (whole[0].as_str(), whole[1].as_str(), whole.last().unwrap().as_str()),
            ("one", "", "last")
        );
        assert!(whole.iter().all(|line| line.len() <= LINE_BYTES_MAX && !line.contains('\u{fffd}')));
        assert_eq!(whole[2..whole.len() - 1].concat(), text.lines().nth(2).unwrap());
        for size in [1, 7, 1_000, 4_001] {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(lines(InputFormat::Utf8, &chunks), whole, "chunks of {size}");
        }
        assert_eq!(lines(InputFormat::Latin1, &[b"caf\xe9"]), ["café"]);
        assert!(lines(InputFormat::Utf8, &[b""]).is_empty());
    }

    #[test]
    fn a_window_selects_lines_and_says_whether_there_are_more() {
        let take = |from, lines_max, bytes_max| {
            let mut window = LineWindow::new(from, lines_max, bytes_max);
            for line in ["a", "b", "c", "d"] {
                if window.push(line).is_break() {
                    break;
                }
            }
            (window.text, window.has_more)
        };
        assert_eq!(take(2, 2, 100), ("b\nc\n".to_owned(), true));
        assert_eq!(take(3, 9, 100), ("c\nd\n".to_owned(), false));
        assert_eq!(take(1, 9, 3), ("a\nb\n".to_owned(), true));
        assert_eq!(take(9, 9, 100), (String::new(), false));
    }
}
