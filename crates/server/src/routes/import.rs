//! Sessions from a file somebody sends: Sapwood's own, or another program's. What a file says of directories and agents is
//! believed only as far as its sender could have said it here: an import is no way to more rights.

use axum::Json;
use axum::extract::{Request, State as Shared};
use bytes::Bytes;
use sapwood::core::BlobHash;
use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ContextChanged, Draft};
use sapwood::core::port::store::NewSession;
use sapwood::core::port::tool::FsScope;
use sapwood::engine::import::Mode;
use sapwood::formats::header::Header;
use sapwood::formats::import::detect::{PEEK_BYTES, detect};
use sapwood::formats::import::harvest::Harvest;
use sapwood::formats::import::sapwood::Importer;
use sapwood::formats::import::{Format, Problem as Fault, reader};
use sapwood::{EntryId, Seq, SessionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::door::Caller;
use crate::extract::{Params, read_body};
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

/// Problems of a file that are told; the rest are like them.
const PROBLEMS_TOLD_MAX: usize = 100;
const PAGE_RECORDS: usize = 1_000;
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
    let _place = state.uploads.acquire().await;
    let bytes = read_body(request, "a file", state.settings.upload_bytes_max).await?;
    let format = match query.from.as_deref() {
        Some(name) => Format::ALL.iter().copied().find(|format| format.as_str() == name),
        None => detect(&bytes[..bytes.len().min(PEEK_BYTES)]),
    };
    let mode = if query.dry_run { Mode::DryRun } else { Mode::Write };
    let taking = Taking { state: &state, caller: &caller, mode };
    let imported = match format {
        Some(Format::Sapwood) => taking.take_own(&bytes).await?,
        Some(Format::OpenCode) | None => {
            let detail = "the file is of no format that can be taken over HTTP; `sapwood import` knows more";
            return Err(Problem::new("input.format", detail));
        }
        Some(format) => {
            let name = name_of(format, &caller, query.name.as_deref(), &bytes);
            taking.take_foreign(&bytes, format, &name).await?
        }
    };
    Ok(Json(wire::Imports { items: vec![imported] }))
}

/// What a file is called. Where a session's id may come of it, it is its sender's own: the same name from the same sender is
/// the same session, and nobody meets somebody else's. A file without a name is known by its bytes.
fn name_of(format: Format, caller: &Caller, given: Option<&str>, bytes: &[u8]) -> String {
    let stem = stem_of(given);
    if !matches!(format, Format::Messages | Format::GeminiCli) {
        return stem;
    }
    let what = given.map_or_else(|| BlobHash::of(bytes).to_string(), |name| format!("name {name}"));
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
    async fn take_foreign(&self, bytes: &Bytes, format: Format, name: &str) -> Result<wire::Imported> {
        let mut harvest = Harvest::default();
        let Some(mut reader) = reader(format, name) else { return Err(Problem::invalid("no reader")) };
        let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if format.is_document(first) {
            reader.push_document(bytes, &mut harvest);
        } else {
            for (number, line) in lines(bytes) {
                reader.push_line(line, number, &mut harvest);
            }
        }
        reader.finish(&mut harvest);
        harvest.session.iter_mut().for_each(|session| self.disarm_session(session));
        for body in harvest.steps.iter_mut().filter_map(|step| step.act.body_mut()) {
            self.disarm(body);
        }
        let intake = self.state.engine.begin_intake(&self.caller.scope, format, self.mode);
        let taken = intake.finish(&mut harvest).await?;
        Ok(wire::Imported {
            session: harvest.session.map(|session| session.id.to_string()),
            format: Some(format.as_str().to_owned()),
            added: taken.added,
            skipped: taken.skipped,
            problems: told(&harvest.problems),
        })
    }

    async fn take_own(&self, bytes: &Bytes) -> Result<wire::Imported> {
        let mut importer = Importer::default();
        let mut drafts = Vec::new();
        for (number, line) in lines(bytes) {
            importer.push_line(line, number, &mut drafts);
        }
        drafts.iter_mut().for_each(|draft| self.disarm(&mut draft.body));
        let mut imported = wire::Imported {
            session: importer.header().map(|header| header.id.to_string()),
            format: Some(Format::Sapwood.as_str().to_owned()),
            added: 0,
            skipped: 0,
            problems: told(importer.problems()),
        };
        let Some(header) = importer.header().cloned() else { return Ok(imported) };
        let known = self.known_ids(&header.id).await?;
        let differs = known.iter().zip(&drafts).any(|(known, draft)| Some(*known) != draft.id);
        if differs {
            let message = "the store has another log under this id; nothing was added".to_owned();
            imported.problems.push(wire::ImportProblem {
                line: None,
                code: "import.differs".to_owned(),
                message,
            });
            return Ok(imported);
        }
        // The store may have gone on from there.
        let fresh = drafts.split_off(known.len().min(drafts.len()));
        (imported.skipped, imported.added) = (drafts.len() as u64, fresh.len() as u64);
        if self.mode == Mode::Write && !fresh.is_empty() {
            self.write(&header, fresh, importer.take_blobs()).await?;
        }
        Ok(imported)
    }

    async fn write(&self, header: &Header, drafts: Vec<Draft>, blobs: Vec<Vec<u8>>) -> Result<()> {
        let mut new = header.new_session();
        self.disarm_session(&mut new);
        let (mut import, _) = self.state.engine.begin_import(&self.caller.scope, new).await?;
        for bytes in blobs {
            self.state.engine.store().put_blob(&self.caller.scope, bytes).await?;
        }
        for draft in drafts {
            import.push(draft).await?;
        }
        import.finish().await?;
        Ok(())
    }

    /// What the store has of the session, in order; nothing if it has none.
    async fn known_ids(&self, session: &SessionId) -> Result<Vec<EntryId>> {
        let mut known = Vec::new();
        if !self.state.engine.exists(&self.caller.scope, session).await? {
            return Ok(known);
        }
        let mut after = Seq::ZERO;
        loop {
            let store = self.state.engine.store();
            let records = store.read_after(&self.caller.scope, session, after, PAGE_RECORDS).await?;
            let Some(last) = records.last() else { return Ok(known) };
            after = last.meta.seq;
            known.extend(records.iter().map(|record| record.meta.id));
        }
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

fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n'))
}

fn told(problems: &[Fault]) -> Vec<wire::ImportProblem> {
    let tell = |problem: &Fault| wire::ImportProblem {
        line: Some(problem.line),
        code: problem.what.code().to_owned(),
        message: problem.what.to_string(),
    };
    problems.iter().take(PROBLEMS_TOLD_MAX).map(tell).collect()
}
