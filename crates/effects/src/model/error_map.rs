//! Maps a provider's error response to a [`ModelError`]. Pure: the inputs are status, headers and body. Most
//! providers report a context overflow only in the message text, so this module lists those texts.

use reqwest::header::HeaderMap;
use sapwood_core::port::model::ModelError;
use serde_json::Value;

/// Maximum length of the provider's message in an error.
const WHY_CHARS_MAX: usize = 600;

/// Lower-case fragments of the messages that providers send when a conversation exceeds the context window.
const OVERFLOW_TEXTS: &[&str] = &[
    "prompt is too long",
    "exceed context limit",
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "context size",
    "exceeds context length",
    "exceeds the context length",
    "exceeds the maximum number of tokens",
    "exceeds the maximum token",
    "exceed_context_size",
    "input tokens exceed",
    "input is too long",
    "input length exceeds",
    "too many tokens",
    "reduce the length of the messages",
    "request_too_large",
];
const KEY_TEXTS: &[&str] = &["api key not valid", "api_key_invalid", "api key expired", "invalid api key"];
/// Error codes for an exhausted quota. These errors are not retried, even if the status suggests a retry.
const QUOTA_CODES: &[&str] = &["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"];

/// A parsed error response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderError {
    pub status: u16,
    /// The provider's error type, such as `overloaded_error`.
    pub kind: String,
    pub message: String,
    pub retry_after_ms: Option<u64>,
}

impl ProviderError {
    /// Parse an error response. `now_ms` is the local time, used if the response has no `date` header.
    pub fn from_response(status: u16, headers: &HeaderMap, body: &str, now_ms: u64) -> Self {
        let mut error = match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::from_body(&value),
            Err(_) => Self { message: body.trim().to_owned(), ..Self::default() },
        };
        error.status = status;
        error.retry_after_ms = retry_after_ms(headers, now_ms).or(error.retry_after_ms);
        if error.message.is_empty() {
            error.message = "the provider gave no details".to_owned();
        }
        error
    }

    /// Parse an `error` object in the middle of a stream. If it has no status, the status is inferred from its kind.
    pub fn from_event(body: &Value) -> Self {
        let mut error = Self::from_body(body);
        if error.status == 0 {
            error.status = status_of_kind(&error.kind);
        }
        error
    }

    fn from_body(body: &Value) -> Self {
        let body = body.get(0).unwrap_or(body);
        let error = body.get("error").unwrap_or(body);
        if let Value::String(message) = error {
            return Self { message: message.clone(), ..Self::default() };
        }
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        let kinds = [text("status"), text("code"), text("type")];
        let message = [text("message"), text("detail")].into_iter().find(|text| !text.is_empty());
        let details = error["details"].as_array().into_iter().flatten();
        Self {
            status: error["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
            kind: kinds.into_iter().filter(|kind| !kind.is_empty()).collect::<Vec<_>>().join(" "),
            message: message.map_or_else(|| error.to_string(), str::to_owned),
            retry_after_ms: details
                .filter_map(|detail| detail["retryDelay"].as_str())
                .find_map(seconds_text_ms),
        }
    }

    pub fn into_error(self, model: &str) -> ModelError {
        let model = model.to_owned();
        let (status, retry_after_ms) = (self.status, self.retry_after_ms);
        let lower = format!("{} {}", self.kind, self.message).to_lowercase();
        let mentions = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
        let why = shorten(&self.message);
        match status {
            400 | 401 | 403 if mentions(KEY_TEXTS) => ModelError::KeyRefused { model, status, why },
            401 | 403 => ModelError::KeyRefused { model, status, why },
            413 => ModelError::Overflow { model, why },
            _ if mentions(QUOTA_CODES) => ModelError::Refused { model, status, why },
            429 => ModelError::RateLimited { model, retry_after_ms },
            400 | 422 | 500 if mentions(OVERFLOW_TEXTS) => ModelError::Overflow { model, why },
            408 | 425 | 500..=599 => ModelError::Overloaded { model, status, retry_after_ms },
            404 => ModelError::Unknown { model, why },
            _ => ModelError::Refused { model, status, why },
        }
    }
}

fn status_of_kind(kind: &str) -> u16 {
    let kinds = [
        ("rate_limit", 429),
        ("RESOURCE_EXHAUSTED", 429),
        ("overloaded", 529),
        ("UNAVAILABLE", 503),
        ("authentication", 401),
        ("permission", 403),
        ("invalid_request", 400),
        ("INVALID_ARGUMENT", 400),
        ("context_length", 400),
        ("not_found", 404),
        ("request_too_large", 413),
        ("billing", 402),
    ];
    kinds.iter().find(|(part, _)| kind.contains(part)).map_or(500, |(_, status)| *status)
}

/// Parse `retry-after-ms`, or `retry-after` in seconds or as a date.
fn retry_after_ms(headers: &HeaderMap, now_ms: u64) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Some(ms.ceil() as u64);
    }
    let after = text("retry-after")?;
    if let Some(ms) = seconds_text_ms(after) {
        return Some(ms);
    }
    let then_ms = date_ms(after)?;
    // Prefer the provider's clock: the local clock may be off by more than the delay.
    let now_ms = text("date").and_then(date_ms).unwrap_or(now_ms);
    Some(then_ms.saturating_sub(now_ms))
}

fn seconds_text_ms(text: &str) -> Option<u64> {
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then(|| (seconds * 1000.0).ceil() as u64)
}

fn date_ms(text: &str) -> Option<u64> {
    let zoned = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok()
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(WHY_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    fn headers(pairs: Pairs) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn error(status: u16, body: &str) -> ModelError {
        ProviderError::from_response(status, &HeaderMap::new(), body, 0).into_error("p/m")
    }

    #[test]
    fn parses_every_form_of_retry_delay() {
        let now_ms = 1_445_412_480_000;
        let cases: &[(Pairs, Option<u64>)] = &[
            (&[("retry-after", "7")], Some(7_000)),
            (&[("retry-after", "0.25")], Some(250)),
            (&[("retry-after-ms", "1500"), ("retry-after", "9")], Some(1_500)),
            (&[("retry-after", "Wed, 21 Oct 2015 07:28:05 GMT")], Some(5_000)),
            (
                &[
                    ("retry-after", "Wed, 21 Oct 2015 07:28:05 GMT"),
                    ("date", "Wed, 21 Oct 2015 07:28:02 GMT"),
                ],
                Some(3_000),
            ),
            (&[("retry-after", "Wed, 21 Oct 2015 07:27:00 GMT")], Some(0)),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "-1")], None),
            (&[], None),
        ];
        for (pairs, expected) in cases {
            assert_eq!(retry_after_ms(&headers(pairs), now_ms), *expected, "{pairs:?}");
        }
    }

    #[test]
    fn each_providers_overflow_message_is_an_overflow() {
        let bodies = [
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            r#"{"error":{"message":"This model's maximum context length is 128000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size","type":"exceed_context_size_error"}}"#,
            r#"{"error":"input length exceeds the context length"}"#,
        ];
        for body in bodies {
            assert_eq!(error(400, body).code(), "context_overflow", "{body}");
        }
        assert_eq!(error(413, "<html>too large</html>").code(), "context_overflow");
    }

    #[test]
    fn maps_each_status_to_its_error() {
        let cases = [
            (401, r#"{"error":{"message":"Incorrect API key provided"}}"#, "model.key_refused"),
            (403, "", "model.key_refused"),
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}"#,
                "model.key_refused",
            ),
            (404, r#"{"error":"model 'x' not found"}"#, "model.unknown"),
            (
                429,
                r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#,
                "model.refused",
            ),
            (429, r#"{"error":{"code":"rate_limit_exceeded","message":"slow down"}}"#, "model.rate_limited"),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "model.overloaded",
            ),
            (503, "upstream connect error", "model.overloaded"),
            (500, "", "model.overloaded"),
            (400, r#"{"error":{"message":"tools: bad"}}"#, "model.refused"),
            (302, "", "model.refused"),
        ];
        for (status, body, code) in cases {
            assert_eq!(error(status, body).code(), code, "{status} {body}");
        }
    }

    #[test]
    fn uses_the_retry_delay_in_the_body_without_a_header() {
        let body = r#"{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}"#;
        assert_eq!(error(429, body).retry_after_ms(), Some(34_500));
    }

    #[test]
    fn an_error_in_a_stream_gets_the_status_of_its_kind() {
        let event = |kind: &str| {
            let body = serde_json::json!({"type": "error", "error": {"type": kind, "message": "m"}});
            ProviderError::from_event(&body).into_error("p/m").code()
        };
        assert_eq!(event("overloaded_error"), "model.overloaded");
        assert_eq!(event("rate_limit_error"), "model.rate_limited");
        assert_eq!(event("api_error"), "model.overloaded");
        assert_eq!(event("authentication_error"), "model.key_refused");
        assert_eq!(event("invalid_request_error"), "model.refused");
    }

    #[test]
    fn truncates_a_long_message_at_a_character_boundary() {
        let ModelError::Refused { why, .. } = error(400, &"ü".repeat(2_000)) else { panic!("not refused") };
        assert_eq!(why.chars().count(), WHY_CHARS_MAX + 1);
    }
}
