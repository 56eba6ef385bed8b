//! Deterministic YAML output: block style, sorted keys, two spaces per level. Strings that every YAML reader treats as
//! text are written without quotes. All other strings are quoted on one line.

use std::fmt::Write;

use serde_json::Value;

/// Maximum length of an implicit key in characters, including its quotes.
const IMPLICIT_KEY_CHARS_MAX: usize = 1_000;

pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(_) | Value::Array(_) => write_block(&mut out, value, 0),
        scalar => {
            write_scalar(&mut out, scalar);
            out.push('\n');
        }
    }
    out
}

fn write_block(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) => {
            // Sort here, because the order of a serde_json map depends on build features.
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            for (number, key) in keys.into_iter().enumerate() {
                if number > 0 {
                    indent(out, depth);
                }
                write_key(out, key, depth);
                write_value(out, &fields[key], depth);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    indent(out, depth);
                }
                out.push('-');
                match is_block(item) {
                    true => {
                        out.push(' ');
                        write_block(out, item, depth + 1);
                    }
                    false => write_value(out, item, depth),
                }
            }
        }
        scalar => write_scalar(out, scalar),
    }
}

/// Write a key. YAML readers recognize implicit keys only up to 1,024 characters, so a longer key is written
/// explicitly with `?`.
fn write_key(out: &mut String, key: &str, depth: usize) {
    let mut text = String::new();
    write_text(&mut text, key);
    if text.chars().count() <= IMPLICIT_KEY_CHARS_MAX {
        out.push_str(&text);
    } else {
        out.push_str("? ");
        out.push_str(&text);
        out.push('\n');
        indent(out, depth);
    }
    out.push(':');
}

/// Write the value after a key or a dash: on the same line, or as a block.
fn write_value(out: &mut String, value: &Value, depth: usize) {
    if is_block(value) {
        out.push('\n');
        indent(out, depth + 1);
        return write_block(out, value, depth + 1);
    }
    out.push(' ');
    write_scalar(out, value);
    out.push('\n');
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn write_scalar(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => {
            let _ = write!(out, "{flag}");
        }
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) => write_text(out, text),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

/// Format a number. A float always has a decimal point, even before an exponent.
fn number_text(number: &serde_json::Number) -> String {
    let text = number.to_string();
    match text.split_once(['e', 'E']) {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

fn write_text(out: &mut String, text: &str) {
    if is_bare(text) {
        out.push_str(text);
    } else if text.chars().all(|ch| (' '..='~').contains(&ch)) {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    } else {
        write_quoted(out, text);
    }
}

/// Whether every YAML reader treats this string as text without quotes.
fn is_bare(text: &str) -> bool {
    const RESERVED: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let starts_with_letter =
        text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let is_identifier = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    starts_with_letter
        && is_identifier
        && text.len() <= 128
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str())
}

fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for ch in text.chars() {
        match ch {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ch if is_printable(ch) => out.push(ch),
            ch if (ch as u32) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", ch as u32);
            }
            ch => {
                let _ = write!(out, "\\U{:08x}", ch as u32);
            }
        }
    }
    out.push('"');
}

/// Whether YAML allows this character unescaped. Excludes characters that some readers drop or treat as line
/// breaks.
fn is_printable(ch: char) -> bool {
    matches!(ch, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{1_0000}'..='\u{1_fffd}')
}
