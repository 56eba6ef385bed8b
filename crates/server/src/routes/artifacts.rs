//! What a session was given and what it produced: upload, list, download with ranges. Bytes are named by their hash, and
//! served as what they are, not as what somebody called them.

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sapwood::SessionId;
use sapwood::core::entry::ArtifactUse;
use sapwood::core::project::artifacts::Artifact;
use sapwood::core::{BlobHash, Right};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use crate::door::Caller;
use crate::extract::{At, Params, header_text, read_body};
use crate::problem::{Problem, Result};
use crate::sniff::{Disposition, served_type};
use crate::state::State;
use crate::wire;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_artifacts, upload_artifact))
        .routes(routes!(download_artifact))
        .routes(routes!(list_inputs, upload_input))
        .routes(routes!(download_input))
        .routes(routes!(download_blob))
}

/// The latest of each name that the session produced.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts", tag = "artifacts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Artifacts)))]
async fn list_artifacts(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<Json<Items<Artifact>>> {
    list(&state, &caller, &session, ArtifactUse::Artifact).await
}

/// Puts a deliverable.
#[utoipa::path(post, path = "/v1/sessions/{session}/artifacts", tag = "artifacts",
    params(("session" = String, Path), wire::UploadName),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = wire::Artifact)))]
async fn upload_artifact(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Params(query): Params<wire::UploadName>,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    upload(&state, &caller, &session, ArtifactUse::Artifact, query.name, request).await
}

/// A deliverable's bytes.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts/{name}", tag = "artifacts",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "You have these bytes")))]
async fn download_artifact(
    Shared(state): Shared<State>,
    caller: Caller,
    At((session, name)): At<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    download(&state, &caller, &session, ArtifactUse::Artifact, &name, &headers).await
}

/// The latest of each name that the session was given.
#[utoipa::path(get, path = "/v1/sessions/{session}/inputs", tag = "artifacts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Artifacts)))]
async fn list_inputs(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
) -> Result<Json<Items<Artifact>>> {
    list(&state, &caller, &session, ArtifactUse::Input).await
}

/// Gives the session some material.
#[utoipa::path(post, path = "/v1/sessions/{session}/inputs", tag = "artifacts",
    params(("session" = String, Path), wire::UploadName),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = wire::Artifact)))]
async fn upload_input(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Params(query): Params<wire::UploadName>,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    upload(&state, &caller, &session, ArtifactUse::Input, query.name, request).await
}

/// A material's bytes.
#[utoipa::path(get, path = "/v1/sessions/{session}/inputs/{name}", tag = "artifacts",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "You have these bytes")))]
async fn download_input(
    Shared(state): Shared<State>,
    caller: Caller,
    At((session, name)): At<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    download(&state, &caller, &session, ArtifactUse::Input, &name, &headers).await
}

/// Bytes that an entry of the session names by their hash: a picture, a tool's whole output.
#[utoipa::path(get, path = "/v1/sessions/{session}/blobs/{blob}", tag = "artifacts",
    params(("session" = String, Path), ("blob" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "You have these bytes")))]
async fn download_blob(
    Shared(state): Shared<State>,
    caller: Caller,
    At((session, blob)): At<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    state.engine.summary(&caller.scope, &session).await?;
    let unknown = |_| Problem::new("blob.not_found", "there is no such blob");
    let hash: BlobHash = blob.parse().map_err(unknown)?;
    state.note_read(&caller, &session).await?;
    serve_blob(&state, &caller, hash, "", &blob, &headers).await
}

async fn list(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    usage: ArtifactUse,
) -> Result<Json<Items<Artifact>>> {
    state.note_read(caller, session).await?;
    let artifacts = state.engine.artifacts(&caller.scope, session).await?;
    let items = artifacts.by_name.into_values().filter(|artifact| artifact.usage == usage).collect();
    Ok(Json(Items { items }))
}

async fn upload(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    usage: ArtifactUse,
    name: String,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    check_name(&name)?;
    // Before a byte is read: whoever may not write here sends nothing.
    state.engine.check_right(&caller.scope, session, Right::Write).await?;
    let called = header_text(request.headers(), "content-type")?.unwrap_or_default().to_owned();
    let place = state.uploads.acquire().await;
    let bytes = read_body(request, "an upload", state.settings.upload_bytes_max).await?;
    let (mime, _) = served_type(&bytes, &called);
    state.engine.put_artifact(&caller.scope, session, &name, usage, mime, bytes.into()).await?;
    drop(place);
    let mut artifacts = state.engine.artifacts(&caller.scope, session).await?;
    let artifact = artifacts.by_name.remove(&name).ok_or_else(|| unknown(session, &name))?;
    Ok((StatusCode::CREATED, Json(artifact)))
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let why = format!("a name has from 1 to {NAME_BYTES_MAX} bytes and no control characters");
        return Err(Problem::invalid(why));
    }
    Ok(())
}

fn unknown(session: &SessionId, name: &str) -> Problem {
    Problem::new("artifact.not_found", format!("session {session} has no {name:.64}"))
}

async fn download(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    usage: ArtifactUse,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response> {
    state.note_read(caller, session).await?;
    let mut artifacts = state.engine.artifacts(&caller.scope, session).await?;
    let artifact = artifacts.by_name.remove(name).filter(|artifact| artifact.usage == usage);
    let content = artifact.ok_or_else(|| unknown(session, name))?.content;
    serve_blob(state, caller, content.blob, &content.mime, name, headers).await
}

async fn serve_blob(
    state: &State,
    caller: &Caller,
    blob: BlobHash,
    called: &str,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response> {
    let etag = format!("\"{blob}\"");
    if header_text(headers, "if-none-match")?.is_some_and(|known| known == etag || known == "*") {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    let bytes = Bytes::from(state.engine.store().get_blob(&caller.scope, blob).await?);
    let (mime, disposition) = served_type(&bytes, called);
    let is_same = header_text(headers, "if-range")?.is_none_or(|known| known == etag);
    let range = header_text(headers, "range")?.filter(|_| is_same);
    let mut response = slice(bytes, range)?;
    let headers = response.headers_mut();
    set(headers, header::ETAG, &etag);
    set(headers, header::CONTENT_TYPE, mime);
    set(headers, header::CONTENT_DISPOSITION, &disposition_of(disposition, name));
    set(headers, header::ACCEPT_RANGES, "bytes");
    // Shown in place or not, it is nobody's page.
    set(headers, header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    set(headers, header::CACHE_CONTROL, "private, no-cache");
    Ok(response)
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The name goes along as RFC 6266 wants it: plain where it is, encoded for whoever can read that.
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

/// All bytes, or the one range that was asked for.
fn slice(bytes: Bytes, range: Option<&str>) -> Result<Response> {
    let size = bytes.len();
    let Some(asked) = range.and_then(|range| parse_range(range, size)) else {
        return Ok(HttpBody::from(bytes).into_response());
    };
    let Some((first, last)) = asked else {
        return Err(Problem::new("range.unsatisfiable", format!("there are {size} bytes")));
    };
    let part = bytes.slice(first..=last);
    let content_range = format!("bytes {first}-{last}/{size}");
    Ok((StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, content_range)], part).into_response())
}

/// None for what is not one range of bytes, which is answered with all of them; `Some(None)` for one past the end.
fn parse_range(range: &str, size: usize) -> Option<Option<(usize, usize)>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count: usize = last.parse().ok()?;
        let found = (count > 0 && size > 0).then(|| (size.saturating_sub(count), size - 1));
        return Some(found);
    }
    let first: usize = first.parse().ok()?;
    let last: usize = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
    if last < first {
        return None;
    }
    Some((first < size).then(|| (first, last.min(size - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        assert_eq!(parse_range("bytes=0-3", 10), Some(Some((0, 3))));
        assert_eq!(parse_range("bytes=7-", 10), Some(Some((7, 9))));
        assert_eq!(parse_range("bytes=-3", 10), Some(Some((7, 9))));
        assert_eq!(parse_range("bytes=-30", 10), Some(Some((0, 9))));
        assert_eq!(parse_range("bytes=10-", 10), Some(None));
        assert_eq!(parse_range("bytes=-0", 10), Some(None));
        for other in ["bytes=3-1", "bytes=a-b", "items=0-1", "bytes=0-1,3-4", "bytes=", "bytes=-"] {
            assert_eq!(parse_range(other, 10), None, "{other}");
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_its_header() {
        let header = disposition_of(Disposition::Attachment, "a\"; x=\r\né.html");
        assert!(HeaderValue::from_str(&header).is_ok());
        assert_eq!(header.matches('"').count(), 2);
    }
}
