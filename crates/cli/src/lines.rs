//! Reads lines of limited length, so that an endless line does not exhaust memory.

use std::io::BufRead;

/// Read the next line, with its line break, into `line`. Longer lines are truncated to `limit_bytes + 1` bytes, so that
/// the caller can detect them. Returns `false` at the end of the input.
pub fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>, limit_bytes: usize) -> std::io::Result<bool> {
    line.clear();
    let mut has_data = false;
    loop {
        let chunk = match from.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok(has_data);
        }
        has_data = true;
        let end = memchr::memchr(b'\n', chunk);
        let used = end.map_or(chunk.len(), |end| end + 1);
        let remaining = (limit_bytes + 1).saturating_sub(line.len());
        line.extend_from_slice(&chunk[..used.min(remaining)]);
        from.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_and_long_lines_are_truncated() {
        let mut from = std::io::BufReader::with_capacity(3, &b"one\n\nlonger than the limit\nlast"[..]);
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        while read_line(&mut from, &mut line, 6).unwrap() {
            lines.push(String::from_utf8(line.clone()).unwrap());
        }
        assert_eq!(lines, ["one\n", "\n", "longer ", "last"]);
    }
}
