//! Converts steps to drafts. The log only supports "append after the leaf" and "move the leaf", so a `leaf_moved` is
//! inserted before a step with another parent. Ids ascend (I13) and end in the record's [`RecordKey`], which
//! identifies records that the log already has. Therefore a source that grew extends the session, a source that was
//! rewound creates a branch, and an unchanged source adds nothing.
//!
//! Memory: about 25 bytes per entry, about 20 per record without an entry ([`super::keys`]), and a little per
//! change of instructions. No other state grows. The drafts are valid for any sequence of steps.

use std::collections::{HashMap, HashSet};

use sapwood_core::entry::{
    ContextChanged, EngineRecord, Label, LeafMoved, SessionNamed, Stance, Usage, UsageReported, codec,
};
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{Body, Draft, EntryId, Kind, Principal, TimestampMs};

use super::blocks::part_bytes;
use super::entry_table::RowIndex;
use super::keys::{KeyLookup, TreePosition};
use super::late_usage::{take_usage, uncounted_usage, usage_key};
use super::log_index::LogIndex;
use super::revisions::{Comparison, LoggedVersion, Versions};
use super::steps::{
    Author, EarlierEntries, ImportStep, PathKind, RecordKey, RecordRef, StepAction, StepParent,
};
use super::{PROBLEMS_MAX, Problem, ProblemKind};

/// A body with at most this much text fits into an entry. A larger body is encoded to measure it.
const SAFE_CONTENT_BYTES: usize = BODY_BYTES_MAX / 4;
struct NewEntry {
    key: RecordKey,
    body: Body,
    by: Author,
    refs: Vec<RecordRef>,
    earlier: EarlierEntries,
}

/// A response of which the log has a shorter version. Its results are added again after the longer version.
struct ExtendedResponse {
    response: RecordKey,
    /// The source's key of the last result.
    last: RecordKey,
    /// The position of the last result in the log.
    position: TreePosition,
}

#[derive(Default)]
pub struct Reconciler {
    agent: Option<Principal>,
    log: LogIndex,
    versions: Versions,
    /// For each entry that the log had before this run: whether the source contains its record.
    in_source: Vec<bool>,
    /// Records whose usage another session counts.
    counted_elsewhere: HashSet<RecordKey, foldhash::fast::RandomState>,
    /// The leaf of the log.
    leaf: TreePosition,
    /// The leaf of the source.
    source_leaf: TreePosition,
    /// The leaf before this run, if the log had entries.
    initial_leaf: Option<TreePosition>,
    /// The record that moved the source's leaf back, if any.
    rewound: Option<RecordKey>,
    extended: Option<ExtendedResponse>,
    /// Whether an import was the last to move the log's leaf. Known only if bodies were registered.
    is_leaf_imported: bool,
    /// Whether the source's leaf is authoritative, even without a recorded move.
    syncs_leaf: bool,
    /// The latest title from the source.
    title: Option<String>,
    /// The latest instructions from an import.
    system: Option<(RowIndex, String)>,
    /// Instructions that an earlier import added after an entry. New children of the entry are attached to these
    /// instructions.
    instructions_after: HashMap<RowIndex, RowIndex>,
    at: TimestampMs,
    moves: u64,
    given_up: bool,
    /// Number of problems in steps, not counting read errors.
    reported: usize,
    pub added: u64,
    pub skipped: u64,
}

impl Reconciler {
    /// Create a reconciler. `agent` is the principal for messages of the source's agent.
    pub fn new(agent: Option<Principal>) -> Self {
        Self { agent, ..Self::default() }
    }

    /// Register an entry of the log, in seq order. `parent` is its parent's seq; seqs begin with 1.
    pub fn register(&mut self, id: EntryId, parent: Option<u32>, stance: Stance) {
        self.log.push(id, self.log.position_of_seq(parent), stance);
        self.in_source.push(false);
    }

    /// Register the body of the last registered entry. Needed for sources that rewrite messages.
    pub fn register_body(&mut self, body: &Body) {
        let Some(row) = self.log.rows.len().checked_sub(1).map(|row| row as RowIndex) else { return };
        self.versions.register(row, body);
        let is_of_source = self.log.is_of_source(row);
        match body {
            Body::SessionNamed(named) if is_of_source => self.title = Some(named.title.clone()),
            Body::LeafMoved(_) => self.is_leaf_imported = is_of_source,
            Body::ContextChanged(changed) if is_of_source => {
                self.is_leaf_imported = true;
                self.register_system(row, changed);
            }
            _ if self.log.rows.stance(row) == Stance::InTree => self.is_leaf_imported = is_of_source,
            _ => {}
        }
    }

    fn register_system(&mut self, row: RowIndex, changed: &ContextChanged) {
        let Some(system) = &changed.system else { return };
        self.system = Some((row, system.clone()));
        if let Some(before) = self.log.rows.parent(row) {
            self.instructions_after.insert(before, row);
        }
    }

    /// Register an entry of another session that may begin with the same records. Its usage is not counted
    /// again.
    pub fn register_elsewhere(&mut self, id: EntryId, body: &Body) {
        let key = RecordKey::of_id(id);
        let counts = match body {
            Body::AssistantMessage(answer) => answer.usage.is_some(),
            Body::UsageReported(_) => true,
            _ => false,
        };
        if counts && key.is_of_source() {
            self.counted_elsewhere.insert(key);
        }
    }

    /// Set the start time of the session, used for steps before the first timestamp.
    pub fn begin_at(&mut self, at: TimestampMs) {
        self.at = at;
    }

    /// Set the leaf of the log, after all entries were registered.
    pub fn register_leaf(&mut self, seq: Option<u32>) {
        self.leaf = self.log.position_of_seq(seq);
        self.initial_leaf = Some(self.leaf);
    }

    /// Append the drafts of a step to `drafts`.
    pub fn take(&mut self, step: ImportStep, drafts: &mut Vec<Draft>, problems: &mut Vec<Problem>) {
        if self.given_up {
            return;
        }
        if self.log.is_full() || self.has_too_many_problems(step.line, problems) {
            self.given_up = true;
            problems.push(Problem { line: step.line, what: ProblemKind::GivenUp });
            return;
        }
        let before = problems.len();
        self.take_step(step, drafts, problems);
        self.reported += problems.len() - before;
    }

    /// Whether there are too many problems before this line. The reader may already have reported later lines, which do
    /// not count.
    fn has_too_many_problems(&self, line: u64, problems: &[Problem]) -> bool {
        let is_near_limit = |count: usize| count + 2 >= PROBLEMS_MAX;
        let before = || problems.iter().filter(|problem| problem.line < line).count();
        is_near_limit(self.reported) || is_near_limit(problems.len()) && is_near_limit(before())
    }

    fn take_step(&mut self, step: ImportStep, drafts: &mut Vec<Draft>, problems: &mut Vec<Problem>) {
        self.at = step.at.unwrap_or(self.at);
        let mut report = |what| problems.push(Problem { line: step.line, what });
        match step.action {
            StepAction::Alias { under, path } => {
                let position = self.resolve_parent(under, &mut report);
                // A record without an entry maps to the position of its parent.
                self.log.put_alias(step.key, position);
                self.set_source_leaf(path, position);
            }
            StepAction::Rewind(under) => {
                self.source_leaf = self.resolve_parent(under, &mut report);
                self.rewound = Some(step.key);
            }
            StepAction::SyncLeaf => self.syncs_leaf = true,
            StepAction::Title(title) => self.take_title(step.key, title, drafts),
            StepAction::System(system) => self.take_system(step.key, system, &mut report, drafts),
            StepAction::Opening(body) => {
                let is_late = self.log.rows.len() > 0 && !self.log.has(step.key);
                let new_entry = NewEntry {
                    key: step.key,
                    body,
                    by: Author::Agent,
                    refs: Vec::new(),
                    earlier: EarlierEntries::default(),
                };
                let position =
                    if is_late { None } else { self.take_entry(new_entry, None, &mut report, drafts) };
                if is_late {
                    self.log.put_alias(step.key, None);
                }
                self.set_source_leaf(PathKind::Main, position);
            }
            StepAction::Note(body) => {
                if self.is_new(step.key, &mut report) {
                    self.push_draft(step.key, body, Stance::OutsideTree, None, drafts);
                }
            }
            StepAction::Label { target, text } => match self.log.entry(target) {
                None => report(ProblemKind::UnknownSource { kind: Kind::Label }),
                Some(target) => {
                    if self.is_new(step.key, &mut report) {
                        self.push_draft(
                            step.key,
                            Label { target, text }.into(),
                            Stance::OutsideTree,
                            None,
                            drafts,
                        );
                    }
                }
            },
            StepAction::Add { body, under, by, path, refs, earlier } => {
                let new_entry = NewEntry { key: step.key, body, by, refs, earlier };
                let position = self.resolve_parent(under, &mut report);
                let position = self.take_entry(new_entry, position, &mut report, drafts);
                self.set_source_leaf(path, position);
            }
            StepAction::Version { body, under, by, path, refs } => {
                let refs = refs.map(RecordRef::Entry).into_iter().collect();
                let new_entry =
                    NewEntry { key: step.key, body, by, refs, earlier: EarlierEntries::default() };
                let position = self.resolve_parent(under, &mut report);
                let row = self.take_version(new_entry, position, &mut report, drafts);
                // Children of the message are attached to its latest version.
                self.log.put_alias(step.key, row);
                self.set_source_leaf(path, row);
            }
        }
    }

    /// Move the leaf to the source's leaf. If the user continued the session, restore the user's leaf instead.
    pub fn finish(&mut self, drafts: &mut Vec<Draft>) {
        let rewound = self.rewound.filter(|key| !self.log.has(*key));
        if self.added == 0 && rewound.is_none() && !self.is_leaf_moved() {
            return;
        }
        let was_continued = |position: &TreePosition| position.is_some_and(|row| !self.log.is_of_source(row));
        match (self.initial_leaf.filter(was_continued), rewound) {
            (Some(own), _) => self.move_leaf(own, drafts),
            (None, Some(_)) if self.added == 0 && self.leaf == self.source_leaf => {}
            (None, Some(key)) => self.move_leaf_as(key, self.source_leaf, drafts),
            (None, None) => self.move_leaf(self.source_leaf, drafts),
        }
    }

    /// Whether the source moved its leaf without recording the move. A source whose leaf is an ancestor of the
    /// log's leaf, without a rewind, is an older copy.
    fn is_leaf_moved(&mut self) -> bool {
        let may_move = self.syncs_leaf && self.is_leaf_imported && self.leaf != self.source_leaf;
        may_move && (self.rewound.is_some() || !self.log.is_on_path(self.source_leaf, self.leaf))
    }

    /// Add a title if it differs from the current one, even if it was used before.
    fn take_title(&mut self, key: RecordKey, title: String, drafts: &mut Vec<Draft>) {
        if self.title.as_ref() == Some(&title) {
            self.skipped += 1;
            return;
        }
        let fresh = self.log.fresh_key(key);
        self.title = Some(title.clone());
        self.push_draft(fresh, SessionNamed { title }.into(), Stance::OutsideTree, None, drafts);
    }

    /// Add instructions after the leaf if they differ from the current ones, even if they were used before.
    fn take_system(
        &mut self,
        key: RecordKey,
        system: String,
        report: &mut impl FnMut(ProblemKind),
        drafts: &mut Vec<Draft>,
    ) {
        self.source_leaf = self.skip_instructions(self.source_leaf);
        let same = self.system.as_ref().filter(|(_, current)| *current == system).map(|(row, _)| *row);
        if same.is_some_and(|row| self.log.is_on_path(Some(row), self.source_leaf)) {
            return;
        }
        let body = ContextChanged { system: Some(system), ..ContextChanged::default() }.into();
        let (key, earlier) = (self.log.fresh_key(key), EarlierEntries::default());
        let new_entry = NewEntry { key, body, by: Author::Agent, refs: Vec::new(), earlier };
        let row = self.append_entry(new_entry, self.source_leaf, report, drafts);
        self.set_source_leaf(PathKind::Main, row);
    }

    /// Return the position after any instructions that imports added after an entry.
    fn skip_instructions(&self, position: TreePosition) -> TreePosition {
        let mut position = position?;
        while let Some(row) = self.instructions_after.get(&position) {
            position = *row;
        }
        Some(position)
    }

    /// Add an entry to the tree, unless the log has it. Returns its position.
    fn take_entry(
        &mut self,
        mut new_entry: NewEntry,
        position: TreePosition,
        report: &mut impl FnMut(ProblemKind),
        drafts: &mut Vec<Draft>,
    ) -> TreePosition {
        let source_key = new_entry.key;
        let shorter = new_entry
            .earlier
            .shorter
            .iter()
            .rev()
            .find(|(key, _)| self.log.has(*key))
            .map(|(_, usage)| *usage);
        let answered = self.extended.take().filter(|own| new_entry.earlier.answers == Some(own.response));
        if let Some(extended) = &answered {
            new_entry.key = RecordKey::after(extended.response, &source_key.bits());
        }
        let same = new_entry.earlier.same.filter(|same| self.log.has(*same) && !self.log.has(new_entry.key));
        let key = new_entry.key;
        let position = match self.find_existing(same.unwrap_or(key), report) {
            Some(known) if same.is_some() => self.take_late(new_entry, known, drafts),
            Some(known) => known,
            None => self.take_new(new_entry, position, shorter, report, drafts),
        };
        self.extended = match answered {
            Some(extended) => Some(ExtendedResponse { last: source_key, position, ..extended }),
            None => shorter.map(|_| ExtendedResponse { response: key, last: key, position }),
        };
        position
    }

    /// Add the usage of an entry that was imported before its usage was known.
    fn take_late(
        &mut self,
        mut new_entry: NewEntry,
        known: TreePosition,
        drafts: &mut Vec<Draft>,
    ) -> TreePosition {
        self.log.put_alias(new_entry.key, known);
        let note = usage_key(new_entry.key);
        let is_counted = new_entry.earlier.counted.iter().chain([&note]).any(|key| self.log.has(*key));
        if let Some(by) = take_usage(&mut new_entry.body).filter(|_| !is_counted) {
            self.push_draft(note, UsageReported::of(&by).into(), Stance::OutsideTree, None, drafts);
        }
        known
    }

    /// Add a new entry. `shorter` is the usage of its shorter version in the log; only the difference is
    /// counted.
    fn take_new(
        &mut self,
        mut new_entry: NewEntry,
        position: TreePosition,
        shorter: Option<Option<Usage>>,
        report: &mut impl FnMut(ProblemKind),
        drafts: &mut Vec<Draft>,
    ) -> TreePosition {
        let note = usage_key(new_entry.key);
        let mut counted = new_entry.earlier.counted.iter();
        if counted.any(|key| self.log.has(*key))
            || [new_entry.key, note].iter().any(|key| self.counted_elsewhere.contains(key))
        {
            take_usage(&mut new_entry.body);
        }
        let shorter = shorter.or_else(|| self.counted_before(&new_entry.earlier));
        let additional = shorter.and_then(|usage| uncounted_usage(take_usage(&mut new_entry.body)?, usage));
        let row = self.append_entry(new_entry, position, report, drafts);
        if let Some(by) = additional {
            self.push_draft(note, UsageReported::of(&by).into(), Stance::OutsideTree, None, drafts);
        }
        row
    }

    /// Return the part of a new entry's usage that was already counted, either with the entry that it continues or in
    /// another session.
    fn counted_before(&self, earlier: &EarlierEntries) -> Option<Option<Usage>> {
        if earlier.continues {
            return Some(Some(Usage::default()));
        }
        let mut shorter = earlier.shorter.iter().rev();
        shorter.find(|(key, _)| self.counted_elsewhere.contains(key)).map(|(_, usage)| *usage)
    }

    fn append_entry(
        &mut self,
        new_entry: NewEntry,
        position: TreePosition,
        report: &mut impl FnMut(ProblemKind),
        drafts: &mut Vec<Draft>,
    ) -> TreePosition {
        let NewEntry { key, mut body, by, refs, .. } = new_entry;
        if content_bytes(&body) > SAFE_CONTENT_BYTES && codec::encode(&body).len() > BODY_BYTES_MAX {
            report(ProblemKind::TooLong);
            self.log.put_alias(key, position);
            return position;
        }
        let target = refs.into_iter().find(|target| self.log.resolves(*target));
        match &mut body {
            Body::Compaction(compaction) => {
                let kept = target.and_then(|target| self.log.first_kept(target, position));
                compaction.first_kept = kept.map(|row| self.log.rows.id(row));
            }
            Body::BranchSummary(summary) => {
                summary.from = target.and_then(|target| self.log.entry(target.key()))
            }
            _ => {}
        }
        self.move_leaf(position, drafts);
        let by = match by {
            Author::Caller => None,
            Author::Agent => self.agent.clone(),
        };
        let system = match &body {
            Body::ContextChanged(changed) => changed.system.clone(),
            _ => None,
        };
        let row = self.push_draft(key, body, Stance::InTree, by, drafts);
        self.system = system.map(|system| (row, system)).or(self.system.take());
        self.leaf = Some(row);
        self.leaf
    }

    /// Add a message that may have other versions in the log.
    fn take_version(
        &mut self,
        mut new_entry: NewEntry,
        position: TreePosition,
        report: &mut impl FnMut(ProblemKind),
        drafts: &mut Vec<Draft>,
    ) -> TreePosition {
        let message = new_entry.key;
        let log = &self.log;
        let entry = |key| match log.find(key) {
            Some(KeyLookup::Entry(row)) => Some(row),
            Some(KeyLookup::Alias(_)) | None => None,
        };
        let version = |number| {
            let row = entry(message.part(number))?;
            Some(LoggedVersion {
                row,
                parent: log.rows.parent(row),
                usage_row: entry(usage_key(message.part(number))),
            })
        };
        let late = |number: usize| entry(usage_key(message).part(number));
        match self.versions.compare(message, position, &mut new_entry.body, version, late) {
            Comparison::Known { row, late } => {
                if let Some((number, by)) = late {
                    let note = usage_key(message).part(number);
                    self.push_draft(note, UsageReported::of(&by).into(), Stance::OutsideTree, None, drafts);
                }
                if let Some(is_in_source) =
                    self.in_source.get_mut(row as usize).filter(|is_in_source| !**is_in_source)
                {
                    *is_in_source = true;
                    self.skipped += 1;
                }
                Some(row)
            }
            Comparison::New { number, content_hash, additional } => {
                new_entry.key = message.part(number);
                let note = usage_key(new_entry.key);
                let row = self.append_entry(new_entry, position, report, drafts);
                if row == position {
                    return position;
                }
                self.versions.record_version(message, position, content_hash, row);
                if let Some(by) = additional {
                    self.push_draft(note, UsageReported::of(&by).into(), Stance::OutsideTree, None, drafts);
                }
                row
            }
        }
    }

    fn set_source_leaf(&mut self, path: PathKind, position: TreePosition) {
        if path == PathKind::Main {
            self.source_leaf = position;
            self.rewound = None;
        }
    }

    fn is_new(&mut self, key: RecordKey, report: &mut impl FnMut(ProblemKind)) -> bool {
        self.find_existing(key, report).is_none()
    }

    /// Return the position of a record that the log has. A record that the source repeats is reported.
    fn find_existing(
        &mut self,
        key: RecordKey,
        report: &mut impl FnMut(ProblemKind),
    ) -> Option<TreePosition> {
        // Ignore an alias: another record referred to this record before it was read.
        let Some(KeyLookup::Entry(row)) = self.log.find(key) else { return None };
        match self.in_source.get_mut(row as usize) {
            Some(is_in_source) if !*is_in_source => {
                *is_in_source = true;
                self.skipped += 1;
            }
            _ => report(ProblemKind::DuplicateRecord),
        }
        Some(self.log.position_of(KeyLookup::Entry(row)))
    }

    /// Return the position of a step's parent. An unknown parent is reported.
    fn resolve_parent(&mut self, under: StepParent, report: &mut impl FnMut(ProblemKind)) -> TreePosition {
        match under {
            StepParent::Leaf => self.source_leaf,
            StepParent::Root => None,
            StepParent::RecordKey(key)
                if self.extended.as_ref().is_some_and(|extended| extended.last == key) =>
            {
                self.extended.as_ref().and_then(|extended| extended.position)
            }
            StepParent::RecordKey(key) => match self.log.find(key) {
                Some(lookup) => self.skip_instructions(self.log.position_of(lookup)),
                None => {
                    report(ProblemKind::ParentNotFound);
                    let position = self.source_leaf;
                    self.log.put_alias(key, position);
                    position
                }
            },
        }
    }

    fn move_leaf(&mut self, to: TreePosition, drafts: &mut Vec<Draft>) {
        if to == self.leaf {
            return;
        }
        self.moves += 1;
        let target = to.map(|row| self.log.rows.id(row));
        let seed = format!("leaf_moved {} {target:?} {:?}", self.moves, self.log.rows.last_id());
        self.move_leaf_as(RecordKey::of(&seed), to, drafts);
    }

    fn move_leaf_as(&mut self, key: RecordKey, to: TreePosition, drafts: &mut Vec<Draft>) {
        let target = to.map(|row| self.log.rows.id(row));
        self.push_draft(key, LeafMoved { to: target }.into(), Stance::OutsideTree, None, drafts);
        self.leaf = to;
    }

    fn push_draft(
        &mut self,
        key: RecordKey,
        body: Body,
        stance: Stance,
        by: Option<Principal>,
        drafts: &mut Vec<Draft>,
    ) -> RowIndex {
        let id = self.log.next_id(key, self.at);
        self.added += 1;
        drafts.push(Draft { id: Some(id), at: self.at, by, turn: None, body });
        self.log.push(id, self.leaf, stance)
    }
}

fn content_bytes(body: &Body) -> usize {
    let of_parts: usize = body.parts().iter().map(part_bytes).sum();
    of_parts
        + match body {
            Body::CustomInfo(info) => info.data.get().len(),
            Body::CustomMessage(message) => message.details.as_ref().map_or(0, |details| details.get().len()),
            Body::Compaction(compaction) => compaction.summary.as_ref().map_or(0, String::len),
            Body::BranchSummary(summary) => summary.summary.len(),
            Body::SystemNote(note) => note.text.len(),
            Body::ContextChanged(changed) => changed.system.as_ref().map_or(0, String::len),
            _ => 0,
        }
}
