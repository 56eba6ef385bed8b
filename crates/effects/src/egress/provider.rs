//! The HTTP clients for the providers of models and for the collector of traces. They are named by whoever configures the program, so their addresses are
//! not checked; but nothing besides that address is ever reached: no redirect is followed and no proxy is taken from the
//! environment, so a key goes where it was meant to go. How long an answer may be silent is watched where it is read.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, Url};

/// Longest wait for a connection, TLS included.
pub const CONNECT_MS_MAX: u64 = 10_000;
/// Longest wait for a collector to take a batch of spans.
const COLLECTOR_MS_MAX: u64 = 10_000;
/// How often an idle connection is probed.
const KEEPALIVE_MS: u64 = 30_000;
const USER_AGENT: &str = concat!("sapwood/", env!("CARGO_PKG_VERSION"));

/// A client for one provider. A proxy is used only where the settings name one.
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
    // A local server without TLS must work on a machine that has no certificates at all.
    if base_url.scheme() == "http" && proxy.is_none() {
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

/// A client for the collector of traces, for use from threads outside the async runtime. It must be made there too.
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

/// The TLS library asks for one choice of cryptography per process. Whoever was first has made it.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
