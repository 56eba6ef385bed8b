//! Feed, ledger, spending, artifacts, outline and summary: their contents, and that folding entry by entry equals folding
//! the whole log (I10).

use proptest::prelude::{prop, prop_assert_eq, proptest};
use sapwood_core::content::{BlobRef, Part, Reasoning};
use sapwood_core::entry::*;
use sapwood_core::fixture::{MemLog, random_script};
use sapwood_core::flow::RunEvent;
use sapwood_core::pressure::{Level, Pressure};
use sapwood_core::project::artifacts::Artifacts;
use sapwood_core::project::feed::{Feed, FeedApprovalState, FeedItem, FeedToolStatus, FeedType};
use sapwood_core::project::ledger::Ledger;
use sapwood_core::project::outline::Outline;
use sapwood_core::project::path_marks::PathMarks;
use sapwood_core::project::summary::Summary;
use sapwood_core::project::tree_index::TreeIndex;
use sapwood_core::project::usage::Spend;
use sapwood_core::settings::{Labels, Settings};
use sapwood_core::tree::Head;
use sapwood_core::{BlobHash, Body, Entry, Json, Principal, Role, Seq};

use super::bodies::any_body;

/// The feed as `type:label:text`, one line per item.
fn feed_of(log: &MemLog) -> Vec<String> {
    let line = |item: &sapwood_core::project::feed::FeedItem| {
        let kind = serde_json::to_value(item.kind).unwrap();
        format!("{}:{}:{}", kind.as_str().unwrap(), item.label, item.text)
    };
    Feed::fold(log.entries()).items.iter().map(line).collect()
}

#[test]
fn a_tool_item_is_replaced_by_its_outcome() {
    let log = MemLog::of("u1 C2(x,y) u3 t4(y)! t5(x)");
    let expected = ["user:user:u1", "tool-success:run:t5", "tool-error:run:t4", "user:user:u3"];
    assert_eq!(feed_of(&log), expected);
    let running = MemLog::of("C1(x)");
    assert_eq!(feed_of(&running), [r#"tool:run:{"call":"x"}"#]);
}

#[test]
fn an_approval_and_queued_input_change_in_place() {
    let mut log = MemLog::of("[");
    let asked = |approval: &str| ApprovalAsked {
        approval: approval.to_owned(),
        question: "May I?".to_owned(),
        call_id: None,
        details: None,
        deadlines: None,
    };
    let (answer, reason) = (ApprovalAnswer::Denied, Some("no".to_owned()));
    let queued = InputQueued { queue: Queue::Steer, parts: vec![Part::text("be brief")] };
    log.push(asked("a")).unwrap();
    log.push(asked("b")).unwrap();
    log.push(ApprovalAnswered { approval: "a".to_owned(), answer, reason }).unwrap();
    log.push(queued).unwrap();
    let input = log.entries().last().unwrap().meta.id;
    let open = Feed::fold(log.entries());
    assert_eq!(open.open_turn, log.entries().next().unwrap().meta.turn);
    assert!(!open.items.last().unwrap().is_state_change());
    log.push(InputTaken { input }).unwrap();
    log.write("]");
    let feed = Feed::fold(log.entries());
    let states: Vec<_> = feed.items.iter().filter_map(|item| item.approval.as_ref()).collect();
    assert_eq!(
        states.iter().map(|it| it.state).collect::<Vec<_>>(),
        [FeedApprovalState::Denied, FeedApprovalState::Expired]
    );
    assert_eq!((states[0].reason.as_deref(), feed.open_turn), (Some("no"), None));
    assert!(feed.items.iter().any(|item| item.queued.as_ref().is_some_and(|queued| queued.taken)));
}

#[test]
fn a_tool_item_keeps_its_input_and_gets_its_status() {
    let feed = Feed::fold(MemLog::of("C1(x,y) t2(y)!").entries());
    let tools: Vec<_> = feed.items.iter().map(|item| item.tool.clone().unwrap()).collect();
    assert_eq!(
        tools.iter().map(|tool| tool.status).collect::<Vec<_>>(),
        [FeedToolStatus::Running, FeedToolStatus::Failed]
    );
    assert_eq!(tools[1].input.as_ref().unwrap().get(), r#"{"call":"y"}"#);
    assert_eq!((feed.items[1].seq, feed.items[1].entry_kind), (Seq(1), Kind::AssistantMessage));
}

#[test]
fn entries_on_another_branch_are_off_the_path() {
    let mut marks = PathMarks::default();
    let log = MemLog::of("u1 a2 u3 L→1 u5 a6");
    log.entries().for_each(|entry| marks.add(&entry.meta));
    let outline = Outline::fold(log.entries(), log.head().leaf);
    let expected: Vec<Seq> = outline.nodes.iter().filter(|node| !node.on_path).map(|node| node.seq).collect();
    assert_eq!(marks.off_path(log.head().leaf), expected);
    assert!(!expected.is_empty());
}

#[test]
fn a_result_without_a_call_item_gets_its_own_item() {
    assert_eq!(feed_of(&MemLog::of("t1(x)")), ["tool-success:tool:t1"]);
    assert_eq!(feed_of(&MemLog::of("C1(x) t2(x) t3(x)")), ["tool-success:run:t2", "tool-success:tool:t3"]);
}

#[test]
fn an_answer_gives_one_item_for_its_text_and_one_for_each_other_part() {
    let mut log = MemLog::default();
    let reasoning = Part::Reasoning(Reasoning { text: "hm".to_owned(), redacted: false });
    let parts = vec![reasoning, Part::text("one"), Part::text("two")];
    log.push(AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop: Stop::Stop })
        .unwrap();
    assert_eq!(feed_of(&log), ["reasoning:reasoning:hm", "assistant:assistant:one\ntwo"]);
}

#[test]
fn failures_are_error_items_in_the_feed() {
    let log = MemLog::of("[ u1 a2! ]failed");
    let expected = [
        "activation:turn started:",
        "user:user:u1",
        "assistant:assistant:a2",
        "error:error:the model's answer failed",
        "error:turn ended:model_error",
    ];
    assert_eq!(feed_of(&log), expected);
    assert_eq!(feed_of(&MemLog::of("[ ]")), ["activation:turn started:"]);
    assert_eq!(feed_of(&MemLog::of("[ ]limited"))[1], "error:turn ended:turn_limit");
    assert_eq!(feed_of(&MemLog::of("[ ]cancelled"))[1], "event:cancelled:");
}

#[test]
fn a_continuation_is_a_resume_in_the_feed() {
    let mut log = MemLog::of("n1");
    log.push(SystemNote { text: "go on".to_owned(), reason: Some("continuation".to_owned()) }).unwrap();
    assert_eq!(feed_of(&log), ["event:note:n1", "resume:resumed:go on"]);
}

#[test]
fn handoffs_repairs_nodes_and_pressure_have_their_own_items() {
    let call = |id: &str| Part::tool_call(id, "handoff", Json::parse(r#"{"closed":"x"}"#).unwrap());
    let answer = |id: &str| AssistantMessage {
        parts: vec![call(id)],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::ToolUse,
    };
    let result = |id: &str, is_error: bool| ToolResult {
        call_id: id.to_owned(),
        tool: Some("handoff".to_owned()),
        parts: vec![Part::text(id)],
        is_error,
        duration_ms: None,
        interrupted: false,
        full: None,
    };
    let mut log = MemLog::default();
    let failed = RunEvent::Failed {
        node: "draft".to_owned(),
        visit: 1,
        attempt: 1,
        code: "x.y".to_owned(),
        message: "no".to_owned(),
    };
    let pressure = Pressure { level: Level::Red, used_tokens: 95, budget_tokens: 100 };
    let note = SystemNote { text: "mend it".to_owned(), reason: Some("flow.repair".to_owned()) };
    let bodies: Vec<Body> = vec![
        answer("wrong").into(),
        result("wrong", true).into(),
        note.into(),
        answer("right").into(),
        result("right", false).into(),
        failed.to_body(),
        pressure.to_body(Level::Green),
    ];
    for body in bodies {
        log.push(body).unwrap();
    }
    let expected = [
        "repair:handoff:wrong",
        "repair:repair:mend it",
        "handoff:handoff:right",
        "error:draft:x.y: no",
        "pressure:pressure:red: 95 of 100 tokens, 95 %",
    ];
    assert_eq!(feed_of(&log), expected);
}

fn round(number: u32, result: Option<RoundStatus>) -> Round {
    Round {
        number,
        action: Action { kind: ActionKind::Tool, what: "ls".to_owned() },
        result: result.map(|status| RoundResult { status, tokens: 5, cost_nano_usd: None }),
        reason: result.map(|status| status.as_str().to_owned()),
        confidence: result.is_none().then_some(0.5),
        trace_id: Some(format!("trace of {result:?}")),
    }
}

#[test]
fn a_round_is_one_line_that_its_result_completes() {
    let mut log = MemLog::of("[ u1");
    log.push(round(1, None)).unwrap();
    log.push(round(1, Some(RoundStatus::Ok))).unwrap();
    log.push(round(2, None)).unwrap();
    log.write("] [ u2");
    log.push(round(1, None)).unwrap();
    let mut ledger = Ledger::default();
    log.entries().for_each(|entry| ledger.apply(entry));
    let lines: Vec<_> =
        ledger.lines.iter().map(|line| (line.round, line.result.is_some(), line.seq)).collect();
    assert_eq!(lines, [(1, true, Seq(3)), (2, false, Seq(5)), (1, false, Seq(9))]);
    assert_eq!(ledger.lines[0].confidence, Some(0.5));
    assert_eq!(ledger.lines[0].reason.as_deref(), Some("ok"));
    let own_trace = ledger.lines[0].trace_id.as_deref();
    assert_eq!(own_trace, Some("trace of None"), "another process must not replace the trace of a round");
    assert_ne!(ledger.lines[0].turn, ledger.lines[2].turn);
}

#[test]
fn spending_is_counted_per_model_and_the_sum_is_the_total() {
    let log = MemLog::of("u1 a2@m a3@k a4@m L→1 a5@m! a6");
    let spend = &log.summary().spend;
    assert_eq!((spend.models["m"].calls, spend.models["k"].calls), (3, 1));
    let total = spend.total();
    assert_eq!(
        (total.calls, total.usage.input, total.cost_nano_usd, total.unpriced_calls),
        (4, 400, 4_000, 0)
    );
}

#[test]
fn a_call_without_a_price_is_counted_as_such_and_sums_do_not_overflow() {
    let mut spend = Spend::default();
    let usage = Some(Usage { input: u64::MAX, ..Usage::default() });
    let call = |cost_nano_usd| {
        Body::from(AssistantMessage {
            parts: Vec::new(),
            model: None,
            usage,
            cost_nano_usd,
            stop: Stop::Stop,
        })
    };
    spend.apply(&call(None));
    spend.apply(&call(Some(u64::MAX)));
    spend.apply(&call(Some(1)));
    let total = spend.total();
    assert_eq!((total.calls, total.unpriced_calls), (3, 1));
    assert_eq!((total.usage.input, total.cost_nano_usd), (u64::MAX, u64::MAX));
    let json = serde_json::to_string(&spend).unwrap();
    assert_eq!(serde_json::from_str::<Spend>(&json).unwrap(), spend);
}

#[test]
fn separate_usage_entries_count_with_their_number_of_calls() {
    let mut spend = Spend::default();
    let note = |calls, output| {
        let usage = Usage { output, ..Usage::default() };
        let by = WrittenBy { model: "m".to_owned(), calls, usage, cost_nano_usd: None };
        Body::from(UsageReported::of(&by))
    };
    spend.apply(&note(1, 5));
    spend.apply(&note(0, 2));
    let total = spend.total();
    assert_eq!((total.calls, total.usage.output, total.unpriced_calls), (1, 7, 1));
    for data in ["null", "{}", "{\"model\":1,\"calls\":-1}"] {
        spend.apply(&UsageReported { data: Json::parse(data).unwrap() }.into());
    }
    assert_eq!(spend.total(), total, "other entries do not count");
}

fn artifact(name: &str, bytes: u64) -> ArtifactPut {
    let content = BlobRef {
        blob: BlobHash::of(name.as_bytes()),
        mime: "text/plain".to_owned(),
        name: None,
        bytes,
        duration_ms: None,
    };
    ArtifactPut::new(name, ArtifactUse::Artifact, content)
}

#[test]
fn the_latest_version_of_each_artifact_is_listed() {
    let mut log = MemLog::of("u1");
    for put in [artifact("a", 1), artifact("b", 2), artifact("a", 3)] {
        log.push(put).unwrap();
    }
    let mut artifacts = Artifacts::default();
    log.entries().for_each(|entry| artifacts.apply(entry));
    let listed: Vec<_> =
        artifacts.by_name.values().map(|a| (a.name.as_str(), a.version, a.content.bytes)).collect();
    assert_eq!(listed, [("a", 2, 3), ("b", 1, 2)]);
}

#[test]
fn an_input_does_not_hide_an_artifact_of_the_same_name() {
    let mut log = MemLog::of("u1");
    log.push(artifact("a", 1)).unwrap();
    log.push(ArtifactPut { usage: ArtifactUse::Input, ..artifact("a", 2) }).unwrap();
    let mut artifacts = Artifacts::default();
    log.entries().for_each(|entry| artifacts.apply(entry));
    let bytes = |usage| artifacts.get(usage, "a").map(|artifact| (artifact.version, artifact.content.bytes));
    assert_eq!((bytes(ArtifactUse::Artifact), bytes(ArtifactUse::Input)), (Some((1, 1)), Some((1, 2))));
    assert_eq!(artifacts.named("a").map(|artifact| artifact.usage), Some(ArtifactUse::Artifact));
}

#[test]
fn the_outline_shows_every_branch_its_labels_and_the_path() {
    let log = MemLog::of("u1(hello) C2(x) 1=start N(title) L→1 B3(lesson) M4(m) K5(,1) L→none u6");
    let outline = Outline::fold(log.entries(), Some(log.seq(5)));
    let node = |number| &outline.nodes[outline.index_of(log.seq(number)).unwrap()];
    assert_eq!(outline.roots, [log.seq(1), log.seq(6)]);
    assert_eq!(node(1).children, [log.seq(2), log.seq(3)]);
    assert_eq!(node(1).label.as_deref(), Some("start"));
    let texts: Vec<&str> = outline.nodes.iter().map(|node| node.text.as_str()).collect();
    assert_eq!(texts, ["hello", "→ run", "lesson", "m", "(trimmed)", "u6"]);
    let on_path: Vec<bool> = outline.nodes.iter().map(|node| node.on_path).collect();
    assert_eq!(on_path, [true, false, true, true, true, false]);
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let long = "é".repeat(500);
    let log = MemLog::of(&format!("u1({long})"));
    let outline = Outline::fold(log.entries(), None);
    assert_eq!(outline.nodes[0].text.chars().count(), 121);
    assert_eq!(log.summary().preview.as_ref().unwrap().chars().count(), 81);
}

#[test]
fn the_summary_shows_the_current_state() {
    let log = MemLog::of("M(m) [ u1(  first words) a2 ] K3(s,1) N(title) L→1 u4");
    let summary = log.summary();
    assert_eq!(summary.preview.as_deref(), Some("first words"));
    assert_eq!(summary.title.as_deref(), Some("title"));
    assert_eq!((summary.messages, summary.compactions, summary.state), (2, 1, SessionState::Active));
    assert_eq!(summary.head, Head { seq: Seq(9), leaf: Some(Seq(9)) });
    assert_eq!((summary.last_id, summary.model.as_deref()), (Some(log.id(4)), Some("m")));
    assert_eq!(summary.updated_at, log.entry(Seq(9)).meta.at);
}

#[test]
fn only_a_message_reopens_a_closed_session() {
    let mut log = MemLog::of("N(x) M(m)");
    assert_eq!(log.summary().state, SessionState::Created);
    log.write("u1");
    log.push(StateChanged { state: SessionState::Closed, reason: None }).unwrap();
    log.write("1=x");
    assert_eq!(log.summary().state, SessionState::Closed);
    log.write("u2");
    assert_eq!(log.summary().state, SessionState::Active);
}

#[test]
fn members_are_added_and_removed() {
    let mut log = MemLog::of("u1");
    let member: Principal = "user:bob".parse().unwrap();
    log.push(MemberChanged::new(member.clone(), Some(Role::Reader))).unwrap();
    assert_eq!(log.summary().members.get(&member), Some(&Role::Reader));
    log.push(MemberChanged::new(member, None)).unwrap();
    assert!(log.summary().members.is_empty());
}

#[test]
fn an_imported_membership_is_ignored() {
    let mut log = MemLog::of("u1");
    let (bob, eve): (Principal, Principal) = ("user:bob".parse().unwrap(), "user:eve".parse().unwrap());
    log.push(MemberChanged::new(bob.clone(), Some(Role::Reader))).unwrap();
    log.push(MemberChanged { elsewhere: true, ..MemberChanged::new(bob.clone(), None) }).unwrap();
    log.push(MemberChanged { elsewhere: true, ..MemberChanged::new(eve, Some(Role::Collaborator)) }).unwrap();
    assert_eq!(log.summary().members.iter().collect::<Vec<_>>(), [(&bob, &Role::Reader)]);
}

#[test]
fn a_turn_is_open_until_it_ends() {
    let mut log = MemLog::of("[ u1 |");
    let open = log.summary().open_turn;
    assert!(open.is_some());
    log.write("u2");
    assert_eq!(log.summary().open_turn, open);
    log.write("]cancelled");
    assert_eq!(log.summary().open_turn, None);
}

/// The summary from folding all entries of a log again, with head, model and length computed naively.
fn refolded(mut summary: Summary, log: &MemLog, entries: &[&Entry]) -> Summary {
    let mut leaf = summary.head.leaf;
    for entry in entries {
        summary.apply(entry);
        leaf = match &entry.body {
            Body::LeafMoved(moved) => moved.to.map(|to| seq_of(log, to)),
            body if body.kind().stance() == Stance::InTree => Some(entry.meta.seq),
            _ => leaf,
        };
    }
    let path = log.path_seqs(leaf);
    let mut settings = Settings::default();
    path.iter().for_each(|seq| settings.apply(&log.entry(*seq).body));
    let messages = path.iter().filter(|seq| log.entry(**seq).meta.kind.is_message()).count() as u32;
    let seq = Seq(log.placed().len() as u32);
    Summary { head: Head { seq, leaf }, messages, model: settings.model, ..summary }
}

fn seq_of(log: &MemLog, id: sapwood_core::EntryId) -> Seq {
    log.entries().find(|entry| entry.meta.id == id).unwrap().meta.seq
}

proptest! {
    #![proptest_config(super::cases_of(150))]

    #[test]
    fn an_incremental_summary_equals_the_fold_of_the_log(seed: u64, len in 0_usize..80, more in 0_usize..20) {
        let mut log = MemLog::of(&random_script(seed, len));
        let entries: Vec<&Entry> = log.entries().collect();
        let empty = MemLog::default().summary().clone();
        prop_assert_eq!(&refolded(empty, &log, &entries), log.summary());

        log = log.fork(None);
        let shared = log.placed().len();
        let before = log.summary().clone();
        log.write(&"u n M(k) [ C(x) ".repeat(more));
        let own: Vec<&Entry> = log.entries().skip(shared).collect();
        prop_assert_eq!(&refolded(before, &log, &own), log.summary());
    }

    #[test]
    fn every_fold_is_incremental(bodies in prop::collection::vec(any_body(), 0..30), cut: usize) {
        let entries = unrelated_entries(bodies);
        let cut = cut % (entries.len() + 1);
        let mut feed = Feed::fold(&entries[..cut]);
        let mut labels = Labels::fold(&entries[..cut]);
        // A watcher that subscribed at the cut and replaces items with a known id.
        let mut watched = feed.items.clone();
        for entry in &entries[cut..] {
            feed.apply(entry);
            labels.apply(&entry.body);
            for item in feed.news() {
                match watched.iter_mut().find(|known| known.id == item.id) {
                    Some(known) => known.clone_from(item),
                    None => watched.push(item.clone()),
                }
            }
        }
        prop_assert_eq!(&watched, &feed.items);
        prop_assert_eq!(feed, Feed::fold(&entries));
        prop_assert_eq!(labels, Labels::fold(&entries));
    }

    #[test]
    fn a_feed_taken_in_batches_is_the_same_feed(bodies in prop::collection::vec(any_body(), 0..30), every in 1_usize..5) {
        let entries = unrelated_entries(bodies);
        let (mut feed, mut watched) = (Feed::default(), Vec::<FeedItem>::new());
        for entries in entries.chunks(every) {
            for entry in entries {
                feed.apply(entry);
            }
            for item in feed.take_items() {
                match watched.iter_mut().find(|known| known.id == item.id) {
                    Some(known) => *known = item,
                    None => watched.push(item),
                }
            }
        }
        prop_assert_eq!(watched, Feed::fold(&entries).items);
    }

    #[test]
    fn settled_feed_items_do_not_change(bodies in prop::collection::vec(any_body(), 0..30), every in 1_usize..5) {
        let entries = unrelated_entries(bodies);
        let (mut feed, mut sent) = (Feed::default(), Vec::new());
        for entries in entries.chunks(every) {
            for entry in entries {
                feed.apply(entry);
            }
            sent.extend(feed.take_settled());
        }
        sent.extend(feed.take_items());
        prop_assert_eq!(sent, Feed::fold(&entries).items);
    }

    #[test]
    fn a_fold_resumed_from_a_copy_gives_the_same_result(
        bodies in prop::collection::vec(any_body(), 0..30),
        cut: usize,
    ) {
        let entries = unrelated_entries(bodies);
        let cut = cut % (entries.len() + 1);
        let fold = |(mut ledger, mut artifacts, mut spend): (Ledger, Artifacts, Spend), entries: &[Entry]| {
            for entry in entries {
                ledger.apply(entry);
                artifacts.apply(entry);
                spend.apply(&entry.body);
            }
            (ledger, artifacts, spend)
        };
        let half = fold(Default::default(), &entries[..cut]);
        let kept = serde_json::from_str(&serde_json::to_string(&half.2).unwrap()).unwrap();
        let resumed = fold((half.0.clone(), half.1.clone(), kept), &entries[cut..]);
        prop_assert_eq!(resumed, fold(Default::default(), &entries));
    }

    #[test]
    fn no_two_items_of_a_feed_have_the_same_id(seed: u64, len in 0_usize..80) {
        let log = MemLog::of(&random_script(seed, len));
        let feed = Feed::fold(log.entries());
        let mut ids: Vec<&str> = feed.items.iter().map(|item| item.id.as_str()).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        prop_assert_eq!(ids.len(), all);
        // A tool item is running only if no result follows its call.
        let results = log.entries().filter(|entry| entry.meta.kind == Kind::ToolResult).count();
        let ended = feed.items.iter().filter(|i| matches!(i.kind, FeedType::ToolSuccess | FeedType::ToolError));
        prop_assert_eq!(ended.count(), results);
    }

    #[test]
    fn the_outline_has_every_entry_of_the_tree_once(seed: u64, len in 0_usize..80) {
        let log = MemLog::of(&random_script(seed, len));
        let outline = Outline::fold(log.entries(), log.head().leaf);
        let mut listed: Vec<Seq> = outline.roots.clone();
        listed.extend(outline.nodes.iter().flat_map(|node| node.children.iter().copied()));
        listed.sort_unstable();
        let nodes: Vec<Seq> = outline.nodes.iter().map(|node| node.seq).collect();
        prop_assert_eq!(&listed, &nodes);
        let on_path: Vec<Seq> = outline.nodes.iter().filter(|node| node.on_path).map(|node| node.seq).collect();
        prop_assert_eq!(on_path, log.path_seqs(log.head().leaf));
    }
}

/// Entries with arbitrary bodies, even sequences that no tree allows: folds accept any input.
fn unrelated_entries(bodies: Vec<Body>) -> Vec<Entry> {
    let template = MemLog::of("u1").entry(Seq(1)).meta.clone();
    let entry = |(index, body): (usize, Body)| {
        let meta = Meta { seq: Seq(index as u32 + 1), kind: body.kind(), ..template.clone() };
        Entry { meta, body }
    };
    bodies.into_iter().enumerate().map(entry).collect()
}

proptest! {
    #[test]
    fn the_pages_of_a_tree_together_are_the_outline(seed: u64, len in 1_usize..120, limit in 1_usize..40) {
        let log = MemLog::of(&random_script(seed, len));
        let leaf = log.head().leaf;
        let whole = Outline::fold(log.entries(), leaf);
        let (mut index, mut labels) = (TreeIndex::default(), Labels::default());
        for entry in log.entries() {
            index.add(&entry.meta);
            labels.apply(&entry.body);
        }
        let (mut nodes, mut after) = (Vec::new(), Seq::ZERO);
        while let Some((upto, has_more)) = index.page_end(after, limit) {
            let part = index.part(after, upto, leaf);
            let page = log.entries().filter(|entry| entry.meta.seq > after && entry.meta.seq <= upto);
            nodes.extend(page.filter_map(|entry| part.node(entry, labels.get(entry.meta.id).map(str::to_owned))));
            after = upto;
            prop_assert_eq!(has_more, whole.nodes.last().is_some_and(|last| last.seq > after));
        }
        prop_assert_eq!(index.roots(), whole.roots);
        prop_assert_eq!(nodes, whole.nodes);
    }
}
