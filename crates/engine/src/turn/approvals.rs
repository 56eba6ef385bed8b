//! Questions that wait for people: list them across all sessions, escalate and expire them at their deadlines, report them
//! to the hook `on_approval`, and answer them through signed links.
//!
//! Several processes may find the same deadline. An escalation and an expiry are entries that expect the head at which
//! the question was pending, so one process writes each of them, and only that process calls the hooks.

use sapwood_core::approval::{Due, Escalation};
use sapwood_core::entry::ApprovalAnswer;
use sapwood_core::port::hook::{HookName, event_text};
use sapwood_core::port::links::{LINK_S_DEFAULT, LINK_S_MAX, LinkClaim};
use sapwood_core::port::store::{AuditAction, ListFilter, Page, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::{Principal, Right, Scope, SessionId, TenantId, TimestampMs};
use serde_json::{Value, json};

use super::control::{GivenAnswer, PendingApproval, expiry_of};
use crate::directory::check_role;
use crate::log::{TRIES_MAX, note};
use crate::{Engine, EngineError, Result, service};

/// Maximum number of sessions in a page of questions.
pub const APPROVALS_PAGE_MAX: usize = 200;

/// A link with which a person without an API key answers one question.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AnswerLink {
    /// The id of the approval.
    pub approval: String,
    /// The address of the confirmation page.
    pub url: String,
    /// When the link expires.
    pub expires_at: TimestampMs,
}

/// Restrictions of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// Seconds until the link expires. The default is one day; a link never outlives its question.
    pub expires_in_s: Option<u32>,
    /// The answers that the link allows. All, if empty.
    pub answers: Vec<ApprovalAnswer>,
}

service! {
    /// Questions that wait for a person, across all sessions.
    pub struct Approvals;
    approvals
}

impl Approvals<'_> {
    /// A page of the questions that the caller may answer, of the most recently updated sessions first. `limit` counts
    /// sessions. A page can be short or empty and still have a `next`.
    pub async fn list(
        self,
        scope: &Scope,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<Page<PendingApproval>> {
        let limit = limit.clamp(1, APPROVALS_PAGE_MAX);
        let filter = ListFilter { has_open_turn: true, limit, cursor, ..ListFilter::default() };
        let page = self.engine.store.list(scope, &filter).await?;
        let mut items = Vec::new();
        for summary in page.items.iter().filter(|summary| check_role(scope, summary, Right::Write).is_ok()) {
            match self.engine.turn_control().pending(scope, summary).await {
                // The session was erased since the page was read.
                Err(EngineError::Store(StoreError::NoSession { .. })) => {}
                pending => items.extend(pending?),
            }
        }
        Ok(Page { items, next: page.next })
    }

    /// Escalate and expire the questions of a session whose deadlines have passed. Returns the next deadline.
    pub async fn settle(self, tenant: &TenantId, session: &SessionId) -> Result<Option<TimestampMs>> {
        let system = Scope::operator(tenant.clone(), Principal::System);
        for _ in 0..TRIES_MAX {
            let summary = self.engine.turns().settled_summary(&system, session).await?;
            let waiting = self.engine.turn_control().pending(&system, &summary).await?;
            let now = self.engine.clock.now();
            let due = waiting.iter().find_map(|pending| Some((pending, pending.due(now)?)));
            let Some((pending, due)) = due else {
                return Ok(waiting.iter().filter_map(PendingApproval::next_deadline).min());
            };
            match self.act(&system, &summary, pending, due).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                acted => acted?,
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: TRIES_MAX })
    }

    async fn act(self, system: &Scope, summary: &Summary, pending: &PendingApproval, due: Due) -> Result<()> {
        let control = self.engine.turn_control();
        match due {
            Due::Expire => {
                control.append_answer(system, summary, &pending.approval, &expiry_of(pending)).await
            }
            Due::Escalate => {
                let to = pending.deadlines.escalate_to.clone();
                let escalation = Escalation { approval: pending.approval.clone(), to };
                let audit = note(AuditAction::Edit, &summary.id, Some("escalate".to_owned()));
                control.append_at(system, summary, escalation.to_info().into(), audit).await?;
                let data = || event_data(self.engine, &system.tenant, pending, Some(&escalation));
                // Fire the event as the session's owner, so that the owner's hooks also receive it.
                let owner = Scope { principal: summary.owner.clone(), ..system.clone() };
                let hooks = self.engine.hooks();
                hooks.fire(HookName::OnApproval, &owner, &summary.id, summary.open_turn, data).await;
                Ok(())
            }
        }
    }

    /// Create a link with which one question can be answered once, with the caller's rights.
    pub async fn create_link(
        self,
        scope: &Scope,
        approval: &str,
        options: LinkOptions,
    ) -> Result<AnswerLink> {
        let links = self.engine.config.links.as_ref().ok_or(EngineError::NoLinks)?;
        let (summary, pending) = self.engine.turn_control().find_pending(scope, approval).await?;
        check_role(scope, &summary, Right::Write)?;
        let seconds = options.expires_in_s.unwrap_or(LINK_S_DEFAULT);
        if !(1..=LINK_S_MAX).contains(&seconds) {
            let why = format!("it must be from 1 s to {LINK_S_MAX} s");
            return Err(EngineError::Invalid { what: "the time until the link expires", why });
        }
        let claim = claim_of(scope, &pending, self.engine.clock.now(), seconds, options.answers);
        let detail = format!("link until {}", claim.expires_at.0);
        let audit = note(AuditAction::Edit, &summary.id, Some(detail));
        self.engine.directory().write_audit(scope, audit).await?;
        let (url, expires_at) = (links.url(&claim), claim.expires_at);
        Ok(AnswerLink { approval: claim.approval, url, expires_at })
    }

    /// The question and the answers that a link allows. A changed, expired or used link fails in the same way.
    pub async fn open_link(self, token: &str) -> Result<(PendingApproval, LinkClaim)> {
        let links = self.engine.config.links.as_ref().ok_or(EngineError::InvalidLink)?;
        let claim = links.verify(token).ok_or(EngineError::InvalidLink)?;
        let now = self.engine.clock.now();
        if claim.expires_at <= now {
            return Err(EngineError::InvalidLink);
        }
        let found = self.engine.turn_control().find_pending(&claim.scope(), &claim.approval).await;
        let (summary, pending) = found.map_err(hide)?;
        check_role(&claim.scope(), &summary, Right::Write).map_err(hide)?;
        if pending.due(now) == Some(Due::Expire) {
            return Err(EngineError::InvalidLink);
        }
        Ok((pending, claim))
    }

    /// Answer a question through a link, with the rights of the principal who created it.
    pub async fn answer_link(
        self,
        token: &str,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<(Scope, SessionId)> {
        let (pending, claim) = self.open_link(token).await?;
        if !claim.answers.contains(&answer) {
            return Err(EngineError::InvalidLink);
        }
        let audited = format!("answer by a link of {}", claim.by);
        let given = GivenAnswer { answer, reason, audited };
        let scope = claim.scope();
        let answered = self.engine.turn_control().answer_as(&scope, &pending.approval, given).await;
        Ok((scope, answered.map_err(hide)?))
    }
}

/// Report all reasons why a link cannot be used as one error. Errors of the store itself are not about the link.
fn hide(error: EngineError) -> EngineError {
    match error {
        EngineError::NoApproval { .. }
        | EngineError::ApprovalExpired { .. }
        | EngineError::Store(StoreError::NoSession { .. } | StoreError::Denied { .. })
        | EngineError::Store(StoreError::Archived { .. }) => EngineError::InvalidLink,
        other => other,
    }
}

fn claim_of(
    scope: &Scope,
    pending: &PendingApproval,
    now: TimestampMs,
    seconds: u32,
    answers: Vec<ApprovalAnswer>,
) -> LinkClaim {
    let latest = TimestampMs(now.0.saturating_add(i64::from(seconds) * 1_000));
    let all = vec![ApprovalAnswer::Approved, ApprovalAnswer::Denied];
    LinkClaim {
        tenant: scope.tenant.clone(),
        approval: pending.approval.clone(),
        by: scope.principal.clone(),
        operator: scope.reach == Reach::Tenant,
        expires_at: pending.deadlines.expires_at.map_or(latest, |end| end.min(latest)),
        answers: if answers.is_empty() { all } else { answers },
    }
}

/// The data of the event `on_approval`. The operator who installed the hook gets a link to answer the question.
pub(super) fn event_data(
    engine: &Engine,
    tenant: &TenantId,
    pending: &PendingApproval,
    escalation: Option<&Escalation>,
) -> Value {
    let system = Scope::operator(tenant.clone(), Principal::System);
    let claim = claim_of(&system, pending, engine.clock.now(), LINK_S_DEFAULT, Vec::new());
    let input = pending.call.as_ref().map(|call| call.input.to_value());
    json!({
        "approval": pending.approval, "kind": pending.kind, "question": event_text(&pending.question),
        "tool": pending.call.as_ref().map(|call| &call.name), "input": input.map(shortened),
        "escalated": escalation.is_some(), "target": escalation.and_then(|escalation| escalation.to.as_deref()),
        "asked_at": pending.asked_at, "expires_at": pending.deadlines.expires_at,
        "link": engine.config.links.as_ref().map(|links| links.url(&claim)),
    })
}

/// Replace an input that is too long for an event by the beginning of its text.
fn shortened(input: Value) -> Value {
    let text = input.to_string();
    let event = event_text(&text);
    if event.len() == text.len() { input } else { Value::String(event) }
}
