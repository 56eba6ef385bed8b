//! Retention: inactive sessions of a tenant are erased after a time. Each erasure is announced before, and an entry or a
//! legal hold cancels it.

use std::collections::HashMap;

use sapwood_core::port::records::RecordKind;
use sapwood_core::port::store::{AuditAction, AuditNote, ListFilter, ListOrder, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Scope, SessionId, TimestampMs};
use serde::{Deserialize, Serialize};

use super::{PersonalData, check_operator};
use crate::compact::Writing;
use crate::{EngineError, Result};

const DAY_MS: i64 = 86_400_000;
/// The name of the tenant's policy among the records.
const POLICY: &str = "tenant";
/// Longest retention and notice, in days.
const DAYS_MAX: u32 = 36_500;
/// Sessions that one run announces and erases at most. The next run continues.
const RUN_SESSIONS_MAX: usize = 10_000;
const PAGE_SESSIONS: usize = 1_000;

/// How long a tenant keeps inactive sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionPolicy {
    /// Days without an entry after which a session is announced.
    pub days: u32,
    /// Days between the announcement and the erasure.
    pub notice_days: u32,
}

/// An announced erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionNotice {
    /// When the erasure was announced.
    pub announced_at: TimestampMs,
    /// When the session may be erased.
    pub erase_at: TimestampMs,
}

/// A session with its announced erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionNotice {
    /// The session.
    pub session: SessionId,
    /// The announcement.
    #[serde(flatten)]
    pub notice: RetentionNotice,
}

/// What a run has done, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RetentionReport {
    /// Newly announced erasures.
    pub announced: Vec<SessionNotice>,
    /// Erased sessions.
    pub erased: Vec<SessionId>,
    /// Inactive sessions that a legal hold protects.
    pub held: Vec<SessionId>,
    /// Sessions whose announcement was withdrawn, because they are active again, held or erased.
    pub withdrawn: Vec<SessionId>,
}

impl PersonalData<'_> {
    /// The tenant's policy, if it has one.
    pub async fn retention(self, scope: &Scope) -> Result<Option<RetentionPolicy>> {
        let records = self.engine.store.list_records(scope, RecordKind::Retention).await?;
        let Some(record) = records.into_iter().find(|record| record.name == POLICY) else { return Ok(None) };
        let damaged = |error: serde_json::Error| StoreError::Damaged {
            place: "retention".to_owned(),
            what: error.to_string(),
        };
        Ok(Some(serde_json::from_str(&record.value).map_err(damaged)?))
    }

    /// Set or remove the tenant's policy. Removing it withdraws all announcements with the next run.
    pub async fn set_retention(self, scope: &Scope, policy: Option<RetentionPolicy>) -> Result<()> {
        if let Some(RetentionPolicy { days, notice_days }) = policy
            && (!(1..=DAYS_MAX).contains(&days) || !(1..=DAYS_MAX).contains(&notice_days))
        {
            let why = format!("days and notice_days must be 1 to {DAYS_MAX}");
            return Err(EngineError::Invalid { what: "the retention", why });
        }
        check_operator(scope, "change the retention")?;
        let value = policy.map(|policy| serde_json::to_string(&policy).expect("numbers serialize"));
        let detail = match policy {
            Some(RetentionPolicy { days, notice_days }) => {
                format!("retention set to {days} days, announced {notice_days} days before")
            }
            None => "retention removed".to_owned(),
        };
        let note = AuditNote { action: AuditAction::TenantChange, session: None, detail: Some(detail) };
        let now = self.engine.clock.now();
        Ok(self.engine.store.put_record(scope, RecordKind::Retention, POLICY, value, note, now).await?)
    }

    /// The announced erasures that the caller may see: all for an operator, otherwise those of readable sessions.
    pub async fn notices(self, scope: &Scope) -> Result<Vec<SessionNotice>> {
        let mut notices = Vec::new();
        for (session, notice) in self.notice_map(scope).await? {
            if self.engine.directory().exists(scope, &session).await? {
                notices.push(SessionNotice { session, notice });
            }
        }
        notices.sort_by(|one, two| one.session.cmp(&two.session));
        Ok(notices)
    }

    async fn notice_map(self, scope: &Scope) -> Result<HashMap<SessionId, RetentionNotice>> {
        let records = self.engine.store.list_records(scope, RecordKind::Notice).await?;
        let read = records.into_iter().filter_map(|record| {
            Some((record.name.parse().ok()?, serde_json::from_str(&record.value).ok()?))
        });
        Ok(read.collect())
    }

    /// Apply the policy: announce inactive sessions, and erase those whose notice has ended.
    pub async fn run_retention(self, scope: &Scope, writing: Writing) -> Result<RetentionReport> {
        check_operator(scope, "apply the retention")?;
        let mut report = RetentionReport::default();
        let mut notices = self.notice_map(scope).await?;
        let now = self.engine.clock.now();
        if let Some(policy) = self.retention(scope).await? {
            let holds = self.hold_list(scope).await?;
            for summary in self.inactive(scope, policy, now).await? {
                if holds.of_session(&summary).is_some() {
                    report.held.push(summary.id);
                    continue;
                }
                let notice =
                    notices.remove(&summary.id).filter(|notice| notice.announced_at > summary.updated_at);
                self.advance(scope, summary.id, (policy, notice, now), writing, &mut report).await?;
            }
        }
        for session in notices.into_keys() {
            if writing == Writing::Write {
                self.write_notice(scope, &session, None, "erasure withdrawn").await?;
            }
            report.withdrawn.push(session);
        }
        Ok(report)
    }

    /// Announce one inactive session, or erase it if its notice has ended.
    async fn advance(
        self,
        scope: &Scope,
        session: SessionId,
        (policy, notice, now): (RetentionPolicy, Option<RetentionNotice>, TimestampMs),
        writing: Writing,
        report: &mut RetentionReport,
    ) -> Result<()> {
        match notice {
            None => {
                let erase_at = TimestampMs(now.0 + i64::from(policy.notice_days) * DAY_MS);
                let notice = RetentionNotice { announced_at: now, erase_at };
                if writing == Writing::Write {
                    self.write_notice(scope, &session, Some(notice), "erasure announced").await?;
                }
                report.announced.push(SessionNotice { session, notice });
            }
            Some(notice) if notice.erase_at <= now => {
                if writing == Writing::Write {
                    self.engine.sessions().erase(scope, &session).await?;
                    self.write_notice(scope, &session, None, "erased by retention").await?;
                }
                report.erased.push(session);
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn write_notice(
        self,
        scope: &Scope,
        session: &SessionId,
        notice: Option<RetentionNotice>,
        what: &str,
    ) -> Result<()> {
        let value = notice.map(|notice| serde_json::to_string(&notice).expect("numbers serialize"));
        let note = AuditNote {
            action: AuditAction::Edit,
            session: Some(session.clone()),
            detail: Some(what.to_owned()),
        };
        let (store, now) = (&self.engine.store, self.engine.clock.now());
        Ok(store.put_record(scope, RecordKind::Notice, session.as_str(), value, note, now).await?)
    }

    /// Sessions without an entry for the policy's time, the oldest first. A session with an open turn is not inactive.
    async fn inactive(
        self,
        scope: &Scope,
        policy: RetentionPolicy,
        now: TimestampMs,
    ) -> Result<Vec<Summary>> {
        let until = Some(TimestampMs(now.0 - i64::from(policy.days) * DAY_MS));
        let order = ListOrder::OldestFirst;
        let mut filter = ListFilter { until, order, limit: PAGE_SESSIONS, ..ListFilter::default() };
        let mut inactive = Vec::new();
        while inactive.len() < RUN_SESSIONS_MAX {
            let page = self.engine.store.list(scope, &filter).await?;
            inactive.extend(page.items.into_iter().filter(|summary| summary.open_turn.is_none()));
            match page.next {
                Some(next) => filter.cursor = Some(next),
                None => break,
            }
        }
        Ok(inactive)
    }
}
