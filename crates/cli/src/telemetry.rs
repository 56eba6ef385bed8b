//! Exports traces with OpenTelemetry if its standard environment variables are set; otherwise installs nothing.
//! Only the engine's spans are exported, and no span contains text of a session. A missing or
//! slow collector delays the end of a command by at most [`FLUSH_MS_MAX`] and never makes it fail.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use sapwood::effects::egress::provider::collector_client;
use sapwood::engine::SPAN_TARGET;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::log::Log;
use crate::render::{Format, note};

/// Timeout for sending the remaining spans at the end of a command.
const FLUSH_MS_MAX: u64 = 2_000;
/// Variables that enable traces. The first non-empty variable is used.
const ENDPOINTS: &[&str] = &["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Variable that disables traces if it is `true`, regardless of the other variables.
const DISABLED: &str = "OTEL_SDK_DISABLED";
const SERVICE: &str = "sapwood";

/// The span exporter. Dropping it sends the remaining spans.
pub struct Telemetry(SdkTracerProvider);

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Ignore errors: a lost span must not fail the command.
        let _ = self.0.shutdown_with_timeout(Duration::from_millis(FLUSH_MS_MAX));
    }
}

/// Start exporting spans if the environment configures it, and start the server log if `log` is given.
pub fn start(format: Format, log: Option<Log>) -> Option<Telemetry> {
    let provider = match find_endpoint(variable).map(make_provider) {
        Some(Ok(provider)) => Some(provider),
        Some(Err(error)) => {
            note(format, &format!("failed to start tracing: {error}"));
            None
        }
        None => None,
    };
    if provider.is_none() && log.is_none() {
        return None;
    }
    if let Err(error) = install(provider.as_ref(), log) {
        note(format, &format!("failed to start tracing and logging: {error}"));
    }
    provider.map(Telemetry)
}

/// The id of the trace that contains a span.
pub fn trace_id_of(span: &tracing::Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let context = span.span_context();
    context.is_valid().then(|| context.trace_id().to_string())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn find_endpoint(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_disabled = variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    ENDPOINTS.iter().find_map(|name| variable(name)).filter(|_| !is_disabled)
}

fn make_provider(endpoint: String) -> anyhow::Result<SdkTracerProvider> {
    let builder = SdkTracerProvider::builder().with_resource(resource());
    Ok(builder.with_batch_exporter(make_exporter(endpoint)?).build())
}

fn install(provider: Option<&SdkTracerProvider>, log: Option<Log>) -> anyhow::Result<()> {
    let spans = provider.map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(SPAN_TARGET, LevelFilter::INFO))
    });
    let subscriber = tracing_subscriber::registry().with(spans).with(log.map(Log::layer));
    Ok(tracing::subscriber::set_global_default(subscriber)?)
}

/// Create the exporter. It reads the endpoint, headers and protocol from OpenTelemetry's environment variables.
fn make_exporter(endpoint: String) -> anyhow::Result<SpanExporter> {
    // On a separate thread: a blocking client cannot be created inside the async runtime.
    let made = std::thread::spawn(move || collector_client(&endpoint)).join();
    let client = made.map_err(|_| anyhow::anyhow!("failed to create the HTTP client"))??;
    Ok(SpanExporter::builder().with_http().with_http_client(client).build()?)
}

fn resource() -> Resource {
    let service = variable("OTEL_SERVICE_NAME").unwrap_or_else(|| SERVICE.to_owned());
    Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        find_endpoint(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn an_endpoint_enables_traces_and_the_standard_switch_disables_them() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/v1/traces");
        assert_eq!(endpoint(&[]), None);
        assert_eq!(endpoint(&[all]).as_deref(), Some(all.1));
        assert_eq!(endpoint(&[all, traces]).as_deref(), Some(traces.1));
        assert_eq!(endpoint(&[all, ("OTEL_SDK_DISABLED", "true")]), None);
    }
}
