//! Session export, in the same formats as `sapwood export`. The export is written to the audit log before the first
//! byte is sent.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sapwood::core::project::summary::Summary;
use sapwood::core::{BlobHash, Record};
use sapwood::engine::blob::BlobReader;
use sapwood::engine::export::PageFormat;
use sapwood::engine::page_reader::PageReader;
use sapwood::formats::export::{ExportError, jsonl, tree};
use sapwood::formats::import::pi::Dialect;
use sapwood::{Engine, Scope, Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::chunked::{CHUNK_BYTES_MIN, ChunkSource, LongRead, PageSize, body_of};
use crate::extract::{Body, PathParams};
use crate::problem::{Problem, Result};
use crate::projection::ProjectionPermit;
use crate::request_id::RequestId;
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(export_session))
}

/// Export a session.
#[utoipa::path(post, path = "/v1/sessions/{session}/export", tag = "sessions", params(("session" = String, Path)),
    request_body = wire::Export, responses((status = 200, body = serde_json::Value, content_type = "*/*")))]
async fn export_session(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(session): PathParams<SessionId>,
    permit: ProjectionPermit,
    Body(request): Body<wire::Export>,
) -> Result<Response> {
    let (engine, scope) = (&state.engine, &caller.scope);
    let summary = engine.directory().summary(scope, &session).await?;
    let (name, kind, shape) = format_info(request.format);
    engine.views().record_export(scope, &session, name).await?;
    let body = match shape {
        ExportShape::Log => {
            let exporter = |output| Exporter::Log(jsonl::Exporter::new(output));
            body_of(LineExport::new(&state, &caller, summary, exporter)).await?
        }
        ExportShape::Tree(dialect) => {
            let exporter = |output| Exporter::Tree(tree::Exporter::new(output, dialect));
            body_of(LineExport::new(&state, &caller, summary, exporter)).await?
        }
        ExportShape::Page(page) => match engine.views().read_page(scope, &summary, page).await? {
            Some(reader) => {
                let body = body_of(PageExport::new(&state, &caller, reader)).await?;
                permit.hold_for(body)
            }
            None => {
                let text = engine.views().page(scope, &summary, page).await?;
                if page == PageFormat::Workflow {
                    engine.views().mark_exported(scope, &session, name, summary.head.seq.0).await?;
                }
                permit.hold_for_text(text)
            }
        },
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((headers, body).into_response())
}

/// How an export is written: line by line, or as a whole.
enum ExportShape {
    Log,
    Tree(Dialect),
    Page(PageFormat),
}

/// Returns a format's name, its media type, and how it is written.
fn format_info(format: wire::ExportFormat) -> (&'static str, &'static str, ExportShape) {
    use wire::ExportFormat as Format;
    let (ndjson, json) = ("application/x-ndjson", "application/json");
    match format {
        Format::Jsonl => ("jsonl", ndjson, ExportShape::Log),
        Format::Pi => ("pi", ndjson, ExportShape::Tree(Dialect::Pi)),
        Format::Operator => ("operator", ndjson, ExportShape::Tree(Dialect::Operator)),
        Format::RoleFiles => ("role-files", json, ExportShape::Page(PageFormat::RoleFiles)),
        Format::RoleFeed => ("role-feed", json, ExportShape::Page(PageFormat::RoleFeed)),
        Format::Messages => ("messages", json, ExportShape::Page(PageFormat::Messages)),
        Format::MessagesAnthropic => {
            ("messages-anthropic", json, ExportShape::Page(PageFormat::MessagesAnthropic))
        }
        Format::Markdown => {
            ("markdown", "text/markdown; charset=utf-8", ExportShape::Page(PageFormat::Markdown))
        }
        Format::Html => ("html", "text/html; charset=utf-8", ExportShape::Page(PageFormat::Html)),
        Format::Workflow => ("workflow", "application/yaml", ExportShape::Page(PageFormat::Workflow)),
    }
}

/// A buffer of bytes that the exporter has written and that are not sent yet.
#[derive(Clone, Default)]
struct OutputBuffer(Arc<Mutex<Vec<u8>>>);

impl OutputBuffer {
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes the bytes in a buffer of exactly their size.
    fn take(&self) -> Bytes {
        let written = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Bytes::from(written.into_boxed_slice())
    }
}

impl Write for OutputBuffer {
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
    Log(jsonl::Exporter<OutputBuffer>),
    Tree(tree::Exporter<OutputBuffer>),
}

impl Exporter {
    fn header(&mut self, summary: &Summary) -> Result<()> {
        match self {
            Self::Log(exporter) => exporter.header(summary),
            Self::Tree(exporter) => exporter.header(summary),
        }
        .map_err(export_problem)
    }

    /// Returns the next blob that must be written before the record, if any.
    fn missing_blob(&self, record: &Record) -> Result<Option<BlobHash>> {
        match self {
            Self::Log(exporter) => {
                Ok(exporter.missing_blobs(record).map_err(export_problem)?.first().copied())
            }
            Self::Tree(_) => Ok(None),
        }
    }

    async fn line(&mut self, engine: &Engine, scope: &Scope, record: &Record) -> Result<()> {
        match self {
            Self::Log(exporter) => exporter.line(record).map_err(export_problem),
            Self::Tree(exporter) => {
                let blobs = record.decode().map(|body| body.blobs()).unwrap_or_default();
                let media = engine.views().media_of(scope, blobs).await?;
                exporter.line(record, &media).map_err(export_problem)
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Log(exporter) => exporter.finish().map(drop),
            Self::Tree(exporter) => exporter.finish().map(drop),
        }
        .map_err(export_problem)
    }
}

/// The export of a blob in chunks, one per line.
struct BlobExport {
    blob: BlobHash,
    reader: BlobReader,
    chunk: u64,
    chunks: u64,
}

impl BlobExport {
    async fn begin(engine: &Engine, scope: &Scope, blob: BlobHash) -> Result<Self> {
        let reader = engine.views().open_blob(scope, blob).await?;
        Ok(Self { blob, chunks: jsonl::chunk_count(reader.remaining()), reader, chunk: 0 })
    }

    /// Writes the next chunk. Returns `None` after the last chunk.
    async fn write_next(mut self, exporter: &mut Exporter) -> Result<Option<Self>> {
        let Exporter::Log(exporter) = exporter else { return Ok(None) };
        self.chunk += 1;
        let bytes = self.reader.next_up_to(jsonl::CHUNK_BYTES_MAX).await?;
        exporter.blob_chunk(self.blob, (self.chunk, self.chunks), &bytes).map_err(export_problem)?;
        Ok((self.chunk < self.chunks).then_some(self))
    }
}

/// A line-based export in progress. It covers the log up to the head at the start of the export.
struct LineExport {
    read: LongRead,
    summary: Summary,
    after: Seq,
    records: VecDeque<Record>,
    page_size: PageSize,
    blob_export: Option<BlobExport>,
    exporter: Option<Exporter>,
    has_header: bool,
    output: OutputBuffer,
}

impl ChunkSource for LineExport {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        self.read.recheck().await?;
        while self.output.len() < CHUNK_BYTES_MIN {
            let Some(mut exporter) = self.exporter.take() else { break };
            match self.step(&mut exporter).await? {
                ExportStep::More => self.exporter = Some(exporter),
                ExportStep::Last => exporter.finish()?,
            }
        }
        Ok(Some(self.output.take()).filter(|chunk| !chunk.is_empty()))
    }

    fn release(&mut self) {
        (self.records, self.page_size) = (VecDeque::new(), PageSize::default());
    }

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}

impl LineExport {
    fn new(
        state: &State,
        caller: &Caller,
        summary: Summary,
        new_exporter: impl FnOnce(OutputBuffer) -> Exporter,
    ) -> Self {
        let output = OutputBuffer::default();
        Self {
            read: LongRead::new(state, caller),
            summary,
            after: Seq::ZERO,
            records: VecDeque::new(),
            page_size: PageSize::default(),
            blob_export: None,
            exporter: Some(new_exporter(output.clone())),
            has_header: false,
            output,
        }
    }

    /// Writes one line, or reads the next page of entries.
    async fn step(&mut self, exporter: &mut Exporter) -> Result<ExportStep> {
        let engine = &self.read.state.engine;
        if let Some(blob_export) = self.blob_export.take() {
            self.blob_export = blob_export.write_next(exporter).await?;
        } else if let Some(record) = self.records.front() {
            if let Some(blob) = exporter.missing_blob(record)? {
                self.blob_export = Some(BlobExport::begin(engine, &self.read.caller.scope, blob).await?);
                return Ok(ExportStep::More);
            }
            exporter.line(engine, &self.read.caller.scope, record).await?;
            self.after = record.meta.seq;
            self.records.pop_front();
        } else {
            if !std::mem::replace(&mut self.has_header, true) {
                exporter.header(&self.summary)?;
            }
            let limit = self.page_size.next((self.summary.head.seq.0 - self.after.0) as usize);
            if limit > 0 {
                let (scope, id) = (&self.read.caller.scope, &self.summary.id);
                self.records = engine.store().read_after(scope, id, self.after, limit).await?.into();
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

fn export_problem(error: ExportError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// A page that is being exported.
struct PageExport {
    read: LongRead,
    reader: PageReader,
}

impl PageExport {
    fn new(state: &State, caller: &Caller, reader: PageReader) -> Self {
        Self { read: LongRead::new(state, caller), reader }
    }
}

impl ChunkSource for PageExport {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        self.read.recheck().await?;
        let mut text = String::new();
        while text.len() < CHUNK_BYTES_MIN {
            match self.reader.next().await? {
                Some(part) => text.push_str(&part),
                None => break,
            }
        }
        Ok((!text.is_empty()).then(|| Bytes::from(text.into_boxed_str().into_boxed_bytes())))
    }

    fn release(&mut self) {
        self.reader.release();
    }

    fn request(&self) -> RequestId {
        self.read.caller.request
    }
}
