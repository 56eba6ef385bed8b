//! Which part of a session this store wrote itself.
//!
//! History is data: an agent, a model, an open turn or a flow's state in a log records what happened, but grants
//! nothing. Only entries that this store's engine wrote, under a caller's verified rights, may decide what runs. The
//! store writes this record outside the log, so an import cannot write it and an export does not contain it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{Seq, SessionId};
use crate::port::audit::{AuditAction, AuditLine};
use crate::tree::Lookup;

/// Maximum number of ranges in a record. Beyond it, the two closest ranges are merged, and the entries between them
/// lose authority.
const RANGES_MAX: usize = 64;
/// Maximum number of file-backed models in a record.
pub const MODELS_MAX: usize = 64;
/// The prefix of the source id in a `fork` line of the audit log.
const FORKED_FROM: &str = "from ";

/// The origin of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Written by this store's engine for its caller.
    #[default]
    Own,
    /// Imported from a file or an upload.
    Imported,
}

/// A store's record of a session's origin, stored outside the session's log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authority {
    /// Imported parts of the log as inclusive ranges, in order. Seq 0 represents the session's creation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    imported: Vec<(u32, u32)>,
    /// File-backed models that the local command line allowed for this session.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    models: BTreeSet<String>,
}

// The hidden methods are for stores, and not part of the façade.
impl Authority {
    /// The record of a new session.
    pub fn of(source: Source) -> Self {
        match source {
            Source::Own => Self::default(),
            Source::Imported => Self { imported: vec![(0, 0)], ..Self::default() },
        }
    }

    /// The record of a session whose whole log, up to `head`, was imported.
    #[doc(hidden)]
    pub fn imported_up_to(head: Seq) -> Self {
        Self { imported: vec![(0, head.0)], ..Self::default() }
    }

    /// Whether this store wrote the entry. For seq 0: whether the session was created here.
    pub fn is_own(&self, seq: Seq) -> bool {
        !self.imported.iter().any(|(first, last)| (*first..=*last).contains(&seq.0))
    }

    /// The origin of the entry.
    pub fn source_of(&self, seq: Seq) -> Source {
        if self.is_own(seq) { Source::Own } else { Source::Imported }
    }

    /// Whether any part of the session was imported.
    pub fn has_imports(&self) -> bool {
        !self.imported.is_empty()
    }

    /// The last entry of the session's imported prefix; zero if there is none. All entries written by this store follow
    /// it.
    pub fn imported_prefix(&self) -> Seq {
        match self.imported.first() {
            Some((0 | 1, last)) => Seq(*last),
            _ => Seq::ZERO,
        }
    }

    /// Record that the entries from `first` to `last` were imported.
    #[doc(hidden)]
    pub fn add_imported(&mut self, first: Seq, last: Seq) {
        if last < first {
            return;
        }
        self.imported.push((first.0, last.0));
        self.imported.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(self.imported.len());
        for (first, last) in self.imported.drain(..) {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        self.imported = merged;
        while self.imported.len() > RANGES_MAX {
            self.merge_closest();
        }
    }

    fn merge_closest(&mut self) {
        let gap = |at: &usize| self.imported[at + 1].0 - self.imported[*at].1;
        let Some(closest) = (0..self.imported.len().saturating_sub(1)).min_by_key(gap) else { return };
        let (_, last) = self.imported.remove(closest + 1);
        self.imported[closest].1 = last;
    }

    /// Remove ranges, and parts of ranges, after the end of the log: they belong to imports that were
    /// recorded but never written. Returns whether the record changed.
    #[doc(hidden)]
    pub fn clip(&mut self, head: Seq) -> bool {
        let before = self.imported.clone();
        self.imported.retain(|(first, _)| *first <= head.0);
        if let Some((_, last)) = self.imported.last_mut() {
            *last = (*last).min(head.0);
        }
        self.imported != before
    }

    /// Whether the local command line allowed this file-backed model for the session.
    pub fn allows_model(&self, model: &str) -> bool {
        self.models.contains(model)
    }

    /// The file-backed models that the local command line allowed for the session.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(String::as_str)
    }

    /// Allow a file-backed model at the request of the local command line. A full record ignores new models.
    #[doc(hidden)]
    pub fn grant_model(&mut self, model: String) {
        if self.models.len() < MODELS_MAX {
            self.models.insert(model);
        }
    }

    /// The record of a fork that shares no entry: the origin of the session's creation and the allowed
    /// models.
    #[doc(hidden)]
    pub fn of_creation(&self) -> Self {
        let imported = if self.is_own(Seq::ZERO) { Vec::new() } else { vec![(0, 0)] };
        Self { imported, models: self.models.clone() }
    }

    /// The record of a fork that shares the path to `at`. A fork numbers shared entries by depth, so each imported
    /// range is mapped to a range of depths.
    #[doc(hidden)]
    pub fn forked<L: Lookup>(&self, at: Seq, log: &mut L) -> Result<Self, L::Error> {
        let mut forked = self.of_creation();
        for (first, last) in &self.imported {
            let before = depth_up_to(at, first.saturating_sub(1), log)?;
            let up_to = depth_up_to(at, *last, log)?;
            forked.add_imported(Seq(before + 1), Seq(up_to));
        }
        Ok(forked)
    }
}

/// The number of entries on the path to `from` with a seq of at most `last`, in O(log depth) steps.
fn depth_up_to<L: Lookup>(from: Seq, last: u32, log: &mut L) -> Result<u32, L::Error> {
    let mut at = from;
    loop {
        if at.0 <= log.inherited() {
            // Inherited entries are numbered by their depth.
            return Ok(at.0.min(last));
        }
        let node = log.node(at)?;
        if node.seq.0 <= last {
            return Ok(node.links.depth);
        }
        let is_far = node.links.jump != node.seq && node.links.jump.0 > last;
        at = match node.parent {
            _ if is_far => node.links.jump,
            Some(parent) => parent,
            None => return Ok(0),
        };
    }
}

/// Determines the origin of a session that was written before stores had these records. Sessions with an `import` line
/// in the audit log, and their forks, count as imported; all others count as written here. The caller passes in the
/// audit lines about the session that [`OriginTrace::wanted`] returns, until it returns `None`.
#[derive(Debug)]
pub struct OriginTrace {
    wanted: Option<SessionId>,
    seen: BTreeSet<SessionId>,
    source: Source,
    has_begun: bool,
}

impl OriginTrace {
    pub fn of(session: SessionId) -> Self {
        Self {
            seen: BTreeSet::from([session.clone()]),
            wanted: Some(session),
            source: Source::Own,
            has_begun: false,
        }
    }

    /// The session whose audit lines are needed next.
    pub fn wanted(&self) -> Option<&SessionId> {
        self.wanted.as_ref()
    }

    /// Whether a line is relevant to a session's origin. The caller may skip other lines.
    pub fn is_about_origin(line: &AuditLine) -> bool {
        use AuditAction::{Create, Erase, Fork, Import};
        matches!(line.action, Create | Import | Fork | Erase)
    }

    /// Process the audit lines about the wanted session.
    pub fn feed<'a>(&mut self, lines: impl IntoIterator<Item = &'a AuditLine>) {
        let is_first = self.seen.len() == 1;
        self.wanted = None;
        for line in lines {
            self.has_begun |= matches!(line.action, AuditAction::Create | AuditAction::Fork);
            match line.action {
                AuditAction::Import => self.source = Source::Imported,
                AuditAction::Fork => self.wanted = line.detail.as_deref().and_then(source_of_fork),
                // An erased session had the same id but is unrelated to the current one. A fork's source may have been
                // erased after it was forked.
                AuditAction::Erase if is_first => (self.source, self.wanted) = (Source::Own, None),
                _ => {}
            }
        }
        let was_seen = |wanted: &mut SessionId| !self.seen.insert(wanted.clone());
        self.wanted.take_if(was_seen);
        self.wanted.take_if(|_| self.source == Source::Imported);
    }

    /// Whether the audit log contains the session's creation.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The session's origin. Final once [`OriginTrace::wanted`] is `None`.
    pub fn source(&self) -> Source {
        self.source
    }
}

fn source_of_fork(detail: &str) -> Option<SessionId> {
    detail.strip_prefix(FORKED_FROM)?.parse().ok()
}

/// The audit detail for a fork of this session.
pub fn fork_detail(source: &SessionId) -> String {
    format!("{FORKED_FROM}{source}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimestampMs;
    use crate::port::audit::AuditNote;
    use crate::scope::Principal;

    fn with(ranges: &[(u32, u32)]) -> Authority {
        let mut authority = Authority::default();
        for (first, last) in ranges {
            authority.add_imported(Seq(*first), Seq(*last));
        }
        authority
    }

    #[test]
    fn ranges_are_merged_where_they_touch() {
        assert_eq!(with(&[(0, 0), (1, 4), (9, 9), (5, 6)]).imported, [(0, 6), (9, 9)]);
        assert_eq!(with(&[(3, 2)]).imported, []);
        let authority = with(&[(0, 3), (7, 8)]);
        let own: Vec<u32> = (0..10).filter(|seq| authority.is_own(Seq(*seq))).collect();
        assert_eq!(own, [4, 5, 6, 9]);
        assert_eq!((authority.imported_prefix(), with(&[(7, 8)]).imported_prefix()), (Seq(3), Seq::ZERO));
    }

    #[test]
    fn too_many_ranges_lose_authority_and_never_gain_it() {
        let many: Vec<(u32, u32)> = (0..200).map(|at| (at * 3, at * 3)).collect();
        let authority = with(&many);
        assert!(authority.imported.len() <= RANGES_MAX);
        assert!(many.iter().all(|(seq, _)| !authority.is_own(Seq(*seq))));
    }

    #[test]
    fn ranges_that_were_never_written_are_removed() {
        let mut authority = with(&[(0, 3), (7, 8), (12, 20)]);
        assert!(authority.clip(Seq(7)));
        assert_eq!(authority.imported, [(0, 3), (7, 7)]);
        assert!(!authority.clip(Seq(7)));
    }

    #[test]
    fn a_record_round_trips() {
        let mut authority = with(&[(0, 3)]);
        authority.grant_model("scripted:a.toml".to_owned());
        let json = serde_json::to_string(&authority).unwrap();
        assert_eq!(serde_json::from_str::<Authority>(&json).unwrap(), authority);
        assert_eq!(serde_json::to_string(&Authority::default()).unwrap(), "{}");
    }

    fn lines(notes: &[(AuditAction, &str)]) -> Vec<AuditLine> {
        let line = |(action, detail): &(AuditAction, &str)| {
            let note = AuditNote { action: *action, session: None, detail: Some((*detail).to_owned()) };
            AuditLine::chained(1, TimestampMs(0), Principal::System, note, "")
        };
        notes.iter().map(line).collect()
    }

    #[test]
    fn the_audit_distinguishes_imports_and_their_forks_from_own_sessions() {
        let mut trace = OriginTrace::of("c".parse().unwrap());
        trace.feed(&lines(&[(AuditAction::Fork, "from b"), (AuditAction::Edit, "reset")]));
        assert_eq!(trace.wanted().map(SessionId::as_str), Some("b"));
        trace.feed(&lines(&[(AuditAction::Create, ""), (AuditAction::Import, "from entry 1 on")]));
        assert_eq!((trace.wanted(), trace.source()), (None, Source::Imported));
        let mut own = OriginTrace::of("a".parse().unwrap());
        own.feed(&lines(&[(AuditAction::Create, "")]));
        assert_eq!((own.wanted(), own.source()), (None, Source::Own));
        let mut cycle = OriginTrace::of("a".parse().unwrap());
        cycle.feed(&lines(&[(AuditAction::Fork, "from a")]));
        assert_eq!(cycle.wanted(), None);
    }
}
