//! A copy of a session, in one of the shapes that `sapwood export` writes. That it was taken is in the audit before a byte of
//! it leaves.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body as Bytes, Bytes as Piece};
use axum::extract::State as Shared;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sapwood::core::Record;
use sapwood::core::project::summary::Summary;
use sapwood::engine::export::PageFormat;
use sapwood::formats::export::{ExportError, jsonl, tree};
use sapwood::formats::import::pi::Dialect;
use sapwood::{Engine, Scope, Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::door::Caller;
use crate::extract::{At, Body};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// How many entries are asked of the store at a time.
const PAGE_RECORDS: usize = 500;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(export_session))
}

/// A copy of the session.
#[utoipa::path(post, path = "/v1/sessions/{session}/export", tag = "sessions", params(("session" = String, Path)),
    request_body = wire::Export, responses((status = 200, body = serde_json::Value, content_type = "*/*")))]
async fn export_session(
    Shared(state): Shared<State>,
    caller: Caller,
    At(session): At<SessionId>,
    Body(wanted): Body<wire::Export>,
) -> Result<Response> {
    let (engine, scope) = (&state.engine, &caller.scope);
    let summary = engine.summary(scope, &session).await?;
    let (name, kind, shape) = shape_of(wanted.format);
    engine.record_export(scope, &session, name).await?;
    let body = match shape {
        Shape::Log => {
            let lines = |to| Exporter::Log(jsonl::Exporter::new(to));
            Bytes::from_stream(stream_of(Lines::new(&state, scope, summary, lines)))
        }
        Shape::Tree(dialect) => {
            let lines = |to| Exporter::Tree(tree::Exporter::new(to, dialect));
            Bytes::from_stream(stream_of(Lines::new(&state, scope, summary, lines)))
        }
        Shape::Page(page) => {
            let text = engine.export_page(scope, &summary, page).await?;
            if page == PageFormat::Workflow {
                engine.mark_export(scope, &session, name, summary.head.seq.0).await?;
            }
            Bytes::from(text)
        }
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((headers, body).into_response())
}

/// How a copy is made: line by line, or whole.
enum Shape {
    Log,
    Tree(Dialect),
    Page(PageFormat),
}

/// The name, the type and the shape of a format.
fn shape_of(format: wire::ExportFormat) -> (&'static str, &'static str, Shape) {
    use wire::ExportFormat as Format;
    let (lines, json) = ("application/x-ndjson", "application/json");
    match format {
        Format::Jsonl => ("jsonl", lines, Shape::Log),
        Format::Pi => ("pi", lines, Shape::Tree(Dialect::Pi)),
        Format::Operator => ("operator", lines, Shape::Tree(Dialect::Operator)),
        Format::RoleFiles => ("role-files", json, Shape::Page(PageFormat::RoleFiles)),
        Format::Messages => ("messages", json, Shape::Page(PageFormat::Messages)),
        Format::MessagesAnthropic => ("messages-anthropic", json, Shape::Page(PageFormat::MessagesAnthropic)),
        Format::Markdown => ("markdown", "text/markdown; charset=utf-8", Shape::Page(PageFormat::Markdown)),
        Format::Html => ("html", "text/html; charset=utf-8", Shape::Page(PageFormat::Html)),
        Format::Workflow => ("workflow", "application/yaml", Shape::Page(PageFormat::Workflow)),
    }
}

/// What an exporter has written and nobody has taken yet.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Piece {
        Piece::from(std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What writes a line for each entry.
enum Exporter {
    Log(jsonl::Exporter<Written>),
    Tree(tree::Exporter<Written>),
}

impl Exporter {
    fn header(&mut self, summary: &Summary) -> Result<()> {
        match self {
            Self::Log(lines) => lines.header(summary),
            Self::Tree(lines) => lines.header(summary),
        }
        .map_err(broken)
    }

    async fn line(&mut self, engine: &Engine, scope: &Scope, record: &Record) -> Result<()> {
        match self {
            Self::Log(lines) => {
                for blob in lines.missing_blobs(record).map_err(broken)? {
                    let bytes = engine.store().get_blob(scope, blob).await?;
                    lines.blob(blob, &bytes).map_err(broken)?;
                }
                lines.line(record).map_err(broken)
            }
            Self::Tree(lines) => {
                let blobs = record.decode().map(|body| body.blobs()).unwrap_or_default();
                let media = engine.media_of(scope, blobs).await?;
                lines.line(record, &media).map_err(broken)
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Log(lines) => lines.finish().map(drop),
            Self::Tree(lines) => lines.finish().map(drop),
        }
        .map_err(broken)
    }
}

/// A session as lines, a page at a time: what it held when the export began.
struct Lines {
    state: State,
    scope: Scope,
    summary: Summary,
    after: Seq,
    exporter: Option<Exporter>,
    written: Written,
    ready: VecDeque<Piece>,
}

impl Lines {
    fn new(state: &State, scope: &Scope, summary: Summary, to: impl FnOnce(Written) -> Exporter) -> Self {
        let written = Written::default();
        let exporter = Some(to(written.clone()));
        let (state, scope) = (state.clone(), scope.clone());
        Self { state, scope, summary, after: Seq::ZERO, exporter, written, ready: VecDeque::new() }
    }

    /// None at the end. What breaks off in the middle ends the connection, so that nobody takes it for the whole.
    async fn next(&mut self) -> Result<Option<Piece>> {
        while self.ready.is_empty() {
            let Some(exporter) = self.exporter.as_mut() else { return Ok(None) };
            if self.after == Seq::ZERO {
                exporter.header(&self.summary)?;
            }
            let left = (self.summary.head.seq.0 - self.after.0) as usize;
            let limit = PAGE_RECORDS.min(left);
            let store = self.state.engine.store();
            let records = match limit {
                0 => Vec::new(),
                limit => store.read_after(&self.scope, &self.summary.id, self.after, limit).await?,
            };
            let is_last = records.len() == left || records.is_empty();
            for record in records {
                exporter.line(&self.state.engine, &self.scope, &record).await?;
                self.after = record.meta.seq;
            }
            if is_last && let Some(exporter) = self.exporter.take() {
                exporter.finish()?;
            }
            self.ready.push_back(self.written.take());
        }
        Ok(self.ready.pop_front())
    }
}

fn broken(error: ExportError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

fn stream_of(lines: Lines) -> impl futures_core::Stream<Item = std::io::Result<Piece>> {
    stream::unfold(Some(lines), |lines| async move {
        let mut lines = lines?;
        match lines.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(lines))),
            Ok(None) => None,
            Err(problem) => Some((Err(std::io::Error::other(problem.code)), None)),
        }
    })
}
