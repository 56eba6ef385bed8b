//! Helpers shared by the formats: times, base64, invalid Unicode, and raw JSON.

use std::borrow::Cow;
use std::fmt;

use sapwood_core::{Json, TimestampMs};
use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::{NESTING_MAX, nesting};

/// Times outside these years are treated as errors.
const YEARS: std::ops::RangeInclusive<i64> = 1970..=9_999;
const MS_MAX: i64 = 253_402_300_799_999;

/// A time in any notation that sources use: RFC 3339 text, or seconds or milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Option<TimestampMs>);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let text = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        Ok(Self(match text {
            Some(text) => parse_rfc3339(text),
            None => raw.parse::<f64>().ok().and_then(from_number),
        }))
    }
}

/// Numbers below this limit are seconds. As milliseconds, they would be times in the first four months of 1970.
const SECONDS_BELOW: f64 = 1e10;

fn from_number(number: f64) -> Option<TimestampMs> {
    let ms = if number.abs() < SECONDS_BELOW { number * 1_000.0 } else { number };
    (ms >= 0.0 && ms <= MS_MAX as f64).then_some(TimestampMs(ms.round() as i64))
}

pub fn parse_rfc3339(text: &str) -> Option<TimestampMs> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let punctuated =
        [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')].iter().all(|(at, sign)| bytes[*at] == *sign);
    let in_range =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    if !punctuated || !in_range || !YEARS.contains(&year) || !matches!(bytes[10], b'T' | b't' | b' ' | b'_') {
        return None;
    }
    let mut rest = &bytes[19..];
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        for at in 0..3 {
            ms = ms * 10 + fraction[..digits].get(at).map_or(0, |digit| i64::from(digit - b'0'));
        }
        rest = &fraction[digits..];
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let ms = (seconds - offset_seconds(rest)?) * 1_000 + ms;
    (0..=MS_MAX).contains(&ms).then_some(TimestampMs(ms))
}

/// Parse `Z`, `+02:00`, or nothing, which means UTC.
fn offset_seconds(rest: &[u8]) -> Option<i64> {
    match rest {
        [] | [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] | [sign @ (b'+' | b'-'), h1, h2, m1, m2] => {
            let digits = [h1, h2, m1, m2];
            if !digits.iter().all(|digit| digit.is_ascii_digit()) {
                return None;
            }
            let [h1, h2, m1, m2] = digits.map(|digit| i64::from(digit - b'0'));
            let seconds = (h1 * 10 + h2) * 3_600 + (m1 * 10 + m2) * 60;
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

/// Return the number of days from 1970-01-01 to a Gregorian date. Years start in March, so that a leap day is the last
/// day of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Format a time as `2026-01-02T03:04:05.678Z`.
pub fn write_rfc3339(at: TimestampMs) -> String {
    let ms = at.0.clamp(0, MS_MAX);
    let (days, of_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Decode base64 of either alphabet, with or without padding. Whitespace is skipped.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut bit_count, mut padded) = (0u32, 0u8, false);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => {
                padded = true;
                continue;
            }
            b' ' | b'\n' | b'\r' | b'\t' => continue,
            _ => return None,
        };
        if padded {
            return None;
        }
        bits = (bits << 6) | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    (bit_count < 6).then_some(bytes)
}

pub fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            let sign = ALPHABET[(bits >> (18 - 6 * index)) as usize & 63];
            text.push(if index <= group.len() { char::from(sign) } else { '=' });
        }
    }
    text
}

/// Split `data:image/png;base64,…` into its type and bytes.
pub fn decode_data_url(url: &str) -> Option<(&str, Vec<u8>)> {
    let (mime, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    decode_base64(data).map(|bytes| (mime, bytes))
}

/// Repair a line so that it can be parsed as JSON. Invalid UTF-8 and unpaired surrogates become U+FFFD.
pub fn repair(line: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(line);
    let repaired = repair_surrogates(text.as_ref());
    match (&text, &repaired) {
        (Cow::Borrowed(_), None) => None,
        _ => Some(repaired.unwrap_or_else(|| text.into_owned()).into_bytes()),
    }
}

/// Describe the error in a line that [`repair`] repairs.
pub fn damage_of(line: &[u8]) -> &'static str {
    match std::str::from_utf8(line) {
        Ok(_) => "an unpaired surrogate",
        Err(_) => "bytes that are not UTF-8",
    }
}

fn repair_surrogates(text: &str) -> Option<String> {
    let mut repaired = String::new();
    let (mut from, mut at) = (0, 0);
    let bytes = text.as_bytes();
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let unit = escaped_unit(&bytes[at..]);
        match unit {
            Some(0xD800..=0xDBFF) if matches!(escaped_unit(&bytes[at + 6..]), Some(0xDC00..=0xDFFF)) => {
                at += 12
            }
            Some(0xD800..=0xDFFF) => {
                repaired.push_str(&text[from..at]);
                repaired.push_str("\\ufffd");
                at += 6;
                from = at;
            }
            Some(_) => at += 6,
            // Skip a backslash and the character it escapes, which may be a backslash.
            None => at = (at + 2).min(bytes.len()),
        }
    }
    if from == 0 {
        return None;
    }
    repaired.push_str(&text[from..]);
    Some(repaired)
}

fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Return the JSON text unchanged. Returns `None` if a reader of the log would reject it.
pub fn keep_json(text: &str) -> Option<Json> {
    if nesting(text.as_bytes()) > NESTING_MAX {
        return None;
    }
    // Parse the text completely, because raw JSON may contain values that readers reject, such as 1e999.
    serde_json::from_str::<AnyJson>(text).ok()?;
    Json::parse(text).ok()
}

/// Any valid JSON, parsed and discarded.
struct AnyJson;

impl<'de> Deserialize<'de> for AnyJson {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

impl<'de> Visitor<'de> for AnyJson {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// Return a tool's input as JSON. Input that a reader would reject becomes a JSON string.
pub fn input_json(raw: Option<&RawValue>) -> Json {
    let object = || Json::from_value(&serde_json::Value::Object(serde_json::Map::new()));
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return object() };
    keep_json(raw.get()).unwrap_or_else(|| Json::from_value(&serde_json::Value::String(raw.get().to_owned())))
}

/// Parse OpenAI's tool arguments, which are JSON in a string.
pub fn arguments_json(text: &str) -> Json {
    if text.trim().is_empty() {
        return input_json(None);
    }
    keep_json(text).unwrap_or_else(|| Json::from_value(&serde_json::Value::String(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_notation() {
        let read = |text: &str| serde_json::from_str::<Time>(text).unwrap().0.map(|at| at.0);
        assert_eq!(read(r#""2026-01-02T03:04:05.678Z""#), Some(1_767_323_045_678));
        assert_eq!(read(r#""2026-01-02T05:04:05.678901+02:00""#), Some(1_767_323_045_678));
        assert_eq!(read("1767323045.678"), Some(1_767_323_045_678));
        assert_eq!(read("1767323045678"), Some(1_767_323_045_678));
        assert_eq!(read(r#""2024-02-29T00:00:00Z""#), Some(1_709_164_800_000));
        for bad in [r#""soon""#, "null", "-5", "1e300", r#""2026-13-01T00:00:00Z""#, r#""2026-01-02""#] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_formatted_time_parses_back() {
        for ms in [0, 951_782_400_000, 1_709_164_800_123, 1_767_323_045_678, MS_MAX] {
            assert_eq!(parse_rfc3339(&write_rfc3339(TimestampMs(ms))), Some(TimestampMs(ms)));
        }
    }

    #[test]
    fn base64_round_trips() {
        for length in 0..9 {
            let bytes: Vec<u8> =
                (0..length).map(|byte: u8| byte.wrapping_mul(37).wrapping_add(200)).collect();
            assert_eq!(decode_base64(&encode_base64(&bytes)).as_deref(), Some(&bytes[..]));
        }
        assert_eq!(encode_base64(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
        assert_eq!(decode_base64("a"), None);
        assert_eq!(decode_base64("a=b="), None);
    }

    #[test]
    fn json_is_kept_if_every_reader_accepts_it() {
        for good in ["{}", r#"{"a":[1,-2,3.5e10,null,true,"x\u00e9",{"b":{}}]}"#, "\"text\"", "12"] {
            assert_eq!(keep_json(good).unwrap().get(), good);
        }
        let deep = "[".repeat(500) + &"]".repeat(500);
        for bad in
            ["1e999", r#"{"a":1e999}"#, r#"["\ud800"]"#, r#"{"\ud800":1}"#, "{", "", "1 2", "nul", &deep]
        {
            assert!(keep_json(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unpaired_surrogates_are_replaced_and_pairs_are_kept() {
        let line = br#"{"a":"x\ud83dy","b":"\ud83d\ude00","c":"\\ud83d"}"#;
        let repaired = repair(line).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&repaired).unwrap();
        assert_eq!(
            (&value["a"], &value["b"], &value["c"]),
            (&"x\u{fffd}y".into(), &"😀".into(), &r"\ud83d".into())
        );
        assert_eq!(repair(br#"{"a":"\u00e9"}"#), None);
    }
}
