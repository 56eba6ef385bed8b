//! Import of sessions from an uploaded file, in Sapwood's format or another program's. Directories and agents in the
//! file are kept only if the sender could have set them directly, so that an import never grants additional rights.
//!
//! Files in line-based formats are stored while they arrive. Files that are a single document are buffered completely.

mod own;
mod upload;

use axum::extract::{Request, State as Shared};
use sapwood::core::BlobHash;
use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ContextChanged};
use sapwood::core::port::tool::FsScope;
use sapwood::engine::import::{Intake, Mode, OwnIntake};
use sapwood::formats::import::detect::detect;
use sapwood::formats::import::steps::{Portion, StepBatch};
use sapwood::formats::import::{Format, LineSplitter, Problem as Fault, ProblemKind, Reader, reader};
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::upload::Upload;
use crate::auth::Caller;
use crate::extract::Params;
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Maximum number of reported problems per session and per file. Further problems are only counted.
const PROBLEMS_REPORTED_MAX: usize = 100;
const PROBLEMS_REPORTED_TOTAL_MAX: usize = 1_000;
/// Batch limits in steps and in bytes of lines.
const BATCH_STEPS: usize = 512;
const BATCH_BYTES: usize = 2 << 20;
/// Lines longer than this may contain a whole conversation and are read like a document.
const LONG_LINE_BYTES: usize = 1 << 20;
/// Queue length for portions of a document. The next portion is read while the previous one is written.
const PORTIONS_MAX: usize = 2;
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
    let mode = if query.dry_run { Mode::DryRun } else { Mode::Write };
    let request = ImportRequest { state: &state, caller: &caller, mode };
    let imported = request.take(&mut upload, &query).await;
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

struct ImportRequest<'a> {
    state: &'a State,
    caller: &'a Caller,
    mode: Mode,
}

impl ImportRequest<'_> {
    async fn take(&self, upload: &mut Upload<'_>, query: &wire::ImportFile) -> Result<Vec<wire::Imported>> {
        upload.read_prefix().await;
        let format = match query.from.as_deref() {
            Some(name) => Format::ALL.iter().copied().find(|format| format.as_str() == name),
            None => detect(upload.beginning()),
        };
        match format {
            Some(Format::Sapwood) => own::take(self, upload).await,
            Some(Format::OpenCode) | None => {
                let detail = "unknown file format: `sapwood import` supports more formats than the HTTP API";
                Err(upload.take_failure().unwrap_or_else(|| Problem::new("input.format", detail)))
            }
            Some(format) => {
                let name = session_name_for(format, self.caller, query.name.as_deref(), upload.beginning());
                let foreign = ForeignImport::begin(self, format, &name)?;
                let imported = match upload.is_document(format).await {
                    true => foreign.import_document(upload).await?,
                    false => foreign.import_lines(upload).await?,
                };
                Ok(vec![imported])
            }
        }
    }

    fn begin_own(&self) -> OwnIntake {
        self.state.engine.imports().begin_own_intake(&self.caller.scope, self.mode)
    }

    /// Removes the directory unless the caller is an operator.
    fn restrict_cwd(&self, cwd: &mut Option<String>) {
        cwd.take_if(|_| !self.caller.is_operator());
    }

    /// Removes directories and agents unless the caller is an operator. Always removes agents with access to the whole
    /// file system.
    fn restrict(&self, body: &mut Body) {
        let Body::ContextChanged(ContextChanged { cwd, agent, .. }) = body else { return };
        let frozen = agent.as_ref().map(|agent| serde_json::from_str::<Agent>(agent.get()));
        let is_allowed = matches!(&frozen, Some(Ok(agent)) if agent.fs_scope != FsScope::Full);
        if !self.caller.is_operator() {
            (*cwd, *agent) = (None, None);
        } else if !is_allowed {
            *agent = None;
        }
    }
}

/// An import of another program's session in progress.
struct ForeignImport<'a> {
    request: &'a ImportRequest<'a>,
    format: Format,
    /// `None` while the reader works on another thread.
    reader: Option<Box<dyn Reader + Send>>,
    batch: StepBatch,
    intake: Intake,
    /// A long line and the lines after it, which are not read yet.
    deferred: Vec<(Vec<u8>, u64)>,
}

impl<'a> ForeignImport<'a> {
    fn begin(request: &'a ImportRequest<'a>, format: Format, name: &str) -> Result<Self> {
        let Some(reader) = reader(format, name) else {
            return Err(Problem::invalid("no importer for this format"));
        };
        let intake = request.state.engine.imports().begin_intake(&request.caller.scope, format, request.mode);
        let (reader, batch, deferred) = (Some(reader), StepBatch::default(), Vec::new());
        Ok(Self { request, format, reader, batch, intake, deferred })
    }

    async fn import_document(mut self, upload: &mut Upload<'_>) -> Result<wire::Imported> {
        let bytes = upload.read_all().await?;
        self.read_blocking(move |reader, batch| reader.push_document(&bytes, batch)).await?;
        self.finish().await
    }

    /// Imports lines as they arrive.
    async fn import_lines(mut self, upload: &mut Upload<'_>) -> Result<wire::Imported> {
        let mut lines = LineSplitter::default();
        loop {
            let received = upload.next().await;
            if let Ok(Some(bytes)) = &received {
                lines.push(bytes, |line, number| self.push_line(line, number));
                self.read_deferred().await?;
                self.store_if_full(upload, lines.held_bytes()).await?;
                continue;
            }
            // If the upload was interrupted, the steps before the interruption are still stored.
            if received.is_ok() {
                lines.finish(|line, number| self.push_line(line, number));
                self.read_deferred().await?;
            }
            let imported = self.finish().await?;
            return received.map(|_| imported);
        }
    }

    async fn store_if_full(&mut self, upload: &mut Upload<'_>, held_bytes: usize) -> Result<()> {
        if self.batch.steps.len() >= BATCH_STEPS || upload.unreleased_bytes() >= BATCH_BYTES {
            self.take().await?;
            // Steps without a session id stay buffered and still count toward the quota.
            if self.batch.steps.is_empty() {
                upload.release_stored(held_bytes);
            }
        }
        if self.batch.is_given_up() {
            upload.discard_rest().await;
        }
        Ok(())
    }

    fn push_line(&mut self, line: &[u8], number: u64) {
        if line.len() > LONG_LINE_BYTES || !self.deferred.is_empty() {
            self.deferred.push((line.to_vec(), number));
            return;
        }
        if let Some(reader) = &mut self.reader {
            reader.push_line(line, number, &mut self.batch);
        }
    }

    async fn read_deferred(&mut self) -> Result<()> {
        if self.deferred.is_empty() {
            return Ok(());
        }
        let deferred = std::mem::take(&mut self.deferred);
        self.read_blocking(move |reader, batch| {
            deferred.iter().for_each(|(line, number)| reader.push_line(line, *number, batch));
        })
        .await
    }

    /// Reads large input on a blocking thread and stores its portions concurrently. A semaphore limits the number of
    /// such threads.
    async fn read_blocking(
        &mut self,
        read: impl FnOnce(&mut dyn Reader, &mut StepBatch) + Send + 'static,
    ) -> Result<()> {
        let permit = self.request.state.documents.clone().acquire_owned().await;
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let mut batch = std::mem::take(&mut self.batch);
        let (sender, mut portions) = mpsc::channel(PORTIONS_MAX);
        batch.send_to(move |portion| sender.blocking_send(portion).is_ok());
        let reading = tokio::task::spawn_blocking(move || {
            // The permit is held while the thread reads, even if the client disconnects.
            let _permit = permit;
            read(reader.as_mut(), &mut batch);
            batch.stop_sending();
            (reader, batch)
        });
        let taken = self.store_portions(&mut portions).await;
        drop(portions);
        let (reader, mut rest) =
            reading.await.map_err(|error| Problem::new("server.panicked", error.to_string()))?;
        taken?;
        rest.problems.splice(..0, self.batch.problems.drain(..));
        (self.reader, self.batch) = (Some(reader), rest);
        Ok(())
    }

    async fn store_portions(&mut self, portions: &mut mpsc::Receiver<Portion>) -> Result<()> {
        while let Some(portion) = portions.recv().await {
            self.batch.absorb(portion);
            self.take().await?;
        }
        Ok(())
    }

    /// Stores the steps read so far, if the session id is known.
    async fn take(&mut self) -> Result<()> {
        self.restrict();
        Ok(self.intake.take(&mut self.batch).await?)
    }

    fn restrict(&mut self) {
        self.batch.session.iter_mut().for_each(|session| self.request.restrict_cwd(&mut session.cwd));
        for body in self.batch.steps.iter_mut().filter_map(|step| step.action.body_mut()) {
            self.request.restrict(body);
        }
    }

    async fn finish(mut self) -> Result<wire::Imported> {
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut self.batch);
        }
        self.take().await?;
        if self.batch.is_given_up() {
            self.batch.problems.push(Fault { line: self.batch.line, what: ProblemKind::GivenUp });
        }
        let taken = self.intake.finish(&mut self.batch).await?;
        let (problems, more_problems) = ProblemReport::default().report(&self.batch.problems);
        Ok(wire::Imported {
            session: self.batch.session.map(|session| session.id.to_string()),
            format: Some(self.format.as_str().to_owned()),
            added: taken.added,
            skipped: taken.skipped,
            problems,
            more_problems,
        })
    }
}

/// The remaining number of problems that the response may report.
struct ProblemReport {
    remaining: usize,
}

impl Default for ProblemReport {
    fn default() -> Self {
        Self { remaining: PROBLEMS_REPORTED_TOTAL_MAX }
    }
}

impl ProblemReport {
    /// Returns the problems of a session to report, and the number of problems left out.
    fn report(&mut self, problems: &[Fault]) -> (Vec<wire::ImportProblem>, u64) {
        let report = |problem: &Fault| wire::ImportProblem {
            line: Some(problem.line),
            code: problem.what.code().to_owned(),
            message: problem.what.to_string(),
        };
        let reported = problems.len().min(self.remaining).min(PROBLEMS_REPORTED_MAX);
        self.remaining -= reported;
        (problems[..reported].iter().map(report).collect(), (problems.len() - reported) as u64)
    }
}
