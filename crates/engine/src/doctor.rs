//! Read every log of a store and check its invariants: I1, I2, I13, readable bodies, existing targets,
//! summaries that equal the fold of the log, entries that match their hashes, and an unbroken audit chain. The store checks its internal
//! structures itself.

use std::collections::HashMap;

use sapwood_core::entry::proof::LogHead;
use sapwood_core::entry::{Body, Entry, SessionState, Stance};
use sapwood_core::port::store::{Finding, ListFilter, Repair};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::{EntryId, Scope, Seq};

use crate::verify::{HashCheck, SessionHead, Verification};
use crate::{Engine, EngineError, Result};

/// Sessions and audit lines per page.
const PAGE_ROWS: usize = 500;
/// Maximum number of findings reported per session; the first few are enough to locate the problem.
const FINDINGS_PER_SESSION_MAX: usize = 20;

/// The checks and findings of one doctor run.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Diagnosis {
    pub sessions: u64,
    pub entries: u64,
    pub audit_lines: u64,
    /// Entries from before entries had hashes.
    pub unproven: u64,
    pub findings: Vec<Finding>,
    /// The head of each session, if it was requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heads: Vec<SessionHead>,
}

/// What a doctor run does in addition to the checks.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    pub repair: Repair,
    /// Heads that were kept elsewhere, which some session must contain.
    pub from: Vec<LogHead>,
    /// Whether the diagnosis has the heads of all sessions.
    pub heads: bool,
}

/// Check every session that the caller may see, and the audit log if the caller sees all of it.
pub async fn diagnose(
    engine: &Engine,
    scope: &Scope,
    repair: Repair,
    progress: impl FnMut(&Diagnosis),
) -> Result<Diagnosis> {
    diagnose_with(engine, scope, DoctorOptions { repair, from: Vec::new(), heads: false }, progress).await
}

/// Like [`diagnose`], with options.
pub async fn diagnose_with(
    engine: &Engine,
    scope: &Scope,
    options: DoctorOptions,
    mut progress: impl FnMut(&Diagnosis),
) -> Result<Diagnosis> {
    let findings = engine.store.check(scope, options.repair).await?;
    let mut diagnosis = Diagnosis { findings, ..Diagnosis::default() };
    let mut hashes = HashCheck::new(options.from);
    let mut filter = ListFilter { limit: PAGE_ROWS, ..ListFilter::default() };
    loop {
        let page = engine.store.list(scope, &filter).await?;
        for summary in &page.items {
            examine(engine, scope, summary, &mut diagnosis).await?;
            hashes.verify_session(engine, scope, &summary.id).await?;
            diagnosis.sessions += 1;
            progress(&diagnosis);
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => break,
        }
    }
    add_hashes(&mut diagnosis, hashes.finish(), options.heads);
    // The chain can only be verified by a caller that sees all audit lines.
    if scope.reach == Reach::Tenant {
        examine_audit(engine, scope, &mut diagnosis).await?;
    }
    Ok(diagnosis)
}

fn add_hashes(diagnosis: &mut Diagnosis, verification: Verification, heads: bool) {
    diagnosis.unproven = verification.unproven;
    diagnosis.heads = if heads { verification.heads } else { Vec::new() };
    // A log that cannot be read was already reported.
    let is_new = |finding: &Finding| {
        finding.rule != "readable"
            || !diagnosis
                .findings
                .iter()
                .any(|known| known.rule == "readable" && known.place == finding.place)
    };
    let new: Vec<Finding> = verification.findings.into_iter().filter(is_new).collect();
    diagnosis.findings.extend(new);
}

async fn examine(engine: &Engine, scope: &Scope, summary: &Summary, diagnosis: &mut Diagnosis) -> Result<()> {
    let mut examination = Examination::of(summary);
    let visited =
        engine.log().each_entry(scope, &summary.id, Seq::ZERO, |entry| examination.check_entry(&entry)).await;
    match visited {
        Ok(()) => examination.finish(),
        Err(EngineError::Unreadable { source, .. }) => {
            examination.report("readable", format!("after seq {}: {source}", examination.seq));
        }
        Err(EngineError::Store(error)) => {
            examination.report("readable", format!("after seq {}: {error}", examination.seq));
        }
        Err(error) => return Err(error),
    }
    diagnosis.entries += u64::from(examination.seq.0);
    diagnosis.findings.append(&mut examination.findings);
    Ok(())
}

async fn examine_audit(engine: &Engine, scope: &Scope, diagnosis: &mut Diagnosis) -> Result<()> {
    let (mut after, mut hash) = (0, String::new());
    loop {
        let lines = engine.store.read_audit(scope, None, after, PAGE_ROWS).await?;
        for line in &lines {
            if line.number != after + 1 || line.hash != line.expected_hash(&hash) {
                let place = format!("audit line {}", line.number);
                let what = "its number or hash does not match the previous line".to_owned();
                diagnosis.findings.push(Finding { rule: "audit", place, what, repaired: false });
            }
            after = line.number;
            hash.clone_from(&line.hash);
        }
        diagnosis.audit_lines += lines.len() as u64;
        if lines.len() < PAGE_ROWS {
            return Ok(());
        }
    }
}

/// Checks one log incrementally.
struct Examination<'a> {
    stored: &'a Summary,
    folded: Summary,
    seq: Seq,
    last_id: Option<EntryId>,
    leaf: Option<Seq>,
    /// Number of messages on the path to each entry of the tree, by seq; zero for entries outside the tree.
    messages: Vec<u32>,
    in_tree: HashMap<EntryId, Seq>,
    findings: Vec<Finding>,
}

impl<'a> Examination<'a> {
    fn of(stored: &'a Summary) -> Self {
        Self {
            stored,
            folded: stored.unfolded(),
            seq: Seq::ZERO,
            last_id: None,
            leaf: None,
            messages: Vec::new(),
            in_tree: HashMap::new(),
            findings: Vec::new(),
        }
    }

    fn report(&mut self, rule: &'static str, what: String) {
        if self.findings.len() < FINDINGS_PER_SESSION_MAX {
            let place = format!("session {}", self.stored.id);
            self.findings.push(Finding { rule, place, what, repaired: false });
        }
    }

    fn check_entry(&mut self, entry: &Entry) {
        let meta = &entry.meta;
        if meta.seq != self.seq.next() {
            self.report("I1", format!("seq {} follows seq {}", meta.seq, self.seq));
        }
        if meta.parent.is_some_and(|parent| parent >= meta.seq) {
            self.report("I2", format!("seq {} has parent {:?}, which is not older", meta.seq, meta.parent));
        }
        if meta.parent != self.leaf {
            self.report(
                "I2",
                format!("seq {} has parent {:?}, but the leaf was {:?}", meta.seq, meta.parent, self.leaf),
            );
        }
        if self.last_id.is_some_and(|last| meta.id <= last) {
            self.report("I13", format!("the id of seq {} is not newer than the previous one", meta.seq));
        }
        self.check_targets(entry);
        self.advance(entry);
        if meta.seq.0 > self.stored.inherited {
            self.folded.apply(entry);
        } else if meta.kind.is_message() {
            self.folded.state = SessionState::Active;
        }
        self.seq = meta.seq;
        self.last_id = Some(meta.id);
    }

    fn check_targets(&mut self, entry: &Entry) {
        let target = match &entry.body {
            Body::Label(label) => Some(label.target),
            Body::LeafMoved(moved) => moved.to,
            // A compaction's first kept entry is always on its path, and a fork shares the whole path.
            Body::Compaction(compaction) => compaction.first_kept,
            _ => None,
        };
        if let Some(id) = target.filter(|id| !self.in_tree.contains_key(id)) {
            self.report("I2", format!("seq {} refers to entry {id}, which does not exist", entry.meta.seq));
        }
    }

    fn advance(&mut self, entry: &Entry) {
        let mut count = 0;
        match (&entry.body, entry.meta.kind.stance()) {
            (_, Stance::InTree) => {
                let parent_count = self.leaf.and_then(|leaf| self.messages.get(leaf.0 as usize - 1)).copied();
                count = parent_count.unwrap_or(0) + u32::from(entry.meta.kind.is_message());
                self.in_tree.insert(entry.meta.id, entry.meta.seq);
                self.leaf = Some(entry.meta.seq);
            }
            (Body::LeafMoved(moved), _) => self.leaf = moved.to.and_then(|id| self.in_tree.get(&id).copied()),
            _ => {}
        }
        self.messages.push(count);
    }

    fn finish(&mut self) {
        self.folded.head.leaf = self.leaf;
        let count = self.leaf.and_then(|leaf| self.messages.get(leaf.0 as usize - 1)).copied();
        self.folded.messages = count.unwrap_or(0);
        self.folded.head.seq = self.seq;
        if !self.stored.matches_fold(&self.folded) {
            self.report("cache", "the session's summary does not match its log".to_owned());
        }
    }
}
