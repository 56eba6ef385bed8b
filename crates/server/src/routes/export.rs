//! Session export, in the same formats as `sapwood export`. The export is written to the audit log before the first
//! byte is sent.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body as Bytes, Bytes as Piece};
use axum::extract::State as Shared;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sapwood::core::project::summary::Summary;
use sapwood::core::{BlobHash, Record};
use sapwood::engine::blob::BlobReader;
use sapwood::engine::export::PageFormat;
use sapwood::formats::export::{ExportError, jsonl, tree};
use sapwood::formats::import::pi::Dialect;
use sapwood::{Engine, Scope, Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::{At, Body};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Entries per store read.
const PAGE_RECORDS: usize = 500;
/// Minimum size of a sent chunk, except for the last chunk.
const SENT_BYTES_MIN: usize = 64 << 10;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(export_session))
}

/// Export a session.
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
            Bytes::from_stream(stream_of(Lines::new(&state, &caller, summary, lines)))
        }
        Shape::Tree(dialect) => {
            let lines = |to| Exporter::Tree(tree::Exporter::new(to, dialect));
            Bytes::from_stream(stream_of(Lines::new(&state, &caller, summary, lines)))
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

/// How an export is written: line by line, or as a whole.
enum Shape {
    Log,
    Tree(Dialect),
    Page(PageFormat),
}

/// Returns a format's name, media type and shape.
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

/// Bytes that the exporter has written but that are not sent yet.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

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

/// Writes one line per entry.
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

    /// Returns a blob that must be written before the record, if there is one.
    fn missing_blob(&self, record: &Record) -> Result<Option<BlobHash>> {
        match self {
            Self::Log(lines) => Ok(lines.missing_blobs(record).map_err(broken)?.first().copied()),
            Self::Tree(_) => Ok(None),
        }
    }

    async fn line(&mut self, engine: &Engine, scope: &Scope, record: &Record) -> Result<()> {
        match self {
            Self::Log(lines) => lines.line(record).map_err(broken),
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

/// A blob that is being written in chunks, one per line.
struct Sending {
    blob: BlobHash,
    reader: BlobReader,
    piece: u64,
    pieces: u64,
}

impl Sending {
    async fn begin(engine: &Engine, scope: &Scope, blob: BlobHash) -> Result<Self> {
        let reader = engine.open_blob(scope, blob).await?;
        Ok(Self { blob, pieces: jsonl::pieces_of(reader.left()), reader, piece: 0 })
    }

    /// Writes the next chunk. Returns `None` after the last chunk.
    async fn go_on(mut self, exporter: &mut Exporter) -> Result<Option<Self>> {
        let Exporter::Log(lines) = exporter else { return Ok(None) };
        self.piece += 1;
        let bytes = self.reader.next_up_to(jsonl::PIECE_BYTES_MAX).await?;
        lines.blob_piece(self.blob, (self.piece, self.pieces), &bytes).map_err(broken)?;
        Ok((self.piece < self.pieces).then_some(self))
    }
}

/// A line-based export in progress. It covers the log up to the head at the start of the export.
struct Lines {
    state: State,
    caller: Caller,
    summary: Summary,
    after: Seq,
    records: VecDeque<Record>,
    sending: Option<Sending>,
    exporter: Option<Exporter>,
    written: Written,
}

impl Lines {
    fn new(state: &State, caller: &Caller, summary: Summary, to: impl FnOnce(Written) -> Exporter) -> Self {
        let written = Written::default();
        Self {
            state: state.clone(),
            caller: caller.clone(),
            summary,
            after: Seq::ZERO,
            records: VecDeque::new(),
            sending: None,
            exporter: Some(to(written.clone())),
            written,
        }
    }

    /// Returns the next bytes, or `None` at the end. An error aborts the connection, so that clients do not accept
    /// a partial export.
    async fn next(&mut self) -> Result<Option<Piece>> {
        while self.written.len() < SENT_BYTES_MIN {
            let Some(mut exporter) = self.exporter.take() else { break };
            match self.step(&mut exporter).await? {
                ExportStep::More => self.exporter = Some(exporter),
                ExportStep::Last => exporter.finish()?,
            }
        }
        Ok(Some(self.written.take()).filter(|piece| !piece.is_empty()))
    }

    /// Writes one line, or reads the next page of entries.
    async fn step(&mut self, exporter: &mut Exporter) -> Result<ExportStep> {
        let engine = &self.state.engine;
        if let Some(sending) = self.sending.take() {
            self.sending = sending.go_on(exporter).await?;
        } else if let Some(record) = self.records.front() {
            if let Some(blob) = exporter.missing_blob(record)? {
                self.sending = Some(Sending::begin(engine, &self.caller.scope, blob).await?);
                return Ok(ExportStep::More);
            }
            exporter.line(engine, &self.caller.scope, record).await?;
            self.after = record.meta.seq;
            self.records.pop_front();
        } else {
            if self.after == Seq::ZERO {
                exporter.header(&self.summary)?;
            }
            let limit = PAGE_RECORDS.min((self.summary.head.seq.0 - self.after.0) as usize);
            if limit > 0 {
                let read = engine.store().read_after(&self.caller.scope, &self.summary.id, self.after, limit);
                self.records = read.await?.into();
            }
            if self.records.is_empty() {
                return Ok(ExportStep::Last);
            }
        }
        Ok(ExportStep::More)
    }
}

enum ExportStep {
    More,
    Last,
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
            Err(problem) => {
                problem.log(lines.caller.request);
                Some((Err(std::io::Error::other(problem.code)), None))
            }
        }
    })
}
