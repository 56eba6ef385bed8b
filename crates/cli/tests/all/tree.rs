//! The tree and the context, through the command line.

use serde_json::json;

use crate::harness::{World, assistant, compaction, log_file, on_each_store, user};

fn import(world: &World, name: &str, text: &str) {
    let file = world.path(name);
    std::fs::write(&file, text).unwrap();
    let report = world.json(&["import", file.to_str().unwrap()]);
    assert_eq!(report["problems"], json!([]), "{report}");
}

#[test]
fn the_context_begins_with_the_summary_and_the_kept_messages() {
    on_each_store(|world| {
        let bodies = [
            user("u1"),
            assistant("a2"),
            user("u3"),
            assistant("a4"),
            compaction("s", 3),
            user("u6"),
            assistant("a7"),
        ];
        let chain: Vec<_> =
            bodies.into_iter().enumerate().map(|(at, body)| ((at > 0).then_some(at as u32), body)).collect();
        import(world, "one.jsonl", &log_file("one", &chain));
        assert_eq!(world.texts("one", None), ["s", "u3", "a4", "u6", "a7"]);
        assert_eq!(world.json(&["context", "one"])["messages"][0]["role"], "user");
        let archives = world.lines(&["archives", "one"]);
        assert_eq!(archives.len(), 1);
        assert_eq!((&archives[0]["summary"], &archives[0]["on_path"]), (&json!("s"), &json!(true)));
    });
}

#[test]
fn only_the_latest_compaction_is_in_the_context() {
    on_each_store(|world| {
        let bodies = [
            user("u1"),
            assistant("a2"),
            compaction("s1", 1),
            user("u4"),
            assistant("a5"),
            compaction("s2", 4),
            user("u7"),
        ];
        let chain: Vec<_> =
            bodies.into_iter().enumerate().map(|(at, body)| ((at > 0).then_some(at as u32), body)).collect();
        import(world, "two.jsonl", &log_file("two", &chain));
        assert_eq!(world.texts("two", None), ["s2", "u4", "a5", "u7"]);
    });
}

#[test]
fn a_branch_with_a_summary_carries_it_and_the_old_branch_does_not() {
    on_each_store(|world| {
        let session = world.session(&["u:u1", "a:a2", "u:u3"]);
        world.ok(&["branch", &session, "2", "--summary", "s"]);
        world.add_messages(&session, &["u:u5"]);
        assert_eq!(world.texts(&session, None), ["u1", "a2", "s", "u5"]);
        assert_eq!(world.texts(&session, Some("3")), ["u1", "a2", "u3"]);
        assert_eq!(world.fail(2, &["branch", &session, "2", "--summary", " "])["code"], "input.invalid");
    });
}

#[test]
fn a_branch_survives_the_process_and_the_tree_shows_both_branches() {
    on_each_store(|world| {
        let session = world.session(&["u:u1", "a:a2", "u:u3", "a:a4"]);
        assert_eq!(world.json(&["branch", &session, "2"])["leaf"], 2);
        assert_eq!(world.json(&["info", &session])["head"]["leaf"], 2);
        assert_eq!(world.texts(&session, None), ["u1", "a2"]);
        world.add_messages(&session, &["u:other"]);
        let tree = world.json(&["tree", &session]);
        assert_eq!(tree["roots"], json!([1]));
        let second = tree["nodes"].as_array().unwrap().iter().find(|node| node["seq"] == 2).unwrap();
        assert_eq!(second["children"], json!([3, 6]));
    });
}

#[test]
fn a_reset_empties_the_context_and_keeps_the_log() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        assert_eq!(world.json(&["reset", &session])["leaf"], json!(null));
        let context = world.json(&["context", &session]);
        assert_eq!((&context["messages"], &context["tokens"]), (&json!([]), &json!(0)));
        assert_eq!(world.json(&["info", &session])["messages"], 0);
        world.add_messages(&session, &["u:anew"]);
        assert_eq!(world.texts(&session, None), ["anew"]);
        assert_eq!(world.json(&["tree", &session])["roots"], json!([1, 4]));
        assert_eq!(world.lines(&["events", &session]).len(), 4);
    });
}

#[test]
fn a_fork_has_every_ancestor_and_the_label() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        world.ok(&["label", &session, "2", "here"]);
        world.add_messages(&session, &["u:three", "a:four"]);
        let fork = world.json(&["fork", &session])["id"].as_str().unwrap().to_owned();
        assert_eq!(world.texts(&fork, None), ["one", "two", "three", "four"]);
        assert_eq!(world.texts(&fork, Some("here")), ["one", "two"]);
    });
}

#[test]
fn the_last_label_wins_an_omitted_label_removes_it_and_the_context_has_no_labels() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two"]);
        world.ok(&["label", &session, "1", "first"]);
        world.ok(&["label", &session, "1", "second"]);
        assert_eq!(world.texts(&session, Some("second")), ["one"]);
        world.fail(3, &["context", &session, "--at", "first"]);
        assert_eq!(world.texts(&session, None), ["one", "two"]);
        world.ok(&["label", &session, "second"]);
        assert_eq!(world.fail(3, &["context", &session, "--at", "second"])["code"], "entry.not_found");
        assert_eq!(world.fail(3, &["label", &session, "99", "x"])["code"], "entry.not_found");
    });
}

#[test]
fn a_fork_and_its_source_do_not_see_each_others_new_entries() {
    on_each_store(|world| {
        let session = world.session(&["u:u1", "a:a2", "u:u3", "a:a4"]);
        let fork =
            world.json(&["fork", &session, "--at", "2", "--id", "side"])["id"].as_str().unwrap().to_owned();
        assert_eq!(fork, "side");
        world.add_messages(&session, &["u:more"]);
        world.add_messages(&fork, &["u:x", "a:y"]);
        assert_eq!(world.texts(&session, None), ["u1", "a2", "u3", "a4", "more"]);
        assert_eq!(world.texts(&fork, None), ["u1", "a2", "x", "y"]);
    });
}

#[test]
fn a_fork_keeps_the_first_messages_and_refuses_invalid_arguments() {
    on_each_store(|world| {
        let session = world.session(&["u:a", "a:b", "u:c"]);
        let fork = world.json(&["fork", &session, "--keep-first", "2"])["id"].as_str().unwrap().to_owned();
        assert_eq!(world.texts(&fork, None), ["a", "b"]);
        let error = world.fail(2, &["fork", &session, "--keep-first", "-1"]);
        assert!(error["message"].as_str().unwrap().contains("--keep-first"), "{error}");
        assert_eq!(world.fail(4, &["fork", &session, "--id", &session])["code"], "session.exists");
        assert_eq!(world.fail(4, &["fork", &session, "--id", &fork])["code"], "session.exists");
    });
}

#[test]
fn ancestry_shows_parent_children_and_root() {
    on_each_store(|world| {
        world.ok(&["new", "--id", "root"]);
        world.add_messages("root", &["u:one", "a:two"]);
        world.ok(&["fork", "root", "--id", "d1"]);
        world.ok(&["fork", "d1", "--id", "d2"]);
        world.ok(&["fork", "d2", "--keep-first", "1", "--id", "d3"]);
        world.ok(&["fork", "d2", "--id", "d4"]);
        let third = world.json(&["ancestry", "d3"]);
        assert_eq!((&third["parent"], &third["root"]), (&json!("d2"), &json!("root")));
        assert_eq!(third["chain"], json!(["d3", "d2", "d1", "root"]));
        let mut children = world.json(&["ancestry", "d2"])["children"].as_array().unwrap().clone();
        children.sort_by_key(|child| child.as_str().unwrap().to_owned());
        assert_eq!(children, [json!("d3"), json!("d4")]);
        assert_eq!(world.json(&["ancestry", "root"])["parent"], json!(null));
    });
}

#[test]
fn trimming_keeps_the_last_messages() {
    on_each_store(|world| {
        let one = world.session(&["u:only"]);
        assert_eq!(world.json(&["trim", &one, "--keep-last", "100"]), json!({ "kept": 1 }));
        let three = world.session(&["u:one", "a:two", "u:three"]);
        assert_eq!(world.ok(&["trim", &three, "--keep-last", "2"]), "2");
        assert_eq!(world.texts(&three, None), ["two", "three"]);
        let error = world.fail(2, &["trim", &three, "--keep-last", "-1"]);
        assert!(error["message"].as_str().unwrap().contains("-1"), "{error}");
    });
}

#[test]
fn trimming_never_separates_a_tool_result_from_its_call() {
    on_each_store(|world| {
        let session = world.session(&["u:look"]);
        let call = json!({ "role": "assistant", "content": [{ "type": "tool_call", "call_id": "x", "name": "ls", "input": {} }] });
        let result = json!({ "role": "tool", "tool_call_id": "x", "content": "files" });
        world.ok(&["inject", &session, "--message", &call.to_string()]);
        world.ok(&["inject", &session, "--message", &result.to_string()]);
        assert_eq!(world.json(&["trim", &session, "--keep-last", "1"])["kept"], 2);
        let context = world.json(&["context", &session]);
        assert_eq!(context["messages"][0]["parts"][0]["call_id"], "x");
        assert_eq!(context["messages"][1]["call_id"], "x");
    });
}

#[test]
fn a_call_without_a_result_gets_a_placeholder_and_a_stray_result_is_omitted() {
    on_each_store(|world| {
        let session = world.session(&["u:look"]);
        let call = |id: &str| {
            json!({ "role": "assistant", "content": null, "tool_calls": [
                { "id": id, "type": "function", "function": { "name": "ls", "arguments": "{}" } }] })
        };
        let stray = json!({ "role": "tool", "tool_call_id": "unknown", "content": "stray" });
        world.ok(&["inject", &session, "--message", &call("middle").to_string()]);
        world.ok(&["inject", &session, "--message", &stray.to_string()]);
        world.add_messages(&session, &["u:go on"]);
        world.ok(&["inject", &session, "--message", &call("end").to_string()]);
        let context = world.json(&["context", &session]);
        let roles: Vec<&str> =
            context["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "user", "assistant", "tool"]);
        assert_eq!(context["messages"][2]["call_id"], "middle");
        assert_eq!(context["messages"][5]["entry"], json!(null));
    });
}

#[test]
fn the_context_has_the_model_that_answered_last_and_thinking_is_off() {
    on_each_store(|world| {
        let changed = json!({ "type": "model_changed", "model": "first" });
        let mut answer = assistant("hi");
        answer["model"] = json!("second");
        import(
            world,
            "models.jsonl",
            &log_file("models", &[(None, changed), (Some(1), user("u")), (Some(2), answer)]),
        );
        let context = world.json(&["context", "models"]);
        assert_eq!((&context["model"], &context["thinking"]), (&json!("second"), &json!("off")));
        assert_eq!(world.json(&["context", "models", "--at", "2"])["model"], "first");
    });
}

#[test]
fn creating_is_idempotent_and_commands_with_an_unknown_id_fail() {
    on_each_store(|world| {
        assert_eq!(world.ok(&["new", "--id", "mine", "--title", "First"]), "mine");
        assert_eq!(world.ok(&["new", "--id", "mine", "--title", "Second"]), "mine");
        assert_eq!(world.json(&["info", "mine"])["title"], "First");
        for args in [
            &["reset", "ghost"][..],
            &["fork", "ghost"],
            &["close", "ghost"],
            &["archive", "ghost"],
            &["trim", "ghost", "--keep-last", "1"],
            &["inject", "ghost", "--role", "user", "--text", "boo"],
            &["show", "ghost"],
            &["tree", "ghost"],
            &["context", "ghost"],
            &["events", "ghost"],
            &["info", "ghost"],
            &["usage", "ghost"],
            &["ancestry", "ghost"],
            &["export", "ghost"],
            &["erase", "ghost", "--yes"],
            &["label", "ghost", "1", "x"],
            &["rename", "ghost", "x"],
            &["share", "ghost", "bob", "--role", "reader"],
            &["members", "ghost"],
        ] {
            assert_eq!(world.fail(3, args)["code"], "session.not_found", "{args:?}");
        }
    });
}
