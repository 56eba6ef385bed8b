//! Agents defined in files.

use crate::harness::{World, parse_lines};

fn world(files: &[(&str, &str)]) -> World {
    let world = World::new("sqlite");
    for (name, text) in files {
        let path = world.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    world
}

#[test]
fn check_reports_every_mistake_in_every_file_with_its_position() {
    let world = world(&[
        ("agents/one.yaml", "id: one\nmodle: demo\nthinking: deep\n"),
        (".sapwood/agents/two.toml", "id = \"two\"\ntemperature = 9.0\n"),
        ("agents/three.yml", "id: three\nmodel: demo\n"),
    ]);
    let ran = world.run(&["agent", "check", "--json"]);
    assert_eq!(ran.status, Some(1));
    let mut positions: Vec<String> = parse_lines(&ran.out())
        .iter()
        .map(|line| {
            let name = line["file"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            format!("{name}:{}:{} {}", line["line"], line["column"], line["field"].as_str().unwrap())
        })
        .collect();
    positions.sort();
    assert_eq!(positions, ["one.yaml:2:1 modle", "one.yaml:3:11 thinking", "two.toml:2:15 temperature"]);
    assert_eq!(ran.error()["code"], "agent.invalid");
    let text = world.run(&["agent", "check"]);
    assert!(text.out().contains("one.yaml:2:1: modle is unknown: did you mean model?"), "{}", text.out());
    assert!(world.ok(&["agent", "check", "agents/three.yml"]).contains("1 agent valid"));
    assert_eq!(world.run(&["agent", "check", "nowhere.yaml"]).status, Some(1));
}

#[test]
fn agents_are_listed_and_shown_and_project_agents_take_precedence() {
    let world = world(&[
        ("agents/helper.yaml", "id: helper\nmodel: demo\ndescription: of the project\n"),
        (".local/share/sapwood/agents/helper.yaml", "id: helper\ndescription: of the user\n"),
        (".local/share/sapwood/agents/mine.toml", "id = \"mine\"\n"),
    ]);
    let rows = world.lines(&["agent", "ls"]);
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["default", "helper", "mine"]);
    assert_eq!(world.json(&["agent", "show", "helper"])["description"], "of the project");
    assert_eq!(world.fail(3, &["agent", "show", "helpr"])["code"], "agent.not_found");
    assert!(world.fail(3, &["agent", "show", "helpr"])["hint"].as_str().unwrap().contains("helper"));
}

#[test]
fn a_session_keeps_the_agent_it_was_started_with() {
    let world = world(&[("agents/helper.yaml", "id: helper\nmodel: demo\nsystem_prompt: The first.\n")]);
    world.ok(&["chat", "--agent", "helper", "-p", "hello"]);
    std::fs::write(world.path("agents/helper.yaml"), "id: helper\nmodel: demo\nsystem_prompt: Another.\n")
        .unwrap();
    world.ok(&["chat", "-c", "-p", "hello"]);
    assert_eq!(world.json(&["context", "@last"])["system"], "The first.");
    assert_eq!(world.json(&["info", "@last"])["agent"], "helper");
}

#[test]
fn a_project_cannot_choose_an_agent_that_acts_without_asking() {
    let world = world(&[
        ("sapwood.toml", "agent = \"wild\"\n"),
        ("agents/wild.yaml", "id: wild\nmodel: demo\napprovals: auto\n"),
    ]);
    assert_eq!(world.fail(5, &["chat", "-p", "hi"])["code"], "agent.untrusted");
    world.ok(&["chat", "--agent", "wild", "-p", "hi"]);
}

#[test]
fn the_configuration_names_the_model_and_the_agent() {
    let world = world(&[
        ("sapwood.toml", "agent = \"helper\"\nmodel = \"demo\"\n"),
        ("agents/helper.yaml", "id: helper\nsystem_prompt: Help.\n"),
    ]);
    world.ok(&["chat", "-p", "hello"]);
    let context = world.json(&["context", "@last"]);
    assert_eq!((context["system"].as_str(), context["model"].as_str()), (Some("Help."), Some("demo")));
}

#[test]
fn variables_fill_the_prompt_and_are_required() {
    let world =
        world(&[("agents/helper.yaml", "id: helper\nmodel: demo\nsystem_prompt: About {{ctx.project}}.\n")]);
    let missing = world.fail(2, &["new", "--agent", "helper"]);
    assert!(missing["message"].as_str().unwrap().contains("needs project"), "{missing}");
    let id = world.ok(&["new", "--agent", "helper", "--var", "project=sapwood = wood"]);
    assert_eq!(world.json(&["context", &id])["system"], "About sapwood = wood.");
    world.ok(&["chat", "--agent", "helper", "--var", "project=bark", "-p", "hello"]);
    assert_eq!(world.json(&["context", "@last"])["system"], "About bark.");
    assert_eq!(world.run(&["chat", "-c", "--var", "project=other", "-p", "hello"]).status, Some(2));
    assert_eq!(world.run(&["new", "--agent", "helper", "--var", "project"]).status, Some(2));
}

#[test]
fn a_session_may_have_fewer_rights_than_its_agent_but_never_more() {
    let agent =
        "id: helper\nmodel: demo\ntools: [read_file, write_file]\nfs_scope: project\napprovals: ask\n";
    let world = world(&[("agents/helper.yaml", agent)]);
    let less = ["--tools", "read_file", "--fs-scope", "sandboxed", "--approvals", "plan"];
    let id = world.ok(&[&["new", "--agent", "helper"][..], &less].concat());
    let frozen = world.lines(&["events", &id]).into_iter().find(|event| event["type"] == "context_changed");
    let frozen = frozen.unwrap_or_else(|| world.lines(&["events", &id]).remove(0));
    let text = frozen.to_string();
    assert!(text.contains("sandboxed") && text.contains("plan") && !text.contains("write_file"), "{text}");
    for more in [["--tools", "run_command"], ["--fs-scope", "full"], ["--approvals", "auto"]] {
        let refused = world.fail(1, &[&["new", "--agent", "helper"][..], &more].concat());
        assert_eq!(refused["code"], "agent.invalid");
    }
    assert_eq!(world.run(&["new", "--agent", "helper", "--fs-scope", "everything"]).status, Some(2));
}

#[test]
fn the_named_default_agent_is_the_file_if_there_is_one() {
    let world = World::new("sqlite");
    let agent_of = |id: &str, args: &[&str]| {
        world.ok(&[&["new", "--id", id][..], args].concat());
        world.lines(&["events", id])[0]["entry"]["agent"].clone()
    };
    assert_eq!(agent_of("built-in", &["--agent", "default"])["id"], "default");
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path("agents/default.yaml"), "id: default\nsystem_prompt: From the file.\n")
        .unwrap();
    assert_eq!(world.json(&["agent", "show", "default"])["system_prompt"], "From the file.");
    assert_eq!(agent_of("named", &["--agent", "default"])["system_prompt"], "From the file.");
}

/// Imports a session of another store, whose agent has a tool that the default agent lacks.
fn import_with_agent(world: &World, session: &str) {
    let elsewhere = World::new("sqlite");
    std::fs::create_dir_all(elsewhere.path("agents")).unwrap();
    let agent =
        "id: lister\nsystem_prompt: List for {{ctx.who}}.\ntools: [list_directory]\nfs_scope: project\n";
    std::fs::write(elsewhere.path("agents/lister.yaml"), agent).unwrap();
    elsewhere.ok(&["new", "--id", session, "--agent", "lister", "--var", "who=Ada"]);
    elsewhere.ok(&["send", session, "hello"]);
    let exported = elsewhere.ok(&["export", session, "--format", "jsonl"]);
    std::fs::write(world.path("session.jsonl"), exported).unwrap();
    world.ok(&["import", "session.jsonl"]);
}

#[test]
fn an_imported_agent_is_used_only_after_it_was_adopted() {
    for scheme in ["sqlite", "jsonl", "postgres"] {
        let world = World::new(scheme);
        import_with_agent(&world, "s");
        let list = r#"use list_directory {"path":"."}"#;
        let declined = world.fail(2, &["agent", "adopt", "s"]);
        assert!(declined["hint"].as_str().unwrap().contains("--yes"), "{declined}");
        assert_eq!(world.json(&["agent", "adopt", "s", "--yes"])["agent"], "lister");
        world.ok(&["send", "s", list]);
        let rounds = world.lines(&["ledger", "s"]);
        let last = &rounds[rounds.len() - 2];
        assert_eq!(
            (&last["action"]["what"], &last["result"]["status"]),
            (&"list_directory".into(), &"ok".into())
        );
        let context = world.json(&["context", "s"]);
        let system = context["system"].as_str().unwrap();
        assert!(system.starts_with("List for Ada."), "{system}");
        assert!(!system.contains("elsewhere"), "{system}");
        let audited = world.lines(&["audit", "--session", "s"]);
        assert!(audited.iter().any(|line| line["detail"] == "adopt"), "{audited:?}");
        assert_eq!(world.fail(4, &["agent", "adopt", "s", "--yes"])["code"], "session.configured");
    }
}

#[test]
fn a_session_that_runs_with_another_agent_adopts_none() {
    let world = World::new("sqlite");
    import_with_agent(&world, "s");
    world.ok(&["send", "s", "hello"]);
    assert_eq!(world.fail(4, &["agent", "adopt", "s", "--yes"])["code"], "session.configured");
    world.ok(&["new", "--id", "own"]);
    assert_eq!(world.fail(3, &["agent", "adopt", "own", "--yes"])["code"], "agent.not_found");
    world.ok(&["share", "s", "bob", "--role", "collaborator"]);
    assert_eq!(world.fail(5, &["--as", "bob", "agent", "adopt", "s", "--yes"])["code"], "session.denied");
}
