//! Sessions that began at the same time as an imported session, and may repeat the same records.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sapwood_core::port::store::{ListFilter, ListOrder, NewSession};
use sapwood_core::project::summary::{Origin, Summary};
use sapwood_core::{Scope, SessionId, TimestampMs};

use crate::{Engine, Result};

/// Maximum number of stored sessions checked for records that a new session repeats.
const SIBLINGS_CHECKED_MAX: usize = 100;
/// Sessions per page when all sessions are listed.
const PAGE_SESSIONS: usize = 1_000;

/// An index of the importing user's sessions by start time, read once and shared by the imports of a batch. A single
/// import instead lists only sessions that were updated soon after the imported session's start.
#[derive(Clone, Default)]
pub struct SiblingSessions(Arc<Mutex<Option<SessionsByStart>>>);

type SessionsByStart = HashMap<TimestampMs, Vec<SessionId>>;

impl SiblingSessions {
    /// The other sessions with the same start time.
    pub(super) async fn others_started_at(
        &self,
        engine: &Engine,
        scope: &Scope,
        new: &NewSession,
    ) -> Result<Vec<SessionId>> {
        let is_listed = self.lock().is_some();
        if !is_listed {
            let listed = list_by_start(engine, scope, new).await?;
            self.lock().get_or_insert(listed);
        }
        let by_start = self.lock();
        let others = by_start.as_ref().and_then(|by_start| by_start.get(&new.at));
        Ok(others.into_iter().flatten().filter(|other| **other != new.id).cloned().collect())
    }

    /// Add a session that was just created.
    pub(super) fn add(&self, new: &NewSession) {
        if let Some(by_start) = self.lock().as_mut() {
            by_start.entry(new.at).or_default().push(new.id.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<SessionsByStart>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sessions with the same start time, among the first [`SIBLINGS_CHECKED_MAX`] updated since then.
pub(super) async fn list_siblings(
    engine: &Engine,
    scope: &Scope,
    new: &NewSession,
) -> Result<Vec<SessionId>> {
    let page = engine.store.list(scope, &sibling_filter(scope, new)).await?;
    let siblings =
        page.items.into_iter().filter(|other| other.created_at == new.at && is_sibling(other, new));
    Ok(siblings.map(|other| other.id).collect())
}

/// All sessions of the importing user from the same program, by start time.
async fn list_by_start(engine: &Engine, scope: &Scope, new: &NewSession) -> Result<SessionsByStart> {
    let mut by_start = SessionsByStart::new();
    let mut filter = ListFilter { since: None, limit: PAGE_SESSIONS, ..sibling_filter(scope, new) };
    loop {
        let page = engine.store.list(scope, &filter).await?;
        for other in page.items.into_iter().filter(|other| is_sibling(other, new)) {
            by_start.entry(other.created_at).or_default().push(other.id);
        }
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return Ok(by_start);
        }
    }
}

/// A filter for sessions updated after the start of a new session, oldest first.
fn sibling_filter(scope: &Scope, new: &NewSession) -> ListFilter {
    ListFilter {
        since: Some(new.at),
        owner: Some(scope.principal.clone()),
        order: ListOrder::OldestFirst,
        limit: SIBLINGS_CHECKED_MAX,
        ..ListFilter::default()
    }
}

fn is_sibling(other: &Summary, new: &NewSession) -> bool {
    let format = |origin: &Origin| origin.format.clone();
    other.origin.as_ref().map(format) == new.origin.as_ref().map(format)
}
