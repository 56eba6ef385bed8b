//! Hooks from the configuration, run as separate programs.

use serde_json::json;

use crate::harness::{World, on_each_store};
use crate::serve::{request, serve};

/// Writes a hook program that records its input and prints `output`. Returns the configuration of the hook.
fn hook(world: &World, name: &str, on: &str, output: &str, more: &str) -> String {
    let path = world.path(&format!("{name}.sh"));
    let script = format!("cat >> {name}.heard; echo >> {name}.heard\ncat <<'END'\n{output}\nEND\n");
    std::fs::write(&path, script).unwrap();
    let dir = world.dir.path().display();
    format!(
        "[[hooks]]\nname = \"{name}\"\non = {on}\ncommand = [\"sh\", \"{}\"]\ndirectory = \"{dir}\"\n{more}\n",
        path.display()
    )
}

fn received_events(world: &World, name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(world.path(&format!("{name}.heard"))).unwrap_or_default();
    crate::harness::parse_lines(&text)
}

#[test]
fn a_refusal_gives_its_reason_and_leaves_the_session_unchanged() {
    on_each_store(|world| {
        let refuse = r#"{"verdict": "refuse", "reason": "the house is closed"}"#;
        let on = r#"["before_send", "before_fork", "before_export", "before_branch", "before_compact"]"#;
        let session = world.session(&["u:one", "a:two", "u:three", "a:four"]);
        world.configure(&hook(world, "guard", on, refuse, ""));
        for args in [
            &["send", &session, "hi"][..],
            &["fork", &session],
            &["export", &session],
            &["branch", &session, "2"],
            &["compact", &session, "--keep-last", "1", "--compact-strategy", "truncate"],
        ] {
            let error = world.fail(5, args);
            assert_eq!(error["code"], "hook.refused", "{args:?}");
            assert!(error["message"].as_str().unwrap().contains("the house is closed"), "{error}");
        }
        assert_eq!(world.texts(&session, None), ["one", "two", "three", "four"]);
        let feed = world.lines(&["feed", &session]);
        let hooks: Vec<&str> = feed
            .iter()
            .filter(|item| item["label"] == "hook")
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(hooks, ["error"; 5]);
    });
}

#[test]
fn a_turn_refused_by_a_hook_ends_with_the_reason() {
    let world = World::new("sqlite");
    world.configure(&hook(
        &world,
        "guard",
        "\"before_model\"",
        r#"{"verdict": "refuse", "reason": "no more today"}"#,
        "",
    ));
    let session = world.ok(&["new"]);
    let ran = world.run(&["send", &session, "hello", "--json"]);
    assert_eq!(ran.status, Some(5));
    assert_eq!(ran.error()["code"], "hook.refused");
    assert!(ran.out().contains("no more today"), "{}", ran.out());
    assert_eq!(received_events(&world, "guard")[0]["data"]["model"], "demo");
}

#[test]
fn hooks_are_listed_and_can_be_tested_without_side_effects() {
    let world = World::new("sqlite");
    let opens = r#"{"verdict": "change", "data": {"input": {"path": "b"}}, "actions": [{"do": "open", "text": "hello"}]}"#;
    let change = hook(&world, "changer", "\"before_tool\"", opens, "priority = 5\ntools = [\"look\"]");
    let refuse = hook(
        &world,
        "first",
        "\"before_tool\"",
        "",
        "priority = -1\ntimeout_ms = 2000\non_failure = \"refuse\"",
    );
    world.configure(&format!("{change}{refuse}"));
    let listed = world.lines(&["hook", "ls"]);
    let names: Vec<&str> = listed.iter().map(|hook| hook["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "changer"]);
    assert_eq!((&listed[0]["timeout_ms"], &listed[0]["on_failure"]), (&json!(2000), &json!("refuse")));
    let event = r#"{"tool": "look", "input": {"path": "a"}}"#;
    let results = world.lines(&["hook", "test", "before_tool", "--event", event]);
    assert_eq!(results.len(), 2);
    assert_eq!(
        (&results[1]["verdict"], &results[1]["data"]["input"]["path"]),
        (&json!("change"), &json!("b"))
    );
    assert_eq!((&results[1]["actions"][0]["do"], &results[1]["goes_on"]), (&json!("open"), &json!(true)));
    assert_eq!(received_events(&world, "changer")[0]["rehearsal"], true);
    assert!(world.lines(&["ls"]).is_empty(), "`hook test` opened a session");
    // The sample event names a different tool, so only the hook without a tool filter runs.
    assert_eq!(world.lines(&["hook", "test", "before_tool"]).len(), 1);
    assert_eq!(world.fail(3, &["hook", "test", "before_breakfast"])["code"], "hook.not_found");
}

#[test]
fn a_hook_action_completes_before_the_command_exits() {
    let world = World::new("sqlite");
    let opens = r#"{"actions": [{"do": "open", "id": "next", "text": "go on"}]}"#;
    world.configure(&hook(&world, "chain", "\"after_turn\"", opens, ""));
    let session = world.ok(&["new"]);
    world.ok(&["send", &session, "hello"]);
    assert_eq!(world.texts("next", None)[0], "go on");
    // The hook also runs for the turn that it started, one level deeper, until the depth limit is reached.
    let depths: Vec<u64> =
        received_events(&world, "chain").iter().map(|event| event["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [0, 1, 2, 3]);
}

#[test]
fn a_configuration_mistake_is_reported_with_the_name_of_the_hook() {
    let world = World::new("sqlite");
    for (text, why) in [
        ("[[hooks]]\nname = \"a\"\non = \"before_lunch\"\ncommand = [\"true\"]\n", "before_lunch"),
        ("[[hooks]]\nname = \"a\"\non = \"before_send\"\n", "either command or url"),
        ("[[hooks]]\nname = \"a\"\non = \"before_send\"\nurl = \"https://h.example/\"\n", "secret:NAME"),
        (
            "[[hooks]]\nname = \"a\"\non = \"before_send\"\nurl = \"https://h.example/\"\nsecret = \"secret:S\"\n",
            "allowed_hosts",
        ),
        ("[[hooks]]\nname = \"a\"\non = \"before_send\"\ncommand = [\"true\"]\nretries = 3\n", "retries"),
        ("[[hooks]]\nname = \"a\"\non = \"before_send\"\ncommand = [\"true\"]\ntimeout_ms = 0\n", "timeout"),
    ] {
        world.configure(text);
        let error = world.fail(2, &["ls"]);
        assert_eq!(error["code"], "config.invalid", "{text}");
        assert!(error["message"].as_str().unwrap().contains(why), "{text}: {error}");
    }
    // A project file cannot install a hook: it would run without the user's consent.
    world.configure("");
    std::fs::write(
        world.path("sapwood.toml"),
        "[[hooks]]\nname = \"a\"\non = \"before_send\"\ncommand = [\"true\"]\n",
    )
    .unwrap();
    assert!(world.fail(2, &["ls"])["message"].as_str().unwrap().contains("your own file"));
}

#[test]
fn a_hook_without_its_secret_follows_its_on_failure_setting() {
    let world = World::new("sqlite");
    let url = "[[hooks]]\nname = \"far\"\non = \"before_send\"\nurl = \"https://hooks.example/\"\nsecret = \"secret:FAR\"\nallowed_hosts = [\"hooks.example\"]\n";
    let session = world.session(&[]);
    world.configure(&format!("{url}on_failure = \"refuse\"\n"));
    assert!(world.fail(5, &["send", &session, "hi"])["message"].as_str().unwrap().contains("FAR"));
    world.configure(url);
    world.ok(&["send", &session, "hi"]);
}

#[test]
fn a_refusal_is_a_problem_document_over_http() {
    let world = World::new("sqlite");
    let refuse = r#"{"verdict": "refuse", "reason": "the house is closed"}"#;
    let session = world.session(&["u:one"]);
    world.configure(&hook(&world, "guard", r#"["before_send", "before_fork"]"#, refuse, ""));
    let served = serve(&world, "127.0.0.1:0");
    let (status, problem) =
        request(&served.addr, "POST", &format!("/v1/sessions/{session}/turns"), None, r#"{"input": "hi"}"#);
    assert_eq!((status, &problem["code"]), (403, &json!("hook.refused")));
    assert!(problem["detail"].as_str().unwrap().contains("the house is closed"));
    assert_eq!(request(&served.addr, "POST", &format!("/v1/sessions/{session}/fork"), None, "{}").0, 403);
}
