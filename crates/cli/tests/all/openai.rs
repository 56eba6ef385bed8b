//! OpenAI's unmodified clients, and an API fuzzer, against the real server. The tests install the pinned packages in a
//! virtual environment; `cargo xtask test` installs Python.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::json;

use crate::harness::World;
use crate::serve::{Served, request, serve};

/// Number of examples per operation, low enough for every test run.
const EXAMPLES_MAX: &str = "12";
const SEED: &str = "20261116";

pub fn python_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")
}

/// Returns the `bin` directory of the virtual environment with the pinned packages.
pub fn python_bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
        let (requirements, stamp) = (python_folder().join("requirements.txt"), venv.join("requirements.txt"));
        let pinned = std::fs::read_to_string(&requirements).unwrap();
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == pinned) {
            return venv.join("bin");
        }
        check(
            "python3 -m venv",
            Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output().unwrap(),
        );
        let pip = Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
            .arg(&requirements)
            .output();
        check("pip install", pip.unwrap());
        std::fs::write(stamp, pinned).unwrap();
        venv.join("bin")
    })
}

pub fn check(what: &str, output: Output) {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {stdout}\n{stderr}");
}

pub struct ServerWithKey {
    pub served: Served,
    pub key: String,
    _world: World,
}

/// Starts a server and creates an API key.
pub fn start_server() -> ServerWithKey {
    let world = World::new("sqlite");
    let made = world.json(&["key", "new", "--user", "ana"]);
    let served = serve(&world, "127.0.0.1:0");
    ServerWithKey { served, key: made["key"].as_str().unwrap().to_owned(), _world: world }
}

fn run_clients(test: &str) {
    let server = start_server();
    let url = format!("http://{}/v1", server.served.addr);
    let script = python_folder().join("openai_client.py");
    let ran = Command::new(python_bin().join("python"))
        .arg(script)
        .args([&url, &server.key, test])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .output();
    let ran = ran.unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains(&format!("ok {test}")) || !ran.status.success());
    check(test, ran);
}

#[test]
fn openais_client_stores_conversations() {
    run_clients("conversations");
}

#[test]
fn every_item_is_returned_unchanged() {
    run_clients("items");
}

#[test]
fn openais_client_gets_responses_in_a_conversation() {
    run_clients("responses");
}

#[test]
fn responses_can_be_chained_and_branched() {
    run_clients("chains");
}

#[test]
fn a_response_streams_and_a_reader_resumes_after_any_event() {
    run_clients("streams");
}

#[test]
fn a_clients_functions_are_called_and_answered() {
    run_clients("functions");
}

#[test]
fn a_background_response_is_followed_and_cancelled() {
    run_clients("background");
}

#[test]
fn the_agents_sdk_stores_its_session() {
    run_clients("agents");
}

/// Calls every operation of the OpenAPI document with valid and invalid data. No answer may be a server error or
/// undocumented.
#[test]
fn a_fuzzer_finds_no_server_error_and_no_undocumented_answer() {
    let server = start_server();
    let ran = Command::new(python_bin().join("st"))
        .args(["run", &format!("http://{}/openapi.json", server.served.addr)])
        .args(["--header", &format!("Authorization: Bearer {}", server.key)])
        .args([
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        ])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--exclude-operation-id", "follow_events", "--exclude-operation-id", "open_socket"])
        .args(["--max-examples", EXAMPLES_MAX, "--seed", SEED, "--request-timeout", "20", "--no-color"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output();
    check("schemathesis", ran.unwrap());
}

#[test]
fn a_model_that_cannot_be_called_is_refused_unless_the_operator_names_a_substitute() {
    let ask = |config: &str| {
        let world = World::new("sqlite");
        world.configure(config);
        let served = serve(&world, "127.0.0.1:0");
        let body = json!({ "model": "gpt-4.1", "input": "hello" }).to_string();
        request(&served.addr, "POST", "/v1/responses", None, &body).1
    };
    let refused = ask("");
    assert_eq!(refused["error"]["code"], "model.no_key", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("OPENAI_API_KEY"), "{refused}");
    let answered = ask("[server]\nopenai_model = \"demo\"\n");
    assert_eq!(
        (&answered["status"], &answered["model"]),
        (&json!("completed"), &json!("demo")),
        "{answered}"
    );
}
