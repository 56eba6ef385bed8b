//! Flows with real processes: roles that keep their sessions, handoff repairs, approvals, branches, role files, flow
//! state through a compaction, and running an exported session.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use crate::harness::{World, on_each_store, texts_of};

/// A call of the handoff tool in a cassette.
pub fn hand(id: &str, input: Value) -> Value {
    json!({ "call": { "id": id, "name": "handoff", "input": input } })
}

pub fn to(node: &str, content: &str) -> Value {
    json!({ "targets": [{ "node": node, "artifact": "work.md", "content": content }] })
}

pub fn text(text: &str) -> Value {
    json!({ "text": text })
}

/// Returns an agent that replays these model calls, chosen by the length of its history.
pub fn actor(world: &World, id: &str, calls: &[Vec<Value>], more: Value) -> Value {
    let path = world.path(&format!("{id}.json"));
    let calls: Vec<Value> = calls.iter().map(|pieces| json!({ "pieces": pieces })).collect();
    std::fs::write(&path, json!({ "by": "history", "calls": calls }).to_string()).unwrap();
    let mut agent = json!({ "id": id, "model": format!("scripted:{}", path.display()) });
    for (key, value) in more.as_object().into_iter().flatten() {
        agent[key] = value.clone();
    }
    agent
}

pub fn node(id: &str, role: &str, agent: &str) -> Value {
    json!({ "id": id, "type": "agent", "role": role, "agent_ref": agent, "prompt_template": format!("work on {id}") })
}

/// Writes a flow file from input to output, as JSON, which is valid YAML.
pub fn write_flow(
    world: &World,
    agents: &[Value],
    nodes: &[Value],
    edges: &[(&str, &str)],
    more: Value,
) -> String {
    let ends = [json!({ "id": "input", "type": "input" }), json!({ "id": "output", "type": "output" })];
    let edge = |(from, to): &(&str, &str)| match from.strip_prefix('<') {
        Some(from) => json!({ "from": from, "to": to, "type": "backward" }),
        None => json!({ "from": from, "to": to }),
    };
    let all = [&ends[..], nodes].concat();
    let mut workflow = json!({
        "id": "test", "agents": agents, "nodes": all,
        "edges": edges.iter().map(edge).collect::<Vec<_>>(),
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        workflow[key] = value.clone();
    }
    let path = world.path("flow.yaml");
    std::fs::write(&path, json!({ "schema_version": "1.0", "workflow": workflow }).to_string()).unwrap();
    path.display().to_string()
}

fn status(view: &Value, node: &str) -> String {
    let nodes = view["nodes"].as_array().unwrap();
    let found = nodes.iter().find(|found| found["id"] == node).unwrap();
    found["status"].as_str().unwrap().to_owned()
}

/// Checks the role files of the owner after the run has ended.
fn check_role_files(world: &World, folder: &std::path::Path) {
    let role: Value =
        serde_json::from_slice(&std::fs::read(folder.join("transcript.json")).unwrap()).unwrap();
    assert_eq!((role["roleName"].as_str(), role["currentNodeId"].as_str()), (Some("owner"), Some("release")));
    assert_eq!(role["isActive"], false);
    let items: Value = serde_json::from_slice(&std::fs::read(folder.join("feed.json")).unwrap()).unwrap();
    assert_eq!(items, json!(world.lines(&["feed", "flow-r__owner"])));
    let names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 2, "a temporary file remains: {names:?}");
}

#[test]
fn a_role_keeps_its_session_across_nodes_and_repairs_its_handoffs() {
    on_each_store(|world| {
        let owner = actor(
            world,
            "owner",
            &[
                vec![hand("1", to("review", "one"))],
                vec![text("drafted")],
                vec![hand("2", to("review", "two"))],
                vec![text("mended")],
                vec![hand("3", to("output", "final"))],
                vec![text("released")],
            ],
            json!({}),
        );
        let curator = actor(
            world,
            "curator",
            &[
                vec![hand("1", to("nowhere", "x"))],
                vec![text("I forgot to hand over.")],
                vec![hand("2", to("draft", "again please"))],
                vec![text("given back")],
                vec![hand("3", to("release", "fine"))],
                vec![text("passed")],
            ],
            json!({}),
        );
        let nodes = [
            node("draft", "owner", "owner"),
            node("review", "curator", "curator"),
            node("release", "owner", "owner"),
        ];
        let edges = [
            ("input", "draft"),
            ("draft", "review"),
            ("<review", "draft"),
            ("review", "release"),
            ("release", "output"),
        ];
        let file = write_flow(world, &[owner, curator], &nodes, &edges, json!({}));
        let dir = world.path("mirror");
        let run = world.json(&[
            "flow",
            "run",
            &file,
            "--input",
            "the harbour",
            "--id",
            "r",
            "--mirror",
            dir.to_str().unwrap(),
        ]);
        assert_eq!(run["status"], "completed", "{run}");
        assert_eq!(run["results"][0]["text"], "final");
        let texts = texts_of(&world.json(&["context", "flow-r__owner"]));
        let prompts: Vec<&String> = texts.iter().filter(|text| text.starts_with("work on")).collect();
        assert_eq!(prompts, ["work on draft", "work on draft", "work on release"], "{texts:?}");
        let note = texts.iter().find(|text| text.contains("this is visit 2")).unwrap();
        assert!(note.contains("Received from review: work.md (12 bytes)\nagain please"), "{note}");
        let feed = world.lines(&["feed", "flow-r__curator"]);
        let count = |kind: &str| feed.iter().filter(|item| item["type"] == kind).count();
        // The first repair is for a wrong target, the second for a turn that ended without a handoff.
        assert_eq!((count("repair"), count("handoff")), (2, 2), "{feed:?}");
        check_role_files(world, &dir.join("test/flow-r/roles/owner"));
        world.ok(&["doctor"]);
    });
}

#[test]
fn a_handoff_still_invalid_after_five_repairs_fails_the_node() {
    let world = World::new("sqlite");
    let wrong = || vec![hand("x", to("nowhere", "x"))];
    let mut calls: Vec<Vec<Value>> = (0..9).map(|_| wrong()).collect();
    calls.push(vec![text("never")]);
    let owner = actor(&world, "owner", &calls, json!({}));
    let file = write_flow(
        &world,
        &[owner],
        &[node("draft", "owner", "owner")],
        &[("input", "draft"), ("draft", "output")],
        json!({}),
    );
    let ran = world.run(&["flow", "run", &file, "--id", "r", "--json"]);
    assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(1), Some("flow.handoff")), "{}", ran.stderr);
    let feed = world.lines(&["feed", "flow-r__owner"]);
    assert_eq!(
        feed.iter().filter(|item| item["type"] == "repair").count(),
        6,
        "the first attempt and five repairs: {feed:?}"
    );
    assert_eq!(status(&world.json(&["flow", "show", "r"]), "draft"), "failed");
}

#[test]
fn a_handoff_waits_for_approval_and_a_question_for_an_answer() {
    on_each_store(|world| {
        let owner = actor(
            world,
            "owner",
            &[
                vec![hand("1", json!({ "prompt": "Which colour?" }))],
                vec![hand("2", to("output", "red"))],
                vec![hand("3", to("output", "dark red"))],
                vec![text("released")],
            ],
            json!({}),
        );
        let mut release = node("release", "owner", "owner");
        release["human_colab"] = json!(true);
        let file = write_flow(
            world,
            &[owner],
            &[release],
            &[("input", "release"), ("release", "output")],
            json!({}),
        );
        let asked = |view: &Value| view["approvals"][0].clone();
        let view = world.json(&["flow", "run", &file, "--id", "r"]);
        assert_eq!(
            (view["status"].as_str(), asked(&view)["question"].as_str()),
            (Some("waiting"), Some("Which colour?"))
        );
        let view = world.json(&["approve", asked(&view)["approval"].as_str().unwrap(), "--text", "red"]);
        assert_eq!(asked(&view)["kind"], "handoff", "{view}");
        let view = world.json(&["deny", asked(&view)["approval"].as_str().unwrap(), "--reason", "darker"]);
        assert!(asked(&view)["question"].as_str().unwrap().contains("hand over work.md to output"), "{view}");
        let view = world.json(&["approve", asked(&view)["approval"].as_str().unwrap()]);
        assert_eq!(
            (view["status"].as_str(), view["results"][0]["text"].as_str()),
            (Some("completed"), Some("dark red"))
        );
        let texts = texts_of(&world.json(&["context", "flow-r__owner"]));
        assert!(
            texts.iter().any(|text| text == "red") && texts.iter().any(|text| text.contains("darker")),
            "{texts:?}"
        );
    });
}

#[test]
fn an_answer_prints_only_what_is_new_in_the_run() {
    let world = World::new("sqlite");
    let writer =
        actor(&world, "writer", &[vec![hand("1", to("review", "x"))], vec![text("written")]], json!({}));
    let replies = [
        vec![hand("1", json!({ "prompt": "Which colour?" }))],
        vec![hand("2", to("output", "red"))],
        vec![text("reviewed")],
    ];
    let reviewer = actor(&world, "reviewer", &replies, json!({}));
    let file = write_flow(
        &world,
        &[writer, reviewer],
        &[node("draft", "writer", "writer"), node("review", "reviewer", "reviewer")],
        &[("input", "draft"), ("draft", "review"), ("review", "output")],
        json!({}),
    );
    let ran = world.run(&["flow", "run", &file, "--id", "r"]);
    let first: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("draft")).collect();
    assert!(!first.is_empty(), "the run prints the work on draft: {}", ran.stderr);
    let view = world.json(&["flow", "show", "r"]);
    let approval = view["approvals"][0]["approval"].as_str().unwrap().to_owned();
    let answered = world.run(&["approve", &approval, "--text", "red"]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    for line in first {
        assert!(!answered.stderr.contains(line), "{line:?} was printed again:\n{}", answered.stderr);
    }
}

#[test]
fn roles_reflect_in_the_improvement_phase_and_the_critic_waits_for_consent() {
    let world = World::new("sqlite");
    let owner = actor(
        &world,
        "owner",
        &[vec![hand("1", to("output", "x"))], vec![text("done")], vec![text("I was slow.")]],
        json!({}),
    );
    let critic = actor(&world, "critic", &[vec![text("Be quicker.")]], json!({}));
    let more = json!({ "improvement": { "order": "side_by_side", "feedback": { "role": "critic", "agent_ref": "critic" } } });
    let file = write_flow(
        &world,
        &[owner, critic],
        &[node("draft", "owner", "owner")],
        &[("input", "draft"), ("draft", "output")],
        more,
    );
    let view = world.json(&["flow", "run", &file, "--id", "r", "--improve"]);
    assert_eq!(
        (view["status"].as_str(), view["phase"].as_str()),
        (Some("waiting"), Some("improvement")),
        "{view}"
    );
    assert_eq!(view["approvals"][0]["kind"], "consent");
    let usage = world.json(&["usage", "flow-r__fresh.critic"]);
    assert_eq!(usage["total"]["calls"], 0, "a model was called before the consent: {usage}");
    let view = world.json(&["approve", view["approvals"][0]["approval"].as_str().unwrap()]);
    assert_eq!(view["status"], "completed", "{view}");
    let critic_text = texts_of(&world.json(&["context", "flow-r__fresh.critic"])).join("\n");
    assert!(
        critic_text.contains("I was slow.")
            && critic_text.contains("Be quicker.")
            && !critic_text.contains("work on draft"),
        "{critic_text}"
    );
    let owned = texts_of(&world.json(&["context", "flow-r__owner"])).join("\n");
    assert!(owned.contains("work on draft") && owned.contains("I was slow."), "{owned}");
    let artifacts: Vec<Value> =
        world.lines(&["events", "flow-r"]).into_iter().filter(|e| e["type"] == "session:artifact").collect();
    assert_eq!(artifacts.len(), 2, "{artifacts:?}");
    let second = world.json(&["flow", "run", &file, "--id", "s", "--improve"]);
    let view = world.json(&["deny", second["approvals"][0]["approval"].as_str().unwrap()]);
    assert_eq!(
        (view["status"].as_str(), status(&view, "@feedback").as_str()),
        (Some("completed"), "closed"),
        "{view}"
    );
}

#[test]
fn missing_readings_are_reported_before_the_run_starts() {
    let world = World::new("sqlite");
    let owner = actor(&world, "owner", &[vec![text("x")]], json!({}));
    let file = write_flow(
        &world,
        &[owner],
        &[node("draft", "owner", "owner")],
        &[("input", "draft"), ("draft", "output")],
        json!({}),
    );
    std::fs::write(world.path("required-readings.yaml"), "all: [charter]\nroles: {owner: [style, tone]}\n")
        .unwrap();
    std::fs::write(world.path("index.yaml"), "charter: charter.md\nstyle: style.md\n").unwrap();
    std::fs::write(world.path("charter.md"), "Be kind.").unwrap();
    let error = world.fail(2, &["flow", "run", &file]);
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["code"], "flow.invalid");
    assert!(
        message.contains("style.md") && message.contains("reading tone") && !message.contains("charter"),
        "{message}"
    );
    assert_eq!(world.ok(&["ls"]), "", "a session was started");
    std::fs::write(world.path("style.md"), "Be brief.").unwrap();
    std::fs::write(world.path("index.yaml"), "charter: charter.md\nstyle: style.md\ntone: style.md\n")
        .unwrap();
    world.ok(&["flow", "check", &file]);
    let _ = world.run(&["flow", "run", &file, "--id", "r"]);
    let system = world.json(&["context", "flow-r__owner"])["system"].as_str().unwrap().to_owned();
    for part in [
        "You are owner",
        "## charter\n\nBe kind.",
        "## style\n\nBe brief.",
        "`handoff`",
        "records/flow-r/owner",
    ] {
        assert!(system.contains(part), "{part}: {system}");
    }
}

#[test]
fn nodes_share_a_session_by_name_or_fork_it() {
    on_each_store(|world| {
        let answers: Vec<Vec<Value>> = (1..=3).map(|at| vec![text(&format!("answer {at}"))]).collect();
        let desk = actor(world, "desk", &answers, json!({}));
        let stage = |id: &str, more: Value| {
            let mut node = json!({ "id": id, "type": "agent", "agent_ref": "desk", "prompt_template": format!("ask {id}") });
            more.as_object().unwrap().iter().for_each(|(key, value)| node[key] = value.clone());
            node
        };
        let nodes = [
            stage("one", json!({ "session_id": "desk" })),
            stage("two", json!({ "session_id": "desk" })),
            stage("three", json!({ "fork_from": "desk" })),
            stage("four", json!({})),
        ];
        let edges =
            [("input", "one"), ("one", "two"), ("two", "three"), ("three", "four"), ("four", "output")];
        let file = write_flow(world, &[desk], &nodes, &edges, json!({}));
        let view = world.json(&["flow", "run", &file, "--id", "r"]);
        assert_eq!(view["status"], "completed", "{view}");
        let asked = |session: &str| -> Vec<String> {
            texts_of(&world.json(&["context", session]))
                .into_iter()
                .filter(|text| text.starts_with("ask "))
                .collect()
        };
        assert_eq!(asked("desk"), ["ask one", "ask two"]);
        assert_eq!(asked("flow-r__at.three"), ["ask one", "ask two", "ask three"]);
        assert_eq!(asked("flow-r__at.four"), ["ask four"]);
        assert_eq!(world.json(&["ancestry", "flow-r__at.three"])["parent"], "desk");
        let note = texts_of(&world.json(&["context", "flow-r__at.four"])).join("\n");
        assert!(note.contains("Received from three: answer (8 bytes)\nanswer 3"), "{note}");
    });
}

#[test]
fn compacting_a_role_keeps_the_state_of_the_flow() {
    let world = World::new("sqlite");
    let owner = actor(
        &world,
        "owner",
        &[
            vec![hand("1", to("second", "one"))],
            vec![text("first done")],
            vec![hand("2", json!({ "prompt": "Go on?" }))],
        ],
        json!({}),
    );
    let nodes = [node("first", "owner", "owner"), node("second", "owner", "owner")];
    let file = write_flow(
        &world,
        &[owner],
        &nodes,
        &[("input", "first"), ("first", "second"), ("second", "output")],
        json!({}),
    );
    world.json(&["flow", "run", &file, "--id", "r"]);
    for keep in ["2", "1"] {
        let compact = ["compact", "flow-r__owner", "--keep-last", keep, "--compact-strategy", "truncate"];
        world.ok(&[&compact[..], &["--force"]].concat());
        let summary = texts_of(&world.json(&["context", "flow-r__owner"]))[0].clone();
        let standing = summary.split("── The flow, as it stands ──").nth(1).unwrap_or_default();
        for part in [
            "Flow: test",
            "Role: owner",
            "Node: second (visit 1)",
            "Record folder: records/flow-r/owner",
            "Received over: first → second",
            "Completed edges here: none",
            "word for word:\nwork on second",
        ] {
            assert!(standing.contains(part), "{part}: {summary}");
        }
        assert_eq!(summary.matches("as it stands").count(), 1, "{summary}");
    }
}

#[test]
fn an_exported_workflow_runs_as_a_flow() {
    let world = World::new("sqlite");
    let session =
        world.json(&["new", "--agent", "default", "--title", "Two turns"])["id"].as_str().unwrap().to_owned();
    world.ok(&["send", &session, "think about {{trees}}"]);
    world.ok(&["send", &session, "what did I say?"]);
    let file = world.path("exported.yaml");
    let file = file.to_str().unwrap();
    world.ok(&["export", &session, "--format", "workflow", "-o", file]);
    let view = world.json(&["flow", "run", file, "--id", "r"]);
    assert_eq!(view["status"], "completed", "{view}");
    let texts = texts_of(&world.json(&["context", "flow-r__default"]));
    assert!(texts.iter().any(|text| text == "think about { {trees}}"), "{texts:?}");
    let last = texts.last().unwrap();
    assert!(last.contains("Your first message was"), "the second turn does not contain the first: {last}");
    let empty = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    world.ok(&["export", &empty, "--format", "workflow", "-o", file, "--force"]);
    assert_eq!(world.json(&["flow", "run", file, "--input", "x"])["results"][0]["text"], "x");
}

#[test]
fn an_exported_session_with_more_turns_than_the_default_limit_runs_completely() {
    let world = World::new("sqlite");
    let turn = |number| {
        let say = |role: &str, text: String| json!({ "role": role, "content": text });
        [say("user", format!("question {number}")), say("assistant", format!("answer {number}"))]
    };
    let messages: Vec<Value> = (1..=55).flat_map(turn).collect();
    let file = world.path("messages.json");
    std::fs::write(&file, json!(messages).to_string()).unwrap();
    let imported = world.json(&["import", file.to_str().unwrap()]);
    let session = imported["session"].as_str().unwrap_or_else(|| panic!("{imported}"));
    let file = world.path("exported.yaml");
    let file = file.to_str().unwrap();
    world.ok(&["export", session, "--format", "workflow", "-o", file]);
    let view = world.json(&["flow", "run", file, "--id", "long"]);
    assert_eq!((&view["status"], &view["code"]), (&json!("completed"), &Value::Null), "{view}");
    assert_eq!(world.json(&["info", "flow-long__assistant"])["turns"], 55);
}

#[test]
fn an_exported_session_runs_with_any_title_and_its_role_files_are_written() {
    let world = World::new("sqlite");
    let say = |role: &str| json!({ "role": role, "content": "hello" });
    for (number, title) in ["two\nlines", &"long ".repeat(60), &"x".repeat(500), " \t "].iter().enumerate() {
        let file = world.path("messages.json");
        let conversation = json!({ "id": format!("c-{number}"), "title": title, "messages": [say("user"), say("assistant")] });
        std::fs::write(&file, conversation.to_string()).unwrap();
        world.ok(&["import", file.to_str().unwrap()]);
        let (file, mirror) = (world.path("exported.yaml"), world.path(&format!("mirror-{number}")));
        let (file, mirror) = (file.to_str().unwrap(), mirror.to_str().unwrap());
        world.ok(&["export", &format!("c-{number}"), "--format", "workflow", "-o", file, "--force"]);
        let view = world.json(&["flow", "run", file, "--mirror", mirror]);
        assert_eq!(view["status"], "completed", "{title:?}: {view}");
        let flow = std::fs::read_dir(mirror).unwrap().next().expect("the folder of the flow").unwrap();
        let run = std::fs::read_dir(flow.path()).unwrap().next().expect("the folder of the run").unwrap();
        assert!(run.path().join("roles/assistant/transcript.json").exists(), "{title:?}");
    }
}

#[test]
fn an_agents_turn_limit_applies_in_a_flow() {
    let world = World::new("sqlite");
    let agents = json!([{ "id": "few", "model": "demo", "limits": { "turns_max": 2 } }]);
    let turn = |number| json!({ "id": format!("turn-{number}"), "type": "agent", "role": "few", "agent_ref": "few", "handoff": "answer", "prompt_template": "go on" });
    let nodes = json!([turn(1), turn(2), turn(3)]);
    let edges = json!([{ "from": "turn-1", "to": "turn-2" }, { "from": "turn-2", "to": "turn-3" }]);
    let workflow = json!({ "id": "few", "agents": agents, "nodes": nodes, "edges": edges });
    let file = world.path("few.yaml");
    std::fs::write(&file, json!({ "schema_version": "1.0", "workflow": workflow }).to_string()).unwrap();
    let ran = world.run(&["flow", "run", file.to_str().unwrap(), "--id", "few", "--json"]);
    let view: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&view["status"], &view["code"]), (&json!("failed"), &json!("turn_limit")), "{view}");
}

#[test]
fn a_followed_feed_replays_and_continues_without_gaps_or_duplicates() {
    let world = World::new("sqlite");
    let session = world.session(&["u:one", "a:two"]);
    let mut child = world
        .command(&["feed", &session, "--follow", "--json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first: Vec<Value> = (0..2).map(|_| next()).collect();
    world.add_messages(&session, &["u:three"]);
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_call", "call_id": "c", "name": "read_file", "input": {} }] });
    world.ok(&["inject", &session, "--message", &call.to_string()]);
    let result = json!({ "role": "tool", "call_id": "c", "content": "it says" });
    world.ok(&["inject", &session, "--message", &result.to_string()]);
    let rest: Vec<Value> = (0..3).map(|_| next()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        (rest[1]["type"].as_str(), rest[2]["type"].as_str()),
        (Some("tool"), Some("tool-success")),
        "{rest:?}"
    );
    assert_eq!(rest[1]["id"], rest[2]["id"], "the tool item must be replaced by its result");
    // A client that keeps the last item of each id has the same feed as a replay.
    let mut kept: Vec<Value> = Vec::new();
    for item in first.into_iter().chain(rest) {
        match kept.iter_mut().find(|known| known["id"] == item["id"]) {
            Some(known) => *known = item,
            None => kept.push(item),
        }
    }
    assert_eq!(kept, world.lines(&["feed", &session]));
}

#[test]
fn the_example_flow_runs_from_the_repository_root() {
    let world = World::new("sqlite");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let args =
        ["flow", "run", "examples/flows/report/flow.yaml", "--input", "the harbour", "--id", "r", "--json"];
    let ran = world.command(&args).current_dir(root).output().unwrap();
    let view: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!(
        (view["status"].as_str(), view["approvals"][0]["kind"].as_str()),
        (Some("waiting"), Some("handoff")),
        "{view}"
    );
    assert_eq!(view["nodes"][1]["visits"], 2, "the draft was not returned exactly once");
}
