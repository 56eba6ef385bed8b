//! Network access for tools: only https to listed hosts at public addresses. Every hop of a request passes
//! [`AllowedHosts::admit`], and every connection uses addresses that [`resolve`] checked. There are no proxies,
//! cookies or decompression. Time, headers and bytes are limited. `docs/spec/egress.md` specifies the guarantees.

pub mod address;
mod hosts;
pub mod provider;
mod resolve;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use url::Url;

pub use hosts::{AllowedHosts, HOSTS_MAX, URL_BYTES_MAX};
use resolve::{CheckedResolver, Reach};
pub use resolve::{Resolver, SystemResolver};

/// Maximum number of redirects to follow.
pub const REDIRECTS_MAX: usize = 5;
/// Maximum number of request headers, and their maximum total size in bytes.
pub const REQUEST_HEADERS_MAX: usize = 64;
pub const REQUEST_HEADER_BYTES_MAX: usize = 16 << 10;
/// Maximum size of a request body.
pub const REQUEST_BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum number of response headers in HTTP/1, and their maximum total size in bytes in HTTP/2.
const RESPONSE_HEADERS_MAX: usize = 128;
const RESPONSE_HEADER_BYTES_MAX: u32 = 64 << 10;
const CONNECT_MS_MAX: u64 = 10_000;
const USER_AGENT: &str = concat!("sapwood/", env!("CARGO_PKG_VERSION"));

/// Connection headers, which only the HTTP client may set.
const RESERVED_HEADERS: &[HeaderName] = &[
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
    header::ACCEPT_ENCODING,
];
/// Headers kept on a redirect to another origin. This is an allowlist, because any header can contain a key.
const CROSS_ORIGIN_HEADERS: &[HeaderName] =
    &[header::ACCEPT, header::ACCEPT_LANGUAGE, header::CONTENT_TYPE, header::USER_AGENT];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    #[error("allowed_hosts: {entry:?} is not valid: {why}")]
    Entry { entry: String, why: String },
    #[error("invalid URL: {why}")]
    Url { why: String },
    #[error("only https is allowed, not {scheme}")]
    Scheme { scheme: String },
    #[error("the URL must not contain a user name or password: send credentials in a header")]
    UserInfo,
    #[error("{host}:{port} is not in allowed_hosts")]
    Host { host: String, port: u16 },
    #[error("{host} resolves to {address}, which is not a public address ({reason})")]
    Address { host: String, address: IpAddr, reason: &'static str },
    #[error("failed to resolve {host}: {why}")]
    Unresolved { host: String, why: String },
    #[error("more than {max} redirects")]
    Redirects { max: usize },
    #[error("header {name}: {why}")]
    Header { name: String, why: &'static str },
    #[error("{what} exceeds the limit of {max}")]
    TooLarge { what: &'static str, max: usize },
    #[error("no complete response within {after_ms} ms")]
    TimedOut { after_ms: u64 },
    #[error("the request failed: {why}")]
    Failed { why: String },
}

impl EgressError {
    pub fn code(&self) -> &'static str {
        match self {
            EgressError::Entry { .. } => "egress.entry",
            EgressError::Url { .. } => "egress.url",
            EgressError::Scheme { .. } => "egress.scheme",
            EgressError::UserInfo => "egress.user_info",
            EgressError::Host { .. } => "egress.host",
            EgressError::Address { .. } => "egress.address",
            EgressError::Unresolved { .. } => "egress.unresolved",
            EgressError::Redirects { .. } => "egress.redirects",
            EgressError::Header { .. } => "egress.header",
            EgressError::TooLarge { .. } => "egress.too_large",
            EgressError::TimedOut { .. } => "egress.timed_out",
            EgressError::Failed { .. } => "egress.failed",
        }
    }
}

/// Time limit of a request, including redirects and body, and maximum size of the body that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    pub request_ms_max: u64,
    pub body_bytes_max: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self { request_ms_max: 60_000, body_bytes_max: 8 << 20 }
    }
}

/// One request. Has no `Debug`, because header values may contain secrets.
pub struct EgressRequest {
    pub method: Method,
    pub url: String,
    pub headers: HeaderMap,
    pub body: Option<String>,
}

/// Whether the body is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Whole,
    CutAtLimit,
}

pub struct EgressResponse {
    /// The final URL after redirects.
    pub url: Url,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub extent: Extent,
}

/// The HTTP client of one session, bound to its allowed hosts.
#[derive(Clone)]
pub struct Egress {
    hosts: AllowedHosts,
    client: reqwest::Client,
    limits: EgressLimits,
}

impl Egress {
    pub fn new(hosts: AllowedHosts, limits: EgressLimits) -> Result<Self, EgressError> {
        Self::with_resolver(hosts, limits, Arc::new(SystemResolver))
    }

    /// Like [`Self::new`], with another resolver, whose results are also checked.
    pub fn with_resolver(
        hosts: AllowedHosts,
        limits: EgressLimits,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, EgressError> {
        let checked = CheckedResolver { resolver, reach: Reach::Public };
        Ok(Self { hosts, client: build_client(client_builder(checked))?, limits })
    }

    /// A client for tests that also reaches `server` and trusts only `root_pem`. Not part of release builds.
    #[cfg(feature = "fixture")]
    pub fn for_tests(
        hosts: AllowedHosts,
        limits: EgressLimits,
        resolver: Arc<dyn Resolver>,
        server: IpAddr,
        root_pem: &str,
    ) -> Result<Self, EgressError> {
        let checked = CheckedResolver { resolver, reach: Reach::PublicAnd(server) };
        let root = reqwest::Certificate::from_pem(root_pem.as_bytes())
            .map_err(|error| EgressError::Failed { why: error.to_string() })?;
        let builder = client_builder(checked).tls_certs_only([root]);
        Ok(Self { hosts, client: build_client(builder)?, limits })
    }

    /// Send a request and follow its redirects. Each hop is checked like the original request.
    pub async fn fetch(&self, request: EgressRequest) -> Result<EgressResponse, EgressError> {
        let after_ms = self.limits.request_ms_max;
        tokio::time::timeout(Duration::from_millis(after_ms), self.fetch_hops(request))
            .await
            .unwrap_or(Err(EgressError::TimedOut { after_ms }))
    }

    /// Parse and check a URL for [`Self::send_hop`].
    pub(crate) fn admit(&self, url: &str) -> Result<Url, EgressError> {
        self.hosts.admit(url)
    }

    /// Send one hop without following redirects, for callers that stream the response. Checks the URL again.
    pub(crate) async fn send_hop(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<reqwest::Response, EgressError> {
        let mut hop = Hop { method, url: self.hosts.admit(url)?, headers, body };
        hop.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        self.send(&hop).await
    }

    async fn fetch_hops(&self, request: EgressRequest) -> Result<EgressResponse, EgressError> {
        check_headers(&request.headers)?;
        if request.body.as_ref().is_some_and(|body| body.len() > REQUEST_BODY_BYTES_MAX) {
            return Err(EgressError::TooLarge { what: "the request body", max: REQUEST_BODY_BYTES_MAX });
        }
        let url = self.hosts.admit(&request.url)?;
        let mut hop = Hop { method: request.method, url, headers: request.headers, body: request.body };
        hop.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send(&hop).await?;
            match redirect_target(&hop.url, &response)? {
                Some(target) => hop = hop.follow(self.hosts.admit_url(target)?, response.status()),
                None => return self.read_body(hop.url, response).await,
            }
        }
        Err(EgressError::Redirects { max: REDIRECTS_MAX })
    }

    async fn send(&self, hop: &Hop) -> Result<reqwest::Response, EgressError> {
        let mut request =
            self.client.request(hop.method.clone(), hop.url.clone()).headers(hop.headers.clone());
        if let Some(body) = &hop.body {
            request = request.body(body.clone());
        }
        request.send().await.map_err(map_client_error)
    }

    async fn read_body(
        &self,
        url: Url,
        mut response: reqwest::Response,
    ) -> Result<EgressResponse, EgressError> {
        let (mut body, mut extent) = (Vec::new(), Extent::Whole);
        while let Some(chunk) = response.chunk().await.map_err(map_client_error)? {
            let remaining = self.limits.body_bytes_max - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
            if chunk.len() > remaining {
                extent = Extent::CutAtLimit;
                break;
            }
        }
        Ok(EgressResponse {
            url,
            status: response.status(),
            headers: response.headers().clone(),
            body,
            extent,
        })
    }
}

/// The next request to send.
struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<String>,
}

impl Hop {
    /// Build the request after a redirect. After 301, 302 or 303, every method except HEAD becomes GET.
    fn follow(mut self, target: Url, status: StatusCode) -> Self {
        let keeps_method = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        if !keeps_method && self.method != Method::HEAD {
            self.method = Method::GET;
            self.body = None;
            self.headers.remove(header::CONTENT_TYPE);
        }
        if target.origin() != self.url.origin() {
            let headers = std::mem::take(&mut self.headers);
            self.headers.extend(
                CROSS_ORIGIN_HEADERS
                    .iter()
                    .filter_map(|name| headers.get(name).map(|value| (name.clone(), value.clone()))),
            );
            self.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        self.url = target;
        self
    }
}

/// The target of a redirect response.
fn redirect_target(from: &Url, response: &reqwest::Response) -> Result<Option<Url>, EgressError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(header::LOCATION) else { return Ok(None) };
    let text = location
        .to_str()
        .map_err(|_| EgressError::Url { why: "the redirect target is not text".to_owned() })?;
    from.join(text).map(Some).map_err(|error| EgressError::Url { why: error.to_string() })
}

pub(crate) fn check_headers(headers: &HeaderMap) -> Result<(), EgressError> {
    if headers.len() > REQUEST_HEADERS_MAX {
        return Err(EgressError::TooLarge { what: "the number of headers", max: REQUEST_HEADERS_MAX });
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > REQUEST_HEADER_BYTES_MAX {
        return Err(EgressError::TooLarge { what: "the size of the headers", max: REQUEST_HEADER_BYTES_MAX });
    }
    match headers.keys().find(|name| RESERVED_HEADERS.contains(name)) {
        Some(name) => Err(EgressError::Header {
            name: name.to_string(),
            why: "it is set by the HTTP client and cannot be changed",
        }),
        None => Ok(()),
    }
}

/// Parse a header. The error contains the header's name but never its value, which may be a secret.
pub fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), EgressError> {
    let bad = |why| EgressError::Header { name: name.escape_debug().to_string(), why };
    let parsed_name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("invalid name"))?;
    let mut parsed = HeaderValue::from_str(value)
        .map_err(|_| bad("the value has a line break or another character that headers do not allow"))?;
    parsed.set_sensitive(true);
    Ok((parsed_name, parsed))
}

fn client_builder(resolver: CheckedResolver) -> reqwest::ClientBuilder {
    // The process needs one crypto provider. Installing it a second time fails and changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .dns_resolver(resolver)
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .no_proxy()
        .https_only(true)
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .user_agent(USER_AGENT)
        .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
        .http1_max_headers(RESPONSE_HEADERS_MAX)
        .http2_max_header_list_size(RESPONSE_HEADER_BYTES_MAX)
}

fn build_client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, EgressError> {
    builder.build().map_err(map_client_error)
}

/// The resolver's [`EgressError`] if the error chain contains one, else the client's error without the URL.
pub(crate) fn map_client_error(error: reqwest::Error) -> EgressError {
    let error = error.without_url();
    let mut why = error.to_string();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
    while let Some(inner) = cause {
        if let Some(ours) = inner.downcast_ref::<EgressError>() {
            return ours.clone();
        }
        why = format!("{why}: {inner}");
        cause = inner.source();
    }
    EgressError::Failed { why }
}
