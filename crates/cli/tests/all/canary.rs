//! A secret's value is never in the store, a blob, an event, a log line or an export (I12). The test puts the value in
//! a file that the agent reads, in the environment and in a program's output. Then it searches every stored and printed
//! byte.

use std::path::Path;

use crate::harness::on_each_store;

const CANARY: &str = "canary-7f3Kq9ZpW2xV8mB4tL6y";

const CASSETTE: &str = r#"by = "history"
[[calls]]
pieces = [
  { call = { id = "c1", name = "read_file", input = { path = "notes.txt" } } },
  { call = { id = "c2", name = "run_command", input = { command = "cat notes.txt" } } },
  { call = { id = "c3", name = "run_command", input = { command = "env" } } },
  { call = { id = "c4", name = "search_text", input = { pattern = "canary" } } },
]
[[calls]]
pieces = [{ text = "Read." }]
"#;

/// Collects the files below a directory that contain the canary.
fn find_canary(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_canary(&path, found);
        } else if path.file_name().is_some_and(|name| name != "notes.txt") {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
}

#[test]
fn a_secret_is_in_no_stored_or_printed_byte() {
    on_each_store(|world| {
        std::fs::write(world.path("notes.txt"), format!("the password is {CANARY}\n")).unwrap();
        std::fs::write(world.path("cassette.toml"), CASSETTE).unwrap();
        std::fs::create_dir_all(world.path("agents")).unwrap();
        let agent = format!(
            "id: reader\nmodel: \"scripted:{}\"\ntools: [read_file, search_text, run_command]\nfs_scope: project\nallowed_commands: [\"cat *\", \"env\"]\napprovals: auto\n",
            world.path("cassette.toml").display()
        );
        std::fs::write(world.path("agents/reader.yaml"), agent).unwrap();
        let session = world.json(&["new", "--agent", "reader"])["id"].as_str().unwrap().to_owned();
        let with_secrets = |args: &[&str]| {
            let mut command = world.command(args);
            command.env("SAPWOOD_SECRET_CANARY", CANARY).env("ANTHROPIC_API_KEY", CANARY);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            [output.stdout, output.stderr].concat()
        };
        let mut outputs = vec![with_secrets(&["send", &session, "Read the notes.", "--json"])];
        for args in [
            &["events", &session, "--json"][..],
            &["feed", &session, "--json"],
            &["context", &session, "--json"],
            &["audit", "--json"],
            &["search", "password", "--json"],
            &["export", &session, "--format", "jsonl"],
            &["export", &session, "--format", "messages"],
            &["export", &session, "--format", "markdown"],
            &["export", &session, "--format", "html"],
            &["export", &session, "--format", "workflow"],
        ] {
            outputs.push(with_secrets(args));
        }
        let text = String::from_utf8_lossy(&outputs.concat()).into_owned();
        assert!(text.contains("[secret:"), "the name of the redacted secret is missing: {text}");
        assert!(!text.contains(CANARY), "{text}");
        let mut found = Vec::new();
        find_canary(world.path("").as_path(), &mut found);
        assert!(found.is_empty(), "the canary is in {found:?}");
    });
}
