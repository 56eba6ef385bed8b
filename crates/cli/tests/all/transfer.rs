//! Exporting sessions and importing them again.

use serde_json::json;

use crate::harness::{World, assistant, compaction, id, log_file, on_each_store, parse_lines, user};

/// Creates a session with branches, a label, a tool call, a trim and a title.
fn rich(world: &World) -> String {
    let session = world.session(&["u:one", "a:two"]);
    world.ok(&["label", &session, "2", "here"]);
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_call", "call_id": "x", "name": "ls", "input": { "b": 1, "a": [1.0, "é\u{1b}"] } }] });
    world.ok(&["inject", &session, "--message", &call.to_string()]);
    world.ok(&["inject", &session, "--message", r#"{"role":"tool","tool_call_id":"x","content":"out"}"#]);
    world.ok(&["branch", &session, "2", "--summary", "dead end"]);
    world.add_messages(&session, &["u:three", "a:four"]);
    world.ok(&["trim", &session, "--keep-last", "2"]);
    world.ok(&["rename", &session, "A – title"]);
    world.ok(&["branch", &session, "here"]);
    session
}

#[test]
fn export_import_export_is_byte_identical_between_all_stores() {
    for (from, to) in [("sqlite", "sqlite"), ("sqlite", "jsonl"), ("jsonl", "sqlite"), ("jsonl", "jsonl")] {
        let (source, target) = (World::new(from), World::new(to));
        let session = rich(&source);
        let file = source.path("out.jsonl");
        source.ok(&["export", &session, "--format", "jsonl", "-o", file.to_str().unwrap()]);
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(source.run(&["export", &session]).stdout, bytes, "the file and stdout differ");
        let report = target.json(&["import", file.to_str().unwrap()]);
        assert_eq!(report["problems"], json!([]), "{from} to {to}: {report}");
        assert_eq!(
            String::from_utf8(target.run(&["export", &session]).stdout).unwrap(),
            String::from_utf8(bytes).unwrap()
        );
        for args in [&["context", &session][..], &["tree", &session], &["show", &session]] {
            assert_eq!(
                target.json_or_lines(args),
                source.json_or_lines(args),
                "{args:?} from {from} to {to}"
            );
        }
        assert_eq!(target.json(&["doctor"])["findings"], json!([]));
    }
}

impl World {
    fn json_or_lines(&self, args: &[&str]) -> Vec<serde_json::Value> {
        self.lines(args)
    }
}

#[test]
fn a_fork_is_exported_completely_and_its_copy_is_independent() {
    on_each_store(|world| {
        let session = rich(world);
        world.ok(&["fork", &session, "--id", "side"]);
        world.add_messages("side", &["u:own"]);
        let bytes = world.run(&["export", "side"]).stdout;
        let other = World::new("sqlite");
        let ran = other.run_with(&["import", "-", "--json"], &bytes);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        assert_eq!(other.run(&["export", "side"]).stdout, bytes);
        assert_eq!(other.json(&["ancestry", "side"])["parent"], session.as_str());
    });
}

#[test]
fn importing_again_adds_only_new_entries() {
    on_each_store(|world| {
        let source = World::new("sqlite");
        let session = source.session(&["u:one", "a:two"]);
        let file = source.path("out.jsonl");
        let path = file.to_str().unwrap();
        source.ok(&["export", &session, "-o", path]);
        let dry = world.json(&["import", path, "--dry-run"]);
        assert_eq!((&dry["added"], &dry["dry_run"]), (&json!(2), &json!(true)));
        world.fail(3, &["info", &session]);

        let first = world.json(&["import", path]);
        assert_eq!(first["session"], session.as_str());
        assert_eq!(first["format"], "sapwood");
        assert_eq!((&first["added"], &first["skipped"]), (&json!(2), &json!(0)));
        let again = world.json(&["import", path]);
        assert_eq!((&again["added"], &again["skipped"]), (&json!(0), &json!(2)));

        source.add_messages(&session, &["u:three"]);
        source.ok(&["export", &session, "-o", path, "--force"]);
        let dry = world.json(&["import", path, "--dry-run"]);
        assert_eq!((&dry["added"], &dry["skipped"]), (&json!(1), &json!(2)));
        let more = world.json(&["import", path, "--from", "sapwood"]);
        assert_eq!((&more["added"], &more["skipped"]), (&json!(1), &json!(2)));
        assert_eq!(world.texts(&session, None), ["one", "two", "three"]);
    });
}

#[test]
fn a_log_that_differs_is_left_unchanged() {
    on_each_store(|world| {
        let file = world.path("log.jsonl");
        std::fs::write(&file, log_file("s", &[(None, user("one")), (Some(1), assistant("two"))])).unwrap();
        world.ok(&["import", file.to_str().unwrap()]);
        world.add_messages("s", &["u:mine"]);
        let longer = [
            (None, user("one")),
            (Some(1), assistant("two")),
            (Some(2), user("theirs")),
            (Some(3), user("more")),
        ];
        std::fs::write(&file, log_file("s", &longer)).unwrap();
        let ran = world.run(&["import", file.to_str().unwrap(), "--json"]);
        assert_eq!(ran.status, Some(1), "{}", ran.stderr);
        let report = &parse_lines(&ran.out())[0];
        assert_eq!((&report["added"], &report["skipped"]), (&json!(0), &json!(2)));
        assert_eq!(report["problems"][0]["code"], "import.differs");
        assert_eq!(ran.error()["code"], "import.nothing");
        assert_eq!(world.texts("s", None), ["one", "two", "mine"]);
    });
}

#[test]
fn damage_is_reported_by_line_and_the_intact_part_is_imported() {
    on_each_store(|world| {
        let file = world.path("torn.jsonl");
        let mut text =
            log_file("torn", &[(None, user("one")), (Some(1), assistant("two")), (Some(2), user("three"))]);
        text = text.replacen("\"two\"", "\"two\" nonsense", 1);
        text.truncate(text.len() - 10);
        std::fs::write(&file, &text).unwrap();
        let report = world.json(&["import", file.to_str().unwrap()]);
        assert_eq!(report["added"], 1, "{report}");
        let lines: Vec<u64> = report["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|problem| problem["line"].as_u64().unwrap())
            .collect();
        assert_eq!(lines, [3, 4], "{report}");
        assert_eq!(world.texts("torn", None), ["one"]);
    });
}

#[test]
fn files_that_are_not_sessions_are_refused_with_a_reason() {
    on_each_store(|world| {
        let write = |name: &str, bytes: &[u8]| {
            let file = world.path(name);
            std::fs::write(&file, bytes).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let newer = log_file("newer", &[]).replace("\"version\":2", "\"version\":99");
        let cases = [
            (write("empty", b""), "import.empty"),
            (write("letter", b"Dear Sir or Madam\n"), "import.no_header"),
            (write("binary", &[0, 159, 146, 150, 10, 255]), "import.no_header"),
            (write("newer", newer.as_bytes()), "import.too_new"),
            (write("headless", b"{\"type\":\"session_header\"}\n"), "import.bad_header"),
            (world.path("missing").to_str().unwrap().to_owned(), "file.not_found"),
        ];
        for (path, code) in &cases {
            let ran = world.run(&["import", path, "--json"]);
            assert_eq!(ran.status, Some(1), "{path}: {}", ran.stderr);
            let reports = parse_lines(&ran.out());
            assert_eq!(reports.len(), 1, "{path}");
            assert_eq!(reports[0]["problems"][0]["code"], *code, "{path}: {}", reports[0]);
        }
        let good = write("good", log_file("good", &[(None, user("hi"))]).as_bytes());
        let ran = world.run(&["import", &cases[1].0, &good, "--json"]);
        assert_eq!(ran.status, Some(0));
        assert_eq!(parse_lines(&ran.out()).len(), 2);
    });
}

#[test]
fn several_sessions_in_one_stream_are_imported_one_by_one() {
    on_each_store(|world| {
        let text = log_file("one", &[(None, user("a"))])
            + &log_file("two", &[(None, user("b")), (Some(1), compaction("s", 1))]);
        let ran = world.run_with(&["import", "-", "--json"], text.as_bytes());
        let reports = parse_lines(&ran.out());
        assert_eq!(
            reports.iter().map(|report| report["session"].as_str().unwrap()).collect::<Vec<_>>(),
            ["one", "two"]
        );
        assert!(reports.iter().all(|report| report["problems"] == json!([])), "{reports:?}");
        assert_eq!(world.texts("two", None), ["s", "b"]);
        assert_eq!(world.lines(&["show", "two"])[1]["id"], id(2));
    });
}

#[test]
fn a_file_is_not_overwritten_without_force() {
    on_each_store(|world| {
        let session = world.session(&["u:one"]);
        let file = world.path("out.jsonl");
        let path = file.to_str().unwrap();
        std::fs::write(&file, "mine").unwrap();
        let error = world.fail(2, &["export", &session, "-o", path]);
        assert!(error["hint"].as_str().unwrap().contains("--force"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        let done = world.json(&["export", &session, "-o", path, "--force"]);
        assert_eq!(done["entries"], 1);
        assert!(!world.path("out.jsonl.tmp").exists());
        let nowhere = world.path("no/such/dir/out.jsonl");
        assert_eq!(
            world.fail(1, &["export", &session, "-o", nowhere.to_str().unwrap()])["code"],
            "file.not_found"
        );
    });
}

#[test]
fn a_directory_of_files_is_imported() {
    on_each_store(|world| {
        let dir = world.path("logs");
        std::fs::create_dir(&dir).unwrap();
        for name in ["a", "b"] {
            std::fs::write(dir.join(format!("{name}.jsonl")), log_file(name, &[(None, user("x"))])).unwrap();
        }
        std::fs::write(dir.join("README.md"), "not a session").unwrap();
        assert_eq!(world.lines(&["import", dir.to_str().unwrap()]).len(), 2);
    });
}
