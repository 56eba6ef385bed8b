//! Routes for a session's inputs and artifacts: upload, list, download. Uploads are streamed into the store, and their
//! media type is sniffed.

use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use sapwood::SessionId;
use sapwood::core::entry::ArtifactUse;
use sapwood::core::project::artifacts::Artifact;
use sapwood::core::{BlobHash, BlobRef, Right};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::projections::Items;
use crate::auth::Caller;
use crate::download::{BlobDownload, serve_blob};
use crate::extract::{AuditedPath, IncomingBody, Params, PathParams, header_text};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::sniff::{SNIFFED_BYTES, served_type};
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

/// List the session's artifacts, the latest version of each name.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts", tag = "artifacts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Artifacts)))]
async fn list_artifacts(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Items<Artifact>>> {
    list(&state, &caller, &session, ArtifactUse::Artifact).await
}

/// Upload an artifact.
#[utoipa::path(post, path = "/v1/sessions/{session}/artifacts", tag = "artifacts",
    params(("session" = String, Path), wire::UploadName),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = wire::Artifact)))]
async fn upload_artifact(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Params(query): Params<wire::UploadName>,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    let file = UploadedFile { usage: ArtifactUse::Artifact, name: query.name, source: None };
    upload(&state, &caller, &session, file, request).await
}

/// Download an artifact.
#[utoipa::path(get, path = "/v1/sessions/{session}/artifacts/{name}", tag = "artifacts",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "Not modified")))]
async fn download_artifact(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath((session, name)): AuditedPath<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    download(&state, &caller, &session, ArtifactUse::Artifact, &name, &headers).await
}

/// List the session's inputs, the latest version of each name.
#[utoipa::path(get, path = "/v1/sessions/{session}/inputs", tag = "artifacts", params(("session" = String, Path)),
    responses((status = 200, body = wire::Artifacts)))]
async fn list_inputs(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(session): AuditedPath<SessionId>,
) -> Result<Json<Items<Artifact>>> {
    list(&state, &caller, &session, ArtifactUse::Input).await
}

/// Upload an input. The model is told about it and can read it with its input tools.
#[utoipa::path(post, path = "/v1/sessions/{session}/inputs", tag = "artifacts",
    params(("session" = String, Path), wire::UploadInput),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = wire::Artifact)))]
async fn upload_input(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    Params(query): Params<wire::UploadInput>,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    let file = UploadedFile { usage: ArtifactUse::Input, name: query.name, source: query.source };
    upload(&state, &caller, &session, file, request).await
}

/// Download an input file.
#[utoipa::path(get, path = "/v1/sessions/{session}/inputs/{name}", tag = "artifacts",
    params(("session" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "Not modified")))]
async fn download_input(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath((session, name)): AuditedPath<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    download(&state, &caller, &session, ArtifactUse::Input, &name, &headers).await
}

/// Download a blob that an entry refers to by its hash, such as an image or a tool's full output.
#[utoipa::path(get, path = "/v1/sessions/{session}/blobs/{blob}", tag = "artifacts",
    params(("session" = String, Path), ("blob" = String, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "*/*"),
        (status = 206, body = serde_json::Value, content_type = "*/*"),
        (status = 304, description = "Not modified")))]
async fn download_blob(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath((session, blob)): AuditedPath<(SessionId, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    state.engine.directory().summary(&caller.scope, &session).await?;
    let not_found = |_| Problem::new("blob.not_found", "no such blob");
    let hash: BlobHash = blob.parse().map_err(not_found)?;
    serve_blob(&state, &caller, BlobDownload { blob: hash, mime: "", name: &blob }, &headers).await
}

async fn list(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    usage: ArtifactUse,
) -> Result<Json<Items<Artifact>>> {
    let artifacts = state.engine.views().artifacts(&caller.scope, session).await?;
    let items = artifacts.by_name.into_values().filter(|artifact| artifact.usage == usage).collect();
    Ok(Json(Items { items }))
}

/// How an upload is stored.
struct UploadedFile {
    usage: ArtifactUse,
    name: String,
    source: Option<String>,
}

async fn upload(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    file: UploadedFile,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>)> {
    let UploadedFile { usage, name, source } = file;
    check_name(&name)?;
    // Check the right to write before the body is read.
    state.engine.directory().check_right(&caller.scope, session, Right::Write).await?;
    let declared = header_text(request.headers(), "content-type")?.unwrap_or_default().to_owned();
    let incoming = IncomingBody::of(request, "an upload", state.settings.upload_bytes_max).await?;
    let share = state.admission.share_of(caller);
    // Wait for the caller's share first, so that waiting uploads do not take capacity from other callers.
    let permits = async { (share.uploads.acquire().await, state.streamed_uploads.acquire().await) };
    let permits = tokio::time::timeout(state.settings.request_time_max, permits).await;
    let permits = permits.map_err(|_| Problem::late(state.settings.request_time_max))?;
    let content = store_upload(state, caller, incoming, &declared, &name).await?;
    match usage {
        ArtifactUse::Input => state.engine.inputs().add(&caller.scope, session, content, source).await?,
        ArtifactUse::Artifact => {
            state.engine.edits().name_artifact(&caller.scope, session, usage, content).await?
        }
    };
    drop(permits);
    let mut artifacts = state.engine.views().artifacts(&caller.scope, session).await?;
    let artifact =
        artifacts.by_name.remove(&(usage, name.clone())).ok_or_else(|| not_found(session, &name))?;
    Ok((StatusCode::CREATED, Json(artifact)))
}

/// Streams a body into the store.
async fn store_upload(
    state: &State,
    caller: &Caller,
    mut incoming: IncomingBody,
    declared: &str,
    name: &str,
) -> Result<BlobRef> {
    let mut sink = state.engine.store().begin_blob(&caller.scope).await?;
    let (mut head, mut size) = (Vec::new(), 0);
    while let Some(bytes) = incoming.next(state.settings.request_time_max).await? {
        size += bytes.len() as u64;
        head.extend_from_slice(&bytes[..bytes.len().min(SNIFFED_BYTES - head.len())]);
        sink.write(&bytes).await?;
    }
    let (mime, _) = served_type(&head, declared);
    let (mime, name) = (mime.to_owned(), Some(name.to_owned()));
    Ok(BlobRef { blob: sink.finish().await?, mime, name, bytes: size, duration_ms: None })
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let why = format!("a name must have 1 to {NAME_BYTES_MAX} bytes and no control characters");
        return Err(Problem::invalid(why));
    }
    Ok(())
}

fn not_found(session: &SessionId, name: &str) -> Problem {
    Problem::new("artifact.not_found", format!("session `{session}` has no file `{name:.64}`"))
}

async fn download(
    state: &State,
    caller: &Caller,
    session: &SessionId,
    usage: ArtifactUse,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response> {
    let mut artifacts = state.engine.views().artifacts(&caller.scope, session).await?;
    let artifact = artifacts.by_name.remove(&(usage, name.to_owned()));
    let content = artifact.ok_or_else(|| not_found(session, name))?.content;
    serve_blob(state, caller, BlobDownload { blob: content.blob, mime: &content.mime, name }, headers).await
}
