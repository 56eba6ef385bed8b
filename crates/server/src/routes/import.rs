//! Sessions from a file somebody sends: Sapwood's own, or another program's. What a file says of directories and agents is
//! believed only as far as its sender could have said it here: an import is no way to more rights.
//!
//! Lines go into the store as they come. What is one document is held until all of it is there.

mod own;
mod upload;

use axum::Json;
use axum::extract::{Request, State as Shared};
use sapwood::core::BlobHash;
use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ContextChanged};
use sapwood::core::port::store::NewSession;
use sapwood::core::port::tool::FsScope;
use sapwood::engine::import::{Intake, Mode};
use sapwood::formats::import::detect::detect;
use sapwood::formats::import::harvest::Harvest;
use sapwood::formats::import::{
    Format, LineSplitter, PROBLEMS_MAX, Problem as Fault, Reader, Trouble, reader,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::upload::Upload;
use crate::door::Caller;
use crate::extract::Params;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Problems of a file that are told; the rest are like them.
const PROBLEMS_TOLD_MAX: usize = 100;
/// How many steps, and how many bytes of lines, are taken at a time.
const BATCH_STEPS: usize = 512;
const BATCH_BYTES: usize = 2 << 20;
/// A file that has not said its session's name after so many steps does not have one.
const NAMELESS_STEPS_MAX: usize = 100_000;
/// After so many problems a file is given up, a few before nothing of it would be taken any more.
const PROBLEMS_READ_MAX: usize = PROBLEMS_MAX - 8;
/// Digits of a hash that make a file's name its sender's own.
const OWN_NAME_HEX: usize = 16;

/// Longest name of a file that is kept.
const STEM_CHARS_MAX: usize = 100;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(import_file))
}

/// Takes a session in from a file. Importing again adds only what is new.
#[utoipa::path(post, path = "/v1/import", tag = "sessions", params(wire::ImportFile),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = wire::Imports)))]
async fn import_file(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ImportFile>,
    request: Request,
) -> Result<Json<wire::Imports>> {
    let mut upload = Upload::open(&state, request).await?;
    let mode = if query.dry_run { Mode::DryRun } else { Mode::Write };
    let taking = Taking { state: &state, caller: &caller, mode };
    let imported = taking.take(&mut upload, &query).await;
    if imported.is_err() {
        upload.drop_rest().await;
    }
    Ok(Json(wire::Imports { items: imported? }))
}

/// What a file is called. Where a session's id may come of it, it is its sender's own: the same name from the same sender is
/// the same session, and nobody meets somebody else's. A file without a name is known by its first bytes, as many
/// as are looked at: it goes into the store before the last of them has come.
fn name_of(format: Format, caller: &Caller, given: Option<&str>, beginning: &[u8]) -> String {
    let stem = stem_of(given);
    if !matches!(format, Format::Messages | Format::GeminiCli) {
        return stem;
    }
    let what = given.map_or_else(|| BlobHash::of(beginning).to_string(), |name| format!("name {name}"));
    let own = BlobHash::of(format!("{} {what}", caller.scope.principal).as_bytes()).to_string();
    format!("{stem}-{}", &own[..OWN_NAME_HEX])
}

/// A file's name without folders and ending.
fn stem_of(name: Option<&str>) -> String {
    let file = name.unwrap_or("upload").rsplit(['/', '\\']).next().unwrap_or_default();
    file.split_once('.').map_or(file, |(stem, _)| stem).chars().take(STEM_CHARS_MAX).collect()
}

struct Taking<'a> {
    state: &'a State,
    caller: &'a Caller,
    mode: Mode,
}

impl Taking<'_> {
    async fn take(&self, upload: &mut Upload<'_>, query: &wire::ImportFile) -> Result<Vec<wire::Imported>> {
        let format = match query.from.as_deref() {
            Some(name) => Format::ALL.iter().copied().find(|format| format.as_str() == name),
            None => detect(upload.beginning()),
        };
        match format {
            Some(Format::Sapwood) => own::take(self, upload).await,
            Some(Format::OpenCode) | None => {
                let detail =
                    "the file is of no format that can be taken over HTTP; `sapwood import` knows more";
                Err(Problem::new("input.format", detail))
            }
            Some(format) if upload.is_document(format).await? => {
                Ok(vec![self.take_document(upload, format, query.name.as_deref()).await?])
            }
            Some(format) => Ok(vec![self.take_lines(upload, format, query.name.as_deref()).await?]),
        }
    }

    async fn take_document(
        &self,
        upload: &mut Upload<'_>,
        format: Format,
        name: Option<&str>,
    ) -> Result<wire::Imported> {
        let name = name_of(format, self.caller, name, upload.beginning());
        let bytes = upload.read_all().await?;
        let _place = self.state.documents.acquire().await;
        let mut foreign = Foreign::begin(self, format, &name)?;
        foreign.reader.push_document(&bytes, &mut foreign.harvest);
        foreign.finish().await
    }

    /// Lines go into the store as they come.
    async fn take_lines(
        &self,
        upload: &mut Upload<'_>,
        format: Format,
        name: Option<&str>,
    ) -> Result<wire::Imported> {
        let name = name_of(format, self.caller, name, upload.beginning());
        let mut foreign = Foreign::begin(self, format, &name)?;
        let mut lines = LineSplitter::default();
        while let Some(bytes) = upload.next().await? {
            lines.push(&bytes, |line, number| foreign.push_line(line, number));
            if foreign.harvest.steps.len() >= BATCH_STEPS || upload.unsettled_bytes() >= BATCH_BYTES {
                foreign.take().await?;
                // What has no name yet stays where it is, and still counts.
                if foreign.harvest.steps.is_empty() {
                    upload.settle(lines.held_bytes());
                }
            }
            if foreign.is_hopeless() {
                upload.drop_rest().await;
            }
        }
        lines.finish(|line, number| foreign.push_line(line, number));
        foreign.finish().await
    }

    fn disarm_session(&self, session: &mut NewSession) {
        if !self.caller.is_operator() {
            session.cwd = None;
        }
    }

    /// Directories of the server are its operator's to name, and nobody gets the whole file system over the network.
    fn disarm(&self, body: &mut Body) {
        let Body::ContextChanged(ContextChanged { cwd, agent, .. }) = body else { return };
        let frozen = agent.as_ref().map(|agent| serde_json::from_str::<Agent>(agent.get()));
        let is_offered = matches!(&frozen, Some(Ok(agent)) if agent.fs_scope != FsScope::Full);
        if !self.caller.is_operator() {
            (*cwd, *agent) = (None, None);
        } else if !is_offered {
            *agent = None;
        }
    }
}

/// A session of another program that is being taken in.
struct Foreign<'a> {
    taking: &'a Taking<'a>,
    format: Format,
    reader: Box<dyn Reader + Send>,
    harvest: Harvest,
    intake: Intake,
    is_given_up: bool,
}

impl<'a> Foreign<'a> {
    fn begin(taking: &'a Taking<'a>, format: Format, name: &str) -> Result<Self> {
        let Some(reader) = reader(format, name) else { return Err(Problem::invalid("no reader")) };
        let intake = taking.state.engine.begin_intake(&taking.caller.scope, format, taking.mode);
        Ok(Self { taking, format, reader, harvest: Harvest::default(), intake, is_given_up: false })
    }

    fn push_line(&mut self, line: &[u8], number: u64) {
        if !self.is_given_up {
            self.reader.push_line(line, number, &mut self.harvest);
            self.is_given_up = self.harvest.problems.len() >= PROBLEMS_READ_MAX;
        }
    }

    /// Takes what was read so far, if its session has a name.
    async fn take(&mut self) -> Result<()> {
        self.disarm();
        Ok(self.intake.take(&mut self.harvest).await?)
    }

    fn disarm(&mut self) {
        self.harvest.session.iter_mut().for_each(|session| self.taking.disarm_session(session));
        for body in self.harvest.steps.iter_mut().filter_map(|step| step.act.body_mut()) {
            self.taking.disarm(body);
        }
    }

    /// Whether the rest is not worth reading.
    fn is_hopeless(&mut self) -> bool {
        let is_nameless = self.harvest.session.is_none() && self.harvest.steps.len() > NAMELESS_STEPS_MAX;
        self.is_given_up |= is_nameless;
        self.is_given_up
    }

    async fn finish(mut self) -> Result<wire::Imported> {
        self.reader.finish(&mut self.harvest);
        self.take().await?;
        if self.is_given_up {
            self.harvest.report(Trouble::GivenUp);
        }
        let taken = self.intake.finish(&mut self.harvest).await?;
        Ok(wire::Imported {
            session: self.harvest.session.map(|session| session.id.to_string()),
            format: Some(self.format.as_str().to_owned()),
            added: taken.added,
            skipped: taken.skipped,
            problems: told(&self.harvest.problems),
        })
    }
}

fn told(problems: &[Fault]) -> Vec<wire::ImportProblem> {
    let tell = |problem: &Fault| wire::ImportProblem {
        line: Some(problem.line),
        code: problem.what.code().to_owned(),
        message: problem.what.to_string(),
    };
    problems.iter().take(PROBLEMS_TOLD_MAX).map(tell).collect()
}
