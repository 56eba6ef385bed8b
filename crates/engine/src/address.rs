//! Resolve the names that users type: a session by its id, a unique id prefix or `@last`; an entry by its seq, its
//! id, a unique prefix of its id, or a label.

use sapwood_core::entry::Stance;
use sapwood_core::port::store::{ListFilter, StoreError};
use sapwood_core::settings::Labels;
use sapwood_core::{EntryId, Record, Scope, Seq, SessionId};

use crate::{Engine, EngineError, Result};

/// Shortest accepted id prefix. A shorter prefix could match because of a typo.
const PREFIX_CHARS_MIN: usize = 4;

impl Engine {
    pub async fn find_session(&self, scope: &Scope, given: &str) -> Result<SessionId> {
        if given == "@last" {
            let newest = ListFilter { limit: 1, ..ListFilter::default() };
            let found = self.first_listed(scope, newest).await?;
            return found.into_iter().next().map(|found| found.id).ok_or(EngineError::NoSessions);
        }
        let id: SessionId = given.parse()?;
        match self.store.summary(scope, &id).await {
            Ok(_) => return Ok(id),
            Err(StoreError::NoSession { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.find_by_prefix(scope, given).await
    }

    async fn find_by_prefix(&self, scope: &Scope, given: &str) -> Result<SessionId> {
        let missing = || EngineError::NoSuchSession { given: given.to_owned() };
        if given.len() < PREFIX_CHARS_MIN {
            return Err(missing());
        }
        let filter = ListFilter { id_prefix: Some(given.to_owned()), limit: 2, ..ListFilter::default() };
        let mut found = self.first_listed(scope, filter).await?.into_iter().map(|summary| summary.id);
        match (found.next(), found.next()) {
            (None, _) => Err(missing()),
            (Some(only), None) => Ok(only),
            (Some(first), Some(second)) => Err(ambiguous("session", given, first, second)),
        }
    }

    /// Find an entry in the session's tree.
    pub async fn find_entry(&self, scope: &Scope, session: &SessionId, given: &str) -> Result<Record> {
        if let Ok(seq) = given.parse::<u32>() {
            // A label or an id may consist only of digits. A seq takes precedence because users type it most
            // often.
            match self.store.read_entry(scope, session, Seq(seq)).await {
                Ok(record) => return in_tree(record, session),
                Err(StoreError::NoEntry { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(id) = self.labelled(scope, session, given).await? {
            return self.by_id_prefix(scope, session, given, &id.to_string()).await;
        }
        if given.len() < PREFIX_CHARS_MIN || EntryId::prefix_range(given).is_none() {
            return Err(no_entry(session, given));
        }
        self.by_id_prefix(scope, session, given, given).await
    }

    async fn labelled(&self, scope: &Scope, session: &SessionId, text: &str) -> Result<Option<EntryId>> {
        let labels = self.labels(scope, session).await?;
        let mut found = labels.find(text);
        match (found.next(), found.next()) {
            (Some(first), Some(second)) => Err(ambiguous("label", text, first, second)),
            (first, _) => Ok(first),
        }
    }

    async fn by_id_prefix(
        &self,
        scope: &Scope,
        session: &SessionId,
        given: &str,
        prefix: &str,
    ) -> Result<Record> {
        let mut found = self.store.find_entries(scope, session, prefix).await?.into_iter();
        match (found.next(), found.next()) {
            (None, _) => Err(no_entry(session, given)),
            (Some(only), None) => in_tree(only, session),
            (Some(first), Some(second)) => Err(ambiguous("entry", given, first.meta.id, second.meta.id)),
        }
    }

    /// The labels of the session's entries.
    pub async fn labels(&self, scope: &Scope, session: &SessionId) -> Result<Labels> {
        let mut labels = Labels::default();
        self.each_of_kinds(scope, session, &[sapwood_core::Kind::Label], |entry| labels.apply(&entry.body))
            .await?;
        Ok(labels)
    }
}

fn in_tree(record: Record, session: &SessionId) -> Result<Record> {
    match record.meta.kind.stance() {
        Stance::InTree => Ok(record),
        Stance::OutsideTree => {
            let why = format!(
                "entry {} of session {session} is a {}, which is not part of the tree",
                record.meta.seq,
                record.meta.kind.as_str()
            );
            Err(EngineError::Invalid { what: "the entry", why })
        }
    }
}

fn no_entry(session: &SessionId, given: &str) -> EngineError {
    let entry = given.chars().take(64).collect();
    StoreError::NoEntry { session: session.clone(), entry }.into()
}

fn ambiguous(what: &'static str, given: &str, first: impl ToString, second: impl ToString) -> EngineError {
    EngineError::Ambiguous {
        what,
        given: given.to_owned(),
        first: first.to_string(),
        second: second.to_string(),
    }
}
