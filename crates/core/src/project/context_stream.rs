//! The context of a long path, message by message. [`ContextPlan`] reads the path once and finds out what later entries
//! decide: the settings, the latest compaction, the failed turns, and results that do not follow their calls.
//! [`ContextMessages`] reads the path again and returns the messages in order. Neither keeps the entries, so the memory
//! depends on the irregular calls of a path and not on its length. The messages equal those of
//! [`build_context`](super::context::build_context).

use std::collections::{HashMap, HashSet, VecDeque};

use crate::content::Part;
use crate::entry::{Body, Entry, Graft, Kind, Meta, Stop};
use crate::id::{EntryId, Seq, TurnId};
use crate::project::context::{
    LatestCompaction, Message, has_output, interrupted, message_of, summary_message,
};
use crate::session_config::SessionConfig;
use crate::settings::Settings;
use crate::summary_frame::frame_summary;

/// A call, by the seq of its message and its number in that message.
type CallPlace = (Seq, u32);

/// What the first pass over the entries of a context found.
#[derive(Debug, Clone)]
pub struct ContextPlan {
    settings: Settings,
    compaction: Option<(Meta, LatestCompaction)>,
    /// Failed turns without any output so far. Their user messages are left out.
    silent: HashSet<TurnId>,
    inherited: u32,
    calls: OpenCalls,
    /// Calls whose results did not directly follow, by call id, the newest last.
    waiting: HashMap<String, Vec<CallPlace>>,
    /// The results of such calls.
    moved: HashMap<CallPlace, Seq>,
    /// The newest grafts.
    grafts: VecDeque<(Seq, Graft)>,
    grafts_max: usize,
}

impl ContextPlan {
    /// Start a plan. `settings` are those before the first entry, `failed` the turns that failed since then. Entries up
    /// to `inherited` are shared with the source of a fork. At most `grafts_max` grafts are kept.
    pub fn new(settings: Settings, failed: HashSet<TurnId>, inherited: u32, grafts_max: usize) -> Self {
        Self {
            settings,
            compaction: None,
            silent: failed,
            inherited,
            calls: OpenCalls::default(),
            waiting: HashMap::new(),
            moved: HashMap::new(),
            grafts: VecDeque::new(),
            grafts_max,
        }
    }

    /// Add the next entry of the path.
    pub fn add(&mut self, entry: &Entry) {
        let (meta, body) = (&entry.meta, &entry.body);
        self.settings.apply(body);
        if let Some(turn) = meta.turn.filter(|_| has_output(body)) {
            self.silent.remove(&turn);
        }
        match body {
            Body::Compaction(compaction) => {
                let latest = LatestCompaction { id: meta.id, body: compaction.clone() };
                self.compaction = Some((meta.clone(), latest));
            }
            Body::Graft(graft) => {
                self.grafts.push_back((meta.seq, graft.clone()));
                if self.grafts.len() > self.grafts_max {
                    self.grafts.pop_front();
                }
            }
            _ => {}
        }
        if !is_failed_answer(body) {
            self.pair(meta.seq, body);
        }
    }

    fn pair(&mut self, seq: Seq, body: &Body) {
        if let Body::ToolResult(result) = body {
            if self.calls.take(&result.call_id).is_some() {
                return;
            }
            self.leave_calls();
            let place = self.waiting.get_mut(&result.call_id).and_then(Vec::pop);
            if let Some(place) = place {
                self.moved.insert(place, seq);
            }
            if self.waiting.get(&result.call_id).is_some_and(Vec::is_empty) {
                self.waiting.remove(&result.call_id);
            }
        } else if is_message(body.kind()) {
            self.leave_calls();
            self.calls = OpenCalls::of(seq, body);
        }
    }

    /// Look for the results of the open calls among all later entries.
    fn leave_calls(&mut self) {
        let open = std::mem::take(&mut self.calls);
        // In reverse, so that among calls with the same id in one message the first is answered first.
        for call in open.calls.into_iter().rev() {
            self.waiting.entry(call.call_id).or_default().push((open.seq, call.number));
        }
    }

    /// The newest grafts of the path, oldest first.
    pub fn grafts(&self) -> impl Iterator<Item = &(Seq, Graft)> {
        self.grafts.iter()
    }

    /// End the first pass: the settings in force, and the second pass.
    pub fn finish(mut self, config: Option<&SessionConfig>) -> (Settings, ContextMessages) {
        if let Some(config) = config {
            config.apply_to(&mut self.settings);
        }
        let (mut summary, mut shortened) = (None, HashMap::new());
        if let Some((meta, latest)) = self.compaction {
            let text = latest.body.summary;
            summary = text.map(|text| summary_message(&meta, text.clone(), frame_summary(&text)));
            shortened = latest.body.shortened.into_iter().map(|short| (short.entry, short.text)).collect();
        }
        let messages = ContextMessages {
            summary,
            shortened,
            silent: self.silent,
            inherited: self.inherited,
            moved: self.moved,
            calls: OpenCalls::default(),
        };
        (self.settings, messages)
    }
}

/// The second pass: turns the entries of the path into messages.
#[derive(Debug, Clone)]
pub struct ContextMessages {
    summary: Option<Message>,
    /// Texts that replace results, by entry.
    shortened: HashMap<EntryId, String>,
    silent: HashSet<TurnId>,
    inherited: u32,
    moved: HashMap<CallPlace, Seq>,
    calls: OpenCalls,
}

/// The next message of a context.
#[derive(Debug, Clone, PartialEq)]
pub enum NextMessage {
    Ready(Message),
    /// The result of a call is the entry `seq`, further along the path. The caller reads it and passes it to
    /// [`ContextMessages::moved_result`].
    Elsewhere {
        seq: Seq,
        tool: String,
    },
}

impl ContextMessages {
    /// The message before the first entry, if there is one.
    pub fn take_summary(&mut self) -> Option<Message> {
        self.summary.take()
    }

    /// Add the messages that follow from the next entry of the path.
    pub fn add(&mut self, entry: Entry, next: &mut VecDeque<NextMessage>) {
        let Entry { meta, body } = entry;
        if self.is_left_out(&meta, &body) {
            return;
        }
        if let Body::ToolResult(result) = &body {
            match self.calls.take(&result.call_id) {
                Some(tool) => next.extend(self.result_of(&meta, body, &tool).map(NextMessage::Ready)),
                // The result belongs to an earlier call, which already has it, or to none.
                None => self.close_calls(next),
            }
        } else if is_message(meta.kind) {
            self.close_calls(next);
            self.calls = OpenCalls::of(meta.seq, &body);
            next.extend(message_of(&meta, body).map(NextMessage::Ready));
        }
    }

    /// Add the messages after the last entry.
    pub fn finish(&mut self, next: &mut VecDeque<NextMessage>) {
        self.close_calls(next);
    }

    /// The message of a result that was found further along the path.
    pub fn moved_result(&self, entry: Entry, tool: &str) -> Option<Message> {
        self.result_of(&entry.meta, entry.body, tool)
    }

    fn result_of(&self, meta: &Meta, body: Body, tool: &str) -> Option<Message> {
        let mut message = message_of(meta, body)?;
        if let Some(answers) = message.answers.as_mut() {
            answers.tool.get_or_insert_with(|| tool.to_owned());
        }
        if let Some(text) = self.shortened.get(&meta.id) {
            message.show_as(text);
        }
        Some(message)
    }

    fn close_calls(&mut self, next: &mut VecDeque<NextMessage>) {
        let open = std::mem::take(&mut self.calls);
        for call in open.calls {
            next.push_back(match self.moved.get(&(open.seq, call.number)) {
                Some(seq) => NextMessage::Elsewhere { seq: *seq, tool: call.tool },
                None => NextMessage::Ready(interrupted(call.call_id, call.tool)),
            });
        }
    }

    fn is_left_out(&self, meta: &Meta, body: &Body) -> bool {
        let is_own = meta.seq.0 > self.inherited;
        let is_silent = meta.turn.is_some_and(|turn| self.silent.contains(&turn));
        is_failed_answer(body) || (meta.kind == Kind::UserMessage && is_own && is_silent)
    }
}

/// The calls of the latest message that have no result yet.
#[derive(Debug, Clone, Default)]
struct OpenCalls {
    seq: Seq,
    calls: VecDeque<OpenCall>,
}

#[derive(Debug, Clone)]
struct OpenCall {
    number: u32,
    call_id: String,
    tool: String,
}

impl OpenCalls {
    fn of(seq: Seq, body: &Body) -> Self {
        let Body::AssistantMessage(message) = body else { return Self::default() };
        let calls = message.parts.iter().filter_map(Part::as_tool_call).zip(0..);
        let calls = calls.map(|(call, number)| OpenCall {
            number,
            call_id: call.call_id.clone(),
            tool: call.name.clone(),
        });
        Self { seq, calls: calls.collect() }
    }

    /// Take the next call if it has this id, and return the name of its tool.
    fn take(&mut self, call_id: &str) -> Option<String> {
        self.calls.front().filter(|call| call.call_id == call_id)?;
        self.calls.pop_front().map(|call| call.tool)
    }
}

fn is_failed_answer(body: &Body) -> bool {
    matches!(body, Body::AssistantMessage(message) if message.stop == Stop::Error)
}

/// Whether entries of this kind are messages of a context.
fn is_message(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::UserMessage
            | Kind::AssistantMessage
            | Kind::ToolResult
            | Kind::SystemNote
            | Kind::CustomMessage
            | Kind::BranchSummary
            | Kind::Graft
    )
}
