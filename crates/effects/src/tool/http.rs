//! `http_request`: sends one request through the session's [`Egress`]. Header values may contain `secret:NAME`. The
//! secret is inserted when the request is sent, and redacted from the response.

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::Method;
use reqwest::header::{self, HeaderMap, HeaderName};
use sapwood_core::Json;
use sapwood_core::port::tool::{OutputPart, Replay, ToolOutput, ToolSpec, Touch};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Tool;
use crate::egress::{Egress, EgressRequest, EgressResponse, Extent, REQUEST_HEADERS_MAX, parse_header};
use crate::secret::Secrets;

pub const HTTP_REQUEST: &str = "http_request";
/// Response headers that are useful to a model.
const SHOWN_HEADERS: &[HeaderName] = &[
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::LOCATION,
    header::LINK,
    header::ETAG,
    header::LAST_MODIFIED,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    header::DATE,
];
/// Maximum length of a header value to show.
const SHOWN_HEADER_BYTES_MAX: usize = 1_024;
/// Media types that are returned unchanged.
const MEDIA_TYPES: &[&str] = &["image/", "audio/", "video/", "application/pdf"];

pub struct HttpRequest {
    egress: Egress,
    secrets: Arc<Secrets>,
}

impl HttpRequest {
    pub fn new(egress: Egress, secrets: Arc<Secrets>) -> Self {
        Self { egress, secrets }
    }

    async fn request(&self, input: &Value) -> Result<ToolOutput, String> {
        let input = Input::deserialize(input).map_err(|error| error.to_string())?;
        let mut headers = HeaderMap::new();
        for (name, value) in input.headers.iter().flatten() {
            let value = value.as_str().ok_or_else(|| format!("header {name} is not text"))?;
            let filled = self.secrets.expand(value).map_err(|error| error.to_string())?;
            let (name, value) = parse_header(name, filled.expose()).map_err(|error| error.to_string())?;
            headers.append(name, value);
        }
        let method = Method::from_bytes(input.method.as_deref().unwrap_or("GET").as_bytes())
            .map_err(|error| error.to_string())?;
        let request = EgressRequest { method, url: input.url, headers, body: input.body };
        let response = self.egress.fetch(request).await.map_err(|error| error.to_string())?;
        Ok(describe(response))
    }
}

#[async_trait]
impl Tool for HttpRequest {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: HTTP_REQUEST.to_owned(),
            description: "Sends an HTTPS request to an allowed host and returns status, headers and body. \
                          A header value may name a secret as secret:NAME, such as `Bearer secret:GITHUB_TOKEN`."
                .to_owned(),
            input_schema: Json::from_value(&input_schema()),
            touch: Touch::Acts,
            replay: Replay::Never,
        }
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let output = self.request(input).await.unwrap_or_else(ToolOutput::error);
        self.secrets.scrub_output(output)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    method: Option<String>,
    url: String,
    headers: Option<serde_json::Map<String, Value>>,
    body: Option<String>,
}

fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "method": {"type": "string", "enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
            "url": {"type": "string", "description": "An https URL of an allowed host."},
            "headers": {
                "type": "object",
                "maxProperties": REQUEST_HEADERS_MAX,
                "additionalProperties": {"type": "string"},
            },
            "body": {"type": "string"},
        },
        "required": ["url"],
        "additionalProperties": false,
    })
}

/// The response as text for the model: status and headers, an empty line, and the body. An HTTP error status is not a
/// tool error, because the request itself succeeded.
fn describe(response: EgressResponse) -> ToolOutput {
    let mut head = format!("HTTP {} from {}\n", response.status, response.url.host_str().unwrap_or_default());
    for name in SHOWN_HEADERS {
        if let Some(value) = response.headers.get(name) {
            let text = String::from_utf8_lossy(value.as_bytes());
            let shown: String = text.chars().take(SHOWN_HEADER_BYTES_MAX).collect();
            let _ = writeln!(head, "{name}: {shown}");
        }
    }
    if response.extent == Extent::CutAtLimit {
        let _ = writeln!(head, "(the body was truncated to {} bytes)", response.body.len());
    }
    let mime = mime_of(&response.headers);
    if is_encoded(&response.headers) || !is_text(&mime, &response.body) {
        return describe_bytes(head, mime, response);
    }
    let _ = write!(head, "\n{}", String::from_utf8_lossy(&response.body));
    ToolOutput::text(head)
}

fn describe_bytes(mut head: String, mime: String, response: EgressResponse) -> ToolOutput {
    let is_media = MEDIA_TYPES.iter().any(|kind| mime.starts_with(kind));
    if is_media && response.extent == Extent::Whole && !is_encoded(&response.headers) {
        let name = response.url.path_segments().and_then(|mut path| path.next_back()).map(str::to_owned);
        let media =
            OutputPart::Media { mime, name: name.filter(|name| !name.is_empty()), bytes: response.body };
        return ToolOutput { parts: vec![OutputPart::Text(head), media], is_error: false };
    }
    let _ = write!(head, "\n({} bytes of binary data)", response.body.len());
    ToolOutput::text(head)
}

fn mime_of(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether the server compressed the body although the request did not allow it. Such a body is not decompressed, to
/// avoid decompression bombs.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity")
}

fn is_text(mime: &str, body: &[u8]) -> bool {
    let named = mime.starts_with("text/")
        || ["json", "xml", "javascript", "x-www-form-urlencoded", "yaml"]
            .iter()
            .any(|kind| mime.ends_with(kind));
    let is_media = MEDIA_TYPES.iter().any(|kind| mime.starts_with(kind));
    named || (!is_media && std::str::from_utf8(body).is_ok())
}
