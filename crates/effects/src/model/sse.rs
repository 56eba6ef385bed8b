//! Splits a streamed response into frames: JSON lines or server-sent events. Chunks may end anywhere, even inside a
//! character or between CR and LF. The size of lines and events is limited.

/// Maximum size of a line and of an event.
pub const FRAME_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events. A frame is the data of an event.
    Events,
    /// A frame is a line that is not blank.
    Lines,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    TooLarge,
    NotUtf8,
}

/// Turns bytes into frames.
#[derive(Debug)]
pub struct FrameSplitter {
    framing: Framing,
    line: Vec<u8>,
    /// Data of the current event. `None` until its first data line.
    data: Option<String>,
    after_cr: bool,
    is_first_line: bool,
}

impl FrameSplitter {
    pub fn new(framing: Framing) -> Self {
        Self { framing, line: Vec::new(), data: None, after_cr: false, is_first_line: true }
    }

    /// Read the next bytes and append the frames they complete.
    pub fn push(&mut self, bytes: &[u8], frames: &mut Vec<String>) -> Result<(), FrameError> {
        let mut rest = bytes;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend_line(&rest[..at])?;
            let is_cr = rest[at] == b'\r';
            rest = &rest[at + 1..];
            if is_cr {
                self.after_cr = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
            self.end_line(frames)?;
        }
        self.extend_line(rest)
    }

    /// End the input. Also returns a last frame that lacks its final blank line: if it is incomplete, parsing it fails.
    pub fn finish(&mut self, frames: &mut Vec<String>) -> Result<(), FrameError> {
        if !self.line.is_empty() {
            self.end_line(frames)?;
        }
        frames.extend(self.data.take());
        Ok(())
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let buffered = self.line.len() + self.data.as_ref().map_or(0, String::len);
        if buffered + bytes.len() > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, frames: &mut Vec<String>) -> Result<(), FrameError> {
        let bytes = std::mem::take(&mut self.line);
        let mut line = std::str::from_utf8(&bytes).map_err(|_| FrameError::NotUtf8)?;
        if std::mem::take(&mut self.is_first_line) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        match self.framing {
            Framing::Lines if line.trim().is_empty() => {}
            Framing::Lines => frames.push(line.to_owned()),
            Framing::Events if line.is_empty() => frames.extend(self.data.take()),
            Framing::Events => self.parse_field(line),
        }
        Ok(())
    }

    /// Parse a field. Only `data` is used, because the JSON of every provider repeats the event type.
    fn parse_field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name != "data" {
            return;
        }
        let value = value.strip_prefix(' ').unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            None => self.data = Some(value.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(framing: Framing, chunks: &[&[u8]]) -> Vec<String> {
        let mut frames = Vec::new();
        let mut reader = FrameSplitter::new(framing);
        for chunk in chunks {
            reader.push(chunk, &mut frames).unwrap();
        }
        reader.finish(&mut frames).unwrap();
        frames
    }

    const STREAM: &str = "\u{feff}: hello\r\nevent: a\r\ndata: {\"t\":\"zwölf 🌳\"}\r\n\r\ndata:1\rdata: 2\r\r\
                          id: 7\nretry: 1\n\ndata\n\nevent: b\ndata: end\n\n";
    const EVENTS: [&str; 4] = ["{\"t\":\"zwölf 🌳\"}", "1\n2", "", "end"];

    #[test]
    fn events_do_not_depend_on_how_the_bytes_are_split() {
        let bytes = STREAM.as_bytes();
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(read(Framing::Events, &[head, tail]), EVENTS, "split at {at}");
        }
        for cut in 0..bytes.len() - 2 {
            let chunks = [&bytes[..cut], &bytes[cut..cut + 1], &bytes[cut + 1..cut + 2], &bytes[cut + 2..]];
            assert_eq!(read(Framing::Events, &chunks), EVENTS, "split three times at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(Framing::Events, &single), EVENTS);
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_are_split() {
        let bytes = "{\"a\":\"ß\"}\r\n\n{\"b\":2}\n{\"c\"".as_bytes();
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(read(Framing::Lines, &[head, tail]), ["{\"a\":\"ß\"}", "{\"b\":2}", "{\"c\""], "{at}");
        }
    }

    #[test]
    fn rejects_a_line_without_end() {
        let mut reader = FrameSplitter::new(Framing::Events);
        let chunk = vec![b'x'; FRAME_BYTES_MAX / 4];
        let mut frames = Vec::new();
        let results: Vec<_> = (0..5).map(|_| reader.push(&chunk, &mut frames)).collect();
        assert_eq!(results[3], Ok(()));
        assert_eq!(results[4], Err(FrameError::TooLarge));
    }

    #[test]
    fn rejects_an_event_of_many_lines_over_the_limit() {
        let mut reader = FrameSplitter::new(Framing::Events);
        let line = format!("data: {}\n", "x".repeat(FRAME_BYTES_MAX / 4));
        let results: Vec<_> = (0..5).map(|_| reader.push(line.as_bytes(), &mut Vec::new())).collect();
        assert_eq!(results[4], Err(FrameError::TooLarge));
    }

    #[test]
    fn rejects_bytes_that_are_not_utf8() {
        let mut reader = FrameSplitter::new(Framing::Lines);
        assert_eq!(reader.push(b"\xff\xfe\n", &mut Vec::new()), Err(FrameError::NotUtf8));
    }
}
