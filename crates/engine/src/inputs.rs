//! A session's inputs: files and snippets that its user supplies, and that the model reads with the input tools.
//!
//! An input is an entry outside the tree, so it belongs to the session and not to a path. Adding one also appends a note
//! to the path, which tells the model how to read it. While a turn runs, no other writer may move the leaf, so the note
//! is appended when the next turn starts ([`Inputs::missing_notes`]).

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_core::content::BlobRef;
use sapwood_core::entry::{ArtifactPut, ArtifactUse, Draft};
use sapwood_core::input::{
    INPUT_NAME_BYTES_MAX, InputFormat, InputNote, LineSplitter, SNIPPET_BYTES_MAX, SNIPPET_SHOWN_BYTES,
    SOURCE_BYTES_MAX, input_note,
};
use sapwood_core::media_type::SNIFFED_BYTES;
use sapwood_core::port::document::{DOCUMENT_BYTES_MAX, DocumentError, DocumentFormat};
use sapwood_core::port::store::{Append, Appended, AuditNote, StoreError};
use sapwood_core::project::artifacts::Artifacts;
use sapwood_core::{BlobHash, Body, Kind, Scope, SessionId};

use crate::blob::BlobReader;
use crate::log::edit;
use crate::{EngineError, Result, service};

/// Maximum number of inputs of a session.
pub const INPUTS_MAX: usize = 500;

service! {
    /// A session's inputs: adding them and reading their text.
    pub struct Inputs;
    inputs
}

/// Why an input has no lines of text. The text is for the model.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableInput {
    #[error("it is a file of type {mime} without readable text")]
    NoText { mime: String },
    #[error("it is an image: view it with read_input")]
    Image,
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Inputs<'_> {
    /// Add an input and tell the model about it. An input with a source is a snippet: its content must be text, and the
    /// note shows it.
    pub async fn add(
        self,
        scope: &Scope,
        session: &SessionId,
        content: BlobRef,
        source: Option<String>,
    ) -> Result<Appended> {
        let name = content.name.clone().unwrap_or_else(|| content.blob.to_string());
        let put = ArtifactPut { name, usage: ArtifactUse::Input, content, source };
        check_put(&put)?;
        let existing = self.engine.views().artifacts(scope, session).await?;
        if existing.get(ArtifactUse::Input, &put.name).is_none() && existing.inputs().count() >= INPUTS_MAX {
            return Err(invalid("the input", format!("the session already has {INPUTS_MAX} inputs")));
        }
        let note = self.note_of(scope, &put).await?;
        let audit = || Some(edit(session, "input"));
        let both = vec![put.clone().into(), note];
        match self.append(scope, session, both, audit()).await {
            // A turn is running: its lease protects the leaf. The next turn appends the note.
            Err(EngineError::Store(StoreError::Leased { .. })) => {
                self.append(scope, session, vec![put.into()], audit()).await
            }
            appended => appended,
        }
    }

    async fn append(
        self,
        scope: &Scope,
        session: &SessionId,
        bodies: Vec<Body>,
        audit: Option<AuditNote>,
    ) -> Result<Appended> {
        let now = self.engine.clock.now();
        let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
        let append = Append { audit, ..Append::new(session.clone(), now, drafts) };
        self.engine.log().append(scope, append).await
    }

    async fn note_of(self, scope: &Scope, put: &ArtifactPut) -> Result<Body> {
        let text = match put.source {
            Some(_) => Some(self.snippet_text(scope, put).await?),
            None => None,
        };
        Ok(input_note(put, text.as_deref()).into())
    }

    /// The beginning of a snippet, one byte more than its note shows. Fails if the snippet is not text.
    async fn snippet_text(self, scope: &Scope, put: &ArtifactPut) -> Result<String> {
        let mut reader = self.engine.views().open_blob(scope, put.content.blob).await?;
        if reader.remaining() > SNIPPET_BYTES_MAX {
            return Err(invalid("the snippet", format!("it has more than {SNIPPET_BYTES_MAX} bytes")));
        }
        let bytes = reader.next_up_to(SNIPPET_BYTES_MAX as usize).await?;
        let text = String::from_utf8(bytes)
            .ok()
            .filter(|text| !text.trim().is_empty() && !text.contains('\0'))
            .ok_or_else(|| invalid("the snippet", "it is not text in UTF-8".to_owned()))?;
        let end = text.ceil_char_boundary((SNIPPET_SHOWN_BYTES + 1).min(text.len()));
        Ok(text[..end].to_owned())
    }

    /// The input notes that the session's log lacks: for inputs that were added while a turn ran, imported, or copied
    /// from the source of a fork.
    pub(crate) async fn missing_notes(
        self,
        scope: &Scope,
        session: &SessionId,
        artifacts: &Artifacts,
    ) -> Result<Vec<Body>> {
        if artifacts.inputs().next().is_none() {
            return Ok(Vec::new());
        }
        let mut notes = Vec::new();
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::CustomMessage], |entry| {
                notes.extend(InputNote::of(&entry))
            })
            .await?;
        let mut missing = Vec::new();
        for input in artifacts.inputs() {
            let put = input.as_put();
            if !notes.iter().any(|note| note.is_about(&put)) {
                // A snippet whose text cannot be shown is announced like a file.
                let note = self.note_of(scope, &put).await;
                missing.push(note.unwrap_or_else(|_| input_note(&put, None).into()));
            }
        }
        Ok(missing)
    }

    /// Copy a session's inputs into the first entries of its fork. Inputs are outside the tree, so the fork does not share
    /// them.
    pub(crate) async fn drafts_for_fork(self, scope: &Scope, source: &SessionId) -> Result<Vec<Draft>> {
        let now = self.engine.clock.now();
        let artifacts = self.engine.views().artifacts(scope, source).await?;
        Ok(artifacts.inputs().take(INPUTS_MAX).map(|input| Draft::new(now, input.as_put())).collect())
    }

    /// Detect the format of an input from its media type, its name and its first bytes.
    pub(crate) async fn format_of(self, scope: &Scope, content: &BlobRef, name: &str) -> Result<InputFormat> {
        let mut reader = self.engine.views().open_blob(scope, content.blob).await?;
        let head = reader.next_up_to(SNIFFED_BYTES).await?;
        Ok(InputFormat::of(&content.mime, name, &head))
    }

    /// Pass the lines of an input to `each` until it breaks.
    pub(crate) async fn each_line(
        self,
        scope: &Scope,
        content: &BlobRef,
        name: &str,
        mut each: impl FnMut(&str) -> ControlFlow<()> + Send,
    ) -> Result<Result<(), UnreadableInput>> {
        let format = self.format_of(scope, content, name).await?;
        let reader = self.engine.views().open_blob(scope, content.blob).await?;
        match format {
            InputFormat::Utf8 | InputFormat::Latin1 => {
                split_blob(reader, format, each).await?;
                Ok(Ok(()))
            }
            InputFormat::Document(document) => {
                match self.document_text(reader, document, content.blob).await? {
                    Ok(text) => {
                        let mut splitter = LineSplitter::new(InputFormat::Utf8);
                        if splitter.push(text.as_bytes(), &mut each).is_continue() {
                            let _ = splitter.finish(each);
                        }
                        Ok(Ok(()))
                    }
                    Err(error) => Ok(Err(error.into())),
                }
            }
            InputFormat::Image => Ok(Err(UnreadableInput::Image)),
            InputFormat::Binary => Ok(Err(UnreadableInput::NoText { mime: content.mime.clone() })),
        }
    }

    /// The text of a document, from the cache or extracted by the document reader.
    async fn document_text(
        self,
        mut reader: BlobReader,
        format: DocumentFormat,
        blob: BlobHash,
    ) -> Result<Result<Arc<str>, DocumentError>> {
        if let Some(text) = self.engine.documents.get(blob, format) {
            return Ok(Ok(text));
        }
        let Some(documents) = &self.engine.config.documents else {
            let why = "no document reader is configured".to_owned();
            return Ok(Err(DocumentError::Unavailable { why }));
        };
        let bytes = reader.remaining();
        if bytes > DOCUMENT_BYTES_MAX {
            return Ok(Err(DocumentError::TooLarge { bytes }));
        }
        let document = reader.next_up_to(DOCUMENT_BYTES_MAX as usize).await?;
        Ok(documents.read_text(format, document).await.map(|text| {
            let text: Arc<str> = text.into();
            self.engine.documents.put(blob, format, &text);
            text
        }))
    }
}

async fn split_blob(
    mut reader: BlobReader,
    format: InputFormat,
    mut each: impl FnMut(&str) -> ControlFlow<()> + Send,
) -> Result<()> {
    let mut splitter = LineSplitter::new(format);
    while let Some(chunk) = reader.next().await? {
        if splitter.push(&chunk, &mut each).is_break() {
            return Ok(());
        }
    }
    let _ = splitter.finish(each);
    Ok(())
}

/// Check the name and the source of an input.
fn check_put(put: &ArtifactPut) -> Result<()> {
    let has_controls = |text: &str| text.chars().any(char::is_control);
    if put.name.is_empty() || put.name.len() > INPUT_NAME_BYTES_MAX || has_controls(&put.name) {
        let why = format!("a name must have 1 to {INPUT_NAME_BYTES_MAX} bytes and no control characters");
        return Err(invalid("the input's name", why));
    }
    match &put.source {
        Some(source)
            if source.trim().is_empty() || source.len() > SOURCE_BYTES_MAX || has_controls(source) =>
        {
            let why = format!("a source must have 1 to {SOURCE_BYTES_MAX} bytes and no control characters");
            Err(invalid("the source", why))
        }
        _ => Ok(()),
    }
}

fn invalid(what: &'static str, why: String) -> EngineError {
    EngineError::Invalid { what, why }
}
