//! Flows: graph validation reports every mistake, and roles and handoffs follow the rules. A run resumed from any
//! prefix of its log reaches the same end without starting a visit twice.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use sapwood_core::content::ToolCall;
use sapwood_core::fixture::Dice;
use sapwood_core::flow::assignment::HandoffTarget;
use sapwood_core::flow::graph::{Consent, Feedback, FlowRole};
use sapwood_core::flow::prompts::{entry_note, render_prompt, standing_facts, system_prompt};
use sapwood_core::flow::*;
use sapwood_core::{Agent, Json};

use super::cases_of;

fn node(id: &str) -> Node {
    Node { handoff: HandoffBy::Tool, role: Some(id.to_owned()), ..Node::new(id, NodeKind::Agent) }
}

fn edge(from: &str, to: &str) -> Edge {
    Edge { from: from.into(), to: to.into(), kind: EdgeKind::Forward, artifact: None }
}

fn back(from: &str, to: &str) -> Edge {
    Edge { kind: EdgeKind::Backward, ..edge(from, to) }
}

/// Parse `a>b b>c c<b` into edges from left to right, forward (`>`) or backward (`<`). Nodes are created in
/// order of first mention.
fn flow(edges: &str) -> Flow {
    let mut flow = Flow { id: "f".into(), ..Flow::default() };
    flow.agents.insert("default".into(), Agent::default());
    for word in edges.split_whitespace() {
        let (ends, kind) = match word.split_once('>') {
            Some(ends) => (ends, EdgeKind::Forward),
            None => (word.split_once('<').unwrap(), EdgeKind::Backward),
        };
        for id in [ends.0, ends.1] {
            if flow.node(id).is_none() {
                let kind = match id {
                    "in" => NodeKind::Input,
                    "out" => NodeKind::Output,
                    _ => NodeKind::Agent,
                };
                flow.nodes.push(if kind == NodeKind::Agent { node(id) } else { Node::new(id, kind) });
            }
        }
        flow.edges.push(Edge { kind, ..edge(ends.0, ends.1) });
    }
    flow
}

fn started(flow: Flow) -> RunEvent {
    RunEvent::Started {
        flow: Box::new(flow),
        input: "the input".into(),
        improve: false,
        cwd: None,
        mirror: None,
    }
}

fn begin(flow: Flow) -> (Machine, FlowStep) {
    assert_eq!(flow.mistakes(), []);
    Machine::begin("r", started(flow))
}

fn visits(step: &FlowStep) -> Vec<String> {
    let visit = |effect: &Effect| match effect {
        Effect::Visit(key) => Some(format!("{}{}", key.node, key.visit)),
        Effect::CancelVisits => None,
    };
    step.effects.iter().filter_map(visit).collect()
}

fn handed(to: &[&str]) -> VisitResult {
    let to = to.iter().map(|node| ((*node).to_owned(), Artifact::of_text("a", "text"))).collect();
    VisitResult::Handed(Handed { to, said: "done".into(), ..Handed::default() })
}

fn closed() -> VisitResult {
    VisitResult::Handed(Handed { closed: Some("no use".into()), ..Handed::default() })
}

fn report(machine: &mut Machine, node: &str, result: VisitResult) -> FlowStep {
    let state = &machine.state().nodes[node];
    let key = VisitKey { node: node.into(), visit: state.visits, attempt: state.attempt };
    machine.advance(Input::Visited { key, result })
}

fn status(machine: &Machine, node: &str) -> NodeStatus {
    machine.state().status_of(node)
}

fn outcome(machine: &Machine) -> Option<RunOutcome> {
    machine.state().ended.as_ref().map(|ended| ended.outcome)
}

fn mistakes(flow: &Flow) -> Vec<String> {
    flow.mistakes().iter().map(ToString::to_string).collect()
}

#[test]
fn every_graph_mistake_is_reported_before_the_run_starts() {
    let mut wrong = flow("in>a a>b");
    wrong.edges.push(edge("b", "nowhere"));
    wrong.nodes.push(node("a"));
    wrong.nodes[2].agent = Some("ghost".into());
    wrong.roles.insert("a".into(), FlowRole { readings: vec!["charter".into()], ..FlowRole::default() });
    wrong.nodes[1].prompt = Some("see {{ghost}}".into());
    let expected = [
        "node a: its prompt names {{ghost}}, but there is no such node",
        "node b: there is no agent ghost",
        "node a: its id is not unique",
        "edge b → nowhere: there is no node nowhere",
        "role a: the required reading charter is missing",
    ];
    assert_eq!(mistakes(&wrong), expected);
    assert_eq!(
        mistakes(&flow("in>a a>b b>c c>a")),
        ["the flow: a, b, c form a cycle; mark the edge that closes it as backward"]
    );
    assert_eq!(mistakes(&flow("in>a a>b b>c c<a")), Vec::<String>::new());
    assert_eq!(
        mistakes(&flow("in>a in>b b<a")),
        ["edge b → a: a backward edge needs a forward path from a to its start"]
    );
    assert_eq!(mistakes(&flow("in>a b>c")), ["node b: it is unreachable", "node c: it is unreachable"]);
    let mut two = flow("in>a a>b");
    two.nodes[2].role = Some("a".into());
    two.nodes[2].agent = Some("other".into());
    two.agents.insert("other".into(), Agent::default());
    let why = "node b: it shares its session with a node of agent default, but names agent other";
    assert_eq!(mistakes(&two), [why]);
}

#[test]
fn nodes_fan_out_in_parallel_and_a_join_waits_for_all() {
    let mut split = flow("in>a a>b a>c b>d c>d d>out");
    split.nodes.iter_mut().find(|node| node.id == "d").unwrap().join = Join::All;
    let (mut machine, first) = begin(split);
    assert_eq!(visits(&first), ["a1"]);
    assert_eq!(visits(&report(&mut machine, "a", handed(&["b", "c"]))), ["b1", "c1"]);
    assert!(visits(&report(&mut machine, "b", handed(&["d"]))).is_empty());
    assert_eq!(visits(&report(&mut machine, "c", handed(&["d"]))), ["d1"]);
    let received: Vec<&str> =
        machine.state().nodes["d"].received.iter().map(|item| item.from.as_str()).collect();
    assert_eq!(received, ["b", "c"]);
    report(&mut machine, "d", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
    assert_eq!(machine.state().results().len(), 1);
}

#[test]
fn a_backward_handoff_reopens_the_path_and_the_sender_waits() {
    let (mut machine, _) = begin(flow("in>a a>b b>c c>out c<a a>x"));
    assert_eq!(visits(&report(&mut machine, "a", handed(&["b", "x"]))), ["b1", "x1"]);
    report(&mut machine, "x", closed());
    assert_eq!(visits(&report(&mut machine, "b", handed(&["c"]))), ["c1"]);
    assert_eq!(visits(&report(&mut machine, "c", handed(&["a"]))), ["a2"]);
    assert_eq!((status(&machine, "c"), status(&machine, "b")), (NodeStatus::Holding, NodeStatus::Idle));
    let state = machine.state();
    let key = VisitKey { node: "a".into(), visit: 2, attempt: 1 };
    let assignment = Assignment::of(state, state.any_node("a").unwrap(), &key);
    let required: Vec<&str> =
        assignment.required_targets(&[]).iter().map(|target| target.node.as_str()).collect();
    assert_eq!(required, ["b"], "nodes off the reopened path stay done");
    assert_eq!(visits(&report(&mut machine, "a", handed(&["b"]))), ["b2"]);
    assert_eq!(visits(&report(&mut machine, "b", handed(&["c"]))), ["c2"]);
    report(&mut machine, "c", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
}

#[test]
fn nodes_of_one_role_take_turns_and_share_its_session() {
    let mut shared = flow("in>a in>b a>out b>out");
    shared.nodes.iter_mut().filter(|node| node.kind == NodeKind::Agent).for_each(|node| {
        node.role = Some("owner".into());
    });
    let (mut machine, first) = begin(shared);
    assert_eq!(visits(&first), ["a1"]);
    let state = machine.state();
    let sessions: Vec<String> =
        ["a", "b"].iter().map(|id| state.session_of(state.any_node(id).unwrap())).collect();
    assert_eq!(sessions, ["r__owner", "r__owner"]);
    assert_eq!(visits(&report(&mut machine, "a", handed(&["out"]))), ["b1"]);
}

#[test]
fn a_node_uses_its_named_session_or_its_roles_session_or_its_own() {
    let own = Node::new("n", NodeKind::Agent);
    let of_role = Node { role: Some("owner_2".into()), ..own.clone() };
    let named = Node { session_id: Some("desk".into()), ..of_role.clone() };
    let branch = Node { fork_from: Some("owner_2".into()), ..of_role.clone() };
    let sessions: Vec<String> = [own, of_role, named, branch].iter().map(|node| node.session("r")).collect();
    assert_eq!(sessions, ["r__at.n", "r__owner_2", "desk", "r__at.n"]);
}

#[test]
fn closing_a_node_skips_nodes_reachable_only_from_it() {
    let (mut machine, _) = begin(flow("in>a in>b a>c c>d b>d d>out"));
    assert!(visits(&report(&mut machine, "a", closed())).is_empty());
    assert_eq!(status(&machine, "c"), NodeStatus::Skipped);
    assert_eq!(visits(&report(&mut machine, "b", handed(&["d"]))), ["d1"]);
    report(&mut machine, "d", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
}

#[test]
fn a_run_with_nothing_left_to_wait_for_reports_it_and_can_be_retried() {
    let (mut machine, _) = begin(flow("in>a a>out"));
    let waits = VisitResult::Handed(Handed { waits: Some("a sign".into()), ..Handed::default() });
    report(&mut machine, "a", waits);
    assert_eq!(machine.state().ended.as_ref().unwrap().code.as_deref(), Some("flow.stalled"));
    let step = machine.retry();
    assert_eq!(visits(&step), ["a1"]);
    report(&mut machine, "a", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
}

#[test]
fn other_nodes_finish_after_a_failure_and_resuming_retries_the_failed_node() {
    let (mut machine, _) = begin(flow("in>a in>b a>out b>out"));
    let failed = VisitResult::Failed { code: "model.unreachable".into(), message: "no answer".into() };
    report(&mut machine, "a", failed);
    assert_eq!(outcome(&machine), None);
    report(&mut machine, "b", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Failed));
    let step = machine.retry();
    assert_eq!((visits(&step), machine.state().nodes["a"].attempt), (vec!["a1".to_owned()], 2));
    report(&mut machine, "a", handed(&["out"]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
}

#[test]
fn a_node_waiting_for_a_person_is_visited_again_before_the_run_pauses() {
    let (mut machine, _) = begin(flow("in>a in>b a>out b>out"));
    let asks = || VisitResult::Waits { approvals: vec!["p".into()] };
    report(&mut machine, "a", asks());
    let step = report(&mut machine, "b", handed(&["out"]));
    assert_eq!(visits(&step), ["a1"]);
    let step = report(&mut machine, "a", asks());
    assert!(step.effects.is_empty() && step.events.is_empty() && machine.is_idle(), "{step:?}");
    assert_eq!((outcome(&machine), status(&machine, "a")), (None, NodeStatus::Waiting));
}

#[test]
fn a_cancelled_run_ends_when_its_last_visit_ends() {
    let (mut machine, _) = begin(flow("in>a in>b a>out b>out"));
    assert_eq!(machine.advance(Input::CancelAsked).effects, [Effect::CancelVisits]);
    let stopped = || VisitResult::Failed { code: "turn.cancelled".into(), message: String::new() };
    report(&mut machine, "a", stopped());
    assert_eq!(outcome(&machine), None);
    report(&mut machine, "b", stopped());
    assert_eq!(outcome(&machine), Some(RunOutcome::Cancelled));
}

#[test]
fn roles_review_in_their_own_sessions_before_the_fresh_reviewer() {
    let mut reviewed = flow("in>a a>b b>out");
    reviewed.nodes[2].role = Some("a".into());
    reviewed.nodes.push(node("c"));
    reviewed.edges.push(edge("b", "c"));
    let feedback = Feedback { role: "critic".into(), agent: None, prompt: None };
    reviewed.improvement = Some(Improvement { feedback: Some(feedback), ..Improvement::default() });
    let started = RunEvent::Started {
        flow: Box::new(reviewed),
        input: String::new(),
        improve: true,
        cwd: None,
        mirror: None,
    };
    let (mut machine, _) = Machine::begin("r", started);
    report(&mut machine, "a", handed(&["b"]));
    report(&mut machine, "b", handed(&["out", "c"]));
    let step = report(&mut machine, "c", closed());
    assert_eq!(visits(&step), ["@improve.a1"], "roles review sequentially");
    let state = machine.state();
    assert_eq!(state.session_of(state.any_node("@improve.a").unwrap()), "r__a");
    assert_eq!(visits(&report(&mut machine, "@improve.a", handed(&[]))), ["@improve.c1"]);
    assert_eq!(visits(&report(&mut machine, "@improve.c", handed(&[]))), ["@feedback1"]);
    let state = machine.state();
    assert_eq!(state.session_of(state.any_node("@feedback").unwrap()), "r__fresh.critic");
    assert_eq!(state.findings(), [("a", "done"), ("c", "done")]);
    report(&mut machine, "@feedback", handed(&[]));
    assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
}

fn assignment() -> Assignment {
    let mut graph = flow("in>a a>b a>c b>out c>out b<a");
    graph.edges[1].artifact = Some("plan.md".into());
    let (machine, _) = begin(graph);
    let key = VisitKey { node: "a".into(), visit: 1, attempt: 1 };
    Assignment::of(machine.state(), machine.state().any_node("a").unwrap(), &key)
}

fn to(node: &str, artifact: &str) -> HandoffTarget {
    HandoffTarget { node: node.into(), artifact: artifact.into(), content: Some("text".into()) }
}

fn targets(targets: Vec<HandoffTarget>) -> Handoff {
    Handoff { targets, ..Handoff::default() }
}

#[test]
fn an_invalid_handoff_is_refused_with_the_reason() {
    let assignment = assignment();
    let why = |handoff: Handoff| assignment.check(&handoff).unwrap_err();
    assert!(why(Handoff::default()).starts_with("give exactly one of"));
    let both = Handoff { closed: Some("x".into()), ..targets(vec![to("b", "plan.md")]) };
    assert!(why(both).starts_with("give exactly one of"));
    assert_eq!(why(targets(vec![to("z", "n")])), "z is not a target of this node; forward targets: b, c");
    assert_eq!(why(targets(vec![to("b", "n")])), "the artifact for b must be called plan.md, not n");
    let empty = HandoffTarget { content: Some(" ".into()), ..to("c", "n") };
    assert_eq!(why(targets(vec![empty])), "the artifact for c is empty");
    assert_eq!(why(targets(vec![to("c", "n"), to("c", "n")])), "c is named twice");
    assert_eq!(assignment.check(&targets(vec![to("b", "plan.md")])), Ok(()));
}

#[test]
fn a_node_owes_every_forward_edge_unless_it_chooses() {
    let mut assignment = assignment();
    let first = [targets(vec![to("b", "plan.md")])];
    let required: Vec<&str> =
        assignment.required_targets(&first).iter().map(|target| target.node.as_str()).collect();
    assert_eq!(required, ["c"]);
    assert!(!assignment.is_ended_by(&first));
    assignment.route = Route::Any;
    assert!(assignment.is_ended_by(&first));
    assert!(assignment.is_ended_by(&[Handoff { closed: Some("x".into()), ..Handoff::default() }]));
}

#[test]
fn only_forward_handoffs_ask_a_person() {
    let mut assignment = assignment();
    assignment.consent = Consent::Person;
    assignment.backward = vec!["z".into()];
    let call = |input: &str| ToolCall {
        call_id: "c".into(),
        name: HANDOFF_TOOL.into(),
        input: Json::parse(input).unwrap(),
    };
    let asked = |input: &str| assignment.question(&call(input)).is_some();
    assert!(asked(r#"{"targets":[{"node":"c","artifact":"n"}]}"#));
    assert!(asked(r#"{"prompt":"which one?"}"#));
    assert!(!asked(r#"{"targets":[{"node":"z","artifact":"n"}]}"#));
    assert!(!asked(r#"{"closed":"done"}"#));
}

#[test]
fn the_system_prompt_names_the_role_and_each_visit_note_names_the_node() {
    let mut graph = flow("in>a a>b b>out");
    graph.name = Some("Report".into());
    graph.roles.insert(
        "a".into(),
        FlowRole {
            description: Some("You keep it short.".into()),
            readings: vec!["charter".into()],
            agent: None,
        },
    );
    graph.readings.insert("charter".into(), "Be kind.".into());
    graph.nodes[1].prompt = Some("Write about {{input}}.".into());
    let (machine, _) = begin(graph);
    let (state, key) = (machine.state(), VisitKey { node: "a".into(), visit: 1, attempt: 1 });
    let node = state.any_node("a").unwrap();
    let assignment = Assignment::of(state, node, &key);
    let prompt = system_prompt(state, node, Some("Agent's own."));
    for part in [
        "You are a in the flow \"Report\"",
        "keep it short",
        "Agent's own.",
        "records/r/a",
        "`handoff`",
        "## charter\n\nBe kind.",
    ] {
        assert!(prompt.contains(part), "{part} is missing: {prompt}");
    }
    let note = entry_note(state, node, &assignment);
    for part in [
        "You enter node a",
        "first visit",
        "Received from in: input (9 bytes)\nthe input",
        "Required: a handoff to b.",
    ] {
        assert!(note.contains(part), "{part} is missing: {note}");
    }
    assert_eq!(render_prompt(state, node), "Write about the input.");
    let facts = standing_facts(&assignment, &[], "the words");
    for part in [
        "Flow: Report",
        "Role: a",
        "Node: a (visit 1)",
        "Record folder: records/r/a",
        "word for word:\nthe words",
    ] {
        assert!(facts.contains(part), "{part} is missing: {facts}");
    }
}

/// A straight chain of turns in one conversation, like the export of a long session.
fn chain(turns: usize) -> Flow {
    let mut flow = Flow { id: "long".into(), ..Flow::default() };
    flow.agents.insert("default".into(), Agent::default());
    flow.nodes.push(Node::new("in", NodeKind::Input));
    for turn in 1..=turns {
        let role = Some("assistant".to_owned());
        flow.nodes.push(Node { role, ..Node::new(format!("turn-{turn}"), NodeKind::Agent) });
    }
    flow.nodes.push(Node::new("out", NodeKind::Output));
    flow.edges = flow.nodes.windows(2).map(|pair| edge(&pair[0].id, &pair[1].id)).collect();
    flow
}

#[test]
fn a_chain_of_ten_thousand_turns_runs_to_its_end() {
    let (mut machine, mut step) = begin(chain(10_000));
    for turn in 1..=10_000 {
        let here = format!("turn-{turn}");
        assert_eq!(visits(&step), [format!("{here}1")]);
        let seen = machine.state().for_visit(&here);
        let to = Assignment::of(
            &seen,
            seen.any_node(&here).unwrap(),
            &VisitKey { node: here.clone(), visit: 1, attempt: 1 },
        );
        step = report(&mut machine, &here, handed(&[&to.forward[0].node]));
    }
    assert_eq!((outcome(&machine), status(&machine, "out")), (Some(RunOutcome::Completed), NodeStatus::Done));
}

/// One input that leads to `agents` agent nodes.
fn fan(agents: usize) -> Flow {
    let mut flow = Flow { id: "wide".into(), ..Flow::default() };
    flow.agents.insert("default".into(), Agent::default());
    let names: Vec<String> = (1..=agents).map(|at| format!("a{at}")).collect();
    flow.nodes.push(Node::new("in", NodeKind::Input));
    flow.nodes.extend(names.iter().map(|name| Node::new(name, NodeKind::Agent)));
    flow.edges = names.iter().map(|name| edge("in", name)).collect();
    flow
}

/// A [`fan`] with an additional agent that joins all agents.
fn joined_fan(agents: usize) -> Flow {
    let mut flow = fan(agents);
    flow.edges.extend((1..=agents).map(|at| edge(&format!("a{at}"), "sum")));
    flow.nodes.push(Node { join: Join::All, ..Node::new("sum", NodeKind::Agent) });
    flow
}

/// Complete every visit that the machine starts, and return the events of all steps.
fn complete_all_visits(machine: &mut Machine, mut step: FlowStep) -> Vec<RunEvent> {
    let (mut events, mut open) = (Vec::new(), VecDeque::new());
    loop {
        events.append(&mut step.events);
        open.extend(step.effects);
        let Some(Effect::Visit(key)) = open.pop_front() else { return events };
        let seen = machine.state().for_visit(&key.node);
        let assignment = Assignment::of(&seen, seen.any_node(&key.node).unwrap(), &key);
        let to: Vec<&str> = assignment.forward.iter().map(|target| target.node.as_str()).collect();
        step = machine.advance(Input::Visited { key, result: handed(&to) });
    }
}

/// Tests the running time, like the test of the chain: an algorithm that is quadratic in the nodes would take minutes.
#[test]
fn a_fan_of_a_hundred_thousand_agents_starts_replays_and_cancels() {
    let (mut machine, step) = begin(fan(99_999));
    assert_eq!(visits(&step).len(), PARALLEL_MAX);
    let (recovered, again) = Machine::recover("r", &step.events);
    assert_eq!((recovered.state(), visits(&again).len()), (machine.state(), PARALLEL_MAX));
    assert_eq!(machine.advance(Input::CancelAsked).effects, [Effect::CancelVisits]);
}

#[test]
fn a_fan_of_five_thousand_agents_completes_with_shared_and_separate_sessions() {
    let mut shared = joined_fan(5_000);
    shared.nodes.iter_mut().skip(1).for_each(|node| node.role = Some("one".into()));
    for flow in [joined_fan(5_000), shared] {
        let (mut machine, step) = begin(flow);
        let events = complete_all_visits(&mut machine, step);
        assert_eq!(outcome(&machine), Some(RunOutcome::Completed));
        assert_eq!(machine.state().nodes["sum"].received.len(), 5_000);
        assert_eq!(&RunState::fold("r", &events), machine.state());
    }
}

#[test]
fn a_wide_flow_with_many_backward_edges_is_checked_quickly() {
    let mut wide = chain(3_000);
    for turn in 2..=3_000 {
        wide.nodes[turn].handoff = HandoffBy::Tool;
        wide.edges.push(back(&format!("turn-{turn}"), &format!("turn-{}", turn / 2)));
    }
    assert_eq!(wide.mistakes(), []);
    wide.edges.push(back("turn-1", "turn-3000"));
    wide.nodes[1].handoff = HandoffBy::Tool;
    let why = "edge turn-1 → turn-3000: a backward edge needs a forward path from turn-3000 to its start";
    assert_eq!(mistakes(&wide), [why]);
}

#[test]
fn a_flow_too_large_for_an_entry_is_refused_before_the_run_starts() {
    let mut large = chain(20);
    large.nodes.iter_mut().for_each(|node| node.prompt = Some("x".repeat(1 << 20)));
    let found = mistakes(&large);
    assert!(found.len() == 1 && found[0].ends_with("when encoded; the limit is 15728640"), "{found:?}");
}

/// Check the invariant after each event: no unreachable node waits, and no output with all its inputs waits.
fn assert_settled(state: &RunState) {
    for node in &state.flow.nodes {
        let (now, edges) = (&state.nodes[&node.id], state.flow.edges.iter().enumerate());
        let leads_here = |edge: &Edge| edge.to == node.id && edge.kind == EdgeKind::Forward;
        let incoming: Vec<EdgeStatus> =
            edges.filter(|(_, edge)| leads_here(edge)).map(|(at, _)| state.edge(at)).collect();
        let is_idle = now.status == NodeStatus::Idle;
        let is_cut_off = !incoming.is_empty() && incoming.iter().all(|edge| *edge == EdgeStatus::Closed);
        assert!(!(is_idle && is_cut_off && now.inbox.is_empty()), "{} is cut off", node.id);
        let has_all = !now.inbox.is_empty() && !incoming.contains(&EdgeStatus::Open);
        assert!(!(is_idle && has_all && node.kind == NodeKind::Output), "{} has all its inputs", node.id);
    }
}

/// A random graph in which every node can be reached.
fn random_flow(dice: &mut Dice) -> Flow {
    let count = 1 + dice.below(5);
    let name = |at: usize| format!("n{at}");
    let mut flow = flow("in>n0");
    for at in 1..count {
        let mut role = node(&name(at));
        role.role = Some(format!("role_{}", dice.below(3)));
        role.join = if dice.below(2) == 0 { Join::All } else { Join::Any };
        role.route = if dice.below(4) == 0 { Route::Any } else { Route::All };
        flow.nodes.push(role);
        let first = dice.below(at);
        flow.edges.push(edge(&name(first), &name(at)));
        for other in (0..at).filter(|other| *other != first) {
            if dice.below(3) == 0 {
                flow.edges.push(edge(&name(other), &name(at)));
            }
        }
        if dice.below(3) == 0 && !flow.edges_between(&name(0), &name(at)).is_empty() {
            flow.edges.push(back(&name(at), &name(0)));
        }
    }
    flow.nodes.push(Node::new("out", NodeKind::Output));
    flow.edges.extend((0..count).filter(|_| dice.below(2) == 0).map(|at| edge(&name(at), "out")));
    if !flow.edges.iter().any(|edge| edge.to == "out") {
        flow.nodes.pop();
    }
    flow
}

/// Scripted roles: the result depends only on the visit. Counts how often each visit was started.
struct ScriptedRoles {
    seed: u64,
    begun: BTreeMap<VisitKey, u32>,
    done: BTreeMap<VisitKey, VisitResult>,
}

impl ScriptedRoles {
    fn visit(&mut self, state: &RunState, key: &VisitKey) -> VisitResult {
        if let Some(result) = self.done.get(key) {
            return result.clone();
        }
        *self.begun.entry(key.clone()).or_default() += 1;
        let mut hash = self.seed ^ u64::from(key.visit) ^ (u64::from(key.attempt) << 8);
        key.node.bytes().for_each(|byte| hash = hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut dice = Dice::new(hash);
        let assignment = Assignment::of(state, state.any_node(&key.node).unwrap(), key);
        let result = match dice.below(10) {
            0 => closed(),
            1 if key.attempt == 1 => VisitResult::Failed { code: "x".into(), message: String::new() },
            2 if key.visit == 1 && !assignment.backward.is_empty() => handed(&[&assignment.backward[0]]),
            _ => {
                let required: Vec<&str> =
                    assignment.required_targets(&[]).iter().map(|target| target.node.as_str()).collect();
                if required.is_empty() { closed() } else { handed(&required) }
            }
        };
        self.done.insert(key.clone(), result.clone());
        result
    }
}

/// Drive a run from its log to the end, appending to the log. Failed runs are resumed.
fn drive(log: &mut Vec<RunEvent>, roles: &mut ScriptedRoles, order: &mut Dice) -> RunState {
    let (mut machine, mut step) = Machine::recover("r", &*log);
    if machine.state().ended.is_some() {
        step = machine.retry();
    }
    let mut open: Vec<VisitKey> = Vec::new();
    for _ in 0..2_000 {
        log.append(&mut step.events);
        open.extend(step.effects.into_iter().filter_map(|effect| match effect {
            Effect::Visit(key) => Some(key),
            Effect::CancelVisits => None,
        }));
        if open.is_empty() {
            if machine.state().ended.as_ref().is_none_or(|ended| ended.outcome != RunOutcome::Failed) {
                return machine.state().clone();
            }
            step = machine.retry();
            continue;
        }
        let key = open.remove(order.below(open.len()));
        let result = roles.visit(machine.state(), &key);
        step = machine.advance(Input::Visited { key, result });
    }
    panic!("the run did not end: {log:?}");
}

proptest! {
    #![proptest_config(cases_of(400))]
    #[test]
    fn a_run_resumed_from_any_prefix_starts_no_visit_twice(seed in any::<u64>()) {
        let mut dice = Dice::new(seed);
        let flow = random_flow(&mut dice);
        prop_assert_eq!(flow.mistakes(), []);
        let mut roles = ScriptedRoles { seed, begun: BTreeMap::new(), done: BTreeMap::new() };
        let mut log = vec![started(flow)];
        let whole = drive(&mut log, &mut roles, &mut Dice::new(seed));
        prop_assert_eq!(whole.ended.as_ref().map(|ended| ended.outcome), Some(RunOutcome::Completed));
        for cut in 1..=log.len() {
            // The logs of the roles keep the work before the cut. Work after the cut is lost.
            let mut prefix = log[..cut].to_vec();
            let entered = |key: &VisitKey| prefix.iter().any(|event| matches!(event,
                RunEvent::Entered { node, visit, attempt, .. } | RunEvent::Retried { node, visit, attempt }
                if (node, visit, attempt) == (&key.node, &key.visit, &key.attempt)));
            let begun = roles.begun.iter().filter(|(key, _)| entered(key));
            let begun: BTreeMap<VisitKey, u32> = begun.map(|(key, count)| (key.clone(), *count)).collect();
            let done = roles.done.iter().filter(|(key, _)| begun.contains_key(*key));
            let done = done.map(|(key, result)| (key.clone(), result.clone())).collect();
            let mut later = ScriptedRoles { seed, begun, done };
            let again = drive(&mut prefix, &mut later, &mut Dice::new(seed ^ cut as u64));
            prop_assert!(again.ended.is_some());
            prop_assert!(later.begun.values().all(|count| *count == 1), "{:?}", later.begun);
            let mut keys: Vec<(String, u32, u32)> = prefix.iter().filter_map(|event| match event {
                RunEvent::Entered { node, visit, attempt, .. } | RunEvent::Retried { node, visit, attempt } =>
                    Some((node.clone(), *visit, *attempt)),
                _ => None,
            }).collect();
            let entries = keys.len();
            keys.sort();
            keys.dedup();
            prop_assert_eq!(keys.len(), entries, "a visit was entered twice");
        }
    }

    #[test]
    fn run_state_equals_the_fold_of_the_decoded_log(seed in any::<u64>()) {
        let mut dice = Dice::new(seed);
        let mut roles = ScriptedRoles { seed, begun: BTreeMap::new(), done: BTreeMap::new() };
        let mut log = vec![started(random_flow(&mut dice))];
        let state = drive(&mut log, &mut roles, &mut dice);
        let read: Vec<RunEvent> =
            log.iter().map(|event| RunEvent::of_body(&event.to_body()).expect("it reads back")).collect();
        prop_assert_eq!(&read, &log);
        for cut in 1..=log.len() {
            assert_settled(&RunState::fold("r", &log[..cut]));
        }
        prop_assert_eq!(RunState::fold("r", &read), state);
    }
}
