//! The operations that append entries. Each operation reads the session, decides which entries to write, and appends
//! them at the head that it read. On a conflict it starts over. Entries are only added, never changed.

use sapwood_core::content::BlobRef;
use sapwood_core::entry::{
    ArtifactPut, ArtifactUse, Body, BranchSummary, Details, Draft, Label, LeafMoved, MemberChanged, Outcome,
    SessionNamed, SessionState, StateChanged, TITLE_CHARS_MAX, TurnEnded,
};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::store::{
    Append, Appended, AuditAction, AuditNote, Created, Expect, Fork, NewSession, StoreError, hash_request,
};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Role;
use sapwood_core::trigger::TRIGGER_PREFIX;
use sapwood_core::trim::plan_trim;
use sapwood_core::{EntryId, Principal, Right, Scope, Seq, SessionId};

use serde_json::json;

use crate::flow::RUN_PREFIX;
use crate::hook::{EventLocation, HookDecision, text_of};
use crate::{Engine, EngineError, Result};

/// Maximum number of attempts under concurrent writes.
pub(crate) const TRIES_MAX: u32 = 64;

/// Options for opening a session.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Generated if `None`.
    pub id: Option<SessionId>,
    /// The title.
    pub title: Option<String>,
    /// The id of the session's agent, for display.
    pub agent: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
}

/// Options for injecting messages.
#[derive(Debug, Clone, Default)]
pub struct InjectOptions {
    /// Fail with a conflict unless this is the end of the log.
    pub expected_head: Option<Seq>,
    pub idempotency_key: Option<String>,
    /// The name of the operation in the audit; `None` writes no audit line.
    pub audited: Option<&'static str>,
}

/// The point at which a fork diverges from its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForkAt {
    /// At the source's leaf.
    #[default]
    Leaf,
    /// At this entry.
    Entry(Seq),
    /// After this many messages of the path.
    KeepFirst(u32),
}

impl Engine {
    /// Open a session, or return the existing one with this id. Idempotent.
    pub async fn open(&self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        self.check_id(scope, options.id.as_ref()).await?;
        self.open_any(scope, options).await
    }

    /// Like [`Engine::open`], but also accepts reserved ids.
    pub(crate) async fn open_any(&self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        let (title, agent) = (options.title.clone(), options.agent.clone());
        let (id, created) = self.create(scope, options).await?;
        match created {
            Created::New => self.notify_start(scope, &id, title, agent).await,
            Created::Existed => self.note_open(scope, &id).await?,
        }
        Ok((id, created))
    }

    /// Write an audit line for opening an existing session.
    pub async fn note_open(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.write_audit(scope, note(AuditAction::Open, session, None)).await
    }

    pub(crate) async fn notify_start(
        &self,
        scope: &Scope,
        session: &SessionId,
        title: Option<String>,
        agent: Option<String>,
    ) {
        let data = || json!({"title": title, "agent": agent});
        self.fire(HookName::SessionStart, scope, session, None, data).await;
    }

    /// Refuse to create a session under an id that is reserved for Sapwood.
    pub(crate) async fn check_id(&self, scope: &Scope, id: Option<&SessionId>) -> Result<()> {
        let Some((id, prefix)) = id.and_then(|id| Some((id, reserved_prefix(id)?))) else { return Ok(()) };
        match self.exists(scope, id).await? {
            true => Ok(()),
            false => Err(EngineError::ReservedId { id: id.clone(), prefix }),
        }
    }

    pub(crate) async fn create(&self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        let at = self.clock.now();
        let id = options.id.unwrap_or_else(|| SessionId::mint(at, self.clock.random()));
        let title = options.title.map(|title| checked_text("the title", &title)).transpose()?;
        let new =
            NewSession { title, agent: options.agent, cwd: options.cwd, ..NewSession::new(id.clone(), at) };
        let created = self.store.create(scope, new).await?;
        Ok((id, created))
    }

    /// Append messages without calling a model.
    pub async fn inject(
        &self,
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
                self.check_model(&changed.model)?;
            }
        }
        let now = self.clock.now();
        let request = options.idempotency_key.is_some().then(|| hash_request(&bodies));
        let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
        let mut append = Append::new(session.clone(), now, drafts);
        append.expect = options.expected_head.map_or(Expect::Any, Expect::Head);
        (append.idempotency_key, append.request) = (options.idempotency_key, request);
        append.audit = options.audited.map(|what| edit(session, what));
        self.append(scope, append).await
    }

    /// Move the leaf to an entry. A summary of the abandoned branch, if given, becomes the new leaf.
    pub async fn branch(
        &self,
        scope: &Scope,
        session: &SessionId,
        to: EntryId,
        summary: Option<String>,
    ) -> Result<Appended> {
        if summary.as_ref().is_some_and(|summary| summary.trim().is_empty()) {
            return Err(EngineError::Invalid { what: "the summary", why: "it is empty".to_owned() });
        }
        let about = || json!({"to": to, "summary": summary});
        let asked = self.ask_hooks(HookName::BeforeBranch, EventLocation::new(scope, session), about).await?;
        let from_hook = matches!(asked, HookDecision::Changed(_));
        let summary = match asked {
            HookDecision::Changed(data) => text_of(&data, "summary"),
            HookDecision::Continue | HookDecision::Supplied { .. } => summary,
        };
        let branched = self.decide(scope, session, "branch", |engine, current| {
            let summary = summary.clone();
            async move {
                let old_leaf = match current.head.leaf {
                    Some(leaf) if summary.is_some() => {
                        Some(engine.store.read_entry(scope, session, leaf).await?.meta.id)
                    }
                    _ => None,
                };
                let moved = Body::LeafMoved(LeafMoved { to: Some(to) });
                let branch_summary = summary.map(|summary| {
                    let details = Details::default();
                    Body::BranchSummary(BranchSummary { summary, from: old_leaf, details, from_hook })
                });
                Ok(std::iter::once(moved).chain(branch_summary).collect())
            }
        });
        let branched = branched.await?;
        let data = || json!({"to": to, "seq": branched.head.seq});
        self.fire(HookName::AfterBranch, scope, session, None, data).await;
        Ok(branched)
    }

    /// Remove all messages so far from the context; the next message is a new root.
    pub async fn reset(&self, scope: &Scope, session: &SessionId) -> Result<Appended> {
        self.append_one(scope, session, LeafMoved { to: None }, Some(edit(session, "reset"))).await
    }

    pub async fn label(
        &self,
        scope: &Scope,
        session: &SessionId,
        target: EntryId,
        text: Option<String>,
    ) -> Result<Appended> {
        let text = text.map(|text| checked_text("the label", &text)).transpose()?;
        self.append_one(scope, session, Label { target, text }, Some(edit(session, "label"))).await
    }

    pub async fn rename(&self, scope: &Scope, session: &SessionId, title: &str) -> Result<Appended> {
        let title = checked_title(title)?;
        self.append_one(scope, session, SessionNamed { title }, Some(edit(session, "rename"))).await
    }

    /// Keep only the last `keep_last` messages in the context. Returns how many are left.
    pub async fn trim(&self, scope: &Scope, session: &SessionId, keep_last: usize) -> Result<usize> {
        self.decide(scope, session, "trim", |engine, _| async move {
            let context = engine.context(scope, session, None).await?;
            Ok(plan_trim(&context, keep_last).map(Body::Compaction).into_iter().collect())
        })
        .await?;
        self.length(scope, session).await
    }

    /// Create a session that shares the path up to an entry without copying it. The fork keeps the source's
    /// configuration.
    pub async fn fork(
        &self,
        scope: &Scope,
        source: &SessionId,
        at: ForkAt,
        options: OpenOptions,
    ) -> Result<SessionId> {
        self.check_id(scope, options.id.as_ref()).await?;
        self.fork_any(scope, source, at, options).await
    }

    /// Like [`Engine::fork`], but also accepts reserved ids.
    pub(crate) async fn fork_any(
        &self,
        scope: &Scope,
        source: &SessionId,
        at: ForkAt,
        options: OpenOptions,
    ) -> Result<SessionId> {
        let now = self.clock.now();
        let id = options.id.unwrap_or_else(|| SessionId::mint(now, self.clock.random()));
        if id == *source {
            return Err(EngineError::ForkOntoItself { session: id });
        }
        let summary = self.store.summary(scope, source).await?;
        let about = || json!({"fork": id});
        self.ask_hooks(HookName::BeforeFork, EventLocation::new(scope, source), about).await?;
        let at = match at {
            ForkAt::Leaf => summary.head.leaf,
            ForkAt::Entry(seq) => Some(seq),
            ForkAt::KeepFirst(count) => self.after_messages(scope, &summary, count).await?,
        };
        let title = options.title.map(|title| checked_text("the title", &title)).transpose()?;
        let new =
            NewSession { title, agent: options.agent, cwd: options.cwd, ..NewSession::new(id.clone(), now) };
        let mut drafts = self.shared_labels(scope, source, now).await?;
        let kept = self.configuration_beyond(scope, &summary, at).await?;
        drafts.splice(..0, kept.map(|changed| Draft::new(now, changed)));
        self.store.fork(scope, Fork { source: source.clone(), at, new, drafts }).await?;
        self.wakeups.wake(&scope.tenant, &id);
        self.fire(HookName::AfterFork, scope, source, None, || json!({"fork": id})).await;
        Ok(id)
    }

    async fn after_messages(&self, scope: &Scope, source: &Summary, count: u32) -> Result<Option<Seq>> {
        let Some(leaf) = source.head.leaf else { return Ok(None) };
        if count == 0 {
            // Before the first entry; `None` would mean the leaf.
            return Ok(Some(Seq::ZERO));
        }
        let found = self.store.nth_message(scope, &source.id, leaf, count).await?;
        Ok(found.or(Some(leaf)))
    }

    /// The labels of the source, as the fork's first entries. The store drops labels of entries that the fork
    /// does not share.
    async fn shared_labels(
        &self,
        scope: &Scope,
        source: &SessionId,
        now: sapwood_core::TimestampMs,
    ) -> Result<Vec<Draft>> {
        let labels = self.labels(scope, source).await?;
        let draft =
            |(target, text): (EntryId, &str)| Draft::new(now, Label { target, text: Some(text.to_owned()) });
        Ok(labels.iter().map(draft).collect())
    }

    /// Set a member's role, or remove the member.
    pub async fn share(
        &self,
        scope: &Scope,
        session: &SessionId,
        member: Principal,
        role: Option<Role>,
    ) -> Result<Appended> {
        if role == Some(Role::Owner) {
            let why = "a session has exactly one owner; share it as reader or collaborator".to_owned();
            return Err(EngineError::Invalid { what: "the role", why });
        }
        if self.store.summary(scope, session).await?.owner == member {
            let why = format!("{member} already owns the session");
            return Err(EngineError::Invalid { what: "the member", why });
        }
        let detail = match role {
            Some(role) => format!("{member} as {}", role.as_str()),
            None => format!("{member} removed"),
        };
        let audit = note(AuditAction::Share, session, Some(detail));
        self.append_one(scope, session, MemberChanged::new(member, role), Some(audit)).await
    }

    /// Close a session; a new message opens it again.
    pub async fn close(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.check_right(scope, session, Right::Write).await?;
        self.learn_at_end(&scope.tenant, session).await;
        self.change_state(scope, session, SessionState::Closed, AuditAction::Close).await
    }

    /// Make a session read-only. Refused while a turn runs, because the end of the turn could not be written
    /// afterwards.
    pub async fn archive(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.check_right(scope, session, Right::Own).await?;
        let hold = match self.hold_to_send(scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. })) => {
                return Err(EngineError::TurnRunning { session: session.clone() });
            }
            hold => hold?,
        };
        let archived = self.archive_held(scope, session, hold.fence).await;
        hold.release().await;
        archived
    }

    /// Archive a session whose lease is held. No turn runs, so an open turn waits for an answer or lost its
    /// process. The open turn is ended first, or it would stay open forever.
    async fn archive_held(&self, scope: &Scope, session: &SessionId, fence: u64) -> Result<()> {
        // Learn before archiving: an archived session accepts no entries, including the memory mark.
        self.learn_at_end(&scope.tenant, session).await;
        let before = self.store.summary(scope, session).await?;
        if let Some(turn) = before.open_turn.filter(|_| before.state != SessionState::Archived) {
            let now = self.clock.now();
            let drafts = vec![Draft::new(now, cancelled_by_archiving()).in_turn(turn)];
            let append = Append { fence: Some(fence), ..Append::new(session.clone(), now, drafts) };
            self.append(scope, append).await?;
        }
        self.change_state(scope, session, SessionState::Archived, AuditAction::Archive).await
    }

    /// Make an archived session writable again.
    pub async fn reopen(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.change_state(scope, session, SessionState::Active, AuditAction::Reopen).await
    }

    async fn change_state(
        &self,
        scope: &Scope,
        session: &SessionId,
        state: SessionState,
        action: AuditAction,
    ) -> Result<()> {
        let before = self.store.summary(scope, session).await?;
        if before.state == state {
            return Ok(());
        }
        let changed = StateChanged { state, reason: None };
        self.append_one(scope, session, changed, Some(note(action, session, None))).await?;
        if matches!(state, SessionState::Closed | SessionState::Archived) {
            let how = || json!({"how": state.as_str()});
            self.fire(HookName::SessionEnd, scope, session, None, how).await;
        }
        if state == SessionState::Archived {
            self.fire(HookName::OnArchive, scope, session, None, || json!({"title": before.title})).await;
        }
        Ok(())
    }

    /// Delete a session permanently.
    pub async fn erase(&self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.store.erase(scope, session, self.clock.now()).await?;
        self.graft_cache.evict(&scope.tenant, session);
        self.wakeups.wake(&scope.tenant, session);
        self.fire(HookName::SessionEnd, scope, session, None, || json!({"how": "erased"})).await;
        Ok(())
    }

    /// Store bytes under a name, as an input or a deliverable of the session.
    pub async fn put_artifact(
        &self,
        scope: &Scope,
        session: &SessionId,
        name: &str,
        usage: ArtifactUse,
        mime: &str,
        bytes: Vec<u8>,
    ) -> Result<Appended> {
        let size = bytes.len() as u64;
        let blob = self.store.put_blob(scope, bytes).await?;
        let (mime, name) = (mime.to_owned(), Some(name.to_owned()));
        let content = BlobRef { blob, mime, name, bytes: size, duration_ms: None };
        self.name_artifact(scope, session, usage, content).await
    }

    /// Name a blob of the store as an artifact of a session. The default name is the name in the blob reference, or
    /// else the hash.
    pub async fn name_artifact(
        &self,
        scope: &Scope,
        session: &SessionId,
        usage: ArtifactUse,
        content: BlobRef,
    ) -> Result<Appended> {
        let name = content.name.clone().unwrap_or_else(|| content.blob.to_string());
        let what = match usage {
            ArtifactUse::Input => "input",
            ArtifactUse::Artifact => "artifact",
        };
        let put = ArtifactPut { name, usage, content };
        self.append_one(scope, session, put, Some(edit(session, what))).await
    }

    /// Write an audit line for an action that leaves no entry.
    pub async fn write_audit(&self, scope: &Scope, note: AuditNote) -> Result<()> {
        Ok(self.store.write_audit(scope, note, self.clock.now()).await?)
    }

    /// Ask the hooks whether the session may be exported, and write an audit line.
    pub async fn record_export(&self, scope: &Scope, session: &SessionId, format: &str) -> Result<()> {
        let about = || json!({"format": format});
        self.ask_hooks(HookName::BeforeExport, EventLocation::new(scope, session), about).await?;
        let export = note(AuditAction::Export, session, Some(format.to_owned()));
        Ok(self.store.write_audit(scope, export, self.clock.now()).await?)
    }

    pub(crate) async fn append_one(
        &self,
        scope: &Scope,
        session: &SessionId,
        body: impl Into<Body>,
        audit: Option<AuditNote>,
    ) -> Result<Appended> {
        let now = self.clock.now();
        let append = Append { audit, ..Append::new(session.clone(), now, vec![Draft::new(now, body)]) };
        self.append(scope, append).await
    }

    pub(crate) async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
        let session = append.session.clone();
        let appended = self.store.append(scope, append).await?;
        self.wakeups.wake(&scope.tenant, &session);
        Ok(appended)
    }

    /// Read a session, let `decide` choose the entries, and append them; retry on a conflict. `what` names
    /// the operation in the audit.
    pub(crate) async fn decide<F, D>(
        &self,
        scope: &Scope,
        session: &SessionId,
        what: &'static str,
        mut decide: F,
    ) -> Result<Appended>
    where
        F: FnMut(Engine, Summary) -> D,
        D: Future<Output = Result<Vec<Body>>>,
    {
        for _ in 0..TRIES_MAX {
            let current = self.store.summary(scope, session).await?;
            let head = current.head;
            let bodies = decide(self.clone(), current).await?;
            if bodies.is_empty() {
                return Ok(Appended { head, entries: Vec::new() });
            }
            let now = self.clock.now();
            let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
            let append = Append {
                expect: Expect::Head(head.seq),
                audit: Some(edit(session, what)),
                ..Append::new(session.clone(), now, drafts)
            };
            match self.append(scope, append).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                answer => return answer,
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: TRIES_MAX })
    }
}

/// The reserved prefix of an id, for flow runs and trigger logs.
pub(crate) fn reserved_prefix(id: &SessionId) -> Option<&'static str> {
    [RUN_PREFIX, TRIGGER_PREFIX].into_iter().find(|prefix| id.as_str().starts_with(prefix))
}

pub(crate) fn note(action: AuditAction, session: &SessionId, detail: Option<String>) -> AuditNote {
    AuditNote { action, session: Some(session.clone()), detail }
}

/// An audit note that names the operation, but never its content.
pub(crate) fn edit(session: &SessionId, what: &'static str) -> AuditNote {
    note(AuditAction::Edit, session, Some(what.to_owned()))
}

/// Like [`edit`], but only if the caller is not the session's owner: the owner's edits are too frequent to audit.
pub(crate) fn edit_by_other(scope: &Scope, summary: &Summary, what: &'static str) -> Option<AuditNote> {
    (summary.owner != scope.principal).then(|| edit(&summary.id, what))
}

fn cancelled_by_archiving() -> TurnEnded {
    TurnEnded {
        outcome: Outcome::Cancelled,
        code: None,
        message: Some("the session was archived".to_owned()),
        usage: None,
        cost_nano_usd: None,
    }
}

/// Validate a title and return its stored form.
pub fn checked_title(title: &str) -> Result<String> {
    checked_text("the title", title)
}

/// Validate a title or label: one line, not empty, at most 400 characters.
fn checked_text(what: &'static str, text: &str) -> Result<String> {
    let text = text.trim();
    let fail = |why: &str| Err(EngineError::Invalid { what, why: why.to_owned() });
    if text.is_empty() {
        return fail("it is empty");
    }
    if text.chars().count() > TITLE_CHARS_MAX {
        return fail("it is longer than 400 characters");
    }
    if text.chars().any(char::is_control) {
        return fail("it has line breaks or control characters");
    }
    Ok(text.to_owned())
}
