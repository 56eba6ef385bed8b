//! Counters for Prometheus, in its text format.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::admission::AdmissionCounters;

/// Upper bounds of the latency histogram, in milliseconds.
const BOUNDS_MS: [u64; 10] = [1, 2, 5, 10, 25, 50, 100, 250, 1_000, 10_000];
const CLASSES: usize = 6;

#[derive(Default)]
pub struct Metrics {
    /// Indexed by the first digit of the status.
    requests: [AtomicU64; CLASSES],
    latency: [AtomicU64; BOUNDS_MS.len()],
    latency_count: AtomicU64,
    latency_us: AtomicU64,
    pub panics: AtomicU64,
    pub limited: AtomicU64,
    pub events_sent: AtomicU64,
    streams: AtomicU64,
}

impl Metrics {
    pub fn count_request(&self, status: u16, elapsed: Duration) {
        let class = usize::from(status / 100).min(CLASSES - 1);
        self.requests[class].fetch_add(1, Ordering::Relaxed);
        self.latency_count.fetch_add(1, Ordering::Relaxed);
        self.latency_us.fetch_add(u64::try_from(elapsed.as_micros()).unwrap_or(0), Ordering::Relaxed);
        if let Some(slot) = BOUNDS_MS.iter().position(|bound| elapsed <= Duration::from_millis(*bound)) {
            self.latency[slot].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn stream_opened(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub fn stream_closed(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn render(&self, turns_running: usize, admission: AdmissionCounters) -> String {
        let mut text = String::with_capacity(2_048);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write_head(&mut text, "sapwood_http_requests_total", "counter", "Requests by status class.");
        for (class, counter) in self.requests.iter().enumerate().skip(1) {
            let _ = writeln!(text, "sapwood_http_requests_total{{status=\"{class}xx\"}} {}", read(counter));
        }
        write_head(&mut text, "sapwood_http_request_seconds", "histogram", "Time to the response head.");
        let mut sum = 0;
        for (bound, counter) in BOUNDS_MS.iter().zip(&self.latency) {
            sum += read(counter);
            let bound = *bound as f64 / 1_000.0;
            let _ = writeln!(text, "sapwood_http_request_seconds_bucket{{le=\"{bound}\"}} {sum}");
        }
        let count = read(&self.latency_count);
        let seconds = read(&self.latency_us) as f64 / 1e6;
        let _ = writeln!(text, "sapwood_http_request_seconds_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "sapwood_http_request_seconds_sum {seconds}");
        let _ = writeln!(text, "sapwood_http_request_seconds_count {count}");
        write_head(
            &mut text,
            "sapwood_http_refused_total",
            "counter",
            "Requests rejected because of a limit.",
        );
        let _ = writeln!(text, "sapwood_http_refused_total{{reason=\"share\"}} {}", admission.over_share);
        let _ = writeln!(text, "sapwood_http_refused_total{{reason=\"full\"}} {}", admission.full);
        let numbers = [
            ("sapwood_http_panics_total", "counter", "Handlers that panicked.", read(&self.panics)),
            ("sapwood_http_limited_total", "counter", "Requests over the rate limit.", read(&self.limited)),
            (
                "sapwood_events_sent_total",
                "counter",
                "Durable events sent to streams.",
                read(&self.events_sent),
            ),
            ("sapwood_connections", "gauge", "Open connections.", admission.connections),
            (
                "sapwood_connections_closed_total",
                "counter",
                "Idle connections closed to free their slots.",
                admission.connections_closed,
            ),
            ("sapwood_streams", "gauge", "Open event streams and WebSockets.", read(&self.streams)),
            ("sapwood_turns_running", "gauge", "Turns and flow runs in this process.", turns_running as u64),
        ];
        for (name, kind, help, value) in numbers {
            write_head(&mut text, name, kind, help);
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}

fn write_head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
