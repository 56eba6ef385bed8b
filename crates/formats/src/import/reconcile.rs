//! Turns steps into drafts. The log only supports "append after the leaf" and "move the leaf", so a step with
//! another parent gets a `leaf_moved` before it. Ids ascend (I13) and end in the record's [`RecordKey`], which
//! identifies records that the log already has. So a source that grew extends the session, a source that was
//! rewound creates a branch, and the same file adds nothing.
//!
//! Memory: about 25 bytes per entry, about 20 per record without an entry ([`super::keys`]), and a little per
//! change of instructions. No other state grows. The drafts are valid for any sequence of steps.

use std::collections::{HashMap, HashSet};

use sapwood_core::entry::{ContextChanged, Label, LeafMoved, SessionNamed, Stance, Usage, WrittenBy, codec};
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::project::usage::{USAGE_INFO, usage_note};
use sapwood_core::{Body, Draft, EntryId, Kind, Principal, TimestampMs};

use super::blocks::part_bytes;
use super::entry_table::{ENTRIES_MAX, Index, Rows};
use super::keys::{KeySlot, Keys, Met, STAND_INS_MAX};
use super::revisions::{Meeting, Version, Versions};
use super::steps::{Act, By, Earlier, ImportStep, Name, Path, RecordKey, Under, believable, usage_beyond};
use super::{PROBLEMS_MAX, Problem, Trouble};

/// Maximum number of steps when walking up paths, in total. Only a malicious file needs more.
const WALK_STEPS_MAX: u64 = 1 << 30;
/// A body whose texts are larger than this is measured exactly.
const WEIGHT_BYTES_SURE: usize = BODY_BYTES_MAX / 4;
/// The latest time that an id can encode, minus a reserve for increments.
const ID_MS_MAX: i64 = (1 << 48) - (1 << 32);
/// The part number of the key for late usage of a response.
const USAGE_PART: usize = usize::MAX;

/// Return the key for usage that became known after its response was imported.
pub(super) fn usage_key(response: RecordKey) -> RecordKey {
    response.part(USAGE_PART)
}

/// An entry to add to the tree.
struct Add {
    key: RecordKey,
    body: Body,
    by: By,
    names: Vec<Name>,
    earlier: Earlier,
}

/// A response with a shorter version in the log. Its results are added again after the longer version.
struct Regrown {
    response: RecordKey,
    /// The source's key of the last result, and its current position.
    last: RecordKey,
    place: KeySlot,
}

pub struct Reconciler {
    agent: Option<Principal>,
    rows: Rows,
    keys: Keys,
    versions: Versions,
    /// For each entry that the log had before this run: whether the source contains its record.
    named: Vec<bool>,
    /// Records whose usage another session counts.
    elsewhere: HashSet<RecordKey, foldhash::fast::RandomState>,
    last: Option<EntryId>,
    /// The leaf of the log.
    leaf: KeySlot,
    /// The leaf of the source.
    source_leaf: KeySlot,
    /// The leaf before this run, if the session was continued after the import.
    own_leaf: Option<KeySlot>,
    /// The record that moved the source's leaf back, if any.
    rewound: Option<RecordKey>,
    regrown: Option<Regrown>,
    /// Whether an import last moved the log's leaf. Known only for sources whose bodies were read.
    is_leaf_imported: bool,
    /// Whether the source's leaf is authoritative, even without a recorded move.
    stands: bool,
    /// The latest title from the source.
    title: Option<String>,
    /// The latest instructions from an import.
    system: Option<(Index, String)>,
    /// Instructions that an earlier import added after an entry. New children of the entry are attached to
    /// them.
    set_behind: HashMap<Index, Index>,
    at: TimestampMs,
    walked: u64,
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
        Self {
            agent,
            rows: Rows::default(),
            keys: Keys::default(),
            versions: Versions::default(),
            named: Vec::new(),
            elsewhere: HashSet::default(),
            last: None,
            leaf: None,
            source_leaf: None,
            own_leaf: None,
            rewound: None,
            regrown: None,
            is_leaf_imported: false,
            stands: false,
            title: None,
            system: None,
            set_behind: HashMap::new(),
            at: TimestampMs::default(),
            walked: 0,
            moves: 0,
            given_up: false,
            reported: 0,
            added: 0,
            skipped: 0,
        }
    }

    /// Register an entry of the log, in seq order. `parent` is its parent's seq; seqs begin with 1.
    pub fn know(&mut self, id: EntryId, parent: Option<u32>, stance: Stance) {
        let parent =
            parent.and_then(|seq| seq.checked_sub(1)).filter(|row| (*row as usize) < self.rows.len());
        self.push_row(id, parent, stance);
        self.named.push(false);
    }

    /// Register the body of the last registered entry. Needed for sources that rewrite messages.
    pub fn know_body(&mut self, body: &Body) {
        let Some(row) = self.rows.len().checked_sub(1).map(|row| row as Index) else { return };
        self.versions.know(row, body);
        let is_of_source = self.is_of_source(row);
        match body {
            Body::SessionNamed(named) if is_of_source => self.title = Some(named.title.clone()),
            Body::LeafMoved(_) => self.is_leaf_imported = is_of_source,
            Body::ContextChanged(changed) if is_of_source => {
                self.is_leaf_imported = true;
                self.know_system(row, changed);
            }
            _ if self.rows.stance(row) == Stance::InTree => self.is_leaf_imported = is_of_source,
            _ => {}
        }
    }

    fn know_system(&mut self, row: Index, changed: &ContextChanged) {
        let Some(system) = &changed.system else { return };
        self.system = Some((row, system.clone()));
        if let Some(before) = self.rows.parent(row) {
            self.set_behind.insert(before, row);
        }
    }

    /// Register an entry of another session that may begin with the same records. Its usage is not counted
    /// again.
    pub fn know_elsewhere(&mut self, id: EntryId, body: &Body) {
        let key = RecordKey::of_id(id);
        let counts = match body {
            Body::AssistantMessage(answer) => answer.usage.is_some(),
            Body::CustomInfo(info) => info.custom_type == USAGE_INFO,
            _ => false,
        };
        if counts && key.is_of_source() {
            self.elsewhere.insert(key);
        }
    }

    /// Set the start time of the session, used for steps before the first timestamp.
    pub fn begin_at(&mut self, at: TimestampMs) {
        self.at = at;
    }

    /// Set the leaf of the log, after all entries were registered.
    pub fn know_leaf(&mut self, seq: Option<u32>) {
        self.leaf = seq.and_then(|seq| seq.checked_sub(1)).filter(|row| (*row as usize) < self.rows.len());
        self.own_leaf = Some(self.leaf);
    }

    /// Whether the log has an entry for this record.
    pub fn has(&self, key: RecordKey) -> bool {
        matches!(self.keys.find(key, &self.rows), Some(Met::Entry(_)))
    }

    /// Append the drafts of a step to `drafts`.
    pub fn take(&mut self, step: ImportStep, drafts: &mut Vec<Draft>, problems: &mut Vec<Problem>) {
        if self.given_up {
            return;
        }
        let is_full = self.rows.len() >= ENTRIES_MAX || self.keys.stand_ins() >= STAND_INS_MAX;
        if is_full || self.is_hopeless(step.line, problems) {
            self.given_up = true;
            problems.push(Problem { line: step.line, what: Trouble::GivenUp });
            return;
        }
        let before = problems.len();
        self.take_step(step, drafts, problems);
        self.reported += problems.len() - before;
    }

    /// Whether there are too many problems before this line. Later problems from the same read do not count.
    fn is_hopeless(&self, line: u64, problems: &[Problem]) -> bool {
        let is_much = |count: usize| count + 2 >= PROBLEMS_MAX;
        let before = || problems.iter().filter(|problem| problem.line < line).count();
        is_much(self.reported) || is_much(problems.len()) && is_much(before())
    }

    fn take_step(&mut self, step: ImportStep, drafts: &mut Vec<Draft>, problems: &mut Vec<Problem>) {
        self.at = step.at.unwrap_or(self.at);
        let mut report = |what| problems.push(Problem { line: step.line, what });
        match step.act {
            Act::Alias { under, path } => {
                let place = self.place(under, &mut report);
                // A record without an entry maps to the position of its parent.
                self.keys.put_stand_in(step.key, place, &self.rows);
                self.follow(path, place);
            }
            Act::Rewind(under) => {
                self.source_leaf = self.place(under, &mut report);
                self.rewound = Some(step.key);
            }
            Act::Stand => self.stands = true,
            Act::Title(title) => self.take_title(step.key, title, drafts),
            Act::System(system) => self.take_system(step.key, system, &mut report, drafts),
            Act::Opening(body) => {
                let is_late = self.rows.len() > 0 && !self.has(step.key);
                let add = Add {
                    key: step.key,
                    body,
                    by: By::Agent,
                    names: Vec::new(),
                    earlier: Earlier::default(),
                };
                let place = if is_late { None } else { self.take_entry(add, None, &mut report, drafts) };
                if is_late {
                    self.keys.put_stand_in(step.key, None, &self.rows);
                }
                self.follow(Path::Main, place);
            }
            Act::Note(body) => {
                if self.is_new(step.key, &mut report) {
                    self.keep(step.key, body, Stance::Beside, None, drafts);
                }
            }
            Act::Label { target, text } => match self.entry(target) {
                None => report(Trouble::UnknownSource { kind: Kind::Label }),
                Some(target) => {
                    if self.is_new(step.key, &mut report) {
                        self.keep(step.key, Label { target, text }.into(), Stance::Beside, None, drafts);
                    }
                }
            },
            Act::Add { body, under, by, path, names, earlier } => {
                let add = Add { key: step.key, body, by, names, earlier };
                let place = self.place(under, &mut report);
                let place = self.take_entry(add, place, &mut report, drafts);
                self.follow(path, place);
            }
            Act::Version { body, under, by, path, names } => {
                let names = names.map(Name::Entry).into_iter().collect();
                let add = Add { key: step.key, body, by, names, earlier: Earlier::default() };
                let place = self.place(under, &mut report);
                let row = self.take_version(add, place, &mut report, drafts);
                // Children of the message are attached to its latest version.
                self.keys.put_stand_in(step.key, row, &self.rows);
                self.follow(path, row);
            }
        }
    }

    /// Move the leaf to the source's leaf, or keep the user's leaf if the session was continued.
    pub fn finish(&mut self, drafts: &mut Vec<Draft>) {
        let rewound = self.rewound.filter(|key| !self.has(*key));
        if self.added == 0 && rewound.is_none() && !self.is_leaf_moved() {
            return;
        }
        let went_on = |place: &KeySlot| place.is_some_and(|row| !self.is_of_source(row));
        match (self.own_leaf.filter(went_on), rewound) {
            (Some(own), _) => self.move_leaf(own, drafts),
            (None, Some(_)) if self.added == 0 && self.leaf == self.source_leaf => {}
            (None, Some(key)) => self.move_leaf_as(key, self.source_leaf, drafts),
            (None, None) => self.move_leaf(self.source_leaf, drafts),
        }
    }

    /// Whether the source moved its leaf without recording the move. A source whose leaf is an ancestor of the
    /// log's leaf, without a rewind, is an older copy.
    fn is_leaf_moved(&mut self) -> bool {
        let may_move = self.stands && self.is_leaf_imported && self.leaf != self.source_leaf;
        may_move && (self.rewound.is_some() || !self.is_on_path(self.source_leaf, self.leaf))
    }

    /// Add a title, even if it was used before.
    fn take_title(&mut self, key: RecordKey, title: String, drafts: &mut Vec<Draft>) {
        if self.title.as_ref() == Some(&title) {
            self.skipped += 1;
            return;
        }
        let fresh = self.fresh_key(key);
        self.title = Some(title.clone());
        self.keep(fresh, SessionNamed { title }.into(), Stance::Beside, None, drafts);
    }

    /// Add instructions after the leaf if they differ from the current ones, even if they were used before.
    fn take_system(
        &mut self,
        key: RecordKey,
        system: String,
        report: &mut impl FnMut(Trouble),
        drafts: &mut Vec<Draft>,
    ) {
        self.source_leaf = self.behind_set(self.source_leaf);
        let same = self.system.as_ref().filter(|(_, told)| *told == system).map(|(row, _)| *row);
        if same.is_some_and(|row| self.is_on_path(Some(row), self.source_leaf)) {
            return;
        }
        let body = ContextChanged { system: Some(system), ..ContextChanged::default() }.into();
        let (key, earlier) = (self.fresh_key(key), Earlier::default());
        let add = Add { key, body, by: By::Agent, names: Vec::new(), earlier };
        let row = self.grow(add, self.source_leaf, report, drafts);
        self.follow(Path::Main, row);
    }

    /// Return the latest instructions that an import added after an entry.
    fn behind_set(&self, place: KeySlot) -> KeySlot {
        let mut place = place?;
        while let Some(row) = self.set_behind.get(&place) {
            place = *row;
        }
        Some(place)
    }

    /// Return a key that the log does not have, for a value that returns after it was replaced.
    fn fresh_key(&self, key: RecordKey) -> RecordKey {
        let mut keys = (0..).map(|number| key.part(number));
        keys.find(|key| !self.has(*key)).unwrap_or(key)
    }

    /// Add an entry to the tree, unless the log has it. Returns its position.
    fn take_entry(
        &mut self,
        mut add: Add,
        place: KeySlot,
        report: &mut impl FnMut(Trouble),
        drafts: &mut Vec<Draft>,
    ) -> KeySlot {
        let source_key = add.key;
        let shorter = add.earlier.shorter.iter().rev().find(|(key, _)| self.has(*key)).map(|(_, took)| *took);
        let answered = self.regrown.take().filter(|own| add.earlier.answers == Some(own.response));
        if let Some(regrown) = &answered {
            add.key = RecordKey::after(regrown.response, &source_key.bits());
        }
        let same = add.earlier.same.filter(|same| self.has(*same) && !self.has(add.key));
        let key = add.key;
        let place = match self.known_again(same.unwrap_or(key), report) {
            Some(known) if same.is_some() => self.take_late(add, known, drafts),
            Some(known) => known,
            None => self.take_new(add, place, shorter, report, drafts),
        };
        self.regrown = match answered {
            Some(regrown) => Some(Regrown { last: source_key, place, ..regrown }),
            None => shorter.map(|_| Regrown { response: key, last: key, place }),
        };
        place
    }

    /// Add the usage of an entry that was imported before its usage was known.
    fn take_late(&mut self, mut add: Add, known: KeySlot, drafts: &mut Vec<Draft>) -> KeySlot {
        self.keys.put_stand_in(add.key, known, &self.rows);
        let note = usage_key(add.key);
        let is_counted = add.earlier.counted.iter().chain([&note]).any(|key| self.has(*key));
        if let Some(by) = take_usage(&mut add.body).filter(|_| !is_counted) {
            self.keep(note, usage_note(&by).into(), Stance::Beside, None, drafts);
        }
        known
    }

    /// Add a new entry. `shorter` is the usage of its shorter version in the log; only the difference is
    /// counted.
    fn take_new(
        &mut self,
        mut add: Add,
        place: KeySlot,
        shorter: Option<Option<Usage>>,
        report: &mut impl FnMut(Trouble),
        drafts: &mut Vec<Draft>,
    ) -> KeySlot {
        let note = usage_key(add.key);
        let mut counted = add.earlier.counted.iter();
        if counted.any(|key| self.has(*key)) || [add.key, note].iter().any(|key| self.elsewhere.contains(key))
        {
            take_usage(&mut add.body);
        }
        let shorter = shorter.or_else(|| self.counted_before(&add.earlier));
        let rest = shorter.and_then(|took| rest_of(take_usage(&mut add.body)?, took));
        let row = self.grow(add, place, report, drafts);
        if let Some(by) = rest {
            self.keep(note, usage_note(&by).into(), Stance::Beside, None, drafts);
        }
        row
    }

    /// Return the usage of a new entry's call that was already counted: with the entry it continues, or in
    /// another session.
    fn counted_before(&self, earlier: &Earlier) -> Option<Option<Usage>> {
        if earlier.continues {
            return Some(Some(Usage::default()));
        }
        let mut shorter = earlier.shorter.iter().rev();
        shorter.find(|(key, _)| self.elsewhere.contains(key)).map(|(_, took)| *took)
    }

    fn is_of_source(&self, row: Index) -> bool {
        RecordKey::of_id(self.rows.id(row)).is_of_source()
    }

    fn grow(
        &mut self,
        add: Add,
        place: KeySlot,
        report: &mut impl FnMut(Trouble),
        drafts: &mut Vec<Draft>,
    ) -> KeySlot {
        let Add { key, mut body, by, names, .. } = add;
        if weight(&body) > WEIGHT_BYTES_SURE && codec::encode(&body).len() > BODY_BYTES_MAX {
            report(Trouble::TooLong);
            self.keys.put_stand_in(key, place, &self.rows);
            return place;
        }
        let named = names.into_iter().find(|name| self.is_there(*name));
        match &mut body {
            Body::Compaction(compaction) => {
                let kept = named.and_then(|kept| self.first_kept(kept, place));
                compaction.first_kept = kept.map(|row| self.rows.id(row));
            }
            Body::BranchSummary(summary) => summary.from = named.and_then(|left| self.entry(left.key())),
            _ => {}
        }
        self.move_leaf(place, drafts);
        let by = match by {
            By::Caller => None,
            By::Agent => self.agent.clone(),
        };
        let system = match &body {
            Body::ContextChanged(changed) => changed.system.clone(),
            _ => None,
        };
        let row = self.keep(key, body, Stance::InTree, by, drafts);
        self.system = system.map(|system| (row, system)).or(self.system.take());
        self.leaf = Some(row);
        self.leaf
    }

    /// Add a message that may have other versions in the log.
    fn take_version(
        &mut self,
        mut add: Add,
        place: KeySlot,
        report: &mut impl FnMut(Trouble),
        drafts: &mut Vec<Draft>,
    ) -> KeySlot {
        let message = add.key;
        let (keys, rows) = (&self.keys, &self.rows);
        let entry = |key| match keys.find(key, rows) {
            Some(Met::Entry(row)) => Some(row),
            Some(Met::StandIn(_)) | None => None,
        };
        let version = |number| {
            let row = entry(message.part(number))?;
            Some(Version { row, place: rows.parent(row), note: entry(usage_key(message.part(number))) })
        };
        let late = |number: usize| entry(usage_key(message).part(number));
        match self.versions.meet(message, place, &mut add.body, version, late) {
            Meeting::Known { row, late } => {
                if let Some((number, by)) = late {
                    let note = usage_key(message).part(number);
                    self.keep(note, usage_note(&by).into(), Stance::Beside, None, drafts);
                }
                if let Some(named) = self.named.get_mut(row as usize).filter(|named| !**named) {
                    *named = true;
                    self.skipped += 1;
                }
                Some(row)
            }
            Meeting::New { number, says, rest } => {
                add.key = message.part(number);
                let note = usage_key(add.key);
                let row = self.grow(add, place, report, drafts);
                if row == place {
                    return place;
                }
                self.versions.keep(message, place, says, row);
                if let Some(by) = rest {
                    self.keep(note, usage_note(&by).into(), Stance::Beside, None, drafts);
                }
                row
            }
        }
    }

    fn follow(&mut self, path: Path, place: KeySlot) {
        if path == Path::Main {
            self.source_leaf = place;
            self.rewound = None;
        }
    }

    fn is_new(&mut self, key: RecordKey, report: &mut impl FnMut(Trouble)) -> bool {
        self.known_again(key, report).is_none()
    }

    /// Return the position of a record that the log has. A record that the source repeats is reported.
    fn known_again(&mut self, key: RecordKey, report: &mut impl FnMut(Trouble)) -> Option<KeySlot> {
        // An alias is not a record: other records referred to it before it was read.
        let Some(Met::Entry(row)) = self.keys.find(key, &self.rows) else { return None };
        match self.named.get_mut(row as usize) {
            Some(named) if !*named => {
                *named = true;
                self.skipped += 1;
            }
            _ => report(Trouble::Repeated),
        }
        Some(self.place_of(Met::Entry(row)))
    }

    fn place_of(&self, met: Met) -> KeySlot {
        match met {
            Met::StandIn(place) => place,
            Met::Entry(row) => match self.rows.stance(row) {
                Stance::InTree => Some(row),
                Stance::Beside => self.rows.parent(row),
            },
        }
    }

    fn place(&mut self, under: Under, report: &mut impl FnMut(Trouble)) -> KeySlot {
        match under {
            Under::Leaf => self.source_leaf,
            Under::Root => None,
            Under::RecordKey(key) if self.regrown.as_ref().is_some_and(|regrown| regrown.last == key) => {
                self.regrown.as_ref().and_then(|regrown| regrown.place)
            }
            Under::RecordKey(key) => match self.keys.find(key, &self.rows) {
                Some(met) => self.behind_set(self.place_of(met)),
                None => {
                    report(Trouble::LostParent);
                    let place = self.source_leaf;
                    self.keys.put_stand_in(key, place, &self.rows);
                    place
                }
            },
        }
    }

    fn row(&self, key: RecordKey) -> KeySlot {
        self.place_of(self.keys.find(key, &self.rows)?)
    }

    fn entry(&self, key: RecordKey) -> Option<EntryId> {
        self.row(key).map(|row| self.rows.id(row))
    }

    fn is_there(&self, name: Name) -> bool {
        match name {
            Name::Entry(key) => self.row(key).is_some(),
            Name::Record(key) => self.keys.find(key, &self.rows).is_some(),
        }
    }

    /// Return the first entry kept by a compaction after `from`, if it is on the path. A record without an
    /// entry maps to its parent, which is not kept itself.
    fn first_kept(&mut self, name: Name, from: KeySlot) -> KeySlot {
        match (name, self.keys.find(name.key(), &self.rows)?) {
            (Name::Record(_), Met::StandIn(place)) => self.child_on_path(place, from),
            (_, met) => self.place_of(met).filter(|row| self.is_on_path(Some(*row), from)),
        }
    }

    /// Return the entry after a position on the path down to `from`, or the first entry of the path for
    /// `None`.
    fn child_on_path(&mut self, place: KeySlot, from: KeySlot) -> KeySlot {
        let mut child = from?;
        while self.rows.parent(child) != place {
            self.walked += 1;
            child = self.rows.parent(child).filter(|_| self.walked <= WALK_STEPS_MAX)?;
        }
        Some(child)
    }

    /// Whether a position is `from` or an ancestor of it. Parents have smaller indexes than their children.
    fn is_on_path(&mut self, wanted: KeySlot, from: KeySlot) -> bool {
        let Some(wanted) = wanted else { return true };
        let mut at = from;
        while let Some(row) = at.filter(|row| *row > wanted) {
            self.walked += 1;
            if self.walked > WALK_STEPS_MAX {
                return false;
            }
            at = self.rows.parent(row);
        }
        at == Some(wanted)
    }

    fn move_leaf(&mut self, to: KeySlot, drafts: &mut Vec<Draft>) {
        if to == self.leaf {
            return;
        }
        self.moves += 1;
        let target = to.map(|row| self.rows.id(row));
        let seed = format!("leaf_moved {} {target:?} {:?}", self.moves, self.last);
        self.move_leaf_as(RecordKey::of(&seed), to, drafts);
    }

    fn move_leaf_as(&mut self, key: RecordKey, to: KeySlot, drafts: &mut Vec<Draft>) {
        let target = to.map(|row| self.rows.id(row));
        self.keep(key, LeafMoved { to: target }.into(), Stance::Beside, None, drafts);
        self.leaf = to;
    }

    fn keep(
        &mut self,
        key: RecordKey,
        body: Body,
        stance: Stance,
        by: Option<Principal>,
        drafts: &mut Vec<Draft>,
    ) -> Index {
        let id = self.next_id(key);
        self.added += 1;
        drafts.push(Draft { id: Some(id), at: self.at, by, turn: None, body });
        self.push_row(id, self.leaf, stance)
    }

    fn push_row(&mut self, id: EntryId, parent: KeySlot, stance: Stance) -> Index {
        self.rows.push(id, parent, stance);
        let row = self.rows.len() as Index - 1;
        // Ids minted here are not records and are never looked up.
        if RecordKey::of_id(id).is_of_source() {
            self.keys.put_entry(row, &self.rows);
        }
        self.last = Some(id);
        row
    }

    /// Build the next id. If time does not advance, the id's time is incremented by a millisecond; the entry
    /// keeps its own time.
    fn next_id(&self, key: RecordKey) -> EntryId {
        let at = TimestampMs(self.at.0.clamp(0, ID_MS_MAX));
        let fresh = key.id_at(at);
        match self.last {
            Some(last) if fresh <= last => key.id_at(TimestampMs(millis(last) + 1)),
            _ => fresh,
        }
    }
}

/// Remove the usage from a body and return it.
fn take_usage(body: &mut Body) -> Option<WrittenBy> {
    match body {
        Body::AssistantMessage(answer) => {
            let (usage, cost_nano_usd) = (answer.usage.take(), answer.cost_nano_usd.take());
            let model = answer.model.clone().unwrap_or_else(|| "unknown".to_owned());
            usage.map(|usage| WrittenBy { model, calls: 1, usage, cost_nano_usd })
        }
        Body::Compaction(compaction) => compaction.written_by.take(),
        _ => None,
    }
}

/// Return the usage that was not counted yet.
fn rest_of(by: WrittenBy, counted: Option<Usage>) -> Option<WrittenBy> {
    let Some(before) = counted else { return Some(by) };
    let usage = believable(usage_beyond(by.usage, before))?;
    Some(WrittenBy { calls: 0, usage, cost_nano_usd: None, ..by })
}

fn millis(id: EntryId) -> i64 {
    id.as_bytes()[..6].iter().fold(0, |millis, byte| (millis << 8) | i64::from(*byte))
}

fn weight(body: &Body) -> usize {
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
