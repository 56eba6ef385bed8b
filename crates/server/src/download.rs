//! Blob downloads. The ETag is the hash, the media type is sniffed, and one byte range is supported. Blobs larger than
//! one chunk are read from the store while they are sent.

use axum::body::Body as HttpBody;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sapwood::core::BlobHash;
use sapwood::core::port::store::BLOB_CHUNK_BYTES_MAX;
use sapwood::engine::blob::BlobReader;

use crate::auth::Caller;
use crate::extract::header_text;
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;
use crate::sniff::{Disposition, served_type};
use crate::state::State;

/// Clients may cache a blob but must revalidate, because their access may have been revoked.
const CACHING: &str = "private, no-cache";

/// The blob to send, its declared media type and its file name.
pub struct BlobDownload<'a> {
    pub blob: BlobHash,
    /// The media type that the uploader declared.
    pub mime: &'a str,
    pub name: &'a str,
}

pub async fn serve_blob(
    state: &State,
    caller: &Caller,
    download: BlobDownload<'_>,
    headers: &HeaderMap,
) -> Result<Response> {
    let etag = format!("\"{}\"", download.blob);
    let opened = OpenedBlob::open(state, caller, download.blob).await?;
    if header_text(headers, "if-none-match")?.is_some_and(|known| matches_etag(known, &etag)) {
        let same = [(header::ETAG, etag.as_str()), (header::CACHE_CONTROL, CACHING)];
        return Ok((StatusCode::NOT_MODIFIED, same).into_response());
    }
    let (mime, disposition) = served_type(&opened.first, download.mime);
    let is_same = header_text(headers, "if-range")?.is_none_or(|known| known == etag);
    let range = header_text(headers, "range")?.filter(|_| is_same);
    let mut response = match opened.respond(range) {
        Ok(response) => response,
        Err(size) => return Ok(range_not_satisfiable(size)),
    };
    let headers = response.headers_mut();
    set(headers, header::ETAG, &etag);
    set(headers, header::CONTENT_TYPE, mime);
    set(headers, header::CONTENT_DISPOSITION, &disposition_of(disposition, download.name));
    set(headers, header::ACCEPT_RANGES, "bytes");
    // A blob must never run scripts, even if a browser shows it inline.
    set(headers, header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    set(headers, header::CACHE_CONTROL, CACHING);
    Ok(response)
}

/// Whether the client's ETags include `etag`. Weak tags also match.
fn matches_etag(known: &str, etag: &str) -> bool {
    let mut tags = known.split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// The response to a range that begins past the end. Contains the blob's size.
fn range_not_satisfiable(size: u64) -> Response {
    let detail = format!("the range begins past the end: there are {size} bytes");
    let mut response = Problem::new("range.unsatisfiable", detail).into_response();
    set(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
    response
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A blob's first chunk, which is enough to sniff its type, and a reader for any remaining chunks.
struct OpenedBlob {
    first: Bytes,
    size: u64,
    rest: Option<BlobReader>,
    request: RequestId,
}

impl OpenedBlob {
    async fn open(state: &State, caller: &Caller, blob: BlobHash) -> Result<Self> {
        let (engine, scope) = (&state.engine, &caller.scope);
        let first = Bytes::from(engine.store().read_blob(scope, blob, 0, BLOB_CHUNK_BYTES_MAX).await?);
        if first.len() < BLOB_CHUNK_BYTES_MAX {
            return Ok(Self { size: first.len() as u64, first, rest: None, request: caller.request });
        }
        let reader = engine.views().open_blob(scope, blob).await?;
        Ok(Self { first, size: reader.remaining(), rest: Some(reader), request: caller.request })
    }

    /// Responds with all bytes or the requested range. Returns the size as the error if the range begins past the end.
    fn respond(self, range: Option<&str>) -> Result<Response, u64> {
        let size = self.size;
        let Some(requested) = range.and_then(|range| parse_range(range, size)) else {
            return Ok(self.send(0, size));
        };
        let (first, last) = requested.ok_or(size)?;
        let content_range = [(header::CONTENT_RANGE, format!("bytes {first}-{last}/{size}"))];
        Ok((StatusCode::PARTIAL_CONTENT, content_range, self.send(first, last + 1)).into_response())
    }

    /// Sends the bytes in `from..end`, first from the loaded chunk, then from the reader.
    fn send(self, from: u64, end: u64) -> Response {
        let known = self.first.len() as u64;
        let first = self.first.slice(from.min(known) as usize..end.min(known) as usize);
        match self.rest {
            Some(reader) if end > known => {
                let rest = stream_rest(reader.within(from.max(known), end), self.request);
                let first = stream::iter((!first.is_empty()).then_some(Ok(first)));
                let body = HttpBody::from_stream(first.chain(rest));
                ([(header::CONTENT_LENGTH, end - from)], body).into_response()
            }
            _ => HttpBody::from(first).into_response(),
        }
    }
}

/// Streams the rest of a blob. An error aborts the connection, so that clients do not accept a partial blob.
fn stream_rest(
    reader: BlobReader,
    request: RequestId,
) -> impl futures_core::Stream<Item = std::io::Result<Bytes>> {
    stream::unfold(Some(reader), move |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(bytes)) => Some((Ok(Bytes::from(bytes)), Some(reader))),
            Ok(None) => None,
            Err(error) => {
                let problem = Problem::from(error);
                problem.log(request);
                Some((Err(std::io::Error::other(problem.code)), None))
            }
        }
    })
}

/// Formats `Content-Disposition` as in RFC 6266: an ASCII file name, and the encoded name for clients that support it.
fn disposition_of(disposition: Disposition, name: &str) -> String {
    let how = match disposition {
        Disposition::Inline => "inline",
        Disposition::Attachment => "attachment",
    };
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._- ".contains(char);
    let plain: String = name.chars().map(|char| if is_plain(char) { char } else { '_' }).collect();
    let encoded: String = name.bytes().map(percent).collect();
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

fn percent(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

/// Parses one byte range. Returns `None` for any other text, in which case all bytes are sent, and `Some(None)` if the
/// range contains no byte of the blob.
fn parse_range(range: &str, size: u64) -> Option<Option<(u64, u64)>> {
    let (unit, spans) = range.split_once('=')?;
    let (first, last) = spans.split_once('-').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        let found = (count > 0 && size > 0).then(|| (size.saturating_sub(count), size - 1));
        return Some(found);
    }
    let first: u64 = first.parse().ok()?;
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    let last: u64 = match last.parse() {
        Ok(last) => last,
        // The last position is missing, or too large for a `u64`.
        Err(_) if last.is_empty() || is_number => u64::MAX,
        Err(_) => return None,
    };
    if last < first {
        return None;
    }
    Some((first < size).then(|| (first, last.min(size - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_in_the_standard() {
        assert_eq!(parse_range("bytes=0-3", 10), Some(Some((0, 3))));
        assert_eq!(parse_range("bytes=7-", 10), Some(Some((7, 9))));
        assert_eq!(parse_range("bytes=-3", 10), Some(Some((7, 9))));
        assert_eq!(parse_range("bytes=-30", 10), Some(Some((0, 9))));
        assert_eq!(parse_range("bytes=10-", 10), Some(None));
        assert_eq!(parse_range("Bytes=2-99999999999999999999999", 10), Some(Some((2, 9))));
        assert_eq!(parse_range("bytes=-0", 10), Some(None));
        for other in ["bytes=3-1", "bytes=a-b", "items=0-1", "bytes=0-1,3-4", "bytes=", "bytes=-"] {
            assert_eq!(parse_range(other, 10), None, "{other}");
        }
    }

    #[test]
    fn a_tag_matches_alone_in_a_list_and_as_a_weak_tag() {
        for known in ["\"a\"", "*", "W/\"a\"", "\"b\", \"a\"", "\"b\",W/\"a\""] {
            assert!(matches_etag(known, "\"a\""), "{known}");
        }
        assert!(!matches_etag("\"b\", a", "\"a\""));
    }

    #[test]
    fn a_name_cannot_break_out_of_its_header() {
        let header = disposition_of(Disposition::Attachment, "a\"; x=\r\né.html");
        assert!(HeaderValue::from_str(&header).is_ok());
        assert_eq!(header.matches('"').count(), 2);
    }
}
