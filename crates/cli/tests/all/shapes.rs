//! JSON output whose keys are part of the contract.

use serde_json::{Value, json};

use crate::harness::{World, on_each_store};

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn new_and_fork_print_the_id() {
    on_each_store(|world| {
        let dir = world.path("where");
        std::fs::create_dir_all(&dir).unwrap();
        let dir = dir.to_str().unwrap();
        let made = world.json(&["new", "--title", "A title", "--agent", "default", "--cwd", dir]);
        assert_eq!(keys(&made), ["id"]);
        let id = made["id"].as_str().unwrap();
        world.add_messages(id, &["u:x"]);
        let info = world.json(&["info", id]);
        assert_eq!(info["title"], "A title");
        assert_eq!(info["agent"], "default");
        assert_eq!(info["cwd"], dir);
        assert_eq!(info["owner"], "user:tester");
        assert_eq!(keys(&world.json(&["fork", id])), ["id"]);
    });
}

#[test]
fn a_context_has_the_keys_of_the_contract() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let message = json!({ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] });
        world.ok(&["inject", &session, "--message", &message.to_string()]);
        let context = world.json(&["context", &session]);
        for key in ["system", "model", "thinking", "messages", "tokens"] {
            assert!(context.get(key).is_some(), "{key} is missing");
        }
        let message = &context["messages"][0];
        assert_eq!(message["role"], "user");
        assert_eq!(message["text"], "a\nb");
        assert_eq!(message["parts"].as_array().unwrap().len(), 2);
        assert_eq!(message["entry"].as_str().unwrap().len(), 36);
    });
}

#[test]
fn a_list_is_newest_first_and_pages_by_cursor() {
    on_each_store(|world| {
        for n in 0..7 {
            world.ok(&["new", "--id", &format!("s{n}")]);
            world.add_messages(&format!("s{n}"), &["u:hello"]);
        }
        world.add_messages("s2", &["u:again"]);
        let ids = |lines: &[Value]| -> Vec<String> {
            lines.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
        };
        let all = ids(&world.lines(&["ls"]));
        assert_eq!(all, ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]);
        let (mut paged, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut args = vec!["ls", "--limit", "3"];
            args.extend(cursor.iter().flat_map(|cursor| ["--after", cursor]));
            let lines = world.lines(&args);
            assert!(lines.len() <= 3);
            paged.extend(ids(&lines));
            cursor = lines.last().and_then(|line| line["next"].as_str()).map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(paged, all);
    });
}

#[test]
fn a_list_is_filtered_by_state_and_directory() {
    on_each_store(|world| {
        let dirs = ["here", "there"].map(|name| world.path(name).to_str().unwrap().to_owned());
        for (name, dir) in ["here", "there"].iter().zip(&dirs) {
            std::fs::create_dir_all(dir).unwrap();
            world.ok(&["new", "--id", name, "--cwd", dir]);
        }
        world.add_messages("here", &["u:x"]);
        world.add_messages("there", &["u:x"]);
        world.ok(&["archive", "there"]);
        let only = |args: &[&str]| -> Vec<Value> {
            world.lines(args).iter().map(|line| line["id"].clone()).collect()
        };
        assert_eq!(only(&["ls", "--cwd", &dirs[0]]), ["here"]);
        assert_eq!(only(&["ls", "--state", "archived"]), ["there"]);
        assert_eq!(only(&["ls", "--state", "active"]), ["here"]);
        assert_eq!(only(&["ls", "--oldest"]), ["here", "there"]);
        assert_eq!(only(&["ls", "--title", "THER"]), ["there"]);
        assert_eq!(only(&["ls", "--since", "1h", "--limit", "1"]), ["there"]);
        assert_eq!(
            only(&["ls", "--until", "2000-01-31"]).len() + only(&["ls", "--agent", "unknown"]).len(),
            0
        );
        assert!(only(&["ls", "--owner", "agent:unknown"]).is_empty());
        let owner = world.json(&["info", "here"])["owner"].as_str().unwrap().to_owned();
        assert_eq!(only(&["ls", "--owner", &owner]).len(), 2);
    });
}

#[test]
fn search_finds_words_everywhere_or_in_one_session() {
    on_each_store(|world| {
        let first = world.session(&["u:the quick brown fox", "a:jumps"]);
        let second = world.session(&["u:a slow fox"]);
        let hits = world.lines(&["search", "fox"]);
        assert_eq!(hits.len(), 2);
        for key in ["session", "seq", "id", "kind", "at", "snippet"] {
            assert!(hits[0].get(key).is_some(), "{key} is missing");
        }
        let here = world.lines(&["search", "fox", "--session", &second]);
        assert_eq!((here.len(), here[0]["session"].as_str().unwrap()), (1, second.as_str()));
        assert_eq!(world.lines(&["search", "\"quick brown\""])[0]["session"], first.as_str());
        assert_eq!(world.lines(&["search", "jum*"])[0]["seq"], 2);
        assert_eq!(world.lines(&["search", "absent"]).len(), 0);
        let page = world.lines(&["search", "fox", "--limit", "1"]);
        let next = page[0]["next"].as_str().unwrap();
        assert_eq!(world.lines(&["search", "fox", "--after", next]).len(), 1);
    });
}

#[test]
fn usage_is_reported_per_model_and_in_total() {
    on_each_store(|world| {
        let session = world.session(&["u:x"]);
        for (model, input, cost) in
            [("small", 10, Some(1_000)), ("large", 100, None), ("small", 20, Some(500))]
        {
            let mut answer = json!({ "role": "assistant", "content": "y", "model": model, "usage": { "input": input, "output": 1 } });
            if let Some(cost) = cost {
                answer["cost_nano_usd"] = json!(cost);
            }
            world.ok(&["inject", &session, "--message", &answer.to_string()]);
        }
        let usage = world.json(&["usage", &session]);
        assert_eq!(usage["models"]["small"]["input"], 30);
        assert_eq!(usage["models"]["small"]["cost_nano_usd"], 1_500);
        assert_eq!(usage["total"]["calls"], 3);
        assert_eq!(usage["total"]["input"], 130);
        assert_eq!(usage["total"]["unpriced_calls"], 1);
    });
}

#[test]
fn show_prints_a_line_per_entry_of_the_path() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two", "u:three"]);
        world.ok(&["branch", &session, "2"]);
        let lines = world.lines(&["show", &session]);
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["role"], &lines[0]["text"]), (&json!("user"), &json!("one")));
        assert_eq!(lines[1]["entry"]["type"], "assistant_message");
    });
}

#[test]
fn feed_and_ledger_print_json_lines() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        let feed = world.lines(&["feed", &session]);
        assert_eq!(keys(&feed[0]), ["at", "by", "id", "kind", "label", "seq", "text", "type"]);
        assert_eq!((&feed[1]["type"], &feed[1]["text"]), (&json!("assistant"), &json!("two")));
        assert_eq!(world.lines(&["ledger", &session]).len(), 0);
        assert_eq!(world.lines(&["archives", &session]).len(), 0);
    });
}

#[test]
fn a_healthy_store_has_no_findings() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        world.ok(&["branch", &session, "1"]);
        let fork = world.json(&["fork", &session])["id"].as_str().unwrap().to_owned();
        world.add_messages(&fork, &["a:other"]);
        let diagnosis = world.json(&["doctor"]);
        assert_eq!(diagnosis["findings"], json!([]), "{diagnosis}");
        assert_eq!(diagnosis["sessions"], 2);
        world.ok(&["doctor", "--repair"]);
    });
}

#[test]
fn version_and_completions_need_no_store() {
    let world = World::new("sqlite");
    let mut command = world.bare();
    command.args(["--store", "nonsense", "version", "--json"]);
    let version: Value = serde_json::from_str(&crate::harness::finish(command).out()).unwrap();
    assert_eq!(keys(&version), ["features", "format", "version"]);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(world.ok(&["completions", shell]).contains("sapwood"), "{shell}");
    }
    assert!(!world.path("store.sqlite").exists());
}
