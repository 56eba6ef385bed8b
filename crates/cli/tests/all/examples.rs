//! Runs the example clients, with types generated from the OpenAPI document, against the real server. Also tests tokens
//! of an external issuer. The Rust client is tested in the server crate.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::World;
use crate::openai::{check, python_bin, python_folder, start_server};
use crate::serve::request;

const WORDS: &str = "I like rain";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/openapi.json")
}

fn check_answer(what: &str, ran: Output) {
    let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
    check(what, ran);
    assert!(stdout.contains(&format!("You said: \"{WORDS}\"")), "{what}: {stdout}");
}

#[test]
fn the_python_example_gets_an_answer() {
    let (server, generated) = (start_server(), tempfile::tempdir().unwrap());
    let types = Command::new(python_bin().join("datamodel-codegen"))
        .args(["--input-file-type", "openapi", "--output-model-type", "typing.TypedDict", "--input"])
        .arg(document())
        .arg("--output")
        .arg(generated.path().join("sapwood_types.py"))
        .output();
    check("datamodel-codegen", types.unwrap());
    let ran = Command::new(python_bin().join("python"))
        .arg(example("python/client.py"))
        .args([&format!("http://{}", server.served.addr), &server.key, WORDS])
        .env("PYTHONPATH", generated.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    check_answer("client.py", ran.unwrap());
}

#[test]
fn the_typescript_example_gets_an_answer() {
    let (server, folder) = (start_server(), example("typescript"));
    let npm = |args: &[&str]| {
        let ran = Command::new("npm").args(args).current_dir(&folder).output();
        check(&format!("npm {args:?}"), ran.expect("cargo xtask test installs node and npm"));
    };
    if !folder.join("node_modules/.package-lock.json").is_file() {
        npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    }
    npm(&["run", "types"]);
    npm(&["run", "build"]);
    let ran = Command::new("node")
        .arg(folder.join("dist/client.js"))
        .args([&format!("http://{}", server.served.addr), &server.key, WORDS])
        .output();
    check_answer("client.ts", ran.unwrap());
}

#[test]
fn only_valid_tokens_of_an_rs256_issuer_are_accepted() {
    let world = World::new("sqlite");
    let keys = world.path("keys.json");
    let issued =
        Command::new(python_bin().join("python")).arg(python_folder().join("tokens.py")).arg(&keys).output();
    let issued = issued.unwrap();
    assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
    let issued: Value = serde_json::from_slice(&issued.stdout).unwrap();
    let home = world.path("home");
    std::fs::create_dir_all(&home).unwrap();
    let config = format!(
        "[server.oidc]\nissuer = \"https://id.example\"\naudience = \"sapwood\"\njwks_file = {:?}\ntenant = \"acme\"\n",
        keys.display().to_string()
    );
    std::fs::write(home.join("sapwood.toml"), config).unwrap();
    let served = serve_at_home(&world, &home);
    let (status, session) = request(&served.addr, "POST", "/v1/sessions", issued["good"].as_str(), "{}");
    assert_eq!((status, session["owner"].as_str()), (201, Some("user:ana")), "{session}");
    for (what, token) in issued["bad"].as_object().unwrap() {
        let (status, answer) = request(&served.addr, "POST", "/v1/sessions", token.as_str(), "{}");
        assert_eq!((status, answer["code"].as_str()), (401, Some("auth.invalid")), "{what}");
    }
    assert_eq!(request(&served.addr, "GET", "/v1/sessions", None, "").0, 401);
}

fn serve_at_home(world: &World, home: &Path) -> crate::serve::Served {
    crate::serve::serve_with(world, &["--home", home.to_str().unwrap()], "127.0.0.1:0", &[])
}
