//! Import of sessions from an uploaded file, in Sapwood's format or another program's. Directories and agents in the
//! file are kept only if the sender could have set them directly, so that an import never grants additional rights.
//!
//! Files in line-based formats are stored while they arrive. Files that are a single document are buffered completely.

mod own;
mod response;
mod upload;

use axum::extract::{Request, State as Shared};
use sapwood::core::BlobHash;
use sapwood::engine::import::{ForeignImport, ImportOptions, Mode};
use sapwood::formats::import::detect::detect;
use sapwood::formats::import::{Format, LineSplitter};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::response::ImportedSessions;
use self::upload::Upload;
use crate::auth::Caller;
use crate::extract::Params;
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Number of batches of a document that are read ahead while the previous one is written.
const QUEUED_BATCHES: usize = 2;
/// Number of hash digits that make a file's session id unique to its sender.
const ID_HASH_DIGITS: usize = 16;

/// Maximum length of a file name in a session id.
const STEM_CHARS_MAX: usize = 100;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(import_file))
}

/// Import sessions from a file. A repeated import adds only new entries.
#[utoipa::path(post, path = "/v1/import", tag = "sessions", params(wire::ImportFile),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = wire::Imports)))]
async fn import_file(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ImportFile>,
    request: Request,
) -> Result<Json<wire::Imports>> {
    let mut upload = Upload::open(&state, &caller, request).await?;
    let imported = import_upload(&state, &caller, &mut upload, &query).await;
    if imported.is_err() {
        upload.discard_rest().await;
    }
    Ok(Json(wire::Imports { items: imported? }))
}

/// Returns the session id for a file without an id. Files with the same name from the same sender get the same id,
/// and files from different senders get different ids. A file without a name is identified by its first bytes, because
/// the import begins before the last bytes arrive.
fn session_name_for(format: Format, caller: &Caller, given: Option<&str>, beginning: &[u8]) -> String {
    let stem = stem_of(given);
    // Claude Code's session id is in its records or is the file name.
    if format == Format::ClaudeCode {
        return stem;
    }
    let what = given.map_or_else(|| BlobHash::of(beginning).to_string(), |name| format!("name {name}"));
    let own = BlobHash::of(format!("{} {what}", caller.scope.principal).as_bytes()).to_string();
    format!("{stem}-{}", &own[..ID_HASH_DIGITS])
}

/// Returns the file name without directories and extension.
fn stem_of(name: Option<&str>) -> String {
    let file = name.unwrap_or("upload").rsplit(['/', '\\']).next().unwrap_or_default();
    file.split_once('.').map_or(file, |(stem, _)| stem).chars().take(STEM_CHARS_MAX).collect()
}

async fn import_upload(
    state: &State,
    caller: &Caller,
    upload: &mut Upload<'_>,
    query: &wire::ImportFile,
) -> Result<Vec<wire::Imported>> {
    upload.read_prefix().await;
    let format = match query.from.as_deref() {
        Some(name) => Format::ALL.iter().copied().find(|format| format.as_str() == name),
        None => detect(upload.beginning()),
    };
    let options = options_for(state, query);
    match format {
        Some(Format::Sapwood) => {
            own::import_lines(upload, state.engine.imports().begin_own(&caller.scope, options)).await
        }
        Some(Format::OpenCode) | None => {
            let detail = "unknown file format: name it with the parameter `from`; databases can only be imported on the server itself";
            Err(upload.take_failure().unwrap_or_else(|| Problem::new("input.format", detail)))
        }
        Some(format) => {
            let name = session_name_for(format, caller, query.name.as_deref(), upload.beginning());
            let import = state.engine.imports().begin_foreign(&caller.scope, format, &name, options)?;
            import_foreign(upload, format, import).await
        }
    }
}

fn options_for(state: &State, query: &wire::ImportFile) -> ImportOptions {
    let mode = if query.dry_run { Mode::DryRun } else { Mode::Write };
    let (threads, queued_batches) = (Some(state.documents.clone()), QUEUED_BATCHES);
    ImportOptions { threads, queued_batches, ..ImportOptions::new(mode) }
}

async fn import_foreign(
    upload: &mut Upload<'_>,
    format: Format,
    mut import: ForeignImport,
) -> Result<Vec<wire::Imported>> {
    let mut received = Ok(());
    if upload.is_document(format).await {
        let bytes = upload.read_all().await?;
        import.read(move |reader| reader.push_document(&bytes)).await;
    } else {
        received = push_lines(upload, &mut import).await;
    }
    // If the upload was interrupted, the steps before the interruption are still stored.
    let mut imported = ImportedSessions::new(format);
    imported.add(import.finish().await)?;
    received.map(|()| imported.items)
}

/// Imports lines as they arrive.
async fn push_lines(upload: &mut Upload<'_>, import: &mut ForeignImport) -> Result<()> {
    let mut lines = LineSplitter::default();
    while let Some(bytes) = upload.next().await? {
        lines.push(&bytes, |line, number| import.push_line(line, number));
        if import.store_if_full().await {
            upload.release_stored(lines.held_bytes());
        }
        if import.is_given_up() {
            upload.discard_rest().await;
        }
    }
    lines.finish(|line, number| import.push_line(line, number));
    Ok(())
}
