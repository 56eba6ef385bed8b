//! The turn machine: its behaviour step by step, and recovery from every prefix of a turn's log.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use sapwood_core::agent::{Confidence, Limits, OnInterrupt};
use sapwood_core::entry::*;
use sapwood_core::fixture::{Dice, MemLog};
use sapwood_core::policy::ApprovalMode;
use sapwood_core::port::tool::{FsScope, Replay, ToolSpec, Touch};
use sapwood_core::project::context::Role;
use sapwood_core::turn::{Answer, Effect, Input, Machine, Rules, TurnStep};
use sapwood_core::{Body, Draft, EntryId, Json, Part, TimestampMs, TurnId};

use super::cases_of;

fn tool(name: &str, touch: Touch, replay: Replay) -> ToolSpec {
    let input_schema = Json::parse("{}").unwrap();
    ToolSpec { name: name.into(), description: String::new(), input_schema, touch, replay }
}

fn rules() -> Rules {
    let tools = vec![
        tool("look", Touch::Reads, Replay::Safe),
        tool("peek", Touch::Reads, Replay::Never),
        tool("edit", Touch::Edits, Replay::Never),
        tool("commit", Touch::Commits, Replay::Never),
        tool("ask_user", Touch::Asks, Replay::Never),
    ];
    Rules {
        session: "s".parse().unwrap(),
        turn: TurnId::from_bytes([7; 16]),
        limits: Limits::default(),
        approvals: ApprovalMode::Ask,
        fs_scope: FsScope::Sandboxed,
        confidence: None,
        tools,
        trace_id: None,
        assignment: None,
    }
}

fn user_message(text: &str) -> UserMessage {
    UserMessage { parts: vec![Part::text(text)], origin: None }
}

fn answer(text: &str, calls: &[(&str, &str)]) -> Answer {
    let mut parts = vec![Part::text(text)];
    let input = Json::parse(r#"{"question":"which?"}"#).unwrap();
    parts.extend(calls.iter().map(|(id, name)| Part::tool_call(*id, *name, input.clone())));
    let stop = if calls.is_empty() { Stop::Stop } else { Stop::ToolUse };
    let usage = Some(Usage { input: 10, output: 5, ..Usage::default() });
    Answer { parts, model: "m".into(), usage, cost_nano_usd: Some(3), stop }
}

fn answered(text: &str, calls: &[(&str, &str)]) -> Input {
    Input::Answered { answer: answer(text, calls), faults: BTreeMap::new(), leaf: None }
}

fn done(call_id: &str) -> Input {
    Input::ToolDone(ToolResult {
        call_id: call_id.into(),
        tool: None,
        parts: vec![Part::text("ok")],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    })
}

fn approval_given(approval: &str, answer: ApprovalAnswer, reason: &str) -> Input {
    Input::ApprovalGiven { approval: approval.into(), answer, reason: Some(reason.into()) }
}

fn kinds(step: &TurnStep) -> Vec<&'static str> {
    step.entries.iter().map(|body| body.kind().as_str()).collect()
}

fn runs(step: &TurnStep) -> Vec<&str> {
    step.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::RunTool(call) => Some(call.call_id.as_str()),
            _ => None,
        })
        .collect()
}

fn asked(step: &TurnStep) -> String {
    let asked = step.entries.iter().find_map(|body| match body {
        Body::ApprovalAsked(asked) => Some(asked.approval.clone()),
        _ => None,
    });
    asked.expect("a person is asked")
}

fn outcome(machine: &Machine) -> (Outcome, Option<&str>) {
    let ended = machine.state().ended.as_ref().expect("the turn has ended");
    (ended.outcome, ended.code.as_deref())
}

fn begin() -> Machine {
    Machine::begin(rules(), user_message("go"), None).0
}

#[test]
fn a_turn_without_tools_takes_two_batches() {
    let (mut machine, first) = Machine::begin(rules(), user_message("hi"), None);
    assert_eq!(kinds(&first), ["turn_started", "user_message", "round"]);
    assert_eq!(first.effects, [Effect::CallModel]);
    let second = machine.advance(answered("hello", &[]));
    assert_eq!(kinds(&second), ["assistant_message", "round", "turn_ended"]);
    assert_eq!((second.effects.len(), outcome(&machine)), (0, (Outcome::Completed, None)));
    assert_eq!(machine.state().ended.as_ref().unwrap().cost_nano_usd, Some(3));
}

#[test]
fn a_call_is_in_the_log_with_its_intent_before_it_runs() {
    let step = begin().advance(answered("", &[("1", "edit")]));
    assert_eq!(kinds(&step), ["assistant_message", "round"]);
    assert_eq!(runs(&step), ["1"]);
}

/// The rules of a turn whose caller provides the tool `theirs`.
fn with_callers_tool() -> Rules {
    let mut rules = rules();
    rules.tools.push(tool("theirs", Touch::Callers, Replay::Never));
    rules
}

#[test]
fn a_call_of_a_caller_tool_ends_the_turn_and_the_next_turn_starts_with_its_result() {
    let (mut machine, first) = Machine::begin(with_callers_tool(), user_message("go"), None);
    let step = machine.advance(answered("", &[("1", "theirs")]));
    assert_eq!((runs(&step), outcome(&machine)), (vec![], (Outcome::Completed, None)));
    assert!(!step.entries.iter().any(|body| matches!(body, Body::ToolResult(_))), "no result is synthesized");
    let Input::ToolDone(result) = done("1") else { unreachable!() };
    let (next, begun) = Machine::begin_with(with_callers_tool(), vec![result.into()], None);
    assert_eq!(kinds(&begun), ["turn_started", "tool_result", "round"]);
    assert!(next.state().has_input);
    // Recovery from any prefix reaches the same end.
    let log: Vec<Body> = first.entries.into_iter().chain(step.entries).collect();
    for end in 4..=log.len() {
        let recovered = Machine::recover(with_callers_tool(), &log[..end], OnInterrupt::Continue, None).0;
        assert_eq!(outcome(&recovered), (Outcome::Completed, None), "{end}");
    }
}

#[test]
fn calls_of_caller_tools_wait_for_local_calls() {
    let (mut machine, _) = Machine::begin(with_callers_tool(), user_message("go"), None);
    let step = machine.advance(answered("", &[("1", "theirs"), ("2", "look")]));
    assert_eq!((runs(&step), machine.state().ended.is_none()), (vec!["2"], true));
    machine.advance(done("2"));
    assert_eq!(outcome(&machine), (Outcome::Completed, None));
}

#[test]
fn reads_run_in_parallel_and_writes_run_alone_and_in_order() {
    let mut machine = begin();
    let first = machine.advance(answered("", &[("1", "look"), ("2", "peek"), ("3", "edit"), ("4", "look")]));
    assert_eq!(runs(&first), ["1", "2"]);
    assert_eq!(runs(&machine.advance(done("2"))), [""; 0]);
    assert_eq!(runs(&machine.advance(done("1"))), ["3"]);
    assert_eq!(runs(&machine.advance(done("3"))), ["4"]);
    let last = machine.advance(done("4"));
    assert_eq!(kinds(&last), ["tool_result", "round", "round"]);
    assert_eq!(last.effects, [Effect::CallModel]);
}

#[test]
fn a_commit_waits_for_a_persons_approval() {
    let mut machine = begin();
    let step = machine.advance(answered("", &[("1", "commit")]));
    assert_eq!(step.effects, [Effect::AwaitPerson]);
    let step = machine.advance(approval_given(&asked(&step), ApprovalAnswer::Approved, ""));
    assert_eq!((kinds(&step), runs(&step)), (vec!["round"], vec!["1"]));
}

#[test]
fn a_refusal_is_reported_to_the_model() {
    let mut machine = begin();
    let step = machine.advance(answered("", &[("1", "commit")]));
    let step = machine.advance(approval_given(&asked(&step), ApprovalAnswer::Denied, "not on Friday"));
    assert_eq!(kinds(&step), ["tool_result", "round", "round"]);
    assert!(step.entries[0].text().contains("not on Friday"));
}

#[test]
fn an_answer_to_a_question_is_the_calls_result() {
    let mut machine = begin();
    let step = machine.advance(answered("", &[("1", "ask_user")]));
    let step = machine.advance(approval_given(&asked(&step), ApprovalAnswer::Approved, "the blue one"));
    assert_eq!(step.entries[0].text(), "the blue one");
    assert_eq!(step.effects, [Effect::CallModel]);
}

#[test]
fn invalid_tool_input_is_corrected_at_most_three_times() {
    let mut machine = begin();
    let malformed = || Input::Answered {
        answer: answer("", &[("1", "look")]),
        faults: BTreeMap::from([(0, "path is missing".to_owned())]),
        leaf: None,
    };
    for _ in 0..3 {
        assert_eq!(machine.advance(malformed()).effects, [Effect::CallModel]);
    }
    machine.advance(malformed());
    assert_eq!(outcome(&machine), (Outcome::Limited, Some("correction_limit")));
}

#[test]
fn a_call_of_an_unknown_tool_returns_the_available_tools() {
    let step = begin().advance(answered("", &[("1", "fly")]));
    assert!(step.entries[1].text().contains("look, peek"), "{:?}", step.entries);
    assert_eq!(step.effects, [Effect::CallModel]);
}

#[test]
fn a_turn_stops_at_the_round_limit() {
    let mut machine = begin();
    for _ in 0..15 {
        machine.advance(answered("", &[("1", "look")]));
        assert_eq!(machine.advance(done("1")).effects, [Effect::CallModel]);
    }
    machine.advance(answered("", &[("1", "look")]));
    machine.advance(done("1"));
    assert_eq!(outcome(&machine), (Outcome::Limited, Some("turn_limit")));
}

#[test]
fn cancelling_keeps_the_partial_answer_and_closes_open_calls() {
    let mut machine = begin();
    machine.advance(answered("", &[("1", "edit"), ("2", "edit")]));
    let step = machine.advance(Input::Cancelled { partial: None });
    assert_eq!(kinds(&step), ["tool_result", "tool_result", "round", "turn_ended"]);
    assert_eq!(machine.advance(done("1")), TurnStep::default(), "a late result is ignored");
    let mut machine = begin();
    let step = machine.advance(Input::Cancelled { partial: Some(answer("half a sen", &[])) });
    let Body::AssistantMessage(message) = &step.entries[0] else { panic!("{:?}", step.entries) };
    assert_eq!((message.stop, outcome(&machine)), (Stop::Aborted, (Outcome::Cancelled, None)));
}

#[test]
fn input_during_a_turn_is_added_before_the_next_model_call() {
    let mut machine = begin();
    let input = EntryId::from_bytes([9; 16]);
    machine.advance(Input::Steered { input, parts: vec![Part::text("in French")] });
    let step = machine.advance(answered("done", &[]));
    assert_eq!(kinds(&step), ["assistant_message", "round", "input_taken", "user_message", "round"]);
    assert_eq!(step.effects, [Effect::CallModel]);
}

#[test]
fn an_overflow_is_compacted_once_and_a_second_one_ends_the_turn() {
    let mut machine = begin();
    let overflow =
        || Input::ModelFailed { code: "context_overflow".into(), message: String::new(), partial: None };
    assert_eq!(machine.advance(overflow()).effects, [Effect::Compact(Trigger::Overflow)]);
    let compaction =
        Compaction { summary: Some("s".into()), ..Compaction::new(Strategy::Truncate, Trigger::Overflow) };
    assert_eq!(
        machine
            .advance(Input::Compacted { trigger: Trigger::Overflow, compaction: Some(compaction) })
            .effects,
        [Effect::CallModel]
    );
    machine.advance(overflow());
    assert_eq!(outcome(&machine), (Outcome::Failed, Some("context_overflow")));
}

fn rated(rating: f32) -> Input {
    answered(&format!("maybe <confidence>{rating}</confidence>"), &[])
}

#[test]
fn low_confidence_backtracks_twice_and_then_asks_a_person() {
    let confident = Rules { confidence: Some(Confidence::default()), ..rules() };
    let (mut machine, _) = Machine::begin(confident, user_message("go"), None);
    for _ in 0..2 {
        let step = machine.advance(rated(0.1));
        assert_eq!(kinds(&step), ["assistant_message", "round", "leaf_moved", "branch_summary", "round"]);
    }
    let step = machine.advance(rated(0.1));
    assert_eq!(step.effects, [Effect::AwaitPerson]);
    machine.advance(approval_given(&asked(&step), ApprovalAnswer::Approved, ""));
    assert_eq!(outcome(&machine), (Outcome::Completed, None));
}

#[test]
fn medium_confidence_asks_a_person_and_a_denial_becomes_the_next_input() {
    let confident = Rules { confidence: Some(Confidence::default()), ..rules() };
    let (mut machine, _) = Machine::begin(confident, user_message("go"), None);
    let step = machine.advance(rated(0.4));
    assert_eq!(step.entries[0].text(), "maybe", "the rating is removed from the text");
    let step = machine.advance(approval_given(&asked(&step), ApprovalAnswer::Denied, "check the docs"));
    assert_eq!(kinds(&step), ["round", "user_message", "round"]);
}

#[test]
fn a_missing_rating_triggers_nothing() {
    let confident = Rules { confidence: Some(Confidence::default()), ..rules() };
    let (mut machine, _) = Machine::begin(confident, user_message("go"), None);
    machine.advance(answered("surely", &[]));
    assert_eq!(outcome(&machine), (Outcome::Completed, None));
}

#[test]
fn over_budget_a_person_may_approve_once_per_turn() {
    let mut machine = begin();
    let step = machine.advance(Input::OverBudget { question: "spend more?".into(), ask: true });
    let step = machine.advance(approval_given(&asked(&step), ApprovalAnswer::Approved, ""));
    assert_eq!(step.effects, [Effect::CallModel]);
    assert!(machine.state().is_budget_waived);
    let mut machine = begin();
    machine.advance(Input::OverBudget { question: String::new(), ask: false });
    assert_eq!(outcome(&machine), (Outcome::Limited, Some("budget_exceeded")));
}

/// A whole turn played with random answers. Records the log length at which each tool was started.
struct PlayedTurn {
    entries: Vec<Body>,
    /// The calls that ran, with the log length at their start. Ids are unique within the turn.
    ran: HashMap<String, usize>,
}

struct Simulation {
    dice: Dice,
    calls_made: u32,
}

impl Simulation {
    fn answer(&mut self) -> Answer {
        let names = ["look", "peek", "edit", "commit", "ask_user", "unknown"];
        let count = if self.dice.one_in(3) { 0 } else { 1 + self.dice.below(3) };
        let ids: Vec<(String, &str)> = (0..count)
            .map(|_| {
                self.calls_made += 1;
                (format!("c{}", self.calls_made), self.dice.pick(&names).unwrap())
            })
            .collect();
        let calls: Vec<(&str, &str)> = ids.iter().map(|(id, name)| (id.as_str(), *name)).collect();
        let rating = self.dice.below(10) as f32 / 10.0;
        answer(&format!("text <confidence>{rating}</confidence>"), &calls)
    }
}

fn play(mut machine: Machine, first: TurnStep, seed: u64, before: Vec<Body>) -> (PlayedTurn, Machine) {
    let mut simulation = Simulation { dice: Dice::new(seed), calls_made: 100 * (seed % 1000) as u32 + 1 };
    let mut played = PlayedTurn { entries: before, ran: HashMap::new() };
    let mut pending: Vec<Effect> = Vec::new();
    let mut step = first;
    for _ in 0..400 {
        played.entries.append(&mut step.entries);
        for effect in &step.effects {
            if let Effect::RunTool(call) = effect {
                assert!(played.ran.insert(call.call_id.clone(), played.entries.len()).is_none(), "ran twice");
            }
        }
        pending.append(&mut step.effects);
        // A person may answer at any time, even while calls are running.
        pending.retain(|effect| *effect != Effect::AwaitPerson);
        if !machine.state().waiting_for().is_empty() {
            pending.push(Effect::AwaitPerson);
        }
        if machine.state().ended.is_some() {
            return (played, machine);
        }
        assert!(!pending.is_empty(), "a turn that has not ended always waits for something");
        let next = pending.remove(simulation.dice.below(pending.len()));
        let input = perform(next, &machine, &mut simulation, &mut played.entries, &mut pending);
        step = machine.advance(input);
    }
    panic!("the turn does not end");
}

fn perform(
    effect: Effect,
    machine: &Machine,
    simulation: &mut Simulation,
    log: &mut Vec<Body>,
    pending: &mut Vec<Effect>,
) -> Input {
    if simulation.dice.one_in(25) {
        pending.clear();
        return Input::Cancelled { partial: Some(answer("par", &[])) };
    }
    match effect {
        Effect::CallModel if simulation.dice.one_in(12) => {
            Input::ModelFailed { code: "context_overflow".into(), message: String::new(), partial: None }
        }
        Effect::CallModel => {
            let answer = simulation.answer();
            let is_fault = simulation.dice.one_in(6) && answer.parts.len() > 1;
            let faults = if is_fault { BTreeMap::from([(0, "no".to_owned())]) } else { BTreeMap::new() };
            Input::Answered { answer, faults, leaf: None }
        }
        Effect::RunTool(call) => done(&call.call_id),
        Effect::Compact(trigger) => Input::Compacted { trigger, compaction: None },
        Effect::AwaitPerson => {
            let waiting = machine.state().waiting_for();
            let approval = waiting[simulation.dice.below(waiting.len())].to_owned();
            let answer =
                if simulation.dice.one_in(3) { ApprovalAnswer::Denied } else { ApprovalAnswer::Approved };
            let answered = ApprovalAnswered { approval: approval.clone(), answer, reason: None };
            log.push(answered.clone().into());
            Input::ApprovalGiven { approval, answer, reason: None }
        }
    }
}

fn random_rules(seed: u64) -> Rules {
    let confidence = seed.is_multiple_of(2).then(Confidence::default);
    Rules { confidence, ..rules() }
}

fn check_whole(entries: &[Body]) {
    let mut log = MemLog::default();
    let turn = TurnId::from_bytes([7; 16]);
    for body in entries {
        log.append(vec![Draft::new(TimestampMs(1), body.clone()).in_turn(turn)]).unwrap();
    }
    let context = log.context();
    let mut open: Vec<String> = Vec::new();
    for message in &context.messages {
        match &message.answers {
            Some(answers) => {
                assert_eq!(message.role, Role::Tool);
                assert_eq!(open.remove(0), answers.call_id, "I6");
            }
            None => {
                assert!(open.is_empty(), "I6");
                let calls = message.parts.iter().filter_map(Part::as_tool_call);
                open = calls.map(|call| call.call_id.clone()).collect();
            }
        }
    }
    assert!(open.is_empty(), "I6");
    let started = entries.iter().filter(|body| body.kind() == Kind::TurnStarted).count();
    let ended = entries.iter().filter(|body| body.kind() == Kind::TurnEnded).count();
    assert_eq!((started, ended), (1, 1));
}

proptest! {
    #![proptest_config(cases_of(200))]

    /// From every prefix of its log, a turn can be recovered, reaches its end, and leaves a consistent session. No call
    /// that may have run is repeated, unless its tool allows it.
    #[test]
    fn every_prefix_of_a_turn_recovers(seed in any::<u64>(), rollback in any::<bool>()) {
        let rules = random_rules(seed);
        let (machine, first) = Machine::begin(rules.clone(), user_message("go"), None);
        let (played, _) = play(machine, first, seed, Vec::new());
        check_whole(&played.entries);
        let on_interrupt = if rollback { OnInterrupt::Rollback } else { OnInterrupt::Continue };
        for cut in 1..=played.entries.len() {
            let prefix = &played.entries[..cut];
            let (machine, step) = Machine::recover(rules.clone(), prefix, on_interrupt, None);
            if machine.state().ended.is_some() && step == TurnStep::default() {
                prop_assert_eq!(cut, played.entries.len());
                continue;
            }
            let (again, _) = play(machine, step, seed.wrapping_add(cut as u64), prefix.to_vec());
            check_whole(&again.entries);
            for (call, at) in &played.ran {
                let may_repeat = is_replay_safe(&played.entries, call);
                prop_assert!(*at > cut || may_repeat || !again.ran.contains_key(call), "{call} ran twice");
            }
        }
    }

    /// The machine's state is the fold of its entries, so recovery needs only the log.
    #[test]
    fn the_state_is_the_fold_of_the_log(seed in any::<u64>()) {
        let rules = random_rules(seed);
        let (machine, first) = Machine::begin(rules, user_message("go"), None);
        let (played, machine) = play(machine, first, seed, Vec::new());
        let folded = sapwood_core::turn::TurnState::fold(&played.entries);
        prop_assert_eq!(&folded, machine.state());
    }
}

fn is_replay_safe(entries: &[Body], call_id: &str) -> bool {
    let calls = entries.iter().flat_map(|body| body.parts().to_vec());
    let names = calls.filter_map(|part| part.as_tool_call().cloned());
    names.into_iter().any(|call| call.call_id == call_id && call.name == "look")
}

#[test]
fn a_call_that_may_have_run_is_interrupted_and_not_run_again() {
    let (machine, first) = Machine::begin(rules(), user_message("go"), None);
    let mut log = first.entries;
    let mut live = machine;
    log.extend(live.advance(answered("", &[("1", "edit")])).entries);
    let (_, step) = Machine::recover(rules(), &log, OnInterrupt::Continue, None);
    assert_eq!(kinds(&step), ["tool_result", "round", "system_note", "round"]);
    assert!(runs(&step).is_empty());
    let (machine, step) = Machine::recover(rules(), &log, OnInterrupt::Rollback, None);
    assert_eq!(kinds(&step), ["round", "leaf_moved", "turn_ended"]);
    assert_eq!(outcome(&machine), (Outcome::Cancelled, Some("rolled_back")));
}

#[test]
fn after_a_restart_an_approved_call_runs_only_if_it_had_not_started() {
    let (mut live, first) = Machine::begin(rules(), user_message("go"), None);
    let mut log = first.entries;
    let step = live.advance(answered("", &[("1", "commit")]));
    let approval = asked(&step);
    log.extend(step.entries);
    let (_, step) = Machine::recover(rules(), &log, OnInterrupt::Rollback, None);
    assert_eq!(step.effects, [Effect::AwaitPerson], "waiting is not an interruption");
    let answer = ApprovalAnswer::Approved;
    log.push(ApprovalAnswered { approval: approval.clone(), answer, reason: None }.into());
    let (_, step) = Machine::recover(rules(), &log, OnInterrupt::Continue, None);
    assert_eq!(runs(&step), ["1"]);
    log.extend(step.entries);
    let (_, step) = Machine::recover(rules(), &log, OnInterrupt::Continue, None);
    assert!(runs(&step).is_empty(), "it may have run");
}

/// The last line of each round in the ledger: status, reason and rating.
fn ledger(entries: &[Body]) -> Vec<(&'static str, String, Option<f32>)> {
    let mut lines: BTreeMap<u32, (&'static str, String, Option<f32>)> = BTreeMap::new();
    for body in entries {
        let Body::Round(round) = body else { continue };
        let status = round.result.as_ref().map_or("open", |result| result.status.as_str());
        let rating = round.confidence.or(lines.get(&round.number).and_then(|line| line.2));
        lines.insert(round.number, (status, round.reason.clone().unwrap_or_default(), rating));
    }
    lines.into_values().collect()
}

/// Advance through the inputs. Returns the entries of all steps, and checks that the state is their fold.
fn advance_all(rules: Rules, inputs: Vec<Input>) -> (Machine, Vec<Body>) {
    let (mut machine, step) = Machine::begin(rules, user_message("go"), None);
    let mut entries = step.entries;
    for input in inputs {
        if let Input::ApprovalGiven { approval, answer, reason } = input.clone() {
            // The answer is in the log before the machine receives it.
            entries.push(ApprovalAnswered { approval, answer, reason }.into());
        }
        entries.extend(machine.advance(input).entries);
        assert_eq!(*machine.state(), sapwood_core::turn::TurnState::fold(&entries), "the state is the fold");
    }
    (machine, entries)
}

fn failed(call_id: &str, why: &str) -> Input {
    let Input::ToolDone(result) = done(call_id) else { unreachable!() };
    Input::ToolDone(ToolResult { parts: vec![Part::text(why)], is_error: true, ..result })
}

fn invalid(calls: &[(&str, &str)]) -> Input {
    let faults = BTreeMap::from([(0, "path is missing".to_owned())]);
    Input::Answered { answer: answer("", calls), faults, leaf: None }
}

#[test]
fn a_failed_tool_makes_its_round_failed_with_the_reason() {
    let calls = [("1", "look"), ("2", "look")];
    let (_, entries) = advance_all(
        rules(),
        vec![answered("", &calls), done("1"), failed("2", "no\nsuch file"), answered("so", &[])],
    );
    let lines = ledger(&entries);
    assert_eq!(lines[0], ("failed", "look: no such file".to_owned(), None));
    assert_eq!(lines[1].0, "ok");
}

#[test]
fn invalid_input_a_policy_and_a_person_make_a_round_refused() {
    let (machine, entries) = advance_all(rules(), vec![invalid(&[("1", "look")]), answered("so", &[])]);
    assert_eq!(ledger(&entries)[0].0, "refused");
    assert!(ledger(&entries)[0].1.contains("path is missing"));
    assert_eq!(machine.state().corrections, 1);
    let plan = Rules { approvals: ApprovalMode::Plan, ..rules() };
    let (machine, entries) = advance_all(plan, vec![answered("", &[("1", "commit")]), answered("so", &[])]);
    assert_eq!(ledger(&entries)[0].0, "refused");
    assert_eq!(machine.state().corrections, 0, "the input was valid");
    let mut machine = begin();
    let approval = asked(&machine.advance(answered("", &[("1", "commit")])));
    let inputs = vec![
        answered("", &[("1", "commit")]),
        approval_given(&approval, ApprovalAnswer::Denied, "not today"),
        answered("so", &[]),
    ];
    let (_, entries) = advance_all(rules(), inputs);
    assert_eq!(ledger(&entries)[0], ("refused", "commit: This call was refused: not today".to_owned(), None));
}

#[test]
fn a_valid_call_beside_an_invalid_one_runs_and_the_round_stays_refused() {
    let calls = [("1", "look"), ("2", "look")];
    let (_, entries) = advance_all(rules(), vec![invalid(&calls), done("2"), answered("so", &[])]);
    assert_eq!(ledger(&entries)[0].0, "refused", "the result of the other call must not hide it");
}

#[test]
fn a_round_is_asked_while_a_person_decides_and_ok_after_the_call_ran() {
    let mut machine = begin();
    let approval = asked(&machine.advance(answered("", &[("1", "commit")])));
    let (_, entries) = advance_all(rules(), vec![answered("", &[("1", "commit")])]);
    assert_eq!(ledger(&entries), [("asked", "a person has to decide about commit".to_owned(), None)]);
    let inputs = vec![
        answered("", &[("1", "commit")]),
        approval_given(&approval, ApprovalAnswer::Approved, ""),
        done("1"),
        answered("so", &[]),
    ];
    let (_, entries) = advance_all(rules(), inputs);
    assert_eq!(ledger(&entries)[0].0, "ok");
}

fn confident() -> Rules {
    Rules { confidence: Some(Confidence::default()), ..rules() }
}

#[test]
fn the_rating_stays_on_the_round_that_it_ended() {
    let (mut machine, _) = advance_all(confident(), vec![rated(0.2)]);
    let approval = asked(&machine.advance(rated(0.4)));
    let inputs = |answer| vec![rated(0.2), rated(0.4), approval_given(&approval, answer, "check it")];
    let (_, entries) = advance_all(confident(), inputs(ApprovalAnswer::Approved));
    let lines = ledger(&entries);
    let given_up = "the model rated its answer 0.20, below 0.30".to_owned();
    assert_eq!(lines[0], ("backtracked", given_up, Some(0.2)));
    assert_eq!((lines[1].0, lines[1].2), ("asked", Some(0.4)));
    assert!(lines[1].1.contains("0.40, below 0.50") && lines[1].1.ends_with("a person agreed to continue"));
    let (_, entries) = advance_all(confident(), inputs(ApprovalAnswer::Denied));
    let lines = ledger(&entries);
    assert_eq!((lines[1].0, lines[1].2, lines[2].0), ("refused", Some(0.4), "open"));
    assert!(lines[1].1.ends_with("a person did not agree: check it"), "{lines:?}");
}

#[test]
fn a_question_says_why_it_is_asked() {
    let why = |entries: &[Body]| {
        entries.iter().find_map(|body| match body {
            Body::ApprovalAsked(asked) => asked.why(),
            _ => None,
        })
    };
    let (_, entries) = advance_all(confident(), vec![rated(0.4)]);
    assert_eq!(why(&entries).as_deref(), Some("the model rated its answer 0.40, below 0.50"));
    let over = Input::OverBudget { question: "It may cost $2. Continue?".into(), ask: true };
    let (_, entries) = advance_all(rules(), vec![over]);
    assert!(why(&entries).unwrap().contains("budget"));
    assert_eq!(ledger(&entries), [("asked", "It may cost $2. Continue?".to_owned(), None)]);
    let (_, entries) = advance_all(rules(), vec![answered("", &[("1", "commit")])]);
    assert!(why(&entries).unwrap().contains("approval mode"));
}

#[test]
fn cancelled_and_interrupted_rounds_say_so() {
    let cancel = Input::Cancelled { partial: None };
    let (_, entries) = advance_all(rules(), vec![answered("", &[("1", "edit")]), cancel]);
    assert_eq!(ledger(&entries)[0].0, "cancelled");
    let late = Input::TimeOver { partial: None };
    let (_, entries) = advance_all(rules(), vec![answered("", &[("1", "edit")]), late]);
    assert_eq!(ledger(&entries)[0].0, "interrupted");
    assert!(ledger(&entries)[0].1.contains("wall_time"));
    let failure =
        Input::ModelFailed { code: "model.cut".into(), message: "the stream ended".into(), partial: None };
    let (_, entries) = advance_all(rules(), vec![failure]);
    assert_eq!(ledger(&entries), [("failed", "model.cut: the stream ended".to_owned(), None)]);
}

#[test]
fn a_round_that_another_process_finishes_keeps_its_rating_and_its_trace() {
    let first = Rules { trace_id: Some("first".into()), ..confident() };
    let rated_call = |rating: f32| {
        let text = format!("<confidence>{rating}</confidence>");
        Input::Answered { answer: answer(&text, &[("1", "look")]), faults: BTreeMap::new(), leaf: None }
    };
    let (_, mut entries) = advance_all(first, vec![rated_call(0.9)]);
    let second = Rules { trace_id: Some("second".into()), ..confident() };
    let (mut machine, step) = Machine::recover(second, &entries, OnInterrupt::Continue, None);
    assert_eq!(runs(&step), ["1"], "a safe call runs again");
    entries.extend(step.entries);
    entries.extend(machine.advance(done("1")).entries);
    let rounds: Vec<&Round> = entries
        .iter()
        .filter_map(|body| match body {
            Body::Round(round) => Some(round),
            _ => None,
        })
        .collect();
    let closed = rounds.iter().find(|round| round.number == 1 && round.result.is_some()).unwrap();
    assert_eq!((closed.confidence, closed.trace_id.as_deref()), (Some(0.9), Some("first")));
    let next = rounds.iter().find(|round| round.number == 2).unwrap();
    assert_eq!(next.trace_id.as_deref(), Some("second"));
}
