//! The lifecycle of a session: open it with or without an agent, fork, rename, share, close, archive and erase it.

use sapwood_core::agent::{Agent, Narrowing};
use sapwood_core::entry::{
    Body, Draft, LOG_VERSION, Label, MemberChanged, Outcome, SessionContext, SessionNamed, SessionState,
    StateChanged, TITLE_CHARS_MAX, TurnEnded,
};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::store::{
    Append, Appended, AuditAction, Created, Expect, Fork, NewSession, StoreError,
};
use sapwood_core::project::summary::{Lineage, Summary};
use sapwood_core::scope::Role;
use sapwood_core::trigger::TRIGGER_PREFIX;
use sapwood_core::{EntryId, Principal, Right, Scope, Seq, SessionId};
use serde_json::json;

use crate::config_changes::{ForkChanges, check_context};
use crate::configuration::{check_variables, configured_body, format_2_bodies};
use crate::flow::RUN_PREFIX;
use crate::hook::EventLocation;
use crate::log::{edit, note};
use crate::{EngineError, Result, service};

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
    /// The session that starts this one, for example for a delegated task. No entries are shared.
    pub parent: Option<SessionId>,
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

/// Options for starting a session with an agent.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// The session's id, title and directory.
    pub open: OpenOptions,
    /// The agent.
    pub agent: Agent,
    /// Restrictions of the agent's rights in this session.
    pub narrowing: Narrowing,
    /// The context of the session. Its working directory is that of `open`. Variables are plain text for the model,
    /// never secrets: values that look like a key are refused.
    pub context: SessionContext,
}

service! {
    /// The lifecycle of a session: start, fork, share, close, archive, erase.
    pub struct Sessions;
    sessions
}

impl Sessions<'_> {
    /// Open a session, or return the existing one with this id. Idempotent.
    pub async fn open(self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        self.check_id(scope, options.id.as_ref()).await?;
        self.open_any(scope, options).await
    }

    /// Like [`Sessions::open`], but also accepts reserved ids.
    pub(crate) async fn open_any(self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        let (title, agent) = (options.title.clone(), options.agent.clone());
        let (id, created) = self.create(scope, options).await?;
        match created {
            Created::New => self.notify_start(scope, &id, title, agent).await,
            Created::Existed => self.note_open(scope, &id).await?,
        }
        Ok((id, created))
    }

    /// Write an audit line for opening an existing session.
    pub async fn note_open(self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.engine.directory().write_audit(scope, note(AuditAction::Open, session, None)).await
    }

    pub(crate) async fn notify_start(
        self,
        scope: &Scope,
        session: &SessionId,
        title: Option<String>,
        agent: Option<String>,
    ) {
        let data = || json!({"title": title, "agent": agent});
        self.engine.hooks().fire(HookName::SessionStart, scope, session, None, data).await;
    }

    /// Refuse to create a session under an id that is reserved for Sapwood.
    pub(crate) async fn check_id(self, scope: &Scope, id: Option<&SessionId>) -> Result<()> {
        let Some((id, prefix)) = id.and_then(|id| Some((id, reserved_prefix(id)?))) else { return Ok(()) };
        match self.engine.directory().exists(scope, id).await? {
            true => Ok(()),
            false => Err(EngineError::ReservedId { id: id.clone(), prefix }),
        }
    }

    pub(crate) async fn create(self, scope: &Scope, options: OpenOptions) -> Result<(SessionId, Created)> {
        let at = self.engine.clock.now();
        let id = options.id.unwrap_or_else(|| SessionId::mint(at, self.engine.clock.random()));
        let title = options.title.map(|title| checked_text("the title", &title)).transpose()?;
        let parent = options.parent.map(|session| Lineage { session, at: None });
        let (agent, cwd) = (options.agent, options.cwd);
        let new = NewSession { title, agent, cwd, parent, ..NewSession::new(id.clone(), at) };
        let created = self.engine.store.create(scope, new).await?;
        Ok((id, created))
    }

    pub async fn rename(self, scope: &Scope, session: &SessionId, title: &str) -> Result<Appended> {
        let title = checked_title(title)?;
        self.engine
            .log()
            .append_one(scope, session, SessionNamed { title }, Some(edit(session, "rename")))
            .await
    }

    /// Create a session that shares the path up to an entry without copying it. The fork keeps the source's
    /// configuration.
    pub async fn fork(
        self,
        scope: &Scope,
        source: &SessionId,
        at: ForkAt,
        options: OpenOptions,
    ) -> Result<SessionId> {
        self.fork_with(scope, source, at, options, ForkChanges::default()).await
    }

    /// Like [`Sessions::fork`], with a narrower configuration or another directory.
    pub async fn fork_with(
        self,
        scope: &Scope,
        source: &SessionId,
        at: ForkAt,
        options: OpenOptions,
        changes: ForkChanges,
    ) -> Result<SessionId> {
        self.check_id(scope, options.id.as_ref()).await?;
        self.fork_any(scope, source, at, options, changes).await
    }

    /// Like [`Sessions::fork_with`], but also accepts reserved ids.
    pub(crate) async fn fork_any(
        self,
        scope: &Scope,
        source: &SessionId,
        at: ForkAt,
        options: OpenOptions,
        changes: ForkChanges,
    ) -> Result<SessionId> {
        let now = self.engine.clock.now();
        let id = options.id.unwrap_or_else(|| SessionId::mint(now, self.engine.clock.random()));
        if id == *source {
            return Err(EngineError::ForkOntoItself { session: id });
        }
        let summary = self.engine.store.summary(scope, source).await?;
        let about = || json!({"fork": id});
        self.engine.hooks().ask(HookName::BeforeFork, EventLocation::new(scope, source), about).await?;
        let at = match at {
            ForkAt::Leaf => summary.head.leaf,
            ForkAt::Entry(seq) => Some(seq),
            ForkAt::KeepFirst(count) => self.after_messages(scope, &summary, count).await?,
        };
        let title = options.title.map(|title| checked_text("the title", &title)).transpose()?;
        let new =
            NewSession { title, agent: options.agent, cwd: options.cwd, ..NewSession::new(id.clone(), now) };
        let mut drafts = self.shared_labels(scope, source, now).await?;
        let config = self.engine.configuration().for_fork(scope, &summary, at, &changes).await?;
        drafts.splice(..0, config.into_iter().map(|body| Draft::new(now, body)));
        drafts.extend(self.engine.inputs().drafts_for_fork(scope, source).await?);
        self.engine.store.fork(scope, Fork { source: source.clone(), at, new, drafts }).await?;
        self.engine.wakeups.wake(&scope.tenant, &id);
        self.engine.hooks().fire(HookName::AfterFork, scope, source, None, || json!({"fork": id})).await;
        Ok(id)
    }

    async fn after_messages(self, scope: &Scope, source: &Summary, count: u32) -> Result<Option<Seq>> {
        let Some(leaf) = source.head.leaf else { return Ok(None) };
        if count == 0 {
            // Before the first entry; `None` would mean the leaf.
            return Ok(Some(Seq::ZERO));
        }
        let found = self.engine.store.nth_message(scope, &source.id, leaf, count).await?;
        Ok(found.or(Some(leaf)))
    }

    /// The labels of the source, as entries of the fork. The store drops labels of entries that the fork does not
    /// share.
    async fn shared_labels(
        self,
        scope: &Scope,
        source: &SessionId,
        now: sapwood_core::TimestampMs,
    ) -> Result<Vec<Draft>> {
        let labels = self.engine.directory().labels(scope, source).await?;
        let draft =
            |(target, text): (EntryId, &str)| Draft::new(now, Label { target, text: Some(text.to_owned()) });
        Ok(labels.iter().map(draft).collect())
    }

    /// Set a member's role, or remove the member.
    pub async fn share(
        self,
        scope: &Scope,
        session: &SessionId,
        member: Principal,
        role: Option<Role>,
    ) -> Result<Appended> {
        if role == Some(Role::Owner) {
            let why = "a session has exactly one owner; share it as reader or collaborator".to_owned();
            return Err(EngineError::Invalid { what: "the role", why });
        }
        if self.engine.store.summary(scope, session).await?.owner == member {
            let why = format!("{member} already owns the session");
            return Err(EngineError::Invalid { what: "the member", why });
        }
        let detail = match role {
            Some(role) => format!("{member} as {}", role.as_str()),
            None => format!("{member} removed"),
        };
        let audit = note(AuditAction::Share, session, Some(detail));
        self.engine.log().append_one(scope, session, MemberChanged::new(member, role), Some(audit)).await
    }

    /// Close a session; a new message opens it again.
    pub async fn close(self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.engine.directory().check_right(scope, session, Right::Write).await?;
        self.engine.memories().learn_at_end(&scope.tenant, session).await;
        self.change_state(scope, session, SessionState::Closed, AuditAction::Close).await
    }

    /// Make a session read-only. Refused while a turn runs, because the end of the turn could not be written
    /// afterwards.
    pub async fn archive(self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.engine.directory().check_right(scope, session, Right::Own).await?;
        let hold = match self.engine.turns().hold_to_send(scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. })) => {
                return Err(EngineError::TurnRunning { session: session.clone() });
            }
            hold => hold?,
        };
        let archived = self.archive_held(scope, session, hold.fence).await;
        hold.release().await;
        archived
    }

    /// Archive a session whose lease is held. No turn is running: an open turn waits for an answer, or its
    /// process died. The open turn is ended first, or it would stay open forever.
    async fn archive_held(self, scope: &Scope, session: &SessionId, fence: u64) -> Result<()> {
        // Learn before archiving: an archived session accepts no entries, including the memory checkpoint.
        self.engine.memories().learn_at_end(&scope.tenant, session).await;
        let before = self.engine.store.summary(scope, session).await?;
        if let Some(turn) = before.open_turn.filter(|_| before.state != SessionState::Archived) {
            let now = self.engine.clock.now();
            let drafts = vec![Draft::new(now, cancelled_by_archiving()).in_turn(turn)];
            let append = Append { fence: Some(fence), ..Append::new(session.clone(), now, drafts) };
            self.engine.log().append(scope, append).await?;
        }
        self.change_state(scope, session, SessionState::Archived, AuditAction::Archive).await
    }

    /// Make an archived session writable again.
    pub async fn reopen(self, scope: &Scope, session: &SessionId) -> Result<()> {
        self.change_state(scope, session, SessionState::Active, AuditAction::Reopen).await
    }

    async fn change_state(
        self,
        scope: &Scope,
        session: &SessionId,
        state: SessionState,
        action: AuditAction,
    ) -> Result<()> {
        let before = self.engine.store.summary(scope, session).await?;
        if before.state == state {
            return Ok(());
        }
        let changed = StateChanged { state, reason: None };
        self.engine.log().append_one(scope, session, changed, Some(note(action, session, None))).await?;
        if matches!(state, SessionState::Closed | SessionState::Archived) {
            let how = || json!({"how": state.as_str()});
            self.engine.hooks().fire(HookName::SessionEnd, scope, session, None, how).await;
        }
        if state == SessionState::Archived {
            self.engine
                .hooks()
                .fire(HookName::OnArchive, scope, session, None, || json!({"title": before.title}))
                .await;
        }
        Ok(())
    }

    /// Delete a session permanently. Fails if a legal hold protects it.
    pub async fn erase(self, scope: &Scope, session: &SessionId) -> Result<()> {
        let summary = self.engine.store.summary(scope, session).await?;
        self.engine.personal_data().check_not_held(scope, &summary).await?;
        self.engine.store.erase(scope, session, self.engine.clock.now()).await?;
        self.engine.graft_cache.evict(&scope.tenant, session);
        self.engine.tree_cache.evict(&scope.tenant, session);
        self.engine.wakeups.wake(&scope.tenant, session);
        self.engine
            .hooks()
            .fire(HookName::SessionEnd, scope, session, None, || json!({"how": "erased"}))
            .await;
        Ok(())
    }

    /// Open a session and fix its agent. Idempotent: an existing session keeps its agent.
    pub async fn start(self, scope: &Scope, options: StartOptions) -> Result<(SessionId, Created)> {
        self.check_id(scope, options.open.id.as_ref()).await?;
        let narrowing = options.narrowing.clone();
        let (session, created) = self.start_any(scope, options).await?;
        if created == Created::Existed && narrowing != Narrowing::default() {
            self.check_narrowed(scope, &session, &narrowing).await?;
        }
        Ok((session, created))
    }

    /// Refuse restrictions that an existing session does not have: its configuration is fixed.
    async fn check_narrowed(self, scope: &Scope, session: &SessionId, narrowing: &Narrowing) -> Result<()> {
        let agent = self.engine.configuration().agent_of(scope, session).await?;
        match agent.clone().narrowed(narrowing) {
            Ok(narrowed) if narrowed == agent => Ok(()),
            _ => Err(EngineError::Invalid {
                what: "the restriction",
                why: format!("session {session} already exists and allows more; its configuration is fixed"),
            }),
        }
    }

    /// Like [`Sessions::start`], but also accepts reserved ids.
    pub(crate) async fn start_any(
        self,
        scope: &Scope,
        options: StartOptions,
    ) -> Result<(SessionId, Created)> {
        let agent = options.agent.narrowed(&options.narrowing)?;
        if let Some(mistake) = agent.mistakes().into_iter().next() {
            return Err(mistake.into());
        }
        let open = OpenOptions { agent: Some(agent.id.clone()), ..options.open };
        let context = SessionContext { working_dir: open.cwd.clone(), ..options.context };
        check_variables(&agent, &context.variables)?;
        check_context(&context)?;
        let (title, id) = (open.title.clone(), open.agent.clone());
        let (session, created) = self.create(scope, open).await?;
        if created == Created::New || self.is_unfinished(scope, &session, &agent).await? {
            let bodies = self.first_bodies(scope, &agent, context).await?;
            let now = self.engine.clock.now();
            let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
            let expect = Expect::Head(Seq::ZERO);
            match self
                .engine
                .log()
                .append(scope, Append { expect, ..Append::new(session.clone(), now, drafts) })
                .await
            {
                // Another process finished the setup, or wrote to the session first.
                Err(EngineError::Store(StoreError::Conflict { .. })) => return Ok((session, created)),
                appended => appended?,
            };
            self.notify_start(scope, &session, title, id).await;
        }
        if created == Created::Existed {
            self.note_open(scope, &session).await?;
        }
        Ok((session, created))
    }

    async fn first_bodies(self, scope: &Scope, agent: &Agent, context: SessionContext) -> Result<Vec<Body>> {
        let memories = self.engine.memories().memory_prompt(scope, agent).await;
        if self.engine.store.log_format().await? >= LOG_VERSION {
            return Ok(vec![configured_body(agent, context, memories).into()]);
        }
        let SessionContext { working_dir, variables, .. } = context;
        Ok(format_2_bodies(agent, working_dir, variables, memories))
    }

    /// Whether a process created this session for this agent and died before it wrote the agent.
    async fn is_unfinished(self, scope: &Scope, session: &SessionId, agent: &Agent) -> Result<bool> {
        let summary = self.engine.store.summary(scope, session).await?;
        Ok(summary.head.seq == Seq::ZERO && summary.agent.as_deref() == Some(agent.id.as_str()))
    }
}

/// The reserved prefix of an id, for flow runs and trigger logs.
pub(crate) fn reserved_prefix(id: &SessionId) -> Option<&'static str> {
    [RUN_PREFIX, TRIGGER_PREFIX].into_iter().find(|prefix| id.as_str().starts_with(prefix))
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
pub(crate) fn checked_text(what: &'static str, text: &str) -> Result<String> {
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
