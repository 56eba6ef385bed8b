//! Exports are opened with the real programs and checked against the real SDKs' types. `cargo xtask test` installs
//! node; the tests install missing packages from the lockfile.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::World;

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node");
        if !folder.join("node_modules/.package-lock.json").is_file() {
            let installed = Command::new("npm")
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                .current_dir(&folder)
                .output()
                .expect("cargo xtask test installs node and npm");
            assert!(installed.status.success(), "npm ci: {}", String::from_utf8_lossy(&installed.stderr));
        }
        folder
    })
}

fn node(script: &str, args: &[&str]) -> Output {
    Command::new("node").arg(folder().join(script)).args(args).current_dir(folder()).output().unwrap()
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

fn export(world: &World, session: &str, format: &str) -> String {
    let file = world.path(&format!("{session}.{format}"));
    world.ok(&["export", session, "--format", format, "-o", file.to_str().unwrap(), "--force"]);
    file.to_str().unwrap().to_owned()
}

fn open_in_pi(file: &str) -> Value {
    let opened = node("pi.mjs", &[file]);
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    serde_json::from_slice(&opened.stdout).unwrap()
}

#[test]
fn an_exported_session_opens_in_the_real_pi_with_the_same_context() {
    let world = World::new("sqlite");
    for name in ["pi-v3.jsonl", "claude-code.jsonl", "operator.jsonl", "codex.jsonl"] {
        let session = world.json(&["import", &fixture(name)])["session"].as_str().unwrap().to_owned();
        let opened = open_in_pi(&export(&world, &session, "pi"));
        assert_eq!(opened["id"], session.as_str());
        let ours = world.texts(&session, None);
        let theirs: Vec<&str> =
            opened["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        match name {
            // Codex's compaction repeats the history instead of a summary, and pi shows an additional summary.
            "codex.jsonl" => assert_eq!(theirs[1..], ours),
            _ => assert_eq!(theirs, ours, "{name}"),
        }
    }
}

#[test]
fn branches_labels_and_a_moved_leaf_survive_in_pi() {
    let world = World::new("sqlite");
    let session = world.session(&["u:one", "a:two", "u:three", "a:four"]);
    world.ok(&["label", &session, "2", "here"]);
    world.ok(&["rename", &session, "A title"]);
    world.ok(&["branch", &session, "here"]);
    let opened = open_in_pi(&export(&world, &session, "pi"));
    assert_eq!(opened["texts"], json!(["one", "two"]));
    assert_eq!(opened["name"], "A title");
    world.ok(&["branch", &session, "2", "--summary", "went nowhere"]);
    world.add_messages(&session, &["u:five"]);
    assert_eq!(
        open_in_pi(&export(&world, &session, "pi"))["texts"],
        json!(["one", "two", "went nowhere", "five"])
    );
}

#[test]
fn pi_and_sapwood_read_the_same_context_from_a_pi_file() {
    let world = World::new("sqlite");
    for name in ["pi-v3.jsonl", "pi-v1.jsonl"] {
        // pi rewrites old files in place, so it gets a copy.
        let copy = world.path(name);
        std::fs::copy(fixture(name), &copy).unwrap();
        let session = world.json(&["import", &fixture(name)])["session"].as_str().unwrap().to_owned();
        let opened = open_in_pi(copy.to_str().unwrap());
        let ours: Vec<String> = world.texts(&session, None);
        let theirs: Vec<&str> =
            opened["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        assert_eq!(theirs.len(), ours.len(), "{name}");
        for (theirs, ours) in theirs.iter().zip(&ours).filter(|(theirs, _)| !theirs.is_empty()) {
            assert_eq!(theirs, ours, "{name}");
        }
        // pi stores the provider separately from the model name.
        let model = world.json(&["context", &session])["model"].as_str().unwrap().to_owned();
        let name = model.split_once('/').map_or(model.as_str(), |(_, name)| name);
        assert_eq!(opened["model"], name);
    }
}

#[test]
fn exported_messages_match_the_real_sdks_types() {
    let world = World::new("sqlite");
    let media = world.path("media.json");
    let pixel =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = json!([{ "role": "system", "content": "s" }, { "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{pixel}") } }] }]);
    std::fs::write(&media, image.to_string()).unwrap();
    let fixtures = [
        "claude-code.jsonl",
        "codex.jsonl",
        "pi-v3.jsonl",
        "operator.jsonl",
        "gemini-cli.jsonl",
        "messages-openai.json",
    ];
    let mut files = Vec::new();
    for path in fixtures.iter().map(|name| fixture(name)).chain([media.to_str().unwrap().to_owned()]) {
        let session = world.json(&["import", &path])["session"].as_str().unwrap().to_owned();
        files.push(format!("openai={}", export(&world, &session, "messages")));
        files.push(format!("anthropic={}", export(&world, &session, "messages-anthropic")));
    }
    let checked = node("types.mjs", &files.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_type_check_can_fail() {
    let world = World::new("sqlite");
    let file = world.path("wrong.json");
    std::fs::write(&file, r#"[{"role":"narrator","content":"x"}]"#).unwrap();
    let refused =
        |vendor: &str| !node("types.mjs", &[&format!("{vendor}={}", file.display())]).status.success();
    assert!(refused("openai"));
    std::fs::write(&file, r#"{"messages":[{"role":"user","content":[{"type":"hologram"}]}]}"#).unwrap();
    assert!(refused("anthropic"));
}
