//! The settings of the sandbox, and programs that reach a limit, from the command line.

use serde_json::json;

use crate::harness::World;

#[test]
fn the_configured_limits_are_shown_and_a_project_cannot_set_them() {
    let world = World::new("sqlite");
    let defaults = world.json(&["sandbox"]);
    assert_eq!(defaults["profiles"][0]["profile"], "command");
    world.configure("[sandbox]\nprocesses = 9\n[sandbox.mcp]\nmemory_mb = 77\nnetwork = false\n");
    let shown = world.json(&["sandbox"]);
    let [command, mcp, hook] = [0, 1, 2].map(|number| &shown["profiles"][number]);
    assert_eq!([&command["processes"], &mcp["processes"], &hook["processes"]], [9, 9, 9]);
    assert_eq!((&mcp["memory_mb"], &mcp["network"]), (&json!(77), &json!(false)));
    assert_eq!(command["memory_mb"], defaults["profiles"][0]["memory_mb"]);
    std::fs::write(world.path("sapwood.toml"), "[sandbox]\nprocesses = 100\n").unwrap();
    let mut command = world.command(&["sandbox", "--json"]);
    let output = command.current_dir(world.dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("config.invalid") && text.contains("your own file"), "{text}");
}

#[test]
fn a_hook_that_reaches_a_limit_fails_with_the_setting_to_change() {
    let world = World::new("sqlite");
    world.configure(
        "[sandbox.hook]\nprocesses = 12\n[[hooks]]\nname = \"many\"\non = \"before_send\"\n\
         command = [\"sh\", \"-c\", \"for i in $(seq 40); do sleep 600 & done; wait\"]\non_failure = \"refuse\"\n",
    );
    let session = world.session(&["u:one"]);
    let error = world.fail(5, &["send", &session, "hi"]);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("12 processes") && message.contains("[sandbox.hook]"), "{message}");
}

#[test]
fn an_agent_lowers_limits_and_a_limit_of_zero_is_a_mistake() {
    let world = World::new("sqlite");
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let check = |sandbox: &str| {
        let text = format!("id: small\ntools: [read_file]\nsandbox: {sandbox}\n");
        std::fs::write(world.path("agents/small.yaml"), text).unwrap();
        let mut command = world.command(&["agent", "check", "agents/small.yaml", "--json"]);
        let output = command.current_dir(world.dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(check("{ memory_mb: 100, processes: 5 }").0, Some(0));
    for (wrong, field) in [("{ cpu_s: 0 }", "sandbox.cpu_s"), ("{ network: true }", "network")] {
        let (status, text) = check(wrong);
        assert!(status == Some(1) && text.contains(field), "{wrong}: {text}");
    }
}

#[test]
fn deep_large_and_multiplying_files_are_refused_in_time() {
    let world = World::new("sqlite");
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in
        ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"])
    {
        bomb += &format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(", "));
    }
    for (name, text) in [
        ("deep.yaml", format!("id: deep\nsystem_prompt: {}\n", deep(100_000))),
        ("deep.toml", format!("id = \"deep\"\nx = {}\n", deep(100_000))),
        ("many.yaml", format!("id: many\ntools: [{}]\n", "a,".repeat(400_000))),
        ("huge.yaml", format!("id: huge\nsystem_prompt: {}\n", "x".repeat(8 << 20))),
        ("bomb.yaml", bomb),
    ] {
        let file = world.path(name);
        std::fs::write(&file, text).unwrap();
        let ran = world.run(&["agent", "check", file.to_str().unwrap()]);
        assert_eq!(ran.status, Some(1), "{name}: {}", ran.stderr);
    }
    world.configure(&format!("x = {}\n", deep(100_000)));
    assert_eq!(world.fail(2, &["ls"])["code"], "config.invalid");
}
