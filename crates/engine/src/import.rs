//! Taking a session in: entries with their own ids, times and authors, in batches, on the ordinary append path.

use sapwood_core::entry::{Draft, MemberChanged};
use sapwood_core::port::store::{Append, AuditAction, AuditNote, Created, Expect, NewSession};
use sapwood_core::{Principal, Scope, Seq, SessionId};

use crate::{Engine, Result};

/// How many entries one append of an import carries.
pub const BATCH_ENTRIES: usize = 1_000;

/// A session that is being taken in.
pub struct Import {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    /// Where the log ends: the last entry that was there before, or that this import has written.
    head: Seq,
    pending: Vec<Draft>,
    pub added: u64,
}

impl Engine {
    /// Begins an import. A session that is there already is extended.
    pub async fn begin_import(&self, scope: &Scope, new: NewSession) -> Result<(Import, Created)> {
        let session = new.id.clone();
        let created = self.store.create(scope, new).await?;
        let head = self.store.summary(scope, &session).await?.head.seq;
        let import = Import {
            engine: self.clone(),
            scope: scope.clone(),
            session,
            head,
            pending: Vec::with_capacity(BATCH_ENTRIES),
            added: 0,
        };
        Ok((import, created))
    }
}

impl Import {
    pub async fn push(&mut self, draft: Draft) -> Result<()> {
        self.pending.push(draft);
        if self.pending.len() >= BATCH_ENTRIES {
            self.write().await?;
        }
        Ok(())
    }

    /// Writes what is left and says so in the audit. Whoever the session was shared with where it came from gets no access
    /// by that here: only its owner shares a session, and that is now the one who imports it.
    pub async fn finish(mut self) -> Result<u64> {
        self.write().await?;
        if self.added > 0 {
            self.take_memberships_back().await?;
        }
        if self.added > 0 {
            let detail = Some(format!("{} entries", self.added));
            let note = AuditNote { action: AuditAction::Import, session: Some(self.session.clone()), detail };
            self.engine.store.write_audit(&self.scope, note, self.engine.clock.now()).await?;
        }
        Ok(self.added)
    }

    async fn take_memberships_back(&self) -> Result<()> {
        let summary = self.engine.store.summary(&self.scope, &self.session).await?;
        let now = self.engine.clock.now();
        let revoke =
            |member: &Principal| Draft::new(now, MemberChanged { member: member.clone(), role: None });
        let drafts: Vec<Draft> = summary.members.keys().map(revoke).collect();
        if !drafts.is_empty() {
            self.engine.append(&self.scope, Append::new(self.session.clone(), now, drafts)).await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let drafts = std::mem::replace(&mut self.pending, Vec::with_capacity(BATCH_ENTRIES));
        self.added += drafts.len() as u64;
        let now = self.engine.clock.now();
        let expect = Expect::Head(self.head);
        let append = Append { expect, ..Append::new(self.session.clone(), now, drafts) };
        self.head = self.engine.append(&self.scope, append).await?.head.seq;
        Ok(())
    }
}
