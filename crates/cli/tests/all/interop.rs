//! Import and export of other programs' sessions, through the binary.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{World, on_each_store, parse_lines};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures").join(name)
}

fn import(world: &World, path: &Path) -> Value {
    world.json(&["import", path.to_str().unwrap()])
}

fn copy(from: &str, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(fixture(from), to).unwrap();
}

/// A fixture, its format, its expected context, and a word that search finds.
const CASES: &[(&str, &str, &[&str], &str)] = &[
    (
        "claude-code.jsonl",
        "claude-code",
        &[
            "Summary: the till added tax twice; cart.py is fixed.",
            "Add a test for free items.",
            "Added test_free_item.",
        ],
        "café",
    ),
    (
        "codex.jsonl",
        "codex",
        &[
            "How many lines has cart.py?",
            "And tests?",
            "Another model says: cart.py has 41 lines and one test.",
            "Thank you.",
            "You are welcome.",
        ],
        "welcome",
    ),
    (
        "pi-v3.jsonl",
        "pi",
        &["Beans are sown in mid May.", "Ran `date`\n```\nFri Jan 2\n```", "And peas?", "Peas in March."],
        "calendar",
    ),
    ("pi-v1.jsonl", "pi", &["Counted to two.", "Three?", "Four."], "Two"),
    (
        "operator.jsonl",
        "operator",
        &[
            "Which mails are unread?",
            "",
            "3 unread",
            "Three.",
            "The user asked to delete them and thought better of it.",
            "Read the first.",
        ],
        "inbox",
    ),
    (
        "gemini-cli.jsonl",
        "gemini-cli",
        &["What is in this folder?", "", "notes.md", "One file: notes.md.", "Read it", "It says hello."],
        "Removed",
    ),
    (
        "gemini-cli-document.json",
        "gemini-cli",
        &["What is in this folder?", "", "notes.md", "One file: notes.md."],
        "notes",
    ),
    (
        "role-transcript.json",
        "role-files",
        &[
            "Node n1 was about naming. It is done.",
            "Enter node n2.",
            "Reading.",
            "# Index",
            "The index is empty.",
        ],
        "Named",
    ),
    ("messages-openai.json", "messages", &["Weather in Oslo?", "", "-3 °C", "Cold."], "Oslo"),
    ("messages-anthropic.json", "messages", &["Weather in Oslo?", "", "-3 °C", "Cold."], "Oslo"),
    ("messages.jsonl", "messages", &["Hello", "Hi", "Bye"], "Bye"),
];

#[test]
fn every_format_is_detected_imported_searched_forked_and_imported_again() {
    on_each_store(|world| {
        for (name, format, context, word) in CASES.iter().copied() {
            let path = fixture(name);
            let dry = world.json(&["import", path.to_str().unwrap(), "--dry-run"]);
            let report = import(world, &path);
            assert_eq!(
                (&report["format"], &report["problems"]),
                (&json!(format), &json!([])),
                "{name}: {report}"
            );
            assert_eq!(report["added"], dry["added"], "{name}: the dry run reported a different count");
            let session = report["session"].as_str().unwrap();
            assert_eq!(world.texts(session, None), context, "{name}");
            assert_eq!(import(world, &path)["added"], 0, "{name}");
            let hits = world.lines(&["search", word, "--session", session]);
            assert!(!hits.is_empty(), "{name}: {word} is not found");
            let fork = world.json(&["fork", session])["id"].as_str().unwrap().to_owned();
            world.add_messages(&fork, &["u:what if"]);
            assert_eq!(world.texts(&fork, None).len(), context.len() + 1, "{name}");
            assert_eq!(world.json(&["info", session])["origin"]["format"], format);
        }
        assert_eq!(world.json(&["doctor"])["findings"], json!([]));
    });
}

#[test]
fn import_without_a_path_searches_the_default_locations() {
    let world = World::new("sqlite");
    copy(
        "claude-code.jsonl",
        &world.path(".claude/projects/-home-ada-shop/c0ffee00-0000-4000-8000-000000000007.jsonl"),
    );
    copy("codex.jsonl", &world.path(".codex/sessions/2026/03/04/rollout-2026-03-04T11-00-00-0199cccc-0000-7000-8000-000000000007.jsonl"));
    copy("pi-v3.jsonl", &world.path(".pi/agent/sessions/--home-ada-garden--/2026_x.jsonl"));
    copy("gemini-cli.jsonl", &world.path(".gemini/tmp/9f86d081/chats/session-2026-5b1e0000.jsonl"));
    copy("operator.jsonl", &world.path(".operator/profiles/main/sessions/2026_x.jsonl"));
    copy("role-transcript.json", &world.path(".a-society/state/p/flow-7/roles/curator/transcript.json"));
    std::fs::write(
        world.path(".a-society/state/p/flow-7/roles/curator/feed.json"),
        r#"[{"id":"1","type":"user","label":"User","text":"Enter node n1."}]"#,
    )
    .unwrap();
    let dry = world.lines(&["import", "--dry-run"]);
    assert_eq!(dry.len(), 6, "{dry:?}");
    assert_eq!(world.lines(&["ls"]).len(), 0);
    let taken = world.lines(&["import"]);
    let mut formats: Vec<&str> = taken.iter().map(|report| report["format"].as_str().unwrap()).collect();
    formats.sort_unstable();
    assert_eq!(formats, ["claude-code", "codex", "gemini-cli", "operator", "pi", "role-files"]);
    assert_eq!(world.lines(&["ls"]).len(), 6);
    assert!(world.lines(&["import"]).iter().all(|report| report["added"] == 0));
    let empty = World::new("sqlite");
    assert_eq!(empty.fail(1, &["import"])["code"], "import.nothing");
}

#[test]
fn links_are_followed_and_a_directory_without_sessions_is_reported() {
    let world = World::new("sqlite");
    copy("pi-v3.jsonl", &world.path("elsewhere/one/2026_x.jsonl"));
    copy("codex.jsonl", &world.path("elsewhere/rollout.jsonl"));
    let here = world.path("here");
    std::fs::create_dir_all(&here).unwrap();
    for (to, link) in [
        ("elsewhere/one", "folder"),
        ("elsewhere/rollout.jsonl", "file.jsonl"),
        ("here", "circle"),
        ("gone", "x.jsonl"),
    ] {
        std::os::unix::fs::symlink(world.path(to), here.join(link)).unwrap();
    }
    let reports = world.lines(&["import", here.to_str().unwrap()]);
    let formats: Vec<&Value> = reports.iter().map(|report| &report["format"]).collect();
    assert_eq!(formats, ["codex", "pi"]);
    let bare = world.path("bare");
    std::fs::create_dir_all(&bare).unwrap();
    let ran = world.run(&["import", bare.to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((ran.status, &report["problems"][0]["code"]), (Some(1), &json!("import.empty")));
    std::fs::create_dir_all(world.path(".claude/projects")).unwrap();
    let nothing = world.fail(1, &["import"]);
    assert!(nothing["message"].as_str().unwrap().contains("default locations"), "{nothing}");
}

#[test]
fn an_export_names_the_file_that_it_cannot_write() {
    let world = World::new("sqlite");
    let session = world.session(&["u:one", "a:two"]);
    let folder = world.path("folder");
    std::fs::create_dir_all(&folder).unwrap();
    let message = |exit: i32, args: &[&str]| world.fail(exit, args)["message"].as_str().unwrap().to_owned();
    for force in [&[][..], &["--force"]] {
        let args = [&["export", &session, "-o", folder.to_str().unwrap()][..], force].concat();
        assert!(message(2, &args).ends_with("folder is a directory"));
    }
    let lost = folder.join("missing/out.jsonl");
    let error = message(1, &["export", &session, "-o", lost.to_str().unwrap()]);
    assert!(error.contains("missing/out.jsonl:"), "{error}");
}

#[test]
fn a_compressed_rollout_is_read_and_a_fork_follows_its_base() {
    let world = World::new("sqlite");
    let day = world.path("codex/sessions/2026/03/04");
    std::fs::create_dir_all(&day).unwrap();
    let base = std::fs::read(fixture("codex.jsonl")).unwrap();
    let packed = ruzstd::encoding::compress_to_vec(&base[..], ruzstd::encoding::CompressionLevel::Fastest);
    std::fs::write(
        day.join("rollout-2026-03-04T11-00-00-0199cccc-0000-7000-8000-000000000007.jsonl.zst"),
        packed,
    )
    .unwrap();
    let meta = json!({ "timestamp": "2026-03-05T00:00:00Z", "ordinal": 14, "type": "session_meta", "payload": {
        "id": "0199cccc-0000-7000-8000-000000000008", "cwd": "/home/ada/shop",
        "history_base": { "thread_id": "0199cccc-0000-7000-8000-000000000007", "end_ordinal_exclusive": 14, "end_byte_offset": 1 } } });
    let own = json!({ "timestamp": "2026-03-05T00:00:01Z", "ordinal": 15, "type": "response_item", "payload": { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "On my own." }] } });
    let fork = day.join("rollout-2026-03-05T00-00-00-0199cccc-0000-7000-8000-000000000008.jsonl");
    std::fs::write(&fork, format!("{meta}\n{own}\n")).unwrap();
    let reports = world.lines(&["import", world.path("codex").to_str().unwrap()]);
    assert!(reports.iter().all(|report| report["problems"] == json!([])), "{reports:?}");
    let texts = world.texts("0199cccc-0000-7000-8000-000000000008", None);
    assert_eq!(texts[texts.len() - 2..], ["41 lines.", "On my own."]);
    assert_eq!(
        world.json(&["usage", "0199cccc-0000-7000-8000-000000000008"])["total"]["calls"],
        0,
        "inherited calls are counted in the fork"
    );
    let spent = world.json(&["usage", "0199cccc-0000-7000-8000-000000000007"]);
    assert_eq!((&spent["total"]["calls"], &spent["total"]["input"]), (&json!(3), &json!(3000)));
    assert_eq!(
        world.json(&["ancestry", "0199cccc-0000-7000-8000-000000000008"])["parent"],
        "0199cccc-0000-7000-8000-000000000007"
    );
    let lonely = world.path("lonely.jsonl");
    std::fs::copy(&fork, &lonely).unwrap();
    let report = World::new("sqlite").json(&["import", lonely.to_str().unwrap()]);
    assert_eq!(report["problems"][0]["code"], "import.missing_base", "{report}");
}

/// Runs SQL on a database.
fn sql(db: &Path, text: &str) {
    let script = db.with_extension("sql");
    std::fs::write(&script, text).unwrap();
    let made = Command::new("sqlite3").arg(db).arg(format!(".read {}", script.display())).output();
    let made = made.expect("cargo xtask test installs sqlite3");
    assert!(made.status.success() && made.stderr.is_empty(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn quoted(value: &Value) -> String {
    format!("'{}'", value.to_string().replace('\'', "''"))
}

/// Returns the SQL for an opencode database with these rows of one session.
fn opencode_sql(session: &str, rows: &[Value]) -> String {
    let mut sql = String::from(
        "CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, parent_id TEXT, title TEXT, directory TEXT, revert TEXT, time_created INTEGER);
         CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT);
         CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER, data TEXT);\n",
    );
    let mut message = String::new();
    for row in rows {
        let (id, data) = (row["id"].as_str().unwrap(), quoted(&row["data"]));
        let values = match row["table"].as_str().unwrap() {
            "session" => {
                let revert = row.get("revert").map_or("NULL".to_owned(), quoted);
                format!(
                    "session VALUES ('{id}', NULL, 'Count words', '/home/ada/book', {revert}, {})",
                    row["time_created"]
                )
            }
            "message" => {
                message = id.to_owned();
                format!("message VALUES ('{id}', '{session}', {}, {data})", row["time_created"])
            }
            _ => format!("part VALUES ('{id}', '{message}', '{session}', 0, {data})"),
        };
        sql.push_str(&format!("INSERT INTO {values};\n"));
    }
    sql
}

/// Returns the rows of an opencode session with a question and an answer.
fn opencode_rows(session: &str) -> Vec<Value> {
    let message = |name: &str, at: u64, role: &str| json!({ "table": "message", "id": format!("msg_{session}_{name}"), "time_created": at, "data": { "role": role } });
    let part = |name: &str, text: &str| json!({ "table": "part", "id": format!("prt_{session}_{name}"), "data": { "type": "text", "text": text } });
    vec![
        json!({ "table": "session", "id": session, "time_created": 1_767_355_200_000_u64 }),
        message("1", 1_767_355_201_000, "user"),
        part("1", "question"),
        message("2", 1_767_355_202_000, "assistant"),
        part("2", "answer"),
    ]
}

#[test]
fn the_sessions_of_an_opencode_database_are_imported() {
    let world = World::new("sqlite");
    let db = world.path("opencode.db");
    let rows = parse_lines(&std::fs::read_to_string(fixture("opencode-rows.jsonl")).unwrap());
    sql(&db, &opencode_sql("ses_7", &rows));
    let report = import(&world, &db);
    assert_eq!((&report["session"], &report["problems"]), (&json!("ses_7"), &json!([])));
    assert_eq!(world.texts("ses_7", None), ["How many words?", "", "1200 book.md", "1200 words."]);
    assert_eq!(world.json(&["usage", "ses_7"])["total"]["cost_nano_usd"], 30_000_000);
    assert_eq!(import(&world, &db)["added"], 0);
    sql(&db, "UPDATE session SET title = 'Words, counted', revert = '{\"messageID\":\"msg_3\"}'");
    let report = import(&world, &db);
    assert_eq!(
        (&report["added"], &report["problems"]),
        (&json!(2), &json!([])),
        "expected an entry that renames the session and one that moves the leaf"
    );
    assert_eq!(world.texts("ses_7", None), ["How many words?", "", "1200 book.md"]);
    assert_eq!(world.json(&["info", "ses_7"])["title"], "Words, counted");
}

#[test]
fn an_opencode_message_after_the_first_page_keeps_its_media() {
    on_each_store(|world| {
        let db = world.path("opencode.db");
        let mut rows =
            vec![json!({ "table": "session", "id": "ses_8", "time_created": 1_767_355_200_000_u64 })];
        for number in 0..260_u64 {
            let url = format!("data:image/png;base64,{}", base64(format!("image {number}").as_bytes()));
            rows.push(json!({ "table": "message", "id": format!("msg_{number:03}"), "time_created": 1_767_355_200_001_u64 + number, "data": { "role": "user" } }));
            rows.push(json!({ "table": "part", "id": format!("prt_{number:03}a"), "data": { "type": "text", "text": format!("look {number}") } }));
            rows.push(json!({ "table": "part", "id": format!("prt_{number:03}b"), "data": { "type": "file", "mime": "image/png", "url": url } }));
        }
        sql(&db, &opencode_sql("ses_8", &rows));
        let report = import(world, &db);
        assert_eq!((&report["added"], &report["problems"]), (&json!(261), &json!([])));
        let last = base64(b"image 259");
        assert!(world.run(&["export", "ses_8", "--format", "messages"]).out().contains(&last));
        assert_eq!(world.json(&["doctor"])["findings"], json!([]));
    });
}

#[test]
fn a_damaged_database_is_reported_and_the_rest_is_imported() {
    let world = World::new("sqlite");
    let places = ["a", "b", "c", "d"].map(|name| world.path(&format!("all/{name}/opencode.db")));
    for place in &places {
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    }
    std::fs::write(&places[0], "SQLite format 3\0and nothing that is one").unwrap();
    sql(&places[1], "CREATE TABLE other (id TEXT)");
    sql(&places[2], &opencode_sql("ses_c", &opencode_rows("ses_c")));
    sql(&places[2], &opencode_sql("ses_x", &opencode_rows("ses_x")));
    sql(
        &places[2],
        "UPDATE message SET data = x'fffe7b7d' WHERE id = 'msg_ses_c_2'; UPDATE part SET data = '{\"type\":\"text\",\"tex' WHERE id = 'prt_ses_x_1';",
    );
    sql(&places[3], &opencode_sql("ses_d", &opencode_rows("ses_d")));
    let reports = world.lines(&["import", world.path("all").to_str().unwrap()]);
    let codes = |report: &Value| -> Vec<String> {
        let problems = report["problems"].as_array().unwrap().iter();
        problems.map(|problem| problem["code"].as_str().unwrap().to_owned()).collect()
    };
    let outcomes: Vec<(&Value, Vec<String>)> =
        reports.iter().map(|report| (&report["session"], codes(report))).collect();
    let unreadable = || vec!["import.unreadable".to_owned()];
    let damaged = || vec!["import.bad_line".to_owned()];
    assert_eq!(
        outcomes,
        [
            (&Value::Null, unreadable()),
            (&Value::Null, unreadable()),
            (&json!("ses_c"), damaged()),
            (&json!("ses_x"), damaged()),
            (&json!("ses_d"), vec![]),
        ]
    );
    assert_eq!(world.texts("ses_c", None), ["question"]);
    assert_eq!(world.texts("ses_x", None), ["answer"]);
    assert_eq!(world.texts("ses_d", None), ["question", "answer"]);
}

#[cfg(unix)]
#[test]
fn an_unreadable_directory_is_reported_and_the_rest_is_imported() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new("sqlite");
    copy("messages.jsonl", &world.path("all/b/messages.jsonl"));
    let closed = world.path("all/a");
    std::fs::create_dir_all(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = std::fs::read_dir(&closed).is_ok();
    let reports = world.lines(&["import", world.path("all").to_str().unwrap()]);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(reports.last().unwrap()["added"], 3);
    // Root can read every directory.
    if !is_root {
        assert_eq!(reports[0]["problems"][0]["code"], "file.io", "{reports:?}");
    }
}

fn base64(bytes: &[u8]) -> String {
    sapwood::formats::import::text::encode_base64(bytes)
}

/// Returns pseudorandom bytes that differ for each seed.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn results_carried_over_to_the_next_batch_keep_their_images() {
    const IMAGES: u32 = 5;
    const IMAGE_BYTES: usize = 900_000;
    let image = |number| base64(&noise(number, IMAGE_BYTES));
    on_each_store(|world| {
        let (mut claude, mut codex, mut parent) = (Vec::new(), Vec::new(), Value::Null);
        let at = "2026-03-04T11:00:00.000Z";
        codex.push(json!({ "timestamp": at, "type": "session_meta", "payload": { "id": "0199cccc-0000-7000-8000-0000000000c7" } }));
        for number in 0..IMAGES {
            let (uuid, result) = (format!("a{number}"), format!("r{number}"));
            let call =
                json!([{ "type": "tool_use", "id": format!("t{number}"), "name": "Read", "input": {} }]);
            let source = json!({ "type": "base64", "media_type": "image/png", "data": image(number) });
            let answer = json!([{ "type": "tool_result", "tool_use_id": format!("t{number}"), "content": [{ "type": "image", "source": source }] }]);
            let record = |kind: &str, uuid: &str, parent: &Value, message: Value| json!({ "type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "0b5c1f0e-1111-4a2b-8c3d-0000000000c7", "timestamp": at, "message": message });
            claude.push(record(
                "assistant",
                &uuid,
                &parent,
                json!({ "id": format!("m{number}"), "role": "assistant", "content": call }),
            ));
            claude.push(record("user", &result, &json!(uuid), json!({ "role": "user", "content": answer })));
            parent = json!(result);
            let item =
                |payload: Value| json!({ "timestamp": at, "type": "response_item", "payload": payload });
            codex.push(item(json!({ "type": "function_call", "name": "view_image", "arguments": "{}", "call_id": format!("v{number}") })));
            let url = format!("data:image/png;base64,{}", image(number));
            codex.push(item(json!({ "type": "function_call_output", "call_id": format!("v{number}"), "output": [{ "type": "input_image", "image_url": url }] })));
        }
        for (name, values) in [("claude.jsonl", claude), ("codex.jsonl", codex)] {
            let file = world.path(name);
            std::fs::write(&file, values.iter().map(|value| format!("{value}\n")).collect::<String>())
                .unwrap();
            let report = import(world, &file);
            assert_eq!(report["problems"], json!([]), "{name}");
            let session = report["session"].as_str().unwrap();
            let out = world.run(&["export", session, "--format", "messages-anthropic"]).out();
            for number in 0..IMAGES {
                assert!(out.contains(&image(number)), "{name}: image {number} is missing");
            }
            assert_eq!(import(world, &file)["added"], 0);
        }
        assert_eq!(world.json(&["doctor"])["findings"], json!([]));
    });
}

fn packed(text: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn every_frame_of_a_compressed_rollout_is_read_and_a_torn_file_yields_its_intact_lines() {
    let world = World::new("sqlite");
    let text = std::fs::read(fixture("codex.jsonl")).unwrap();
    let (head, tail) = text.split_at(text.len() / 2);
    let file = world.path("rollout-0199cccc-0000-7000-8000-000000000007.jsonl.zst");
    let skipped = [&0x184d_2a50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let whole = [packed(head), skipped, packed(tail)].concat();
    std::fs::write(&file, &whole).unwrap();
    let report = import(&world, &file);
    assert_eq!(report["problems"], json!([]));
    assert_eq!(world.texts(report["session"].as_str().unwrap(), None), CASES[1].2);
    let torn = World::new("sqlite");
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let ran = torn.lines(&["import", file.to_str().unwrap()]);
    let problems = ran[0]["problems"].as_array().unwrap();
    assert!(problems.iter().any(|problem| problem["code"] == "import.torn"), "{problems:?}");
    assert!(ran[0]["added"].as_u64().unwrap() > 3, "{ran:?}");
}

#[test]
fn the_environment_variable_of_gemini_cli_sets_its_home() {
    let world = World::new("sqlite");
    copy("gemini-cli.jsonl", &world.path("elsewhere/.gemini/tmp/9f86d081/chats/session-2026-5b1e0000.jsonl"));
    let mut command = world.command(&["import", "--json"]);
    let ran = crate::harness::finish({
        command.env("GEMINI_CLI_HOME", world.path("elsewhere"));
        command
    });
    assert_eq!(parse_lines(&ran.out())[0]["format"], "gemini-cli", "{}", ran.stderr);
}

#[test]
fn a_file_without_intact_messages_creates_no_session() {
    let world = World::new("sqlite");
    for (name, text) in [
        ("transcript.json", "{\"logicalSessionId\":\"flow__x\",\"transcriptHistory\":[{\"role\""),
        ("chat.json", "[{\"role\":"),
    ] {
        let file = world.path(name);
        std::fs::write(&file, text).unwrap();
        let ran = world.run(&["import", file.to_str().unwrap(), "--json"]);
        assert_eq!(ran.status, Some(1), "{name}");
        assert_eq!(parse_lines(&ran.out())[0]["problems"][0]["code"], "import.torn", "{name}");
    }
    assert_eq!(world.lines(&["ls"]).len(), 0);
}

#[test]
fn a_list_shows_the_users_first_message_and_the_time_of_the_file() {
    let world = World::new("sqlite");
    let at = "2026-03-04T11:00:00.000Z";
    let user_message = |text: &str| json!({ "timestamp": at, "type": "response_item", "payload": { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] } });
    let codex = [
        json!({ "timestamp": at, "type": "session_meta", "payload": { "id": "0199cccc-0000-7000-8000-0000000000d7" } }),
        user_message("<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"),
        user_message("Count the words."),
    ];
    let file = world.path("codex.jsonl");
    std::fs::write(&file, codex.iter().map(|value| format!("{value}\n")).collect::<String>()).unwrap();
    let session = import(&world, &file)["session"].as_str().unwrap().to_owned();
    assert_eq!(world.json(&["info", &session])["preview"], "Count the words.");
    assert_eq!(world.texts(&session, None).len(), 2, "the context does not contain both messages");
    let file = world.path("chat.jsonl");
    std::fs::copy(fixture("messages.jsonl"), &file).unwrap();
    let written = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    File::options().write(true).open(&file).unwrap().set_modified(written).unwrap();
    let session = import(&world, &file)["session"].as_str().unwrap().to_owned();
    let info = world.json(&["info", &session]);
    assert!(info.to_string().contains("2023-11-14") || info.to_string().contains("1700000000000"), "{info}");
    assert!(!info.to_string().contains("1970"), "{info}");
}

#[test]
fn a_file_that_grew_extends_its_session_and_a_rewound_file_branches_it() {
    on_each_store(|world| {
        let text = std::fs::read_to_string(fixture("claude-code.jsonl")).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let file = world.path("c0ffee00-0000-4000-8000-000000000007.jsonl");
        std::fs::write(&file, lines[..9].concat()).unwrap();
        let session = import(world, &file)["session"].as_str().unwrap().to_owned();
        assert_eq!(
            world.texts(&session, None).last().unwrap(),
            "total() calls tax() twice. One of them has to go."
        );
        std::fs::write(&file, lines[..12].concat()).unwrap();
        import(world, &file);
        assert_eq!(world.texts(&session, None).last().unwrap(), "That is a large step for one bug.");
        std::fs::write(&file, lines[..16].concat()).unwrap();
        let report = import(world, &file);
        assert_eq!(report["problems"], json!([]));
        let texts = world.texts(&session, None);
        assert_eq!(texts.last().unwrap(), "Fixed; the test passes.");
        assert!(!texts.contains(&"Rewrite everything in Rust.".to_owned()));
        let tree = world.json(&["tree", &session]);
        assert!(
            tree["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|node| node["children"].as_array().unwrap().len() > 1)
        );
    });
}

#[test]
fn another_session_with_the_same_id_is_left_unchanged() {
    let world = World::new("sqlite");
    world.ok(&["new", "--id", "op-1"]);
    world.add_messages("op-1", &["u:mine"]);
    let file = world.path("x.jsonl");
    let text = "{\"type\":\"session_header\",\"id\":\"op-1\",\"timestamp\":5.5,\"cwd\":\"/\"}\n{\"type\":\"message\",\"id\":\"a\",\"parent_id\":null,\"message\":{\"role\":\"user\",\"content\":\"theirs\"}}\n";
    std::fs::write(&file, text).unwrap();
    let ran = world.run(&["import", file.to_str().unwrap(), "--json"]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(parse_lines(&ran.out())[0]["problems"][0]["code"], "import.differs");
    assert_eq!(world.texts("op-1", None), ["mine"]);
}

#[test]
fn a_fork_file_of_a_jsonl_store_is_refused_and_not_imported_partially() {
    let world = World::new("jsonl");
    let session = world.session(&["u:one", "a:two"]);
    world.ok(&["fork", &session, "--id", "side"]);
    world.add_messages("side", &["u:own"]);
    let root = world.path("store.jsonl");
    let fork = walk(&root).into_iter().find(|file| {
        std::fs::read_to_string(file).is_ok_and(|text| {
            text.lines()
                .next()
                .is_some_and(|line| line.contains("\"id\":\"side\"") && line.contains("\"base\""))
        })
    });
    let ran = World::new("sqlite").run(&["import", fork.unwrap().to_str().unwrap(), "--json"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert_eq!(parse_lines(&ran.out())[0]["problems"][0]["code"], "import.store_fork");
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

/// A one-pixel image.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[test]
fn media_is_exported_and_imported_with_the_session() {
    for (from, to) in [("sqlite", "jsonl"), ("jsonl", "sqlite")] {
        let (source, target) = (World::new(from), World::new(to));
        let file = source.path("chat.json");
        let messages = json!([{ "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{PIXEL}") } }] }, { "role": "assistant", "content": "a pixel" }]);
        std::fs::write(&file, messages.to_string()).unwrap();
        let session = import(&source, &file)["session"].as_str().unwrap().to_owned();
        let bytes = source.run(&["export", &session]).stdout;
        let ran = target.run_with(&["import", "-", "--json"], &bytes);
        assert_eq!(parse_lines(&ran.out())[0]["problems"], json!([]), "{}", ran.stderr);
        assert_eq!(target.run(&["export", &session]).stdout, bytes, "{from} to {to}");
        let again = target.run_with(&["import", "-", "--json"], &bytes);
        assert_eq!(parse_lines(&again.out())[0]["added"], 0);
        for format in ["messages", "messages-anthropic", "pi", "html"] {
            let out = target.run(&["export", &session, "--format", format]).out();
            assert!(out.contains(PIXEL), "{format} lacks the image");
        }
    }
}

#[test]
fn every_format_is_exported_and_pi_operator_and_role_files_round_trip() {
    let world = World::new("sqlite");
    let session = import(&world, &fixture("pi-v3.jsonl"))["session"].as_str().unwrap().to_owned();
    world.ok(&["branch", &session, "beans"]);
    let texts = world.texts(&session, None);
    for format in ["pi", "operator", "role-files"] {
        let bytes = world.run(&["export", &session, "--format", format]).stdout;
        let other = World::new("sqlite");
        let ran = other.run_with(&["import", "-", "--from", format, "--json"], &bytes);
        let report = &parse_lines(&ran.out())[0];
        assert_eq!(report["problems"], json!([]), "{format}: {report}");
        assert_eq!(other.texts(report["session"].as_str().unwrap(), None), texts, "{format}");
    }
    for format in ["messages", "messages-anthropic", "markdown", "html", "workflow", "jsonl"] {
        let out = world.run(&["export", &session, "--format", format]);
        assert_eq!(out.status, Some(0), "{format}: {}", out.stderr);
        assert!(out.out().contains("When do I sow beans?"), "{format}");
    }
    let exports: Vec<Value> =
        world.lines(&["audit"]).into_iter().filter(|line| line["action"] == "export").collect();
    assert_eq!(exports.len(), 9);
    let events = world.lines(&["events", &session]);
    assert!(
        events.iter().any(|event| event["type"] == "session:exported"),
        "the workflow export added no event"
    );
}

#[test]
fn two_workflow_exports_are_byte_identical() {
    let world = World::new("sqlite");
    let session = world.session(&["u:one {{ x }}", "a:two"]);
    let first = world.run(&["export", &session, "--format", "workflow"]).stdout;
    assert_eq!(world.run(&["export", &session, "--format", "workflow"]).stdout, first);
    assert!(String::from_utf8(first).unwrap().contains("one { { x }}"));
}

#[test]
fn html_contains_no_script_and_no_external_resource() {
    let world = World::new("sqlite");
    let nasty = "<script>alert(1)</script> <img src=x onerror=alert(2)> [link](javascript:alert(3)) ![pic](http://evil.example/p.png)\n\n<iframe src=//evil.example></iframe>\n\n```html\n</pre><script>x</script>\n```";
    let session = world.session(&[]);
    world.ok(&["rename", &session, "</title><script>t</script>"]);
    world.ok(&["inject", &session, "--role", "user", "--text", nasty]);
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_call", "call_id": "c", "name": "<b>", "input": { "x": "</pre><script>" } }] });
    world.ok(&["inject", &session, "--message", &call.to_string()]);
    let page = world.run(&["export", &session, "--format", "html"]).out().to_string();
    let lower = page.to_ascii_lowercase();
    for bad in ["<script", "<iframe", "<img", "href=\"javascript", "src=\"http", "<b>", "<link"] {
        assert!(!lower.contains(bad), "{bad} is in the page");
    }
    assert!(lower.contains("content-security-policy"));
    assert!(page.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn an_imported_session_names_its_provider_and_continues_with_any_model() {
    let world = World::new("sqlite");
    for (file, model) in [
        ("codex-old-compaction.jsonl", "openai/gpt-test-codex"),
        ("pi-v2.jsonl", "anthropic/claude-haiku-test"),
        ("claude-code-helper.jsonl", "anthropic/claude-opus-test"),
        ("gemini-cli.jsonl", "gemini/gemini-test-pro"),
    ] {
        let session = import(&world, &fixture(file))["session"].as_str().unwrap().to_owned();
        let before = world.json(&["context", &session]);
        assert_eq!(before["model"], model, "{file}");
        let sent = world.json(&["send", &session, "Go on.", "--model", "demo"]);
        assert_eq!(sent["outcome"], "completed", "{file}: {sent}");
        assert_eq!(world.json(&["context", &session])["model"], "demo", "{file}");
    }
}

/// Returns a Claude Code transcript of the session `session`, with a question and an answer for each turn.
fn transcript(session: &str, turns: std::ops::RangeInclusive<u32>) -> String {
    let record = |kind: &str, number: u32, parent: Option<u32>, message: Value| {
        let uuid = |number: u32| format!("0b5c1f0e-2222-4a2b-8c3d-{number:012}");
        let at = format!("2026-02-03T04:{:02}:{:02}.000Z", number / 60, number % 60);
        json!({ "type": kind, "uuid": uuid(number), "parentUuid": parent.map(uuid), "sessionId": session, "timestamp": at, "message": message })
    };
    let turn = |turn: u32| {
        let (asked, parent) = (turn * 2, (turn > 1).then(|| turn * 2 - 1));
        let usage = json!({ "input_tokens": 10, "output_tokens": 1 });
        let words = json!([{ "type": "text", "text": format!("answer {turn}") }]);
        let answer = json!({ "id": format!("m{turn}"), "role": "assistant", "model": "claude-x", "content": words, "usage": usage });
        let question = json!({ "role": "user", "content": format!("question {turn}") });
        [record("user", asked, parent, question), record("assistant", asked + 1, Some(asked), answer)]
    };
    turns.flat_map(turn).map(|record| format!("{record}\n")).collect()
}

#[test]
fn a_session_that_was_copied_moved_or_resumed_counts_once_and_loses_nothing() {
    const FIRST: &str = "0b5c1f0e-3333-4a2b-8c3d-000000000001";
    const RESUMED: &str = "0b5c1f0e-3333-4a2b-8c3d-000000000002";
    let calls = |world: &World| -> u64 {
        let of = |session: &str| world.json(&["usage", session])["total"]["calls"].as_u64().unwrap();
        of(FIRST) + of(RESUMED)
    };
    for order in [[0, 1], [1, 0]] {
        let world = World::new("sqlite");
        let (here, there) = (world.path("here"), world.path("there"));
        for folder in [&here, &there] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let files = [here.join(format!("{FIRST}.jsonl")), here.join(format!("{RESUMED}.jsonl"))];
        std::fs::write(&files[0], transcript(FIRST, 1..=3)).unwrap();
        // A session resumed by an older Claude Code: its file repeats the earlier messages with the new session id.
        std::fs::write(&files[1], transcript(RESUMED, 1..=5)).unwrap();
        for number in order {
            import(&world, &files[number]);
        }
        assert_eq!(calls(&world), 5, "{order:?}");
        assert_eq!(world.json(&["context", FIRST])["messages"].as_array().unwrap().len(), 6);
        assert_eq!(world.json(&["context", RESUMED])["messages"].as_array().unwrap().len(), 10);
        let many = World::new("sqlite");
        for number in 10..60 {
            let name = format!("0b5c1f0e-3333-4a2b-8c3d-{number:012}");
            let text = transcript(&name, 1..=1).replace("2222-4a2b", &format!("{number}{number}-4a2b"));
            std::fs::write(here.join(format!("{name}.jsonl")), text).unwrap();
        }
        assert_eq!(many.lines(&["import", here.to_str().unwrap()]).len(), 52);
        assert_eq!(calls(&many), 5, "messages shared by several files are counted several times");
        // The same session continued in another folder, then an older copy of it under another name.
        let moved = there.join(format!("{FIRST}.jsonl"));
        std::fs::write(&moved, transcript(FIRST, 1..=4)).unwrap();
        assert_eq!(import(&world, &moved)["added"], 2);
        let copy = there.join("copy.jsonl");
        std::fs::write(&copy, transcript(FIRST, 1..=2)).unwrap();
        let report = import(&world, &copy);
        assert_eq!((&report["session"], &report["added"]), (&json!(FIRST), &json!(0)));
        assert_eq!(world.json(&["context", FIRST])["messages"].as_array().unwrap().len(), 8);
    }
}

#[test]
fn an_empty_session_does_not_affect_others_that_begin_at_the_same_time() {
    let world = World::new("sqlite");
    let folder = world.path("many");
    std::fs::create_dir_all(&folder).unwrap();
    for number in 10..60 {
        let name = format!("0b5c1f0e-3333-4a2b-8c3d-{number:012}");
        // All sessions begin at the same time. The first session has an empty message.
        let whole = transcript(&name, 1..=1);
        let text = if number == 10 { whole.lines().next().unwrap().replace("question 1", "") } else { whole };
        std::fs::write(folder.join(format!("{name}.jsonl")), text).unwrap();
    }
    for (dry_run, added) in [(true, 98), (false, 98), (true, 0)] {
        let args = ["import", folder.to_str().unwrap(), "--dry-run"];
        let reports = world.lines(&args[..2 + usize::from(dry_run)]);
        let problems = |report: &&Value| !report["problems"].as_array().unwrap().is_empty();
        let with_problems: Vec<&Value> = reports.iter().filter(problems).collect();
        assert!(
            with_problems.iter().all(|report| report["problems"][0]["code"] == "import.empty"),
            "{with_problems:?}"
        );
        let total: u64 = reports.iter().map(|report| report["added"].as_u64().unwrap()).sum();
        assert_eq!((reports.len(), total), (50, added), "dry run: {dry_run}");
    }
}
