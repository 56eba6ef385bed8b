//! Sessions exported as workflows, and parsing of the exported documents.

use proptest::prelude::*;
use sapwood_core::entry::{AssistantMessage, Stop, ToolResult, UserMessage};
use sapwood_core::fixture::{MemLog, random_script};
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::Summary;
use sapwood_core::project::turn_outcomes::TurnOutcomes;
use sapwood_core::{Body, Json, Part, Principal, TimestampMs};
use sapwood_formats::workflow::{self, Document, SessionToExport, of_session};
use serde_json::{Value, json};

fn user(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

fn assistant(parts: Vec<Part>) -> Body {
    AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop: Stop::Stop }.into()
}

fn call(id: &str, tool: &str) -> Part {
    Part::tool_call(id, tool, Json::parse(r#"{"b":1.0,"a":[1e300,-0.0,18446744073709551615]}"#).unwrap())
}

fn result(id: &str) -> Body {
    let parts = vec![Part::text("out")];
    ToolResult {
        call_id: id.to_owned(),
        tool: None,
        parts,
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    }
    .into()
}

fn export(title: Option<&str>, bodies: Vec<Body>) -> Document {
    let mut log = MemLog::default();
    for body in bodies {
        log.push(body).unwrap();
    }
    export_log(title, &log)
}

fn export_log(title: Option<&str>, log: &MemLog) -> Document {
    let new = NewSession {
        title: title.map(str::to_owned),
        ..NewSession::new("s-1".parse().unwrap(), TimestampMs(1_767_323_045_678))
    };
    let summary = Summary::new(&new, Principal::System);
    let slice = log.path(None);
    let document = of_session(SessionToExport {
        summary: &summary,
        path: &slice.entries,
        outcomes: &TurnOutcomes::of_slice(&slice),
        agent: None,
        variables: &Default::default(),
    })
    .document;
    check_stable(&document);
    document
}

fn check_stable(document: &Document) {
    let first = workflow::serialise(document);
    let read = workflow::parse(&first).unwrap_or_else(|error| panic!("{error}\n{first}"));
    assert_eq!(workflow::serialise(&read), first);
}

fn ids(document: &Document) -> Vec<&str> {
    document.workflow.nodes.iter().map(|node| node.id.as_str()).collect()
}

#[test]
fn each_completed_turn_is_a_node_with_its_tools() {
    let text = |text: &str| Part::text(text);
    let document = export(
        None,
        vec![
            user("one"),
            assistant(vec![text("first")]),
            user("two"),
            assistant(vec![text("second"), call("c1", "ls"), call("c2", "ls"), call("c3", "cat")]),
        ],
    );
    assert_eq!(ids(&document), ["input", "turn-1", "turn-2", "output"]);
    let tools: Vec<&Vec<String>> = document.workflow.nodes.iter().map(|node| &node.tools).collect();
    assert_eq!(tools, [&vec![], &vec![], &vec!["ls".to_owned(), "cat".to_owned()], &Vec::<String>::new()]);
    let edges: Vec<(&str, &str)> =
        document.workflow.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str())).collect();
    assert_eq!(edges, [("input", "turn-1"), ("turn-1", "turn-2"), ("turn-2", "output")]);
}

#[test]
fn a_turn_of_four_entries_is_one_node() {
    let document = export(
        None,
        vec![
            user("go"),
            assistant(vec![call("c1", "ls")]),
            result("c1"),
            assistant(vec![Part::text("done")]),
        ],
    );
    assert_eq!(ids(&document), ["input", "turn-1", "output"]);
    assert_eq!(document.workflow.nodes[1].tools, ["ls"]);
}

#[test]
fn an_interrupted_last_turn_is_only_in_the_metadata() {
    let document = export(
        None,
        vec![
            user("one"),
            assistant(vec![Part::text("first")]),
            user("two"),
            assistant(vec![call("c1", "ls")]),
            result("c1"),
        ],
    );
    assert_eq!(ids(&document), ["input", "turn-1", "output"]);
    let messages = &document.workflow.metadata["sapwood_export"]["messages"];
    assert_eq!(messages.as_array().unwrap().len(), 5);
}

#[test]
fn a_session_without_turns_connects_input_to_output() {
    let document = export(None, Vec::new());
    assert_eq!(ids(&document), ["input", "output"]);
    assert_eq!(document.workflow.edges.len(), 1);
}

#[test]
fn consecutive_user_messages_are_one_prompt() {
    let document = export(None, vec![user("one"), user("two"), assistant(vec![Part::text("yes")])]);
    assert_eq!(document.workflow.nodes[1].prompt_template.as_deref(), Some("one\n\ntwo"));
}

#[test]
fn the_id_is_derived_from_the_title() {
    for (title, id) in
        [("  Hello -- World!  ", "hello-world"), ("???", "exported-session"), ("Größe 7", "gr-e-7")]
    {
        assert_eq!(export(Some(title), Vec::new()).workflow.id, id);
    }
    assert_eq!(export(None, Vec::new()).workflow.id, "exported-session");
}

#[test]
fn templates_are_neutralised_in_prompts_and_verbatim_in_the_metadata() {
    let document = export(None, vec![user("{{ x }} {{{y"), assistant(vec![Part::text("ok")])]);
    assert_eq!(document.workflow.nodes[1].prompt_template.as_deref(), Some("{ { x }} { { {y"));
    let message = &document.workflow.metadata["sapwood_export"]["messages"][0];
    assert_eq!(message["content"][0]["text"], "{{ x }} {{{y");
}

#[test]
fn the_document_matches_the_specification() {
    let text = workflow::serialise(&export(
        Some("Hello"),
        vec![user("hi: there"), assistant(vec![Part::text("yes\nno")])],
    ));
    assert!(
        text.starts_with("schema_version: '1.0'\nworkflow:\n  edges:\n    - from: input\n      to: turn-1\n"),
        "{text}"
    );
    assert!(text.contains("    - agent_ref: assistant\n      id: turn-1\n      prompt_template: 'hi: there'\n      type: agent\n"), "{text}");
    assert!(text.contains("text: \"yes\\nno\"\n"), "{text}");
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let good = workflow::serialise(&export(None, Vec::new()));
    for (bad, key) in [
        (good.replacen("workflow:", "colour: red\nworkflow:", 1), "colour"),
        (good.replacen("      id: input", "      bogus: 1\n      id: input", 1), "bogus"),
        (good.replacen("    - id: input", "    - bogus: 1\n      id: input", 1), "bogus"),
    ] {
        if bad == good {
            continue;
        }
        let error = workflow::parse(&bad).unwrap_err();
        assert_eq!(error.code(), "workflow.invalid");
        assert!(error.to_string().contains(key), "{error}");
    }
    assert_eq!(workflow::parse(&good.replace("'1.0'", "'2.0'")).unwrap_err().code(), "workflow.version");
    assert!(workflow::parse("just words").is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[ \\-#:,\\[\\]{}&*!|>'\"%@`\\n\\t0-9a-z~.=]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[ -~é\\n]{0,8}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Generate JSON of up to the maximum depth of a message, with keys of any length, especially near the limits
/// of common parsers.
fn deep_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "[a-z]{1,3}",
        (990_usize..1_060, "[a-z'\"é\\\\: ]").prop_map(|(count, letter)| letter.repeat(count)),
        (1_usize..2_000).prop_map(|count| "k ".repeat(count)),
    ];
    let level = prop_oneof![key.prop_map(Some), Just(None)];
    prop::collection::vec(level, 0..99).prop_map(|levels| {
        levels.into_iter().fold(json!(1), |inner, level| match level {
            Some(key) => json!({ key: inner, "b": [] }),
            None => json!([inner, "x"]),
        })
    })
}

#[test]
fn a_long_conversation_and_the_deepest_call_round_trip() {
    let turn = |number: usize| [user(&format!("ask {number}")), assistant(vec![Part::text("yes")])];
    let long = export(None, (0..6_000).flat_map(turn).collect());
    assert_eq!(long.workflow.nodes.len(), 6_002);
    let nested = format!("{}1{}", "{\"d\":".repeat(100), "}".repeat(100));
    let deepest = Part::tool_call("c1", "f", Json::parse(&nested).unwrap());
    export(None, vec![user("go"), assistant(vec![Part::text("so"), deepest])]);
    let lists = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let lists = Part::tool_call("c1", "f", Json::parse(&lists).unwrap());
    export(None, vec![user("go"), assistant(vec![lists; 400])]);
}

#[test]
fn a_long_key_is_written_explicitly() {
    let mut document = export(None, Vec::new());
    let (long, short) = ("k".repeat(5_000), "s".repeat(100));
    document.workflow.metadata.insert(long.clone(), json!([{ long.clone(): { "a": 1 }, short.clone(): 2 }]));
    check_stable(&document);
    let text = workflow::serialise(&document);
    assert!(
        text.contains(&format!("? '{long}'\n    :\n")) || text.contains(&format!("? {long}\n    :\n")),
        "{text}"
    );
    assert_eq!(workflow::parse(&text).unwrap(), document);
}

#[test]
fn a_cancelled_turn_is_only_in_the_metadata() {
    let cut_off = AssistantMessage {
        parts: vec![Part::text("I was about to")],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::Aborted,
    };
    let Body::ToolResult(mut cancelled) = result("c1") else { panic!("no result") };
    cancelled.interrupted = true;
    let called = assistant(vec![Part::text("I look"), call("c1", "ls")]);
    for end in [vec![cut_off.into()], vec![called, cancelled.into()]] {
        let said = [user("one"), assistant(vec![Part::text("first")]), user("two")];
        let document = export(None, said.into_iter().chain(end.clone()).collect());
        assert_eq!(ids(&document), ["input", "turn-1", "output"]);
        let messages = &document.workflow.metadata["sapwood_export"]["messages"];
        assert_eq!(messages.as_array().unwrap().len(), 3 + end.len());
    }
}

#[test]
fn the_id_includes_all_words_of_a_long_title() {
    let title = "word ".repeat(60);
    assert_eq!(export(Some(&title), Vec::new()).workflow.id, vec!["word"; 60].join("-"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn parse_then_serialise_is_byte_identical_for_any_metadata(value in any_json(), title in any::<String>()) {
        let mut document = export(Some(&title), vec![user(&title), assistant(vec![Part::text(title.clone())])]);
        document.workflow.metadata.insert("more".to_owned(), json!({ "value": value.clone() }));
        document.workflow.agents.push(json!({ "slug": title.clone() }));
        let first = workflow::serialise(&document);
        let read = workflow::parse(&first).map_err(|error| TestCaseError::fail(format!("{error}\n{first}")))?;
        prop_assert_eq!(workflow::serialise(&read), first);
        prop_assert_eq!(&read.workflow.name, &Some(title));
    }

    #[test]
    fn any_session_becomes_a_stable_document(seed in any::<u64>()) {
        export_log(Some("x"), &MemLog::of(&random_script(seed, 30)));
    }

    #[test]
    fn arbitrary_text_never_breaks_the_parser(text in "\\PC{0,200}") {
        let _ = workflow::parse(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parse_then_serialise_is_byte_identical_for_deep_values_and_long_keys(value in deep_json()) {
        let mut document = export(None, Vec::new());
        document.workflow.metadata.insert("more".to_owned(), value);
        let first = workflow::serialise(&document);
        let read = workflow::parse(&first).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(workflow::serialise(&read), first);
    }
}

#[test]
fn an_export_that_is_too_large_to_run_has_an_obstacle() {
    let words = "x".repeat(1 << 20);
    let turns = |count: usize| (0..count).flat_map(|_| [user(&words), assistant(vec![Part::text("yes")])]);
    let small = workflow::serialise(&export(None, turns(10).collect()));
    assert!(small.len() > 15 << 20, "the document includes the conversation");
    assert_eq!(workflow::obstacle(&small), None);
    let large = workflow::serialise(&export(None, turns(16).collect()));
    let why = workflow::obstacle(&large).unwrap();
    assert!(why.contains("bytes when encoded"), "{why}");
}

#[test]
fn an_export_runs_with_any_agent_name() {
    let mut document = export(None, vec![user("one"), assistant(vec![Part::text("yes")])]);
    let name = "Dr. Mail (old) ".repeat(9);
    document.workflow.nodes[1].agent_ref = Some(name.clone());
    let readings = workflow::Readings::default();
    let flow = workflow::flow_of(&document, &readings, workflow::OwnAgents::Use, |_| None).unwrap();
    assert_eq!((flow.mistakes(), flow.nodes[1].agent.as_ref()), (vec![], Some(&name)));
    assert_eq!(flow.nodes[1].role.as_deref(), Some("assistant"));
}
