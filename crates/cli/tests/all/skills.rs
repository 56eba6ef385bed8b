//! Skills from folders, over the command line and HTTP.

use serde_json::json;

use crate::harness::{World, on_each_store};
use crate::serve::{request, serve};

fn write_skill(world: &World, place: &str, name: &str, about: &str) {
    let folder = world.path(place).join(name);
    std::fs::create_dir_all(folder.join("more")).unwrap();
    let text = format!("---\nname: {name}\ndescription: {about}\n---\n# {name}\n\nFirst fill the kettle.\n");
    std::fs::write(folder.join("SKILL.md"), text).unwrap();
    std::fs::write(folder.join("more/times.txt"), "green: 2 minutes\n").unwrap();
}

#[test]
fn a_skill_is_active_only_in_its_session_and_loaded_on_use() {
    on_each_store(|world| {
        write_skill(world, ".sapwood/skills", "brew-tea", "How to brew tea.");
        let (tea, plain) = (world.ok(&["new"]), world.ok(&["new"]));
        assert_eq!(world.json(&["skill", "on", &tea, "brew-tea"])["active"], json!(["brew-tea"]));
        assert_eq!(world.json(&["context", &tea])["skills"], json!(["brew-tea"]));
        let answer = world.ok(&["send", &tea, r#"use skill {"name": "brew-tea"}"#]);
        assert!(answer.contains("First fill the kettle") && answer.contains("more/times.txt"), "{answer}");
        let answer = world.ok(&["send", &tea, r#"use skill {"name": "brew-tea", "file": "more/times.txt"}"#]);
        assert!(answer.contains("2 minutes"), "{answer}");
        let answer = world.ok(&["send", &plain, r#"use skill {"name": "brew-tea"}"#]);
        assert!(!answer.contains("kettle"), "another session's skill was read: {answer}");
        // `skill off` deactivates the skill.
        world.ok(&["skill", "off", &tea, "brew-tea"]);
        assert_eq!(world.lines(&["skill", "ls", "--session", &tea])[0]["active"], false);
        assert_eq!(world.fail(3, &["skill", "on", &tea, "brew-coffee"])["code"], "skill.not_found");
    });
}

#[test]
fn skills_are_found_in_precedence_order_and_invalid_skills_are_reported() {
    let world = World::new("sqlite");
    write_skill(&world, ".sapwood/skills", "brew-tea", "The project's.");
    write_skill(&world, ".local/share/sapwood/skills", "brew-tea", "The user's.");
    write_skill(&world, "elsewhere", "bake-bread", "Configured.");
    for (name, text) in [
        ("no-front", "just text\n"),
        ("other-name", "---\nname: another\ndescription: d\n---\nx\n"),
        ("typo", "---\nname: typo\ndescripton: d\n---\nx\n"),
        ("empty", "---\nname: empty\ndescription: d\n---\n"),
        ("long", &format!("---\nname: long\ndescription: {}\n---\nx\n", "x".repeat(1_025))),
    ] {
        std::fs::create_dir_all(world.path("elsewhere").join(name)).unwrap();
        std::fs::write(world.path("elsewhere").join(name).join("SKILL.md"), text).unwrap();
    }
    std::fs::write(world.path("sapwood.toml"), "skills = [\"elsewhere\"]\n").unwrap();
    let lines = world.lines(&["skill", "ls"]);
    let (faults, cards): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["fault"].is_object());
    let about: Vec<&str> = cards.iter().map(|card| card["description"].as_str().unwrap()).collect();
    assert_eq!((about, faults.len()), (vec!["Configured.", "The project's."], 5));
}

#[test]
fn a_skill_cannot_read_files_outside_its_folder() {
    let world = World::new("sqlite");
    write_skill(&world, ".sapwood/skills", "brew-tea", "How to brew tea.");
    std::fs::write(world.path("secret.txt"), "the combination is 1234").unwrap();
    std::os::unix::fs::symlink(world.path("secret.txt"), world.path(".sapwood/skills/brew-tea/link.txt"))
        .unwrap();
    let session = world.ok(&["new"]);
    world.ok(&["skill", "on", &session, "brew-tea"]);
    for file in ["../../../secret.txt", "link.txt", world.path("secret.txt").to_str().unwrap()] {
        let answer =
            world.ok(&["send", &session, &format!(r#"use skill {{"name": "brew-tea", "file": "{file}"}}"#)]);
        assert!(!answer.contains("1234"), "{file}: {answer}");
    }
}

#[test]
fn skills_are_listed_and_set_over_http() {
    let world = World::new("sqlite");
    write_skill(&world, ".sapwood/skills", "brew-tea", "How to brew tea.");
    let session = world.ok(&["new"]);
    let served = serve(&world, "127.0.0.1:0");
    let (status, list) = request(&served.addr, "GET", "/v1/skills", None, "");
    assert_eq!(
        (status, list),
        (200, json!({"items": [{"name": "brew-tea", "description": "How to brew tea."}]}))
    );
    let path = format!("/v1/sessions/{session}/skills");
    let (status, set) = request(&served.addr, "PUT", &path, None, r#"{"active": ["brew-tea", "brew-tea"]}"#);
    assert_eq!((status, set), (200, json!({"active": ["brew-tea"]})));
    assert_eq!(request(&served.addr, "PUT", &path, None, r#"{"active": ["nothing"]}"#).0, 404);
    assert_eq!(request(&served.addr, "GET", &path, None, "").1, json!({"active": ["brew-tea"]}));
}
