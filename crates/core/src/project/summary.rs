//! The session summary shown in lists: all metadata of a session. Stores keep it next to the log and update it with
//! each append. `doctor` checks that it equals the fold of the whole log.

use serde::{Deserialize, Serialize};

use super::usage::Spend;
use crate::authority::{Authority, Source};
use crate::entry::{Body, Entry, LOG_VERSION, SessionState};
use crate::id::{EntryId, Seq, SessionId, TimestampMs, TurnId};
use crate::port::new_session::NewSession;
pub use crate::port::new_session::{Lineage, Origin};
use crate::pressure::{Level, Pressure};
use crate::scope::{Members, Principal};
use crate::session_config::ConfigEntries;
use crate::tree::{Head, Links, Placed, Tip};

/// Maximum length of a preview, in characters.
const PREVIEW_CHARS_MAX: usize = 80;

/// Queued input that waits for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedInput {
    /// The position of its `input_queued` entry.
    pub seq: Seq,
    /// The id of that entry.
    pub id: EntryId,
}

/// The positions of the open turn and of queued input, computed from the log up to `head`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnPositions {
    /// The last seq of the log from which the positions were computed.
    pub head: Seq,
    /// The seq of the open turn's first entry.
    pub open_turn: Option<Seq>,
    /// The queued input that waits, oldest first.
    pub queued: Vec<QueuedInput>,
    /// The number of turns that were started here. An earlier version also counted imported turns.
    pub turns: u32,
}

/// The state of a session, as one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The session's id.
    pub id: SessionId,
    /// The owner.
    pub owner: Principal,
    /// The title; `None` if the session was never named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The beginning of the first user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// The id of the agent that the session was created with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The state, such as active or archived. Only an archived session refuses entries.
    pub state: SessionState,
    /// When the session began. For an imported session this is the time at its origin.
    pub created_at: TimestampMs,
    /// The latest time of an entry, or `created_at` if there is none.
    pub updated_at: TimestampMs,
    /// The last seq of the log, and the leaf.
    pub head: Head,
    /// The id of the last entry; `None` for an empty log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_id: Option<EntryId>,
    /// Messages on the path to the leaf.
    pub messages: u32,
    /// Compactions in the log, including those on abandoned branches.
    #[serde(default)]
    pub compactions: u32,
    /// The current model at the leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Usage of the model calls made in this session. A fork's shared entries count towards the source session.
    #[serde(default)]
    pub spend: Spend,
    /// Turns started in this session. A fork does not count the turns of its source.
    #[serde(default)]
    pub turns: u32,
    /// The turn that has not ended: it runs, waits for a person, or was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_turn: Option<TurnId>,
    /// The seq of the open turn's first entry. `None` without an open turn, or if an earlier version wrote the summary:
    /// see [`Summary::lacks_positions`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_turn_seq: Option<Seq>,
    /// Queued input that no turn has consumed yet, oldest first. `None` if an earlier version wrote the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Vec<QueuedInput>>,
    /// The entries with the session's configuration.
    #[serde(default, skip_serializing_if = "ConfigEntries::is_empty")]
    pub config: ConfigEntries,
    /// The latest recorded level of context pressure; `None` if it was always green.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Level>,
    /// The principals that the session is shared with, and their roles. The owner is not included.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub members: Members,
    /// The session that this one was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Lineage>,
    /// Entries from seq 1 to this seq are shared with the parent.
    #[serde(default)]
    pub inherited: u32,
    /// Where an imported session came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The current log format version when the session was created. Entries may have other versions.
    pub version: u32,
    /// Which part of the session this store wrote itself. Stores keep it next to the summary, and clients do not see
    /// it. `None` for a session of an earlier version: see [`crate::port::store::Authorities`].
    #[serde(skip)]
    pub authority: Option<Authority>,
}

// The hidden methods are for stores, and not part of the façade.
impl Summary {
    /// The summary of a new session.
    #[doc(hidden)]
    pub fn new(new: &NewSession, owner: Principal) -> Self {
        Self {
            id: new.id.clone(),
            owner,
            title: new.title.clone(),
            preview: None,
            agent: new.agent.clone(),
            cwd: new.cwd.clone(),
            state: SessionState::Created,
            created_at: new.at,
            updated_at: new.at,
            head: Head::default(),
            last_id: None,
            messages: 0,
            compactions: 0,
            model: None,
            spend: Spend::default(),
            turns: 0,
            open_turn: None,
            open_turn_seq: None,
            queued: Some(Vec::new()),
            config: ConfigEntries::default(),
            pressure: None,
            members: Members::new(),
            parent: new.parent.clone(),
            inherited: 0,
            origin: new.origin.clone(),
            version: LOG_VERSION,
            authority: Some(Authority::of(new.source)),
        }
    }

    /// The summary of a fork before its first unshared entry. `shared` is the fork point in the fork's numbering.
    #[doc(hidden)]
    pub fn forked(new: &NewSession, owner: Principal, source: &Summary, shared: Option<ForkPoint>) -> Self {
        let mut summary = Self::new(new, owner);
        summary.title = new.title.clone().or_else(|| source.title.clone());
        summary.agent = new.agent.clone().or_else(|| source.agent.clone());
        summary.cwd = new.cwd.clone().or_else(|| source.cwd.clone());
        summary.parent =
            Some(Lineage { session: source.id.clone(), at: shared.as_ref().map(|point| point.id) });
        let creation = source.authority.as_ref().map(Authority::of_creation);
        summary.authority = shared.as_ref().map_or(creation, |point| point.authority.clone());
        if let Some(point) = shared {
            summary.inherited = point.links.depth;
            summary.head = Head { seq: Seq(point.links.depth), leaf: Some(Seq(point.links.depth)) };
            summary.last_id = Some(point.id);
            summary.messages = point.links.messages;
            summary.model = point.model;
            if point.links.messages > 0 {
                summary.state = SessionState::Active;
                summary.preview = source.preview.clone();
            }
        }
        summary
    }

    /// The summary with the folded fields reset, as before any entry was appended to the session. The title
    /// and a fork's preview stay until an entry replaces them.
    #[doc(hidden)]
    pub fn unfolded(&self) -> Self {
        Self {
            preview: self.preview.clone().filter(|_| self.inherited > 0),
            state: SessionState::Created,
            updated_at: self.created_at,
            compactions: 0,
            spend: Spend::default(),
            turns: 0,
            open_turn: None,
            open_turn_seq: None,
            queued: Some(Vec::new()),
            config: ConfigEntries::default(),
            pressure: None,
            members: Members::new(),
            ..self.clone()
        }
    }

    /// The state from which [`crate::tree::place`] places the next entry.
    #[doc(hidden)]
    pub fn tip(&self) -> Tip {
        Tip { head: self.head, last_id: self.last_id, model: self.model.clone() }
    }

    /// Fold in one placed entry, except for fields that depend on the leaf: [`Summary::apply_batch`] sets those.
    #[doc(hidden)]
    pub fn apply(&mut self, entry: &Entry) {
        let meta = &entry.meta;
        self.updated_at = self.updated_at.max(meta.at);
        self.head.seq = meta.seq;
        self.last_id = Some(meta.id);
        self.spend.apply(&entry.body);
        if meta.kind.is_message() && matches!(self.state, SessionState::Created | SessionState::Closed) {
            self.state = SessionState::Active;
        }
        match &entry.body {
            Body::UserMessage(_) if self.preview.is_none() => self.preview = preview(&entry.body),
            Body::Compaction(_) => self.compactions += 1,
            Body::SessionNamed(named) => self.title = Some(named.title.clone()),
            Body::StateChanged(changed) => self.state = changed.state,
            // Imported turns are history: they do not count, and no process will end them.
            Body::TurnStarted(_) if self.is_own(meta.seq) => {
                self.turns += 1;
                self.open_turn = meta.turn;
                self.open_turn_seq = meta.turn.map(|_| meta.seq);
            }
            Body::Configured(_) | Body::ContextSet(_) | Body::LimitsChanged(_) if self.is_own(meta.seq) => {
                self.apply_config(entry);
            }
            Body::TurnEnded(_) if self.open_turn == meta.turn => {
                (self.open_turn, self.open_turn_seq) = (None, None);
            }
            Body::InputQueued(_) | Body::InputTaken(_) if self.is_own(meta.seq) => self.apply_queue(entry),
            Body::PressureChanged(_) if self.is_own(meta.seq) => {
                self.pressure = Pressure::recorded_level(&entry.body).or(self.pressure);
            }
            Body::MemberChanged(changed) if !changed.elsewhere => {
                match changed.role {
                    Some(role) => self.members.insert(changed.member.clone(), role),
                    None => self.members.remove(&changed.member),
                };
            }
            _ => {}
        }
    }

    /// Fold in an own entry of the configuration. The first `configured` entry applies.
    fn apply_config(&mut self, entry: &Entry) {
        let seq = entry.meta.seq;
        let context = match &entry.body {
            Body::Configured(configured) if self.config.configured.is_none() => {
                self.config.configured = Some(seq);
                &configured.context
            }
            Body::ContextSet(set) => {
                self.config.context = Some(seq);
                &set.context
            }
            Body::LimitsChanged(limits) => return self.config.limits.merge(limits),
            _ => return,
        };
        if context.working_dir.is_some() {
            self.cwd.clone_from(&context.working_dir);
        }
    }

    /// Keep track of which input waits. Imported input is history: no turn consumes it.
    fn apply_queue(&mut self, entry: &Entry) {
        let Some(queued) = &mut self.queued else { return };
        match &entry.body {
            Body::InputQueued(_) => queued.push(QueuedInput { seq: entry.meta.seq, id: entry.meta.id }),
            Body::InputTaken(taken) => queued.retain(|input| input.id != taken.input),
            _ => {}
        }
    }

    /// Whether an earlier version wrote the summary, so that it has no positions of the open turn and of queued input.
    pub fn lacks_positions(&self) -> bool {
        self.queued.is_none() || self.open_turn.is_some() != self.open_turn_seq.is_some()
    }

    /// Whether this summary equals the fold of its log. What an earlier version did not write, or counted differently, is
    /// not compared.
    #[doc(hidden)]
    pub fn matches_fold(&self, folded: &Summary) -> bool {
        if !self.lacks_positions() {
            return self == folded;
        }
        let (open_turn_seq, queued) = (folded.open_turn_seq, folded.queued.clone());
        let (turns, pressure) = (folded.turns, folded.pressure);
        Self { open_turn_seq, queued, turns, pressure, ..self.clone() } == *folded
    }

    /// Set the positions that the summary lacks. Ignored if they belong to another state of the log.
    #[doc(hidden)]
    pub fn set_positions(&mut self, positions: &TurnPositions) -> bool {
        if !self.lacks_positions() || self.head.seq != positions.head {
            return false;
        }
        self.open_turn_seq = self.open_turn.and(positions.open_turn);
        self.queued = Some(positions.queued.clone());
        self.turns = positions.turns;
        true
    }

    fn is_own(&self, seq: Seq) -> bool {
        self.authority.as_ref().is_none_or(|authority| authority.is_own(seq))
    }

    /// Fold in a whole batch that [`crate::tree::place`] returned, with its final `tip`.
    #[doc(hidden)]
    pub fn apply_batch(&mut self, batch: &[Placed], source: Source, tip: &Tip, leaf: Option<Links>) {
        if source == Source::Imported
            && let (Some(authority), Some(first), Some(last)) =
                (&mut self.authority, batch.first(), batch.last())
        {
            authority.add_imported(first.entry.meta.seq, last.entry.meta.seq);
        }
        for placed in batch {
            self.apply(&placed.entry);
        }
        self.head = tip.head;
        self.model.clone_from(&tip.model);
        self.messages = leaf.map_or(0, |links| links.messages);
    }
}

/// The fork point, in the fork's numbering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPoint {
    pub id: EntryId,
    pub links: Links,
    pub model: Option<String>,
    /// The source's record, restricted to the shared path.
    pub authority: Option<Authority>,
}

/// The first non-empty line of the body's text, cut to `PREVIEW_CHARS_MAX` characters. `None` without text.
fn preview(body: &Body) -> Option<String> {
    let text = body.text();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut preview: String = line.chars().take(PREVIEW_CHARS_MAX).collect();
    if preview.len() < line.len() {
        preview.push('…');
    }
    Some(preview)
}
