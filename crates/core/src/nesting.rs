//! The nesting depth of JSON text. Every text that enters is bounded, because later code may parse, convert or drop it
//! recursively, and the stack is limited. Pure.

use memchr::memchr2;

/// Maximum nesting depth of a request body. Parsing into a value has the same limit.
pub const BODY_NESTING_MAX: usize = 128;
/// Maximum nesting depth of a tool's input and of a message. Lower than the limits of common JSON readers, because the
/// log adds an envelope.
pub const NESTING_MAX: usize = 100;
/// Maximum nesting depth of a line in Sapwood's own files, which may contain entries of versions without a limit.
pub const LINE_NESTING_MAX: usize = 256;

/// Return the maximum nesting depth of objects and arrays in this JSON. The function only scans brackets, so it cannot
/// overflow the stack.
pub fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut rest) = (0usize, 0usize, json);
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = skip_string(after),
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Return the bytes after a string whose opening quote was consumed.
fn skip_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        // Skip an escaped character.
        let width = if rest[at] == b'"' { 1 } else { 2 };
        rest = rest.get(at + width..).unwrap_or_default();
        if width == 1 {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count() {
        for (text, depth) in [("1", 0), ("[]", 1), (r#"{"a":["[[[\"[[",{}]}"#, 3), (r#""[""#, 0), ("[[[", 3)]
        {
            assert_eq!(nesting(text.as_bytes()), depth, "{text}");
        }
        assert_eq!(nesting("[".repeat(1_000_000).as_bytes()), 1_000_000);
    }
}
