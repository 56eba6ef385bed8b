//! The confidence loop, as docs/confidence.md describes it, and what the ledger records about tools and people.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::flows::{actor, text};
use crate::harness::{World, on_each_store, parse_lines};

/// The shell commands of a page: its blocks marked `sh`.
fn shell_blocks(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.collect::<Vec<_>>().join("\n")
}

fn run_script(world: &World, script: &str) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_sapwood")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-eu", "-c", script]).current_dir(world.dir.path());
    shell.env("PATH", path).env("HOME", world.dir.path()).env("SAPWOOD_STORE", &world.url);
    shell.env_remove("SAPWOOD_HOME").env_remove("XDG_DATA_HOME").output().unwrap()
}

/// The fields of a ledger line that say how the round ended.
fn end_of(line: &Value) -> (String, String, Option<f64>) {
    let status = line["result"]["status"].as_str().unwrap_or("open").to_owned();
    (status, line["reason"].as_str().unwrap_or_default().to_owned(), line["confidence"].as_f64())
}

#[test]
fn the_commands_of_the_confidence_page_show_what_it_says() {
    on_each_store(|world| {
        let script = shell_blocks("confidence.md");
        let ran = run_script(world, &script);
        let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{out}\n{err}");
        let page =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/confidence.md"))
                .unwrap();
        // The table that the page shows is the one that the command printed, without the times.
        let rows = |text: &str| -> Vec<Vec<String>> {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let is_row = |line: &&str| line.contains("backtracked  ") || line.contains("asked  ");
            let without_time = |mut row: Vec<String>| {
                row.remove(1);
                row
            };
            text.lines().filter(is_row).map(words).map(without_time).collect()
        };
        let shown = rows(page.split("```text\n").nth(1).unwrap().split("```").next().unwrap());
        let printed = rows(&out);
        assert_eq!(shown.len(), 2);
        for (shown, printed) in shown.iter().zip(&printed) {
            assert_eq!(shown[..6], printed[..6], "{out}");
        }
        assert!(out.contains("answer given up"), "{out}");
        assert!(out.contains("The model is only 40 % sure of this. Continue?"), "{out}");
        let lines = world.lines(&["ledger", "oak"]);
        let (first, second) = (end_of(&lines[0]), end_of(&lines[1]));
        assert_eq!((first.0.as_str(), second.0.as_str(), lines.len()), ("backtracked", "asked", 2));
        assert_eq!(first.1, "the model rated its answer 0.20, below 0.30");
        assert!(second.1.contains("0.40, below 0.50") && second.1.ends_with("a person agreed to continue"));
        let near = |rating: Option<f64>, expected: f64| (rating.unwrap() - expected).abs() < 1e-6;
        assert!(near(first.2, 0.2) && near(second.2, 0.4), "{lines:?}");
        let sent: Value = serde_json::from_slice(&std::fs::read(world.path("sent.json")).unwrap()).unwrap();
        assert!(sent["waiting"][0]["why"].as_str().unwrap().contains("0.40, below 0.50"), "{sent}");
        assert_eq!(world.texts("oak", None).last().unwrap(), "About 30 m, but I could not measure it.");
        world.ok(&["doctor"]);
    });
}

/// A session whose scripted agent rates an answer 0.2 and the next one 0.9.
fn start_unsure(world: &World) {
    let calls = [
        vec![text("First.\n<confidence>0.2</confidence>")],
        vec![text("Second.\n<confidence>0.9</confidence>")],
    ];
    let calls: Vec<Value> = calls.iter().map(|pieces| json!({ "pieces": pieces })).collect();
    std::fs::write(world.path("calls.json"), json!({ "calls": calls }).to_string()).unwrap();
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let agent = json!({ "id": "unsure", "model": "scripted:calls.json", "confidence": {} });
    std::fs::write(world.path("agents/unsure.yaml"), agent.to_string()).unwrap();
    world.ok(&["new", "--id", "s", "--agent", "unsure"]);
}

#[test]
fn send_says_on_stderr_why_an_answer_was_given_up() {
    let world = World::new("sqlite");
    start_unsure(&world);
    let ran = world.run(&["send", "s", "go"]);
    assert_eq!((ran.status, ran.out().as_str()), (Some(0), "Second.\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("this answer was given up"), "{}", ran.stderr);
    assert!(ran.stderr.contains("rated its answer 0.20, below 0.30"), "{}", ran.stderr);
    let feed = world.lines(&["feed", "s"]);
    let item = feed.iter().find(|item| item["label"] == "answer given up").unwrap();
    assert_eq!((&item["type"], &item["kind"]), (&json!("event"), &json!("round")));
    assert!(item["text"].as_str().unwrap().contains("0.20, below 0.30"), "{item}");
}

fn agent_with_tools(world: &World, id: &str, calls: &[Vec<Value>], more: Value) {
    let agent = actor(world, id, calls, more);
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path(&format!("agents/{id}.yaml")), agent.to_string()).unwrap();
    world.ok(&["new", "--id", id, "--agent", id]);
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({ "call": { "id": id, "name": name, "input": input } })
}

#[test]
fn the_ledger_says_which_tool_failed_which_call_was_refused_and_who_was_asked() {
    on_each_store(|world| {
        let write = json!({ "path": "x.txt", "content": "x" });
        let calls = [
            vec![call("1", "read_file", json!({ "path": "nowhere.txt" }))],
            vec![call("2", "read_file", json!({ "file": "wrong key" }))],
            vec![call("3", "no_such_tool", json!({}))],
            vec![call("4", "write_file", write.clone())],
            vec![call("5", "write_file", write)],
            vec![text("done")],
        ];
        agent_with_tools(
            world,
            "desk",
            &calls,
            json!({ "tools": ["read_file", "write_file"], "fs_scope": "project" }),
        );
        let waiting = world.json(&["send", "desk", "go"]);
        let ends: Vec<(String, String)> = world
            .lines(&["ledger", "desk"])
            .iter()
            .map(end_of)
            .map(|(status, why, _)| (status, why))
            .collect();
        let statuses: Vec<&str> = ends.iter().map(|(status, _)| status.as_str()).collect();
        assert_eq!(statuses, ["failed", "refused", "refused", "asked"], "{ends:?}");
        assert!(ends[0].1.starts_with("read_file: ") && ends[0].1.contains("nowhere.txt"), "{ends:?}");
        assert!(ends[1].1.contains("schema") && ends[2].1.contains("no_such_tool"), "{ends:?}");
        assert!(ends[3].1.contains("write_file"), "{ends:?}");
        let why = waiting["waiting"][0]["why"].as_str().unwrap();
        assert!(why.contains("approval mode"), "{waiting}");
        let approval = waiting["waiting"][0]["approval"].as_str().unwrap();
        let next = world.json(&["deny", approval, "--reason", "not now"]);
        let line = world.lines(&["ledger", "desk"]).remove(3);
        assert_eq!(end_of(&line).0, "refused", "{line}");
        assert!(end_of(&line).1.contains("not now"), "{line}");
        world.ok(&["approve", next["waiting"][0]["approval"].as_str().unwrap()]);
        let lines = world.lines(&["ledger", "desk"]);
        let last: Vec<String> = lines[4..].iter().map(|line| end_of(line).0).collect();
        assert_eq!(last, ["ok", "ok"], "{lines:?}");
        assert!(lines.iter().all(|line| line["trace_id"].as_str().is_some_and(|id| id.len() == 32)));
        let table = world.ok(&["ledger", "desk"]);
        assert!(table.contains("failed") && table.contains("nowhere.txt does not exist"), "{table}");
    });
}

#[test]
fn a_cancelled_round_is_cancelled_and_keeps_the_trace_of_the_process_that_opened_it() {
    on_each_store(|world| {
        let calls =
            [vec![call("1", "write_file", json!({ "path": "x.txt", "content": "x" }))], vec![text("done")]];
        agent_with_tools(world, "desk", &calls, json!({ "tools": ["write_file"], "fs_scope": "project" }));
        world.ok(&["send", "desk", "go"]);
        let opened = world.lines(&["ledger", "desk"]).remove(0);
        world.ok(&["cancel", "desk"]);
        let line = world.lines(&["ledger", "desk"]).remove(0);
        assert_eq!(end_of(&line).0, "cancelled", "{line}");
        assert_eq!(line["trace_id"], opened["trace_id"], "another process ended the round");
        assert!(!parse_lines(&world.ok(&["export", "desk"])).is_empty());
    });
}
