//! Statements of docs/seeds.md that no other test shows: defaults, events and exports of sessions.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{World, on_each_store};

fn add_agent(world: &World, text: &str) {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path("agents/helper.yaml"), format!("id: helper\n{text}")).unwrap();
}

fn git(world: &World, args: &[&str]) {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=trunk"];
    let done = Command::new("git").current_dir(world.dir.path()).args(identity).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The document of `export --format workflow`.
fn exported_workflow(world: &World, session: &str) -> Value {
    let text = world.ok(&["export", session, "--format", "workflow"]);
    serde_json::to_value(sapwood::formats::workflow::parse(&text).unwrap()).unwrap()
}

#[test]
fn a_minted_session_id_is_a_uuid_of_version_7() {
    on_each_store(|world| {
        let id = world.json(&["new"])["id"].as_str().unwrap().to_owned();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!((lengths, id.as_bytes()[14]), (vec![8, 4, 4, 4, 12], b'7'), "{id}");
    });
}

#[test]
fn every_round_of_the_ledger_has_its_tokens() {
    let world = World::new("sqlite");
    add_agent(&world, "tools: [list_directory]\n");
    world.ok(&["new", "--id", "s", "--agent", "helper"]);
    world.ok(&["send", "s", r#"use list_directory {"path":"."}"#]);
    let rounds = world.lines(&["ledger", "s"]);
    let tokens: Vec<u64> = rounds.iter().map(|round| round["result"]["tokens"].as_u64().unwrap()).collect();
    let spend = &world.json(&["info", "s"])["spend"]["demo"];
    let counted = spend["input"].as_u64().unwrap() + spend["output"].as_u64().unwrap();
    assert_eq!((tokens.len(), tokens.iter().sum::<u64>()), (2, counted), "{rounds:?}");
}

#[test]
fn the_started_event_carries_the_variables_and_the_detected_git_ref() {
    on_each_store(|world| {
        add_agent(world, "system_prompt: Answer {{ctx.who}}.\n");
        git(world, &["init", "-q"]);
        git(world, &["commit", "-q", "--allow-empty", "-m", "first"]);
        world.ok(&["new", "--id", "s", "--agent", "helper", "--var", "who=Ada"]);
        let started = &world.lines(&["events", "s"])[0];
        assert_eq!(started["type"], "session:started");
        let context = &started["entry"]["context"];
        assert_eq!(context["variables"], json!({ "who": "Ada" }));
        assert_eq!(context["git_ref"], "trunk");
        let dir = context["working_dir"].as_str().unwrap();
        assert_eq!(std::fs::canonicalize(dir).unwrap(), world.dir.path().canonicalize().unwrap());
        world.ok(&["new", "--id", "other", "--agent", "helper", "--var", "who=Ada", "--git-ref", "v1"]);
        assert_eq!(world.lines(&["events", "other"])[0]["entry"]["context"]["git_ref"], "v1");
    });
}

#[test]
fn file_access_is_sandboxed_unless_the_agent_says_otherwise() {
    let world = World::new("sqlite");
    add_agent(&world, "tools: [write_file]\napprovals: auto\n");
    world.ok(&["new", "--id", "s", "--agent", "helper"]);
    let started = &world.lines(&["events", "s"])[0];
    assert_eq!(started["entry"]["agent"]["fs_scope"], "sandboxed");
    world.ok(&["send", "s", r#"use write_file {"path":"written.txt","content":"x"}"#]);
    assert!(!world.path("written.txt").exists(), "the file is in the project");
    let rounds = world.lines(&["ledger", "s"]);
    assert_eq!(rounds[0]["result"]["status"], "ok", "the scratch directory can be written: {rounds:?}");
}

#[test]
fn fifty_turns_are_the_default_and_zero_restores_it() {
    let world = World::new("sqlite");
    add_agent(&world, "");
    world.ok(&["new", "--id", "s", "--agent", "helper"]);
    world.ok(&["set", "s", "--turns-max", "1"]);
    world.ok(&["send", "s", "one"]);
    assert_eq!(world.fail(1, &["send", "s", "two"])["code"], "turn_limit");
    world.ok(&["set", "s", "--turns-max", "0"]);
    (1..50).for_each(|number| {
        world.ok(&["send", "s", &format!("turn {number}")]);
    });
    assert_eq!(world.fail(1, &["send", "s", "one more"])["code"], "turn_limit");
    assert_eq!(world.json(&["info", "s"])["turns"], 50);
}

#[test]
fn an_agent_file_may_say_zero_turns_for_the_default() {
    let world = World::new("sqlite");
    add_agent(&world, "limits:\n  turns_max: 0\n");
    world.ok(&["agent", "check"]);
    world.ok(&["new", "--id", "s", "--agent", "helper"]);
    world.ok(&["send", "s", "one"]);
    world.ok(&["send", "s", "two"]);
}

#[test]
fn a_workflow_names_the_session_its_agent_its_title_and_its_times() {
    on_each_store(|world| {
        add_agent(world, "");
        world.ok(&["new", "--id", "s", "--agent", "helper"]);
        world.ok(&["rename", "s", "Tree rings"]);
        world.ok(&["send", "s", "hello"]);
        let info = world.json(&["info", "s"]);
        let workflow = exported_workflow(world, "s");
        let export = &workflow["workflow"]["metadata"]["sapwood_export"];
        assert_eq!(export["session_id"], "s");
        assert_eq!(export["agent_slug"], "helper");
        assert_eq!(export["title"], "Tree rings");
        let time = |key: &str| {
            let written: jiff::Timestamp = export[key].as_str().unwrap().parse().unwrap();
            written.as_millisecond()
        };
        assert_eq!(time("created_at"), info["created_at"].as_i64().unwrap());
        assert!(time("updated_at") >= time("created_at"));
    });
}

#[test]
fn a_node_for_an_input_without_text_has_no_prompt() {
    let world = World::new("sqlite");
    let picture = json!({ "role": "user", "content": [{ "type": "image",
        "source": { "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" } }] });
    world.ok(&["new", "--id", "s"]);
    world.ok(&["inject", "s", "--message", &picture.to_string()]);
    world.ok(&["inject", "s", "--role", "assistant", "--text", "A picture."]);
    let workflow = exported_workflow(&world, "s");
    let nodes = workflow["workflow"]["nodes"].as_array().unwrap();
    let turn = nodes.iter().find(|node| node["id"] == "turn-1").unwrap();
    assert!(turn.get("prompt_template").is_none(), "{turn}");
}

#[test]
fn the_active_flag_of_a_role_file_is_true_while_a_turn_is_open() {
    on_each_store(|world| {
        add_agent(world, "tools: [ask_user]\n");
        world.ok(&["new", "--id", "s", "--agent", "helper"]);
        let is_active = || {
            let folder = world.path("role");
            let target = format!("{}/", folder.display());
            world.ok(&["export", "s", "--format", "role-files", "-o", &target, "--force"]);
            let text = std::fs::read_to_string(folder.join("transcript.json")).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["isActive"].clone()
        };
        let waiting = world.json(&["send", "s", r#"use ask_user {"question":"Continue?"}"#]);
        assert_eq!((&waiting["outcome"], is_active()), (&json!("waiting"), json!(true)));
        world.ok(&["approve", waiting["waiting"][0]["approval"].as_str().unwrap()]);
        assert_eq!(is_active(), json!(false));
    });
}
