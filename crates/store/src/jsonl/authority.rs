//! The authority record of a session: which entries this store wrote itself. A log without a record
//! was written by an earlier version, or copied here manually.
//!
//! An import writes the record before the entries. After a crash in between, the record references
//! entries that do not exist; the next append removes these references.

use std::sync::Arc;

use sapwood_core::authority::OriginTrace;
use sapwood_core::port::store::Result;
use sapwood_core::{Authority, Right, Scope, Seq, SessionId, Source, StoreError};

use super::audit::read_chain;
use super::authority_file::{path_beside, read, write};
use super::disk::{self, LockKind};
use super::layout::Layout;
use super::session_log::SessionLog;
use super::tenant::TenantDir;
use crate::mem_log::PlannedBatch;
use crate::validate;

/// Returns the record as it will be after a batch is appended.
pub fn with_planned(session_log: &SessionLog, planned: Option<&PlannedBatch>) -> Authority {
    let mut authority = session_log.log.summary.authority.clone().unwrap_or_default();
    if let Some(planned) = planned.filter(|planned| planned.is_import()) {
        let seqs = planned.batch.iter().map(|placed| placed.entry.meta.seq);
        let (first, last) = (seqs.clone().min(), seqs.max());
        authority.add_imported(first.unwrap_or(Seq(1)), last.unwrap_or_default());
    }
    authority
}

impl TenantDir {
    /// Updates the record of a log for a batch that is about to be written. The caller holds the
    /// log's lock.
    pub fn prepare_authority(&self, session_log: &mut SessionLog, planned: &PlannedBatch) -> Result<()> {
        let Some(path) = session_log.disk.as_ref().map(|disk| path_beside(&disk.file.path)) else {
            return Ok(());
        };
        let Some(mut authority) = read(&path)? else {
            if planned.is_import() {
                validate::settle_summary(
                    &mut session_log.log.summary,
                    trace(&self.layout, &session_log.header.id)?,
                );
                return write(&path, &with_planned(session_log, Some(planned)), self.options.durability);
            }
            return Ok(());
        };
        let is_clipped = authority.clip(session_log.log.summary.head.seq);
        session_log.log.summary.authority = Some(authority);
        if is_clipped || planned.is_import() {
            write(&path, &with_planned(session_log, Some(planned)), self.options.durability)?;
        }
        Ok(())
    }

    /// Returns the session's record. For a session of an earlier version, also creates the record,
    /// if the directory is writable.
    pub fn settle_authority(&mut self, scope: &Scope, session: &SessionId) -> Result<Authority> {
        let written = self.change_authority(scope, session, Right::Read, |_| ());
        match written {
            Err(StoreError::ReadOnly { .. }) => {
                let source = trace(&self.layout, session)?;
                let mut summary = self.open_for(scope, session, Right::Read)?.log.summary.clone();
                validate::settle_summary(&mut summary, source);
                Ok(summary.authority.unwrap_or_default())
            }
            written => written,
        }
    }

    /// Records a file-backed model that was specified on the local command line.
    pub fn grant_model(&mut self, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
        let grant = |authority: &mut Authority| authority.grant_model(model.to_owned());
        self.change_authority(scope, session, Right::Write, grant).map(|_| ())
    }

    fn change_authority(
        &mut self,
        scope: &Scope,
        session: &SessionId,
        right: Right,
        change: impl FnOnce(&mut Authority),
    ) -> Result<Authority> {
        let (durability, layout) = (self.options.durability, self.layout.clone());
        let session_log = self.open_for(scope, session, right)?;
        let Some(file) = session_log.disk.as_ref().map(|disk| Arc::clone(&disk.file)) else {
            let authority = session_log.log.summary.authority.get_or_insert_default();
            change(authority);
            return Ok(authority.clone());
        };
        let (path, handle) = (path_beside(&file.path), file.handle()?);
        let _locked = disk::lock(&handle, LockKind::Exclusive, &file.path)?;
        file.length_if_current()?.ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        let before = read(&path)?;
        match &before {
            Some(authority) => session_log.log.summary.authority = Some(authority.clone()),
            None => validate::settle_summary(&mut session_log.log.summary, trace(&layout, session)?),
        }
        let authority = session_log.log.summary.authority.get_or_insert_default();
        change(authority);
        let authority = authority.clone();
        if before.as_ref() != Some(&authority) {
            write(&path, &authority, durability)?;
        }
        let (summary, len) =
            (session_log.log.summary.clone(), session_log.disk.as_ref().map_or(0, |disk| disk.len));
        self.index.load(&self.layout)?;
        self.index.put(&file.stem, len, &summary);
        // A failure is harmless, because the index is a cache. The shared lock ensures that an erased
        // session does not reappear in the index.
        if let Ok(lock_file) = self.lock_file()
            && let Ok(Some(_locked)) = disk::try_lock(&lock_file, LockKind::Shared, &self.layout.lock())
        {
            let _ = self.index.save(&self.layout);
        }
        Ok(authority)
    }
}

/// Returns the origin of a session according to the audit log. A session whose creation is not in
/// the audit log was copied here from another store.
fn trace(layout: &Layout, session: &SessionId) -> Result<Source> {
    let lines = read_chain(layout)?.lines;
    let mut trace = OriginTrace::of(session.clone());
    while let Some(wanted) = trace.wanted().cloned() {
        trace.feed(lines.iter().filter(|line| line.session.as_ref() == Some(&wanted)));
    }
    Ok(if trace.has_begun() { trace.source() } else { Source::Imported })
}
