//! Change a session without a model: inject messages, move the leaf, label entries, trim the context, name artifacts.
//! An operation that depends on the session's state appends at the head that it read, and retries on a conflict.

use sapwood_core::content::BlobRef;
use sapwood_core::entry::{ArtifactPut, ArtifactUse, Body, Draft, Label, LeafMoved};
use sapwood_core::port::store::{Append, Appended, Expect, hash_request};
use sapwood_core::trim::plan_trim;
use sapwood_core::{EntryId, Right, Scope, Seq, SessionId};

use crate::log::edit;
use crate::sessions::checked_text;
use crate::{EngineError, Result, service};

#[derive(Debug, Clone, Default)]
pub struct InjectOptions {
    /// Fail with a conflict unless this is the end of the log.
    pub expected_head: Option<Seq>,
    pub idempotency_key: Option<String>,
    /// The name of the operation in the audit log; `None` writes no audit line.
    pub audited: Option<&'static str>,
}

service! {
    /// Changes to a session without a model: messages, branches, labels, artifacts.
    pub struct Edits;
    edits
}

impl Edits<'_> {
    /// Append messages without calling a model.
    pub async fn inject(
        self,
        scope: &Scope,
        session: &SessionId,
        bodies: Vec<Body>,
        options: InjectOptions,
    ) -> Result<Appended> {
        if options.idempotency_key.as_deref() == Some("") {
            // An unset shell variable results in an empty key, which would discard every message except the first.
            return Err(EngineError::Invalid { what: "the idempotency key", why: "it is empty".to_owned() });
        }
        for body in &bodies {
            if let Body::ModelChanged(changed) = body {
                self.engine.configuration().check_model(&changed.model)?;
            }
        }
        let now = self.engine.clock.now();
        let request = options.idempotency_key.is_some().then(|| hash_request(&bodies));
        let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
        let mut append = Append::new(session.clone(), now, drafts);
        append.expect = options.expected_head.map_or(Expect::Any, Expect::Head);
        (append.idempotency_key, append.request) = (options.idempotency_key, request);
        append.audit = options.audited.map(|what| edit(session, what));
        self.engine.log().append(scope, append).await
    }

    /// Store the media of messages before they are injected. The caller must be able to write to the session.
    pub async fn put_media(self, scope: &Scope, session: &SessionId, media: Vec<Vec<u8>>) -> Result<()> {
        if !media.is_empty() {
            self.engine.directory().check_right(scope, session, Right::Write).await?;
        }
        for bytes in media {
            self.engine.store.put_blob(scope, bytes).await?;
        }
        Ok(())
    }

    /// Remove all messages so far from the context; the next message is a new root.
    pub async fn reset(self, scope: &Scope, session: &SessionId) -> Result<Appended> {
        self.engine
            .log()
            .append_one(scope, session, LeafMoved { to: None }, Some(edit(session, "reset")))
            .await
    }

    pub async fn label(
        self,
        scope: &Scope,
        session: &SessionId,
        target: EntryId,
        text: Option<String>,
    ) -> Result<Appended> {
        let text = text.map(|text| checked_text("the label", &text)).transpose()?;
        self.engine
            .log()
            .append_one(scope, session, Label { target, text }, Some(edit(session, "label")))
            .await
    }

    /// Keep only the last `keep_last` messages in the context. Returns how many are left.
    pub async fn trim(self, scope: &Scope, session: &SessionId, keep_last: usize) -> Result<usize> {
        self.engine
            .log()
            .decide(scope, session, "trim", |engine, _| async move {
                let context = engine.views().context(scope, session, None).await?;
                Ok(plan_trim(&context, keep_last).map(Body::Compaction).into_iter().collect())
            })
            .await?;
        self.engine.views().length(scope, session).await
    }

    /// Store bytes under a name, as an input or a deliverable of the session.
    pub async fn put_artifact(
        self,
        scope: &Scope,
        session: &SessionId,
        name: &str,
        usage: ArtifactUse,
        mime: &str,
        bytes: Vec<u8>,
    ) -> Result<Appended> {
        let size = bytes.len() as u64;
        let blob = self.engine.store.put_blob(scope, bytes).await?;
        let (mime, name) = (mime.to_owned(), Some(name.to_owned()));
        let content = BlobRef { blob, mime, name, bytes: size, duration_ms: None };
        self.name_artifact(scope, session, usage, content).await
    }

    /// Name a blob of the store as an artifact of a session. The name is the one in the blob reference, or else the
    /// hash.
    pub async fn name_artifact(
        self,
        scope: &Scope,
        session: &SessionId,
        usage: ArtifactUse,
        content: BlobRef,
    ) -> Result<Appended> {
        if usage == ArtifactUse::Input {
            return self.engine.inputs().add(scope, session, content, None).await;
        }
        let name = content.name.clone().unwrap_or_else(|| content.blob.to_string());
        let put = ArtifactPut::new(name, usage, content);
        self.engine.log().append_one(scope, session, put, Some(edit(session, "artifact"))).await
    }
}
