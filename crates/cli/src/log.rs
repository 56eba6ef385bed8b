//! The server log: one line on stderr for each warning and error of Sapwood itself, with the request id. Client input
//! cannot inject line breaks.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::render::{Format, fit};

/// Prefix of the targets that are logged.
const TARGETS: &str = "sapwood";
/// Maximum length of a value. Longer values are truncated.
const VALUE_CHARS_MAX: usize = 2_000;

pub struct Log {
    format: Format,
}

impl Log {
    pub fn to_stderr(format: Format) -> Self {
        Self { format }
    }

    /// Convert to a layer that logs only Sapwood's targets, from level WARN.
    pub fn layer<S: Subscriber + for<'s> LookupSpan<'s>>(self) -> impl Layer<S> {
        self.with_filter(Targets::new().with_target(TARGETS, LevelFilter::WARN))
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let at = jiff::Timestamp::now().to_string();
        let line = fields.line(self.format, &at, event.metadata().level().as_str());
        // If stderr cannot be written, the error cannot be reported anywhere.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn line(self, format: Format, at: &str, level: &str) -> String {
        if format == Format::Json {
            let mut line = Map::new();
            line.insert("at".to_owned(), Value::from(at));
            line.insert("level".to_owned(), Value::from(level.to_lowercase()));
            line.insert("message".to_owned(), Value::from(self.message));
            line.extend(self.others.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))));
            return format!("{}\n", Value::Object(line));
        }
        let one_line = |text: &str| fit(text, usize::MAX);
        let mut line = format!("{at} {level} {}", one_line(&self.message));
        for (name, value) in &self.others {
            let _ = write!(line, " {name}={}", one_line(value));
        }
        line + "\n"
    }

    fn add(&mut self, field: &Field, value: String) {
        let value = value.chars().take(VALUE_CHARS_MAX).collect();
        match field.name() {
            "message" => self.message = value,
            name => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_inject_a_line() {
        let fields = || Fields {
            message: "a request failed".to_owned(),
            others: vec![("request", "01".to_owned()), ("detail", "a\nERROR forged\u{1b}[2J".to_owned())],
        };
        let text = fields().line(Format::Text, "now", "ERROR");
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(
            text.starts_with("now ERROR a request failed request=01 detail=a") && !text.contains('\u{1b}')
        );
        let json: Value = serde_json::from_str(&fields().line(Format::Json, "now", "ERROR")).unwrap();
        assert_eq!((json["level"].as_str(), json["request"].as_str()), (Some("error"), Some("01")));
    }
}
