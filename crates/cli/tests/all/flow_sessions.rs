//! Flows and sessions: a node that works in an existing session, variables, readings of role instances, role files, and
//! which turns an export contains. The files on disk show what a session was able to do.

use serde_json::{Value, json};

use crate::flows::{actor, hand, node, text, to, write_flow};
use crate::harness::{World, on_each_store, texts_of};
use crate::serve::{request, serve};

/// Writes an agent file that replays these model calls.
fn agent_file(world: &World, id: &str, calls: &[Vec<Value>], more: Value) -> Value {
    let agent = actor(world, id, calls, more);
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path(&format!("agents/{id}.yaml")), agent.to_string()).unwrap();
    agent
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({ "call": { "id": id, "name": name, "input": input } })
}

fn write_file(id: &str, path: &str) -> Value {
    call(id, "write_file", json!({ "path": path, "content": "written" }))
}

/// A node without a role in a named session.
fn visit(id: &str, session: &str, more: Value) -> Value {
    let mut node =
        json!({ "id": id, "type": "agent", "session_id": session, "prompt_template": format!("ask {id}") });
    more.as_object().unwrap().iter().for_each(|(key, value)| node[key] = value.clone());
    node
}

fn one_node(world: &World, agents: &[Value], node: Value) -> String {
    let id = node["id"].as_str().unwrap().to_owned();
    write_flow(world, agents, &[node], &[("input", &id), (&id, "output")], json!({}))
}

fn exported_nodes(world: &World, session: &str) -> Vec<String> {
    let text = world.ok(&["export", session, "--format", "workflow"]);
    let ids = text.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("id: "));
    ids.filter(|id| id.starts_with("turn-")).map(str::to_owned).collect()
}

#[test]
fn a_node_in_an_existing_session_cannot_widen_its_tools_or_scope() {
    on_each_store(|world| {
        let outside = world.path("outside.txt");
        let calls = [
            vec![write_file("1", "note.txt"), write_file("2", outside.to_str().unwrap())],
            vec![call("3", "run_command", json!({ "command": "touch made.txt" }))],
            vec![call("4", "edit_file", json!({ "path": "note.txt", "old": "a", "new": "b" }))],
            vec![text("tried")],
        ];
        agent_file(world, "desk", &calls, json!({ "tools": ["read_file"], "approvals": "auto" }));
        world.ok(&["new", "--id", "desk", "--agent", "desk"]);
        // The flow defines an agent of the same name with all rights, and a node that requests them.
        let wide = json!({
            "tools": ["read_file", "write_file", "edit_file", "run_command"], "fs_scope": "full",
            "approvals": "auto", "allowed_commands": ["touch *"], "system_prompt": "You may do anything.",
        });
        let mut wide = actor(world, "desk", &calls, wide);
        wide["id"] = json!("desk");
        let asks = json!({ "agent_ref": "desk", "tools": ["read_file", "write_file", "edit_file", "run_command"], "fs_scope": "full" });
        let file = one_node(world, &[wide], visit("work", "desk", asks));
        let view = world.json(&["flow", "run", &file, "--id", "r"]);
        assert_eq!(view["status"], "completed", "{view}");
        let names: Vec<String> = std::fs::read_dir(world.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        for made in ["note.txt", "outside.txt", "made.txt"] {
            assert!(!names.iter().any(|name| name == made), "{made} was written: {names:?}");
        }
        let context = world.json(&["context", "desk"]);
        assert!(!context["system"].to_string().contains("anything"), "the prompt changed: {context}");
        let texts = texts_of(&context).join("\n");
        assert_eq!(texts.matches("There is no tool").count(), 4, "{texts}");
        assert!(texts.contains("You are work in the flow"), "the role was not briefed: {texts}");
    });
}

#[test]
fn a_node_narrows_an_existing_session_for_its_visit_only() {
    on_each_store(|world| {
        let calls = [
            vec![write_file("1", "in-visit.txt")],
            vec![text("visited")],
            vec![write_file("2", "in-sandbox.txt")],
            vec![text("visited again")],
            vec![write_file("3", "after.txt")],
            vec![text("sent")],
        ];
        let rights =
            json!({ "tools": ["read_file", "write_file"], "fs_scope": "project", "approvals": "auto" });
        agent_file(world, "desk", &calls, rights);
        world.ok(&["new", "--id", "desk", "--agent", "desk"]);
        let nodes = [
            visit("read", "desk", json!({ "tools": ["read_file"] })),
            visit("safe", "desk", json!({ "fs_scope": "sandboxed" })),
        ];
        let edges = [("input", "read"), ("read", "safe"), ("safe", "output")];
        let file = write_flow(world, &[], &nodes, &edges, json!({}));
        let view = world.json(&["flow", "run", &file, "--id", "r"]);
        assert_eq!(view["status"], "completed", "{view}");
        let exists = |name: &str| world.path(name).exists();
        assert!(!exists("in-visit.txt"), "the node has no tool to write");
        assert!(!exists("in-sandbox.txt"), "the node writes only to the scratch directory");
        world.ok(&["send", "desk", "now you"]);
        assert!(exists("after.txt"), "the session's own rights are unchanged after the visits");
    });
}

#[test]
fn an_approval_in_another_process_keeps_the_narrowing_of_the_visit() {
    let world = World::new("sqlite");
    let calls = [
        vec![call("1", "ask_user", json!({ "question": "Which file?" }))],
        vec![write_file("2", "note.txt")],
        vec![text("done")],
    ];
    let rights = json!({ "tools": ["ask_user", "write_file"], "fs_scope": "project", "approvals": "auto" });
    agent_file(&world, "desk", &calls, rights);
    world.ok(&["new", "--id", "desk", "--agent", "desk"]);
    let file = one_node(&world, &[], visit("work", "desk", json!({ "tools": ["ask_user"] })));
    let view = world.json(&["flow", "run", &file, "--id", "r"]);
    let approval = view["approvals"][0]["approval"].as_str().unwrap_or_else(|| panic!("{view}"));
    let view = world.json(&["approve", approval, "--text", "note.txt"]);
    assert_eq!(view["status"], "completed", "{view}");
    assert!(!world.path("note.txt").exists(), "the resumed visit has a tool that its node does not name");
}

#[test]
fn a_node_with_another_agent_than_its_session_is_refused_before_anything_runs() {
    let world = World::new("sqlite");
    let answers = [vec![text("yes")]];
    agent_file(&world, "desk", &answers, json!({}));
    let other = agent_file(&world, "other", &answers, json!({ "tools": ["write_file"] }));
    world.ok(&["new", "--id", "desk", "--agent", "desk"]);
    for (more, agents) in [
        (visit("work", "desk", json!({ "agent_ref": "other" })), vec![other.clone()]),
        (
            json!({ "id": "work", "type": "agent", "fork_from": "desk", "agent_ref": "other", "prompt_template": "x" }),
            vec![other],
        ),
    ] {
        let file = one_node(&world, &agents, more);
        let error = world.fail(4, &["flow", "run", &file, "--id", "r"]);
        assert_eq!(error["code"], "agent.mismatch", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("work") && message.contains("desk") && message.contains("other"),
            "{message}"
        );
    }
    let sessions = world.lines(&["ls"]);
    assert_eq!(sessions.len(), 1, "a run was created: {sessions:?}");
    assert_eq!(world.json(&["info", "desk"])["turns"], 0);
    let server = serve(&world, "127.0.0.1:0");
    let flow = json!({ "schema_version": "1.0", "workflow": { "id": "f", "nodes": [visit("work", "desk", json!({ "agent_ref": "other" }))], "edges": [] } });
    let (status, answer) =
        request(&server.addr, "POST", "/v1/flows", None, &json!({ "flow": flow }).to_string());
    assert_eq!((status, answer["code"].as_str()), (409, Some("agent.mismatch")), "{answer}");
}

#[test]
fn a_fork_in_a_flow_keeps_the_agent_and_the_directory_of_its_source() {
    let world = World::new("sqlite");
    let calls = [vec![write_file("1", "forked.txt")], vec![text("done")]];
    let rights = json!({ "tools": ["write_file"], "fs_scope": "project", "approvals": "auto" });
    agent_file(&world, "desk", &calls, rights);
    let (home, elsewhere) = (world.path("home"), world.path("elsewhere"));
    std::fs::create_dir_all(&home).unwrap();
    std::fs::create_dir_all(&elsewhere).unwrap();
    world.ok(&["new", "--id", "desk", "--agent", "desk", "--cwd", home.to_str().unwrap()]);
    let fork = json!({ "id": "work", "type": "agent", "fork_from": "desk", "prompt_template": "x" });
    let file = one_node(&world, &[], fork);
    let view = world.json(&["flow", "run", &file, "--id", "r", "--cwd", elsewhere.to_str().unwrap()]);
    assert_eq!(view["status"], "completed", "{view}");
    assert!(home.join("forked.txt").exists() && !elsewhere.join("forked.txt").exists());
}

#[test]
fn variables_are_set_on_the_command_line_or_in_the_flow_and_missing_ones_are_named() {
    let world = World::new("sqlite");
    let agent = actor(
        &world,
        "writer",
        &[vec![text("done")]],
        json!({ "system_prompt": "You write about {{ctx.project}} for {{ctx.reader}}." }),
    );
    let mut stage = json!({ "id": "work", "type": "agent", "agent_ref": "writer" });
    stage["prompt_template"] = json!("Use {{ctx.tone}} words about {{input}}.");
    let edges = [("input", "work"), ("work", "output")];
    let file = write_flow(&world, &[agent], &[stage], &edges, json!({ "variables": { "tone": "plain" } }));
    for args in [vec!["flow", "check", &file], vec!["flow", "run", &file, "--var", "reader=all"]] {
        let error = world.fail(2, &args);
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["code"], "flow.invalid");
        assert!(message.contains("agent writer: its prompt needs {{ctx.project}}"), "{message}");
        assert!(!message.contains("ctx.tone"), "{message}");
    }
    assert_eq!(world.ok(&["ls"]), "", "a session was started");
    let set = ["--var", "project=sapwood", "--var", "reader=all {{ctx.project}}"];
    world.ok(&[&["flow", "check", &file], &set[..]].concat());
    let view = world.json(&[&["flow", "run", &file, "--input", "trees", "--id", "r"], &set[..]].concat());
    assert_eq!(view["status"], "completed", "{view}");
    let context = world.json(&["context", "flow-r__at.work"]);
    let system = context["system"].as_str().unwrap();
    assert!(system.contains("about sapwood for all {{ctx.project}}."), "a value is not a template: {system}");
    assert!(texts_of(&context).contains(&"Use plain words about trees.".to_owned()), "{context}");
    let secret = format!("project=sk-ant-{}", "a1".repeat(40));
    let error = world.fail(2, &["flow", "check", &file, "--var", "reader=x", "--var", &secret]);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("variable project") && !message.contains("sk-ant"), "{message}");
    assert_eq!(world.fail(2, &["flow", "check", &file, "--var", "nonsense"])["code"], "input.usage");
}

#[test]
fn an_exported_session_carries_its_variables() {
    let world = World::new("sqlite");
    let calls: Vec<Vec<Value>> = (1..=3).map(|at| vec![text(&format!("answer {at}"))]).collect();
    agent_file(&world, "writer", &calls, json!({ "system_prompt": "About {{ctx.project}}." }));
    world.ok(&["new", "--id", "notes", "--agent", "writer", "--var", "project=sapwood"]);
    world.ok(&["send", "notes", "hello"]);
    let (file, dir) = (world.path("notes.yaml"), world.path("role"));
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    world.ok(&["export", "notes", "--format", "workflow", "-o", file]);
    world.ok(&["flow", "check", file]);
    let view = world.json(&["flow", "run", file, "--id", "r"]);
    assert_eq!(view["status"], "completed", "{view}");
    let system = |session: &str| world.json(&["context", session])["system"].to_string();
    assert!(system("flow-r__writer").contains("About sapwood."), "{}", system("flow-r__writer"));
    world.json(&["flow", "run", file, "--id", "s", "--var", "project=oak"]);
    assert!(system("flow-s__writer").contains("About oak."));
    world.ok(&["export", "notes", "--format", "role-files", "-o", &format!("{dir}/")]);
    let role: Value =
        serde_json::from_slice(&std::fs::read(format!("{dir}/transcript.json")).unwrap()).unwrap();
    assert_eq!(role["systemPrompt"], "About sapwood.");
    let operator = world.ok(&["export", "notes", "--format", "operator"]);
    assert!(operator.lines().next().unwrap().contains("About sapwood."), "{operator}");
}

#[test]
fn required_readings_belong_to_a_role_instance() {
    let world = World::new("sqlite");
    let answers = [vec![hand("1", to("output", "x"))], vec![text("done")]];
    let agent = actor(&world, "writer", &answers, json!({}));
    let nodes = [
        node("one", "owner", "writer"),
        node("two", "owner_2", "writer"),
        node("three", "owner_3", "writer"),
    ];
    let edges = [
        ("input", "one"),
        ("input", "two"),
        ("input", "three"),
        ("one", "output"),
        ("two", "output"),
        ("three", "output"),
    ];
    let file = write_flow(&world, &[agent], &nodes, &edges, json!({}));
    std::fs::write(
        world.path("required-readings.yaml"),
        "all: [charter]\nroles: {owner: [style], owner_2: [tone]}\n",
    )
    .unwrap();
    std::fs::write(world.path("index.yaml"), "charter: charter.md\nstyle: style.md\ntone: tone.md\n")
        .unwrap();
    for (name, words) in [("charter", "Be kind."), ("style", "Be brief."), ("tone", "Be calm.")] {
        std::fs::write(world.path(&format!("{name}.md")), words).unwrap();
    }
    let view = world.json(&["flow", "run", &file, "--id", "r"]);
    assert_eq!(view["status"], "completed", "{view}");
    let reads = |role: &str| -> Vec<&str> {
        let system = world.json(&["context", &format!("flow-r__{role}")])["system"].to_string();
        ["Be kind.", "Be brief.", "Be calm."].into_iter().filter(|words| system.contains(words)).collect()
    };
    assert_eq!(reads("owner"), ["Be kind.", "Be brief."]);
    assert_eq!(reads("owner_2"), ["Be kind.", "Be calm."]);
    assert_eq!(
        reads("owner_3"),
        ["Be kind.", "Be brief."],
        "without a list of its own, that of the base role"
    );
}

fn read_json(path: std::path::PathBuf) -> Value {
    serde_json::from_slice(
        &std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    )
    .unwrap()
}

#[test]
fn mirror_and_export_write_the_same_role_files() {
    on_each_store(|world| {
        let used = json!({ "usage": { "input": 100, "output": 20, "cache_read": 5 } });
        let owner = actor(
            world,
            "owner",
            &[
                vec![hand("1", to("second", "x"))],
                vec![text("done one"), used],
                vec![hand("2", to("output", "y"))],
                vec![text("done two")],
            ],
            json!({}),
        );
        let nodes = [node("first", "owner_2", "owner"), node("second", "owner_2", "owner")];
        let edges = [("input", "first"), ("first", "second"), ("second", "output")];
        let file = write_flow(world, &[owner], &nodes, &edges, json!({}));
        let mirror = world.path("mirror");
        let view = world.json(&["flow", "run", &file, "--id", "r", "--mirror", mirror.to_str().unwrap()]);
        assert_eq!(view["status"], "completed", "{view}");
        let exported = world.path("exported");
        let session = "flow-r__owner_2";
        let target = format!("{}/", exported.display());
        world.ok(&["export", session, "--format", "role-files", "-o", &target]);
        let folder = mirror.join("test/flow-r/roles/owner_2");
        for name in ["transcript.json", "feed.json"] {
            assert_eq!(read_json(folder.join(name)), read_json(exported.join(name)), "{name}");
        }
        let role = read_json(exported.join("transcript.json"));
        assert_eq!(role["roleName"], "owner_2");
        assert_eq!(role["logicalSessionId"], "flow-r__owner_2");
        assert_eq!((&role["currentNodeId"], &role["isActive"]), (&json!("second"), &json!(false)));
        let here = &role["currentNodeContext"];
        assert_eq!(here["nodeId"], "second");
        let texts: Vec<&str> =
            here["exchanges"].as_array().unwrap().iter().filter_map(|m| m["content"].as_str()).collect();
        assert!(texts.contains(&"work on second") && !texts.contains(&"work on first"), "{texts:?}");
        assert_eq!(role["latestContextUsage"], 125, "of the last completed turn that reported it");
        let items = read_json(exported.join("feed.json"));
        assert_eq!(items, json!(world.lines(&["feed", session])));
        world.ok(&["compact", session, "--keep-last", "1", "--compact-strategy", "truncate", "--force"]);
        world.ok(&["export", session, "--format", "role-files", "-o", &target, "--force"]);
        let role = read_json(exported.join("transcript.json"));
        assert_eq!(role["compactionArchives"][0]["nodeId"], "second", "{role}");
        let error = world.fail(2, &["export", session, "--format", "role-files", "-o", &target]);
        assert!(error["message"].as_str().unwrap().contains("transcript.json already exists"), "{error}");
    });
}

#[test]
fn forks_of_a_role_have_role_files_of_their_own() {
    let world = World::new("sqlite");
    let answers = [vec![text("one")], vec![text("two")]];
    let owner = actor(&world, "owner", &answers, json!({}));
    let mut first = node("first", "owner", "owner");
    first["handoff"] = json!("answer");
    let mut fork = node("branch", "owner", "owner");
    (fork["fork_from"], fork["handoff"]) = (json!("owner"), json!("answer"));
    let edges = [("input", "first"), ("first", "branch"), ("branch", "output")];
    let file = write_flow(&world, &[owner], &[first, fork], &edges, json!({}));
    let mirror = world.path("mirror");
    let view = world.json(&["flow", "run", &file, "--id", "r", "--mirror", mirror.to_str().unwrap()]);
    assert_eq!(view["status"], "completed", "{view}");
    let roles = mirror.join("test/flow-r/roles");
    assert_eq!(read_json(roles.join("owner/transcript.json"))["currentNodeId"], "first");
    assert_eq!(read_json(roles.join("at.branch/transcript.json"))["currentNodeId"], "branch");
}

/// A role file that was written while the role worked on its second node.
fn active_role() -> Value {
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    let calls = json!({
        "role": "assistant_tool_calls", "text": "I look first.",
        "calls": [{ "id": "c1", "name": "read_file", "input": { "path": "a.txt" } }],
    });
    let here = json!([say("user", "Now review."), calls]);
    json!({
        "roleName": "curator_2", "logicalSessionId": "f1__curator_2", "systemPrompt": "You are curator_2.",
        "transcriptHistory": [say("user", "The summary."), here[0], here[1]],
        "currentNodeId": "review", "currentNodeContext": { "nodeId": "review", "exchanges": here },
        "latestContextUsage": 4321, "isActive": true,
        "compactionArchives": [{
            "id": "7a0c", "trigger": "auto", "nodeId": "draft", "compactedAt": "2026-01-02T03:04:05.000Z",
            "archivedTranscriptHistory": [say("user", "Write."), say("assistant", "Written.")],
            "replacementMessage": say("user", "The summary."),
        }],
    })
}

#[test]
fn an_imported_role_is_exported_as_it_was() {
    on_each_store(|world| {
        let folder = world.path("in");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("transcript.json"), active_role().to_string()).unwrap();
        world.ok(&["import", folder.join("transcript.json").to_str().unwrap()]);
        let exported: Value =
            serde_json::from_str(&world.ok(&["export", "f1__curator_2", "--format", "role-files"])).unwrap();
        assert_eq!(exported, active_role());
        assert_eq!(exported_nodes(world, "f1__curator_2"), ["turn-1"], "only the archived turn is completed");
    });
}

#[test]
fn an_imported_active_role_is_an_interrupted_turn_that_resume_continues() {
    on_each_store(|world| {
        let calls = [vec![], vec![text("continued")]];
        agent_file(world, "mine", &calls, json!({ "tools": ["read_file"] }));
        world.configure("agent = \"mine\"\n");
        let file = world.path("transcript.json");
        std::fs::write(&file, active_role().to_string()).unwrap();
        world.ok(&["import", file.to_str().unwrap()]);
        let session = "f1__curator_2";
        assert_eq!(world.json(&["info", session])["turns"], 0);
        let ran = world.run(&["resume", session, "--json"]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let texts = world.texts(session, None);
        let notes: Vec<&String> =
            texts.iter().filter(|text| text.contains("interrupted before it was finished")).collect();
        assert_eq!((notes.len(), texts.last().unwrap().as_str()), (1, "continued"), "{texts:?}");
        let exported: Value =
            serde_json::from_str(&world.ok(&["export", session, "--format", "role-files"])).unwrap();
        assert_eq!(exported["isActive"], false);
        // The continued turn is completed now, and is in the workflow with the importing user's agent.
        let workflow = world.ok(&["export", session, "--format", "workflow"]);
        assert!(workflow.contains("agent_ref: mine") && workflow.contains("id: turn-2"), "{workflow}");
        assert_eq!(world.json(&["resume", session])["outcome"], "nothing", "it must not continue twice");
    });
}

#[test]
fn text_beside_a_tool_call_does_not_complete_a_waiting_or_cancelled_turn() {
    on_each_store(|world| {
        let calls =
            [vec![text("first")], vec![text("I will write."), write_file("1", "x.txt")], vec![text("never")]];
        agent_file(world, "desk", &calls, json!({ "tools": ["write_file"], "fs_scope": "project" }));
        world.ok(&["new", "--id", "desk", "--agent", "desk"]);
        world.ok(&["send", "desk", "one"]);
        world.ok(&["send", "desk", "two"]);
        assert_eq!(exported_nodes(world, "desk"), ["turn-1"], "the second turn waits for a person");
        world.ok(&["fork", "desk", "--id", "fork"]);
        assert_eq!(exported_nodes(world, "fork"), ["turn-1"], "it also waits in the source of a fork");
        world.ok(&["cancel", "desk"]);
        assert_eq!(exported_nodes(world, "desk"), ["turn-1"], "the second turn was cancelled");
        let text = world.ok(&["export", "desk", "--format", "workflow"]);
        assert!(text.contains("I will write."), "the metadata has incomplete turns: {text}");
    });
}

#[test]
fn a_final_text_does_not_complete_a_turn_that_asks_whether_to_continue() {
    let world = World::new("sqlite");
    let calls = [vec![text("Perhaps.\n<confidence>0.4</confidence>")]];
    agent_file(
        &world,
        "unsure",
        &calls,
        json!({ "confidence": { "backtrack_below": 0.1, "ask_below": 0.5 } }),
    );
    world.ok(&["new", "--id", "desk", "--agent", "unsure"]);
    let sent = world.run(&["send", "desk", "one", "--json"]);
    assert_eq!(sent.status, Some(0), "{}", sent.stderr);
    assert_eq!(exported_nodes(&world, "desk"), Vec::<String>::new());
    let feed = world.lines(&["feed", "desk"]);
    let approval = feed.iter().find_map(|item| item["approval"]["id"].as_str()).unwrap();
    world.ok(&["approve", approval]);
    assert_eq!(exported_nodes(&world, "desk"), ["turn-1"]);
}

#[test]
fn an_export_names_the_agent_that_its_snapshot_defines_and_no_imported_agent() {
    let world = World::new("sqlite");
    agent_file(&world, "desk", &[vec![text("first")]], json!({ "temperature": 0.5, "max_tokens": 99 }));
    world.ok(&["new", "--id", "desk", "--agent", "desk"]);
    world.ok(&["send", "desk", "one"]);
    let text = world.ok(&["export", "desk", "--format", "workflow"]);
    assert!(text.contains("agents:\n    -") && text.contains("agent_ref: desk"), "{text}");
    let nodes = text.split("  nodes:\n").nth(1).unwrap();
    assert!(
        !nodes.contains("temperature") && !nodes.contains("max_tokens") && !nodes.contains("model"),
        "{nodes}"
    );
    assert!(text.contains("sequence_number: "), "{text}");
    world.ok(&["reset", "desk"]);
    let reset = world.ok(&["export", "desk", "--format", "workflow"]);
    assert!(reset.contains("agents:\n    -"), "a reset does not lose the agent: {reset}");
    let file = world.path("desk.jsonl");
    world.ok(&["export", "desk", "-o", file.to_str().unwrap()]);
    let other = World::new("sqlite");
    other.ok(&["import", file.to_str().unwrap()]);
    let imported = other.ok(&["export", "desk", "--format", "workflow"]);
    assert!(!imported.contains("agents:"), "an imported agent must not run: {imported}");
}
