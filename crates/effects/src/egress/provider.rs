//! HTTP clients for model providers and for the trace collector. The operator configures the addresses, so they are
//! not checked. The clients do not follow redirects and ignore the environment's proxy settings, so that a key is only
//! sent to the configured address. The code that reads a response enforces the idle timeout.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, Url};

/// Connect timeout, including TLS.
pub const CONNECT_MS_MAX: u64 = 10_000;
/// Timeout for the collector to accept a batch of spans.
const COLLECTOR_MS_MAX: u64 = 10_000;
/// Interval of keepalive probes on an idle connection.
const KEEPALIVE_MS: u64 = 30_000;
const USER_AGENT: &str = concat!("sapwood/", env!("CARGO_PKG_VERSION"));

/// Create a client for one provider. It uses a proxy only if the settings contain one.
pub fn provider_client(base_url: &Url, proxy: Option<&str>) -> Result<Client, reqwest::Error> {
    install_crypto();
    let mut builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
        .tcp_keepalive(Duration::from_millis(KEEPALIVE_MS))
        .redirect(Policy::none())
        .referer(false)
        .no_proxy();
    if let Some(proxy) = proxy {
        builder = builder.proxy(Proxy::all(proxy)?);
    }
    // A local server without TLS must work on a machine without any certificates.
    if base_url.scheme() == "http" && proxy.is_none() {
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

/// Create a blocking client for the trace collector. Must be called outside the async runtime.
pub fn collector_client(endpoint: &str) -> Result<reqwest::blocking::Client, reqwest::Error> {
    install_crypto();
    let mut builder = reqwest::blocking::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
        .timeout(Duration::from_millis(COLLECTOR_MS_MAX))
        .redirect(Policy::none())
        .referer(false)
        .no_proxy();
    if endpoint.starts_with("http:") {
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

/// Install the TLS library's crypto provider for the process, unless one is already installed.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
