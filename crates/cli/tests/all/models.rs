//! Which model answers, the catalog, and token pressure, through the command line.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{World, assistant, finish, log_file, on_each_store, user};
use crate::serve::{open, serve};

/// A command without provider keys, so that a developer's keys do not change a test.
fn keyless(world: &World, args: &[&str]) -> crate::harness::CommandResult {
    let mut command = world.command(args);
    for variable in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"] {
        command.env_remove(variable);
    }
    finish(command)
}

fn script(world: &World, name: &str, text: &str) -> String {
    let path = world.path(name);
    std::fs::write(&path, text).unwrap();
    format!("scripted:{}", path.display())
}

/// Import a session whose last answer names this model.
fn import(world: &World, id: &str, model: &str) -> String {
    let mut answer = assistant("Slate.");
    answer["model"] = json!(model);
    let file = world.path(&format!("{id}.jsonl"));
    std::fs::write(&file, log_file(id, &[(None, user("Which stone?")), (Some(1), answer)])).unwrap();
    world.ok(&["import", file.to_str().unwrap()]);
    id.to_owned()
}

fn fill(world: &World, session: &str, count: usize, words: usize) {
    let lines: String = (0..count)
        .map(|n| {
            format!("{}\n", json!({ "role": "user", "content": format!("{n} {}", "stone ".repeat(words)) }))
        })
        .collect();
    let ran = world.run_with(&["inject", session, "--message", "-"], lines.as_bytes());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
}

#[test]
fn an_imported_model_without_a_key_is_refused_and_nothing_is_written() {
    on_each_store(|world| {
        for (id, model, code) in [
            ("claude", "claude-sonnet-4-5-20250929", "model.no_key"),
            ("odd", "elsewhere/huge", "model.unknown"),
        ] {
            let session = import(world, id, model);
            let before = world.lines(&["events", &session]).len();
            let refused = keyless(world, &["send", &session, "go on", "--json"]);
            assert_eq!((refused.status, refused.out().as_str()), (Some(1), ""), "{}", refused.stderr);
            let error = refused.error();
            assert_eq!(error["code"], code);
            assert!(error["hint"].as_str().unwrap().contains("--model"), "{error}");
            assert_eq!(world.lines(&["events", &session]).len(), before);
            assert_eq!(world.json(&["info", &session])["open_turn"], Value::Null);
            // The caller chooses another model, which stays chosen.
            assert_eq!(world.json(&["send", &session, "go on", "--model", "demo"])["outcome"], "completed");
            assert_eq!(world.json(&["send", &session, "and on"])["outcome"], "completed");
        }
    });
}

#[test]
fn the_demo_model_says_that_no_model_was_chosen() {
    let world = World::new("sqlite");
    let session = world.session(&[]);
    let first = keyless(&world, &["send", &session, "hello"]);
    assert!(first.stderr.contains("the demo model answers"), "{}", first.stderr);
    let second = keyless(&world, &["send", &session, "again"]);
    assert!(!second.stderr.contains("demo"), "{}", second.stderr);
    // A model that is configured later answers in this session.
    let model = script(&world, "later.toml", "[[calls]]\npieces = [{ text = \"I am configured.\" }]\n");
    world.configure(&format!("model = {model:?}\n"));
    assert_eq!(world.ok(&["send", &session, "and now?"]), "I am configured.");
}

#[test]
fn a_model_that_cannot_be_called_is_not_recorded() {
    let world = World::new("sqlite");
    let session = world.session(&["u:hi"]);
    let refused = keyless(&world, &["send", &session, "x", "--model", "openai/gpt-5", "--json"]);
    assert_eq!((refused.status, refused.error()["code"].as_str()), (Some(1), Some("model.no_key")));
    assert_eq!(world.lines(&["events", &session]).len(), 1);
    let refused = keyless(&world, &["chat", "--model", "nowhere/x", "-p", "hi", "--json"]);
    assert_eq!(refused.error()["code"], "model.unknown");
    assert_eq!(world.lines(&["ls"]).len(), 1, "no session was created");
}

#[test]
fn models_are_listed_shown_and_configured() {
    let world = World::new("sqlite");
    let models = keyless(&world, &["model", "ls", "--json"]);
    let models = crate::harness::parse_lines(&models.out());
    let of = |name: &str| models.iter().find(|one| one["model"] == name).cloned().unwrap_or_default();
    assert_eq!((&of("demo")["available"], &of("demo")["default"]), (&json!(true), &json!(true)));
    let sonnet = of("anthropic/claude-sonnet-4-5");
    assert_eq!((&sonnet["window_tokens"], &sonnet["key"]), (&json!(200_000), &json!("missing")));
    assert_eq!(sonnet["price_usd_per_million"]["output"], 15.0);
    let available = keyless(&world, &["model", "ls", "--available", "--json"]);
    assert!(!available.out().contains("anthropic/"), "{}", available.out());
    for (given, name) in [
        ("claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4-5-20250929"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic/claude-sonnet-4-5-20250929"),
        ("gpt-4o-2024-08-06", "openai/gpt-4o-2024-08-06"),
    ] {
        let shown = world.json(&["model", "show", given]);
        assert_eq!((&shown["model"], &shown["asked"]), (&json!(name), &json!(given)));
        assert!(shown["window_tokens"].is_u64(), "{shown}");
    }
    assert_eq!(world.fail(1, &["model", "show", "gpt-oops"])["code"], "model.unknown");
    world.configure(
        "[providers.lab]\nbase_url = \"http://127.0.0.1:9/v1\"\n\
         [models.\"lab/llama\"]\nwindow = 9000\noutput = 700\nprice = { input = 0.5, output = 1 }\n\
         [models.\"openai/gpt-5\"]\nwindow = 50000\n",
    );
    let lab = world.json(&["model", "show", "llama"]);
    assert_eq!((&lab["model"], &lab["window_tokens"]), (&json!("lab/llama"), &json!(9_000)));
    assert_eq!(lab["price_usd_per_million"]["input"], 0.5);
    let gpt = world.json(&["model", "show", "openai/gpt-5"]);
    assert_eq!((&gpt["window_tokens"], &gpt["output_tokens_max"]), (&json!(50_000), &json!(128_000)));
    world.configure("[models.\"nowhere/llama\"]\nwindow = 9000\n");
    assert_eq!(world.fail(2, &["model", "ls"])["code"], "config.invalid");
    world.configure("");
    std::fs::write(world.path("sapwood.toml"), "[models.\"openai/gpt-5\"]\nwindow = 5000\n").unwrap();
    let refused = world.fail(2, &["model", "ls"]);
    assert!(refused["message"].as_str().unwrap().contains("your own file"), "{refused}");
}

/// Start a provider that answers one request with this status and body.
pub fn provider(status: u16, body: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let read = socket.read(&mut head).unwrap();
        let length = body.len();
        write!(socket, "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
        String::from_utf8_lossy(&head[..read]).into_owned()
    });
    (url, served)
}

#[test]
fn check_says_whether_key_and_endpoint_answer() {
    let world = World::new("sqlite");
    assert_eq!(world.json(&["model", "check"])["endpoint"], "local", "the demo model needs no connection");
    let check = |url: &str| {
        world.configure(&format!("[providers.lab]\nbase_url = {url:?}\nkey_variable = \"LAB_KEY\"\n"));
        let mut command = world.command(&["model", "check", "lab/llama", "--json"]);
        command.env("LAB_KEY", "canary-key");
        finish(command)
    };
    let (url, served) = provider(200, r#"{"data":[{"id":"llama"}]}"#);
    let checked: Value = serde_json::from_str(&check(&url).out()).unwrap();
    assert_eq!((&checked["ok"], &checked["endpoint"]), (&json!(true), &json!("listed")));
    let head = served.join().unwrap();
    assert!(head.starts_with("GET /v1/models ") && head.contains("canary-key"), "{head}");
    let (url, served) = provider(401, r#"{"error":{"message":"bad key"}}"#);
    assert_eq!(check(&url).error()["code"], "model.key_refused");
    served.join().unwrap();
    assert_eq!(check("http://127.0.0.1:9/v1").error()["code"], "model.unreachable");
    assert_eq!(world.fail(1, &["model", "check", "lab/llama"])["code"], "model.no_key");
}

#[test]
fn red_warns_on_stderr_and_is_in_the_log_before_the_compaction() {
    on_each_store(|world| {
        let calls = "[[calls]]\npieces = [{ text = \"## Goal\\nStones.\" }]\n[[calls]]\npieces = [{ text = \"Done.\" }]\n";
        let model = script(world, "small.toml", &format!("window_tokens = 8000\n{calls}"));
        let session = world.session(&[]);
        fill(world, &session, 40, 110);
        let ran = world.run(&["send", &session, "and now", "--model", &model]);
        assert_eq!((ran.status, ran.out().as_str()), (Some(0), "Done.\n"), "{}", ran.stderr);
        assert!(ran.stderr.contains("warning: the context is"), "{}", ran.stderr);
        let types: Vec<String> = world
            .lines(&["events", &session])
            .iter()
            .filter_map(|event| event["type"].as_str().map(str::to_owned))
            .filter(|name| ["session:pressure", "session:compacted"].contains(&name.as_str()))
            .collect();
        assert_eq!(types, ["session:pressure", "session:compacted", "session:pressure"]);
        let feed = world.ok(&["feed", &session]);
        assert!(feed.contains("red:") && feed.contains("green:"), "{feed}");
    });
}

#[test]
fn yellow_compacts_a_plain_chat_and_the_level_is_recorded_once() {
    let world = World::new("sqlite");
    let call = "[[calls]]\npieces = [{ text = \"Yes.\" }]\n";
    let model = script(&world, "plain.toml", &format!("window_tokens = 8000\n{}", call.repeat(3)));
    let session = world.session(&[]);
    fill(&world, &session, 40, 50);
    assert_eq!(world.ok(&["send", &session, "one", "--model", &model]), "Yes.");
    let archives = world.lines(&["archives", &session]);
    assert_eq!(archives.len(), 1);
    assert_eq!((&archives[0]["strategy"], &archives[0]["trigger"]), (&json!("truncate"), &json!("pressure")));
    assert_eq!(world.json(&["info", &session])["context_pressure"]["level"], "green");
    world.ok(&["send", &session, "two"]);
    world.ok(&["send", &session, "three"]);
    let levels: Vec<Value> = world
        .lines(&["feed", &session])
        .into_iter()
        .filter(|item| item["type"] == "pressure")
        .map(|item| json!(item["text"].as_str().unwrap().split(':').next()))
        .collect();
    assert_eq!(levels, [json!("yellow"), json!("green")]);
    assert_eq!(world.json(&["doctor"])["findings"], json!([]));
}

#[test]
fn a_compaction_that_would_grow_the_context_needs_force() {
    on_each_store(|world| {
        let session = world.session(&["u:hi", "a:yes", "u:no"]);
        let args = ["compact", &session, "--keep-last", "1"];
        let refused = world.fail(1, &args);
        assert_eq!(refused["code"], "compact.not_smaller");
        assert!(refused["hint"].as_str().unwrap().contains("--force"), "{refused}");
        assert_eq!(world.lines(&["events", &session]).len(), 3);
        let forced = world.json(&[&args[..], &["--force"]].concat());
        assert_eq!((&forced["kept"], &forced["archived"]), (&json!(2), &json!(2)));
    });
}

#[test]
fn the_model_summarizes_the_branch_that_is_left() {
    on_each_store(|world| {
        let model = script(
            world,
            "branch.toml",
            "[[calls]]\nexpect = \"a dead end\"\npieces = [{ text = \"It failed.\" }]\n",
        );
        let session = world.session(&["u:start", "u:a dead end"]);
        let args = ["branch", &session, "1", "--summarize", "--model", &model];
        world.ok(&args);
        assert_eq!(world.texts(&session, None), ["start", "It failed."]);
        assert_eq!(world.run(&["branch", &session, "1", "--summarize", "--summary", "x"]).status, Some(2));
        let empty = world.session(&["u:only"]);
        assert_eq!(world.fail(2, &["branch", &empty, "1", "--summarize"])["code"], "input.invalid");
    });
}

#[test]
fn sessions_are_listed_by_the_state_of_their_context() {
    on_each_store(|world| {
        let [whole, compacted, pruned] = [(); 3].map(|()| {
            let session = world.session(&[]);
            fill(world, &session, 20, 10);
            session
        });
        world.ok(&["compact", &compacted, "--keep-last", "4"]);
        world.ok(&["prune", &pruned, "--inactive-for", "0s"]);
        let ids = |state: &str| -> Vec<String> {
            let lines = world.lines(&["ls", "--state", state]);
            lines.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!((ids("compacted"), ids("pruned")), (vec![compacted.clone()], vec![pruned.clone()]));
        assert_eq!(ids("active").len(), 3);
        assert!(!ids("pruned").contains(&whole));
        // A session that was restored is no longer compacted.
        world.ok(&["uncompact", &compacted]);
        assert_eq!(ids("compacted"), Vec::<String>::new());
        assert_eq!(world.fail(2, &["ls", "--state", "bogus"])["code"], "input.invalid");
    });
}

#[test]
fn a_server_prunes_inactive_sessions_and_lists_them() {
    let world = World::new("sqlite");
    let session = world.session(&[]);
    fill(&world, &session, 20, 10);
    world.configure("[prune]\ninactive_for = \"1s\"\nkeep_last = 5\n");
    std::thread::sleep(Duration::from_millis(1_100));
    let served = serve(&world, "127.0.0.1:0");
    let began = Instant::now();
    loop {
        let (status, mut body) = open(&served.addr, "GET", "/v1/sessions?state=pruned", &[], "").unwrap();
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        if status == 200 && text.contains(&session) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the session was not pruned: {status} {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(world.texts(&session, None).len(), 5);
}
