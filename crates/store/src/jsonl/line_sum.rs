//! The checksum of a line: the last member of its JSON object, `"sum":"0123456789abcdef"`. It covers all bytes before it.
//! Other tools read the line as JSON and ignore it. Pure.

/// The member before and after its 16 digits.
const BEGIN: &[u8; 7] = b"\"sum\":\"";
const END: &[u8; 2] = b"\"}";
const DIGITS: usize = 16;
/// The length of the member with the closing brace.
const TAIL_BYTES: usize = BEGIN.len() + DIGITS + END.len();
/// Lines from other versions end differently. A line whose end differs from a checksum in at most this many characters has
/// a damaged checksum.
const DAMAGED_CHARS_MAX: usize = 2;
/// Maximum length of a line in which a single changed bit is searched for. The time grows with the square of the length.
const CORRECTED_BYTES_MAX: usize = 16 << 10;

/// Whether a line's content is known to be what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineState {
    /// The line has its checksum.
    Proven,
    /// The line has no checksum: an earlier version or another tool wrote it.
    Unproven,
}

/// The checksum does not match the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its content does not match its checksum")]
pub struct BadSum;

fn digits_of(covered: &[u8]) -> String {
    blake3::hash(covered).to_hex()[..DIGITS].to_owned()
}

/// Adds the checksum to the JSON object that begins at `start` and ends at the end of `out`.
pub fn add(out: &mut Vec<u8>, start: usize) {
    debug_assert!(out.ends_with(b"}"));
    out.pop();
    if !out.ends_with(b"{") {
        out.push(b',');
    }
    let digits = digits_of(&out[start..]);
    out.extend_from_slice(BEGIN);
    out.extend_from_slice(digits.as_bytes());
    out.extend_from_slice(END);
}

/// Returns a JSON object as a line with its checksum and a line break.
pub fn to_line(json: Vec<u8>) -> Vec<u8> {
    let mut line = json;
    add(&mut line, 0);
    line.push(b'\n');
    line
}

/// Checks a line, with or without its line break.
pub fn check(line: &[u8]) -> Result<LineState, BadSum> {
    let line = line.trim_ascii_end();
    let Some((covered, tail)) = line.len().checked_sub(TAIL_BYTES).map(|at| line.split_at(at)) else {
        return Ok(LineState::Unproven);
    };
    let (begin, rest) = tail.split_at(BEGIN.len());
    let (digits, end) = rest.split_at(DIGITS);
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let wrong = begin.iter().zip(BEGIN).filter(|(found, expected)| found != expected).count()
        + end.iter().zip(END).filter(|(found, expected)| found != expected).count()
        + digits.iter().filter(|byte| !is_digit(byte)).count();
    match wrong {
        0 if digits == digits_of(covered).as_bytes() => Ok(LineState::Proven),
        0..=DAMAGED_CHARS_MAX => Err(BadSum),
        _ => Ok(LineState::Unproven),
    }
}

/// Returns the JSON object without the checksum of a proven line.
pub fn strip(line: &[u8]) -> Vec<u8> {
    let line = line.trim_ascii_end();
    let covered = &line[..line.len().saturating_sub(TAIL_BYTES)];
    let mut json = covered.strip_suffix(b",").unwrap_or(covered).to_vec();
    json.push(b'}');
    json
}

/// Returns the end of the content in a proven line of this length without its line break: the comma before the checksum.
pub fn content_end(line_len: usize) -> usize {
    line_len.saturating_sub(TAIL_BYTES + 1)
}

/// Returns the line as it was written, if exactly one bit of it has changed. A checksum of 64 bits makes another answer
/// practically impossible.
pub fn correct(line: &[u8]) -> Option<Vec<u8>> {
    if line.len() > CORRECTED_BYTES_MAX {
        return None;
    }
    let mut tried = line.to_vec();
    for at in 0..tried.len() {
        for bit in 0..8 {
            tried[at] ^= 1 << bit;
            let is_one_line = !tried[at..=at].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
            if is_one_line && check(&tried) == Ok(LineState::Proven) {
                return Some(tried);
            }
            tried[at] ^= 1 << bit;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line_of(json: &str) -> Vec<u8> {
        to_line(json.as_bytes().to_vec())
    }

    #[test]
    fn a_line_is_json_with_its_checksum_last() {
        for json in ["{}", r#"{"a":1}"#, r#"{"a":"sum"}"#] {
            let line = line_of(json);
            assert!(line.ends_with(b"\"}\n"));
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["sum"].as_str().map(str::len), Some(DIGITS));
            assert_eq!(check(&line), Ok(LineState::Proven));
            assert_eq!(strip(&line), json.as_bytes());
        }
    }

    #[test]
    fn lines_of_earlier_versions_are_unproven() {
        let similar = r#"{"sub":"0123456789abcdef","cwd":"/home/user/proje"}"#;
        for line in ["", "{}", "user:ana", r#"{"type":"user_message","parts":[]}"#, similar] {
            assert_eq!(check(line.as_bytes()), Ok(LineState::Unproven), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_found_and_corrected(text in "[ -~]{0,60}", at in any::<usize>(), bit in 0_u8..8) {
            let json = serde_json::json!({ "text": text }).to_string();
            let line = line_of(&json);
            let line = line.trim_ascii_end();
            let mut damaged = line.to_vec();
            damaged[at % line.len()] ^= 1 << bit;
            prop_assert_eq!(check(&damaged), Err(BadSum));
            prop_assert_eq!(correct(&damaged), Some(line.to_vec()));
        }
    }
}
