//! Tests with a real OS keychain: GNOME Keyring on a separate D-Bus session.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread::JoinHandle;

use crate::harness::{CommandResult, World, finish};

const MODEL_KEY: &str = "lab-canary-0815-4711";

/// Runs a script with an unlocked, empty keychain, which stores its data in the test directory.
fn with_keychain(world: &World, script: &str) -> CommandResult {
    let run_dir = world.path("run");
    std::fs::create_dir_all(&run_dir).unwrap();
    let script = format!(
        "printf 'login\\n' | gnome-keyring-daemon --unlock --components=secrets >/dev/null\n{script}"
    );
    let sapwood = world.bare();
    let mut command = Command::new("dbus-run-session");
    command.args(["--", "sh", "-ec", &script]).current_dir(world.path(""));
    command.env_clear().envs(sapwood.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command.env("XDG_RUNTIME_DIR", run_dir).env("SAPWOOD", sapwood.get_program());
    finish(command)
}

/// Starts a provider that answers one request and returns the authorization header it received.
fn provider() -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let key = lines.by_ref().find(|line| line.to_lowercase().starts_with("authorization:"));
        let answer = r#"data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}"#;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        (&stream).write_all(format!("{head}{answer}\n\ndata: [DONE]\n\n").as_bytes()).unwrap();
        key.unwrap_or_default()
    });
    (address, served)
}

#[test]
fn the_keychain_stores_store_keys_and_model_keys() {
    if !cfg!(feature = "keychain") {
        return;
    }
    let world = World::new("sqlite");
    let (address, served) = provider();
    let home = world.path(".local/share/sapwood");
    std::fs::create_dir_all(&home).unwrap();
    let settings = format!("[providers.lab]\nkind = \"openai\"\nbase_url = \"{address}\"\n");
    std::fs::write(home.join("sapwood.toml"), settings).unwrap();
    std::fs::write(world.path("sapwood.toml"), "keychain = true\n").unwrap();
    let script = format!(
        "printf 'the key of the store\\n' | $SAPWOOD keychain set
         printf '{MODEL_KEY}\\n' | $SAPWOOD keychain set LAB_API_KEY
         $SAPWOOD new --id kept
         $SAPWOOD chat --model lab/small -p hi
         $SAPWOOD ls --json
         $SAPWOOD keychain rm
         $SAPWOOD ls --json 2>&1 || true"
    );
    let ran = with_keychain(&world, &script);
    let out = ran.out();
    assert_eq!(ran.status, Some(0), "{out}");
    assert!(served.join().unwrap().ends_with(&format!("Bearer {MODEL_KEY}")));
    assert!(out.contains("hello") && out.contains("\"id\":\"kept\"") && out.contains("key.missing"), "{out}");
    assert!(!out.contains(MODEL_KEY));
}
