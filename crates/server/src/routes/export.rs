//! A session as a file. What holds the whole log streams page by page, so that a long one needs no memory.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body as HttpBody;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use sapwood::core::project::summary::Summary;
use sapwood::engine::export::Page;
use sapwood::formats::export::{ExportError, jsonl, tree};
use sapwood::formats::import::pi::Dialect;
use sapwood::{Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::door::Caller;
use crate::extract::{At, Params};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// How many entries are asked of the store at a time.
const PAGE_RECORDS: usize = 1_000;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(export_session))
}

enum Shape {
    Own,
    Tree(Dialect),
    Page(Page),
}

/// A format's shape, and what its file's name ends in.
fn shape_of(format: &str) -> Result<(Shape, &'static str)> {
    Ok(match format {
        "jsonl" => (Shape::Own, "jsonl"),
        "pi" => (Shape::Tree(Dialect::Pi), "pi.jsonl"),
        "operator" => (Shape::Tree(Dialect::Operator), "operator.jsonl"),
        "role-files" => (Shape::Page(Page::RoleFiles), "transcript.json"),
        "messages" => (Shape::Page(Page::Messages), "messages.json"),
        "messages-anthropic" => (Shape::Page(Page::MessagesAnthropic), "messages.json"),
        "markdown" => (Shape::Page(Page::Markdown), "md"),
        "html" => (Shape::Page(Page::Html), "html"),
        "workflow" => (Shape::Page(Page::Workflow), "yaml"),
        other => return Err(Problem::invalid(format!("there is no format {other:.64}"))),
    })
}

/// The session as a file, to be kept.
#[utoipa::path(get, path = "/v1/sessions/{session}/export", tag = "sessions",
    params(("session" = String, Path), wire::ExportAs),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
async fn export_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Params(query): Params<wire::ExportAs>,
) -> Result<Response> {
    let format = query.format.as_deref().unwrap_or("jsonl");
    let summary = state.engine.summary(&caller.scope, &session).await?;
    let (shape, ending) = shape_of(format)?;
    // Written down first: a copy that was cut short has been taken away all the same.
    state.engine.record_export(&caller.scope, &session, format).await?;
    let body = match shape {
        Shape::Page(page) => {
            let text = state.engine.export_page(&caller.scope, &summary, page).await?;
            if page == Page::Workflow {
                let entries = summary.head.seq.0;
                state.engine.mark_export(&caller.scope, &session, format, entries).await?;
            }
            HttpBody::from(text)
        }
        Shape::Own => stream_log(state, caller, summary, None)?,
        Shape::Tree(dialect) => stream_log(state, caller, summary, Some(dialect))?,
    };
    let name = format!("attachment; filename=\"{session}.{ending}\"");
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, name),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'".to_owned()),
    ];
    Ok((headers, body).into_response())
}

/// Where an exporter writes to, and what was written is taken from.
#[derive(Clone, Default)]
struct Tray(Arc<Mutex<Vec<u8>>>);

impl Write for Tray {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Pen {
    Own(jsonl::Exporter<Tray>),
    Tree(tree::Exporter<Tray>),
}

/// An export under way: what the session held when it began; what comes meanwhile belongs to the next one.
struct Copy {
    state: State,
    caller: Caller,
    summary: Summary,
    tray: Tray,
    pen: Pen,
    after: Seq,
}

fn stream_log(state: State, caller: Caller, summary: Summary, dialect: Option<Dialect>) -> Result<HttpBody> {
    let tray = Tray::default();
    let mut pen = match dialect {
        Some(dialect) => Pen::Tree(tree::Exporter::new(tray.clone(), dialect)),
        None => Pen::Own(jsonl::Exporter::new(tray.clone())),
    };
    match &mut pen {
        Pen::Own(exporter) => exporter.header(&summary),
        Pen::Tree(exporter) => exporter.header(&summary),
    }
    .map_err(broken)?;
    let copy = Copy { state, caller, summary, tray, pen, after: Seq::ZERO };
    Ok(HttpBody::from_stream(stream::unfold(Some(copy), |copy| async move {
        let mut copy = copy?;
        match copy.next_piece().await {
            Ok(piece) if piece.is_empty() => None,
            Ok(piece) => Some((Ok(piece), Some(copy))),
            // The connection is cut, so that nobody takes half of it for the whole.
            Err(problem) => Some((Err(std::io::Error::other(problem.detail)), None)),
        }
    })))
}

impl Copy {
    /// What comes next; nothing at the end.
    async fn next_piece(&mut self) -> Result<Bytes> {
        let (scope, session) = (&self.caller.scope, &self.summary.id);
        let left = self.summary.head.seq.0.saturating_sub(self.after.0) as usize;
        let store = self.state.engine.store();
        let limit = left.min(PAGE_RECORDS);
        let records =
            if limit == 0 { Vec::new() } else { store.read_after(scope, session, self.after, limit).await? };
        for record in records {
            self.after = record.meta.seq;
            match &mut self.pen {
                Pen::Own(exporter) => {
                    for blob in exporter.missing_blobs(&record).map_err(broken)? {
                        exporter.blob(blob, &store.get_blob(scope, blob).await?).map_err(broken)?;
                    }
                    exporter.line(&record).map_err(broken)?;
                }
                Pen::Tree(exporter) => {
                    let blobs = record.decode().map(|body| body.blobs()).unwrap_or_default();
                    let media = self.state.engine.media_of(scope, blobs).await?;
                    exporter.line(&record, &media).map_err(broken)?;
                }
            }
        }
        let mut written = self.tray.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Bytes::from(std::mem::take(&mut *written)))
    }
}

fn broken(error: ExportError) -> Problem {
    Problem::new(error.code(), error.to_string())
}
