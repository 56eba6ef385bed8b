//! MCP over HTTP: sends the protocol library's messages through [`Egress`]. Does not follow redirects and limits the
//! size of responses. The server's headers with their secrets are added here, so that the library does not receive them.
//!
//! The stream for unsolicited server messages is not opened, because such messages are not processed.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use crate::egress::{Egress, EgressError, map_client_error};

/// Maximum size of the response to one message, streamed or not.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 20;
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

#[derive(Clone)]
pub(super) struct EgressClient {
    pub(super) egress: Egress,
    pub(super) headers: HeaderMap,
}

type HttpError = StreamableHttpError<EgressError>;

impl EgressClient {
    async fn send(
        &self,
        method: Method,
        uri: &str,
        session: Option<Arc<str>>,
        extra: HashMap<HeaderName, HeaderValue>,
        body: Option<String>,
    ) -> Result<Response, HttpError> {
        let mut headers = self.headers.clone();
        headers.extend(extra);
        headers.insert(header::ACCEPT, ACCEPTED);
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(session) = session.and_then(|session| HeaderValue::from_str(&session).ok()) {
            headers.insert(SESSION_HEADER, session);
        }
        self.egress.send_hop(method, uri, headers, body).await.map_err(StreamableHttpError::Client)
    }
}

impl StreamableHttpClient for EgressClient {
    type Error = EgressError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let had_session = session_id.is_some();
        let body = serde_json::to_string(&message)?;
        let response = self.send(Method::POST, &uri, session_id, custom_headers, Some(body)).await?;
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if had_session => return Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => {
                return Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}").into()));
            }
            _ => {}
        }
        let session = header_text(&response, &SESSION_HEADER);
        match header_text(&response, &header::CONTENT_TYPE) {
            Some(kind) if kind.starts_with("text/event-stream") => {
                Ok(StreamableHttpPostResponse::Sse(read_events(response), session))
            }
            Some(kind) if kind.starts_with("application/json") => {
                read_message(response, &message, session).await
            }
            kind => Err(StreamableHttpError::UnexpectedContentType(kind)),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        self.send(Method::DELETE, &uri, Some(session_id), custom_headers, None).await.map(|_| ())
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

fn header_text(response: &Response, name: &HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Read the response as one JSON message. The response to a notification is ignored.
async fn read_message(
    response: Response,
    request: &ClientJsonRpcMessage,
    session: Option<String>,
) -> Result<StreamableHttpPostResponse, HttpError> {
    let body = bounded(response)
        .try_fold(Vec::new(), |mut body, chunk| async move {
            body.extend_from_slice(&chunk);
            Ok(body)
        })
        .await
        .map_err(StreamableHttpError::Client)?;
    match (serde_json::from_slice::<ServerJsonRpcMessage>(&body), request) {
        (Ok(message), _) => Ok(StreamableHttpPostResponse::Json(message, session)),
        (Err(error), ClientJsonRpcMessage::Request(_)) => Err(StreamableHttpError::Deserialize(error)),
        (Err(_), _) => Ok(StreamableHttpPostResponse::Accepted),
    }
}

fn read_events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    SseStream::from_bytes_stream(bounded(response).map_ok(std::io::Cursor::new)).boxed()
}

/// The chunks of the body, followed by an error if the body exceeds the limit.
fn bounded(response: Response) -> BoxStream<'static, Result<Vec<u8>, EgressError>> {
    let step = |(mut response, remaining): (Response, usize)| async move {
        let Some(chunk) = response.chunk().await.map_err(map_client_error)? else { return Ok(None) };
        match remaining.checked_sub(chunk.len()) {
            Some(remaining) => Ok(Some((chunk.to_vec(), (response, remaining)))),
            None => Err(EgressError::TooLarge { what: "the server's response", max: ANSWER_BYTES_MAX }),
        }
    };
    stream::try_unfold((response, ANSWER_BYTES_MAX), step).boxed()
}
