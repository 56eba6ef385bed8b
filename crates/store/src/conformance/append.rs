//! Appending: order, atomicity, compare-and-swap, limits, references, lifecycle.

use sapwood_core::content::Json;
use sapwood_core::entry::{
    Action, ActionKind, ApprovalAnswer, ApprovalAnswered, ApprovalAsked, ArtifactPut, ArtifactUse,
    BranchSummary, CancelAsked, Compaction, ConfigSource, Configured, ContextChanged, ContextSet, CustomInfo,
    CustomMessage, Details, Exported, FlowAssigned, FlowEvent, Graft, GraftWhat, HookRan, InputQueued,
    InputTaken, Kind, Label, LeafMoved, LimitsChanged, MemoryLearned, ModelChanged, Outcome, PressureChanged,
    Queue, Round, RoundResult, RoundStatus, Selection, SessionContext, SessionNamed, SessionState,
    SkillsChanged, StateChanged, Strategy, SystemNote, ThinkingChanged, ToolResult, Trigger, TriggerEvent,
    TurnEnded, TurnStarted, TurnTerms, UsageReported,
};
use sapwood_core::port::store::{APPEND_ENTRIES_MAX, Append, BODY_BYTES_MAX, Expect};
use sapwood_core::{Body, Draft, EntryId, Part, Seq, StoreError, TimestampMs, TurnId};

use super::Harness;
use super::world::{
    World, ana, archived, assistant_message, blob_ref, bob, code, id, reopened, shared, user_message,
};

pub async fn seqs_are_1_2_3_without_gaps_i1(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let first = world.append_text(&ana(), &session, "one").await;
    let next =
        world.append(&ana(), &session, vec![user_message("two"), assistant_message("three", None)]).await;
    let seqs: Vec<Seq> = first.entries.iter().chain(&next.entries).map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [Seq(1), Seq(2), Seq(3)]);
    assert_eq!((next.head.seq, next.head.leaf), (Seq(3), Some(Seq(3))));
    let log = world.log(&ana(), &session).await;
    let read: Vec<(Seq, EntryId)> = log.iter().map(|record| (record.meta.seq, record.meta.id)).collect();
    assert_eq!(read, [first.entries, next.entries].concat());
}

pub async fn ids_grow_even_when_the_clock_goes_back_i13(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    for at in [2_000_000, 1_000, 3_000_000, 5] {
        let drafts = vec![
            Draft::new(TimestampMs(at), user_message("x")),
            Draft::new(TimestampMs(at), user_message("y")),
        ];
        world.store.append(&ana(), Append::new(session.clone(), world.now(), drafts)).await.unwrap();
    }
    let log = world.log(&ana(), &session).await;
    assert!(log.windows(2).all(|pair| pair[0].meta.id < pair[1].meta.id));
    let old = Draft { id: Some(log[0].meta.id), ..Draft::new(world.now(), user_message("again")) };
    let append = Append::new(session.clone(), world.now(), vec![old]);
    assert_eq!(code(world.store.append(&ana(), append).await), "entry.misplaced");
}

pub async fn parents_are_older_than_their_children_i2(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let first =
        world.append(&ana(), &session, vec![user_message("1"), user_message("2"), user_message("3")]).await;
    let back = LeafMoved { to: Some(first.entries[0].1) };
    world
        .append(
            &ana(),
            &session,
            vec![back.into(), user_message("5"), TurnStarted::default().into(), user_message("7")],
        )
        .await;
    let parents: Vec<Option<u32>> =
        world.log(&ana(), &session).await.iter().map(|record| record.meta.parent.map(|seq| seq.0)).collect();
    // Entries outside the tree have the current leaf as parent.
    assert_eq!(parents, [None, Some(1), Some(2), Some(3), Some(1), Some(5), Some(5)]);
}

pub async fn a_batch_with_one_bad_draft_writes_nothing_i4(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let before = (world.summary(&ana(), &session).await, world.log(&ana(), &session).await);
    let nowhere = Label { target: EntryId::mint(TimestampMs(1), 1), text: Some("x".to_owned()) };
    let batch = vec![user_message("two"), nowhere.into(), user_message("three")];
    assert_eq!(code(world.try_append(&ana(), &session, batch).await), "entry.misplaced");
    let after = (world.summary(&ana(), &session).await, world.log(&ana(), &session).await);
    assert_eq!(before, after);
    assert_eq!(world.append_text(&ana(), &session, "two").await.entries[0].0, Seq(2));
}

pub async fn a_wrong_head_conflicts_and_writes_nothing_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one", "two"]).await;
    for wrong in [0, 1, 3] {
        let append =
            Append { expect: Expect::Head(Seq(wrong)), ..world.append_of(&session, vec![user_message("x")]) };
        let error = world.store.append(&ana(), append).await.unwrap_err();
        let StoreError::Conflict { expected, actual } = error else { panic!("{error:?}") };
        assert_eq!((expected, actual), (Seq(wrong), Seq(2)));
    }
    assert_eq!(world.log(&ana(), &session).await.len(), 2);
    let append =
        Append { expect: Expect::Head(Seq(2)), ..world.append_of(&session, vec![user_message("three")]) };
    assert_eq!(world.store.append(&ana(), append).await.unwrap().head.seq, Seq(3));
}

pub async fn one_of_two_concurrent_writers_wins_i5(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let append = |text: &str| Append {
        expect: Expect::Head(Seq(1)),
        ..world.append_of(&session, vec![user_message(text)])
    };
    let (scope, store) = (ana(), &world.store);
    let (left, right) =
        tokio::join!(store.append(&scope, append("left")), store.append(&scope, append("right")));
    assert_eq!(usize::from(left.is_ok()) + usize::from(right.is_ok()), 1);
    let lost = if left.is_ok() { code(right) } else { code(left) };
    assert_eq!(lost, "session.conflict");
    assert_eq!(world.log(&ana(), &session).await.len(), 2);
}

pub async fn limits_are_enforced(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    assert_eq!(code(world.try_append(&ana(), &session, Vec::new()).await), "input.invalid");
    let many = vec![user_message("x"); APPEND_ENTRIES_MAX + 1];
    assert_eq!(code(world.try_append(&ana(), &session, many).await), "input.too_large");
    let big = user_message(&"x".repeat(BODY_BYTES_MAX));
    assert_eq!(
        code(world.try_append(&ana(), &session, vec![user_message("ok"), big]).await),
        "input.too_large"
    );
    let append = Append {
        idempotency_key: Some("k".repeat(10_000)),
        ..world.append_of(&session, vec![user_message("x")])
    };
    assert_eq!(code(world.store.append(&ana(), append).await), "input.too_large");
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq::ZERO);
}

pub async fn references_are_checked(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let first = world
        .append(&ana(), &session, vec![user_message("1"), user_message("2"), TurnStarted::default().into()])
        .await;
    let (one, two, beside) = (first.entries[0].1, first.entries[1].1, first.entries[2].1);
    let nowhere = EntryId::mint(TimestampMs(1), 1);
    let label = |target| Label { target, text: Some("x".to_owned()) }.into();
    let moved = |to| LeafMoved { to: Some(to) }.into();
    let kept = |first_kept| compaction(Some(first_kept)).into();
    let refused: Vec<Vec<Body>> = vec![
        vec![label(nowhere)],
        vec![label(beside)],
        vec![moved(nowhere)],
        vec![moved(beside)],
        vec![kept(nowhere)],
        vec![kept(beside)],
        vec![moved(one), kept(two)],
    ];
    for bodies in refused {
        let shown = format!("{bodies:?}");
        assert_eq!(code(world.try_append(&ana(), &session, bodies).await), "entry.misplaced", "{shown}");
    }
    world.append(&ana(), &session, vec![label(two), kept(one), moved(one)]).await;
}

fn compaction(first_kept: Option<EntryId>) -> Compaction {
    Compaction {
        summary: Some("so far".to_owned()),
        first_kept,
        tokens_before: Some(10),
        tokens_after: Some(2),
        ..Compaction::new(Strategy::Llm, Trigger::Manual)
    }
}

pub async fn an_archived_session_refuses_writes_until_reopened(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    world.append(&ana(), &session, vec![archived()]).await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Archived);
    let named = SessionNamed { title: "x".to_owned() };
    for body in
        [user_message("two"), named.into(), TurnStarted::default().into(), LeafMoved { to: None }.into()]
    {
        let error = world.try_append(&ana(), &session, vec![body]).await;
        assert_eq!(code(error), "session.archived");
    }
    let hidden = vec![Exported { format: "x".to_owned(), entries: 1 }.into(), user_message("two")];
    assert_eq!(code(world.try_append(&ana(), &session, hidden).await), "session.archived");
    let exported = Exported { format: "jsonl".to_owned(), entries: 2 };
    world.append(&ana(), &session, vec![exported.into()]).await;
    world.append(&ana(), &session, vec![shared(&bob(), Some(sapwood_core::Role::Reader))]).await;
    world.append(&ana(), &session, vec![reopened(), user_message("two")]).await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Active);
}

pub async fn a_message_reopens_a_closed_session(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Created);
    world.append_text(&ana(), &session, "one").await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Active);
    let closed = StateChanged { state: SessionState::Closed, reason: Some("done".to_owned()) };
    world.append(&ana(), &session, vec![closed.into()]).await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Closed);
    world.append_text(&ana(), &session, "two").await;
    assert_eq!(world.summary(&ana(), &session).await.state, SessionState::Active);
}

pub async fn drafts_keep_their_id_time_author_and_turn(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let turn = TurnId::mint(TimestampMs(7), 7);
    let id = EntryId::mint(TimestampMs(5), 5);
    let by: sapwood_core::Principal = "agent:scribe".parse().unwrap();
    let given = Draft {
        id: Some(id),
        by: Some(by.clone()),
        turn: Some(turn),
        ..Draft::new(TimestampMs(5), user_message("one"))
    };
    let plain = Draft::new(TimestampMs(6), user_message("two"));
    let append = Append::new(session.clone(), world.now(), vec![given, plain]);
    world.store.append(&ana(), append).await.unwrap();
    let log = world.log(&ana(), &session).await;
    let meta = &log[0].meta;
    assert_eq!((meta.id, meta.at, &meta.by, meta.turn), (id, TimestampMs(5), &by, Some(turn)));
    let meta = &log[1].meta;
    assert_eq!((meta.at, &meta.by, meta.turn), (TimestampMs(6), &ana().principal, None));
}

pub async fn every_kind_of_body_reads_back_byte_for_byte(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let blob = world.store.put_blob(&ana(), b"abc".to_vec()).await.unwrap();
    let target =
        world.append_text(&ana(), &session, "Grüße \u{1F332} \"quoted\" \\ \u{0} \n line").await.entries[0].1;
    let bodies: Vec<Body> = [
        messages(blob),
        summaries(target),
        settings(),
        turns(),
        marks(target, blob),
        configuration(),
        records(),
    ]
    .concat();
    let mut kinds: Vec<Kind> = bodies.iter().map(Body::kind).collect();
    for body in &bodies {
        world.append(&ana(), &session, vec![body.clone()]).await;
    }
    let log = world.log(&ana(), &session).await;
    for (record, body) in log[1..].iter().zip(&bodies) {
        assert_eq!(record.body, sapwood_core::entry::codec::encode(body));
        assert_eq!(record.decode().unwrap(), *body);
    }
    kinds.push(Kind::UserMessage);
    let missing: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "kinds without a sample: {missing:?}");
}

fn messages(blob: sapwood_core::BlobHash) -> Vec<Body> {
    let input = Json::parse(r#"{ "z":1.0, "a":[1, 2] }"#).unwrap();
    let called = sapwood_core::entry::AssistantMessage {
        parts: vec![Part::text("let me look"), Part::tool_call("c1", "ls", input.clone())],
        model: Some("m-1".to_owned()),
        usage: Some(sapwood_core::entry::Usage { input: 3, output: 4, cache_read: 5, ..Default::default() }),
        cost_nano_usd: Some(12),
        stop: sapwood_core::entry::Stop::ToolUse,
    };
    let result = ToolResult {
        call_id: "c1".to_owned(),
        tool: Some("ls".to_owned()),
        parts: vec![Part::text("a\nb"), Part::Media(blob_ref(blob))],
        is_error: true,
        duration_ms: Some(3),
        interrupted: true,
        full: Some(blob_ref(blob)),
    };
    let custom = CustomMessage {
        custom_type: "ext".to_owned(),
        parts: vec![Part::text("x")],
        display: true,
        details: Some(input),
    };
    let note = SystemNote { text: "go on".to_owned(), reason: Some("continuation".to_owned()) };
    vec![called.into(), result.into(), custom.into(), note.into()]
}

fn summaries(target: EntryId) -> Vec<Body> {
    let summary = BranchSummary {
        summary: "it failed".to_owned(),
        from: Some(target),
        details: Details { facts: vec!["f".to_owned()], ..Details::default() },
        from_hook: true,
        written_by: None,
    };
    let graft = Graft { source: id("other"), upto: target, what: GraftWhat::Rounds { first: 1, last: 2 } };
    vec![compaction(Some(target)).into(), summary.into(), graft.into()]
}

fn settings() -> Vec<Body> {
    let variables = [("k".to_owned(), "v".to_owned())].into();
    let context = ContextChanged {
        system: Some("be brief".to_owned()),
        variables: Some(variables),
        ..ContextChanged::default()
    };
    vec![
        ModelChanged { model: "m-2".to_owned() }.into(),
        ThinkingChanged { level: "high".to_owned() }.into(),
        SkillsChanged { active: vec!["sql".to_owned()] }.into(),
        context.into(),
    ]
}

fn turns() -> Vec<Body> {
    let round = Round {
        number: 1,
        reason: Some("the tool failed".to_owned()),
        action: Action { kind: ActionKind::Tool, what: "ls".to_owned() },
        result: Some(RoundResult { status: RoundStatus::Ok, tokens: 7, cost_nano_usd: None }),
        confidence: Some(0.5),
        trace_id: Some("t".to_owned()),
    };
    let asked = ApprovalAsked {
        approval: "a1".to_owned(),
        question: "may I?".to_owned(),
        call_id: None,
        details: None,
        deadlines: None,
    };
    let answer = ApprovalAnswered {
        approval: "a1".to_owned(),
        answer: ApprovalAnswer::Denied,
        reason: Some("no".to_owned()),
    };
    let ended = TurnEnded {
        outcome: Outcome::Limited,
        code: Some("turn_limit".to_owned()),
        message: Some("enough".to_owned()),
        usage: None,
        cost_nano_usd: Some(1),
    };
    let queued = InputQueued { queue: Queue::Next, parts: vec![Part::text("later")] };
    let taken = InputTaken { input: EntryId::from_bytes([1; 16]) };
    let cancel = CancelAsked { turn: TurnId::from_bytes([2; 16]) };
    let talk: [Body; 3] = [queued.into(), taken.into(), cancel.into()];
    let turn: [Body; 5] =
        [TurnStarted::default().into(), round.into(), asked.into(), answer.into(), ended.into()];
    turn.into_iter().chain(talk).collect()
}

fn configuration() -> Vec<Body> {
    let context = SessionContext {
        working_dir: Some("/srv/garden".to_owned()),
        active_file: Some("beds.md".to_owned()),
        selection: Some(Selection { file: "beds.md".to_owned(), start_line: 2, end_line: 5 }),
        git_ref: Some("main".to_owned()),
        variables: [("season".to_owned(), "spring".to_owned())].into(),
    };
    let inherited =
        ConfigSource { session: id("root"), owner: bob().principal, turns: 3, cost_nano_usd: 5, tokens: 7 };
    let configured = Configured {
        agent: Json::parse(r#"{"id":"gardener","model":"demo"}"#).unwrap(),
        system: Some("be brief".to_owned()),
        context: context.clone(),
        inherited: Some(inherited),
    };
    let limits = LimitsChanged { turns_max: Some(9), token_budget: Some(1_000), budget_nano_usd: Some(1) };
    vec![configured.into(), ContextSet { context }.into(), limits.into()]
}

fn records() -> Vec<Body> {
    let data = || Json::parse(r#"{"level":"high","z":[1.0]}"#).unwrap();
    vec![
        TurnTerms { data: data() }.into(),
        UsageReported { data: data() }.into(),
        PressureChanged { data: data() }.into(),
        FlowEvent { data: data() }.into(),
        FlowAssigned { data: data() }.into(),
        HookRan { data: data() }.into(),
        TriggerEvent { data: data() }.into(),
        MemoryLearned { data: data() }.into(),
    ]
}

fn marks(target: EntryId, blob: sapwood_core::BlobHash) -> Vec<Body> {
    let put = ArtifactPut::new("out.txt", ArtifactUse::Artifact, blob_ref(blob));
    let data = Json::parse(r#"{"deep":{"er":[null,true,"x"]}}"#).unwrap();
    vec![
        LeafMoved { to: Some(target) }.into(),
        Label { target, text: Some("start".to_owned()) }.into(),
        SessionNamed { title: "a name".to_owned() }.into(),
        CustomInfo { custom_type: "ext".to_owned(), data }.into(),
        put.into(),
        shared(&bob(), Some(sapwood_core::Role::Reader)),
        StateChanged { state: SessionState::Closed, reason: None }.into(),
        Exported { format: "jsonl".to_owned(), entries: 3 }.into(),
    ]
}
