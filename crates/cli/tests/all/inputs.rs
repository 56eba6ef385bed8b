//! Inputs and artifacts on the command line, and the scripted model that reads them.

use serde_json::json;

use crate::harness::{World, on_each_store};
use crate::terminal::Terminal;

fn script(world: &World, text: &str) -> String {
    let path = world.path("script.toml");
    std::fs::write(&path, text).unwrap();
    format!("scripted:{}", path.display())
}

/// A model that reads an input, then answers with a quotation.
fn reading(world: &World, name: &str, quotation: &str) -> String {
    let text = format!(
        r#"
        [[calls]]
        pieces = [{{ call = {{ id = "c1", name = "read_input", input = {{ name = "{name}" }} }} }}]
        [[calls]]
        expect = "{quotation}"
        pieces = [{{ text = "It says: {quotation}" }}]
        "#
    );
    script(world, &text)
}

/// A PDF file with one page and a line of text.
fn pdf(text: &str) -> Vec<u8> {
    let content = format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Count 1 /Kids [4 0 R] >>".to_owned(),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
    ];
    let (mut file, mut table) = (b"%PDF-1.4\n".to_vec(), "xref\n0 6\n0000000000 65535 f \n".to_owned());
    for (number, object) in objects.iter().enumerate() {
        table += &format!("{:010} 00000 n \n", file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", number + 1).bytes());
    }
    let start = file.len();
    file.extend(format!("{table}trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n").bytes());
    file
}

#[test]
fn a_file_is_added_listed_read_by_the_model_and_returned() {
    on_each_store(|world| {
        let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
        std::fs::write(world.path("report.pdf"), pdf("Oaks live long.")).unwrap();
        let added = world.json(&["input", "add", &session, "report.pdf"]);
        assert_eq!((&added["name"], &added["version"]), (&json!("report.pdf"), &json!(1)));
        assert_eq!(added["content"]["mime"], "application/pdf");
        let listed = world.lines(&["input", "ls", &session]);
        assert_eq!(listed, [added]);
        let model = reading(world, "report.pdf", "Oaks live long.");
        let answer = world.ok(&["send", &session, "what does it say?", "--model", &model]);
        assert_eq!(answer, "It says: Oaks live long.");
        world.ok(&["input", "get", &session, "report.pdf", "-o", "copy.pdf"]);
        assert_eq!(std::fs::read(world.path("copy.pdf")).unwrap(), pdf("Oaks live long."));
        assert_eq!(world.run(&["input", "get", &session, "report.pdf"]).stdout, pdf("Oaks live long."));
        let exists = world.run(&["--json", "input", "get", &session, "report.pdf", "-o", "copy.pdf"]);
        assert_eq!(exists.error()["code"], "file.exists");
        let missing = world.run(&["--json", "input", "get", &session, "other.pdf"]);
        assert_eq!((missing.status, missing.error()["code"].clone()), (Some(3), json!("artifact.not_found")));
    });
}

#[test]
fn a_snippet_needs_a_source_and_text_and_is_shown_with_its_source() {
    let world = World::new("sqlite");
    let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    let source = "https://example.org/oaks";
    let add = ["input", "add", session.as_str(), "-", "--name", "oaks"];
    let ran =
        world.run_with(&[&add[..], &["--snippet", "--source", source]].concat(), b"Oaks live for 500 years.");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let context = world.ok(&["context", &session]);
    assert!(context.contains(source) && context.contains("Oaks live for 500 years."), "{context}");
    assert_eq!(world.lines(&["input", "ls", &session])[0]["source"], source);
    for (args, stdin) in [
        (vec!["--snippet"], &b"x"[..]),
        (vec!["--source", source], b"x"),
        (vec!["--snippet", "--source", source], b"\xff\0"),
        (vec!["--snippet", "--source", ""], b"x"),
    ] {
        assert_eq!(world.run_with(&[&add[..], &args].concat(), stdin).status, Some(2), "{args:?}");
    }
    assert_eq!(world.lines(&["input", "ls", &session]).len(), 1, "nothing else was added");
}

#[test]
fn wrong_files_are_refused_before_anything_is_written() {
    let world = World::new("sqlite");
    let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    std::fs::create_dir_all(world.path("dir")).unwrap();
    std::fs::write(world.path("dir/a.txt"), "a").unwrap();
    std::fs::write(world.path("a.txt"), "a").unwrap();
    for (files, code) in [
        (&["missing.txt"][..], "file.not_found"),
        (&["dir"], "file.io"),
        (&["a.txt", "dir/a.txt"], "input.usage"),
        (&["-"], "input.usage"),
    ] {
        let ran = world.run(&[&["--json", "input", "add", session.as_str()], files].concat());
        assert_eq!(ran.error()["code"], code, "{files:?}");
    }
    assert!(world.lines(&["input", "ls", &session]).is_empty());
    let unknown = world.run(&["--json", "input", "add", "no-such-session", "a.txt"]);
    assert_eq!(unknown.error()["code"], "session.not_found");
}

#[test]
fn artifacts_have_versions_and_are_separate_from_inputs() {
    let world = World::new("sqlite");
    let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    for text in ["one", "two"] {
        std::fs::write(world.path("report.md"), text).unwrap();
        world.ok(&["artifact", "add", &session, "report.md"]);
    }
    assert_eq!(world.lines(&["artifact", "ls", &session])[0]["version"], 2);
    assert_eq!(world.ok(&["artifact", "get", &session, "report.md"]), "two");
    assert!(world.lines(&["input", "ls", &session]).is_empty());
    assert!(!world.ok(&["context", &session]).contains("report.md"), "only inputs are announced");
}

#[test]
fn a_chat_takes_files_and_a_damaged_document_is_a_tool_error() {
    let world = World::new("sqlite");
    std::fs::write(world.path("broken.pdf"), b"%PDF-1.7 nonsense").unwrap();
    let model = script(
        &world,
        r#"
        [[calls]]
        pieces = [{ call = { id = "c1", name = "read_input", input = { name = "broken.pdf" } } }]
        [[calls]]
        expect = "cannot be read"
        pieces = [{ text = "It is damaged." }]
        "#,
    );
    let ran = world.run(&["chat", "--model", &model, "--file", "broken.pdf", "-p", "what is this?"]);
    assert_eq!((ran.status, ran.out().trim_end()), (Some(0), "It is damaged."), "{}", ran.stderr);
    let missing = world.run(&["--json", "chat", "--file", "nowhere.pdf", "-p", "hi"]);
    assert_eq!(missing.error()["code"], "file.not_found");
    assert_eq!(world.lines(&["ls"]).len(), 1, "no session is created for a file that does not exist");
}

#[test]
fn inline_images_become_blobs() {
    on_each_store(|world| {
        let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
        let png = "iVBORw0KGgo=";
        let openai = json!({"role": "user", "content": [{"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{png}")}}]});
        let anthropic = json!({"role": "user", "content": [{"type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": png}}]});
        world.ok(&["inject", &session, "--message", &openai.to_string()]);
        let ran =
            world.run_with(&["inject", &session, "--message", "-"], format!("{anthropic}\n").as_bytes());
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let context = world.json(&["context", &session]);
        for message in context["messages"].as_array().unwrap() {
            let media = message["parts"].as_array().unwrap().last().unwrap();
            assert_eq!(
                (&media["type"], &media["mime"], &media["bytes"]),
                (&json!("media"), &json!("image/png"), &json!(8))
            );
        }
        assert!(!world.ok(&["events", &session]).contains(png), "the log has no media bytes");
        let by_url = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]});
        let refused = world.run(&["--json", "inject", &session, "--message", &by_url.to_string()]);
        assert_eq!(refused.error()["code"], "input.inline_media");
    });
}

#[test]
fn extensions_write_custom_entries_but_not_the_engines() {
    let world = World::new("sqlite");
    let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    world.ok(&["inject", &session, "--custom", "review", "--text", "The reviewer agreed."]);
    world.ok(&["inject", &session, "--info", "review", "--data", r#"{"score": 3}"#]);
    let events = world.lines(&["events", &session]);
    assert_eq!(events[0]["entry"]["type"], "custom_message");
    assert_eq!(
        (&events[1]["entry"]["type"], &events[1]["entry"]["data"]["score"]),
        (&json!("custom_info"), &json!(3))
    );
    assert_eq!(world.texts(&session, None), ["The reviewer agreed."]);
    for name in ["sapwood.flow", "turn_terms", "openai_response"] {
        let ran = world.run(&["--json", "inject", &session, "--info", name, "--data", "{}"]);
        assert_eq!((ran.status, ran.error()["code"].clone()), (Some(2), json!("input.invalid")), "{name}");
    }
    assert_eq!(world.run(&["inject", &session, "--info", "x", "--data", "{"]).status, Some(2));
    assert_eq!(world.run(&["inject", &session, "--info", "x"]).status, Some(2));
}

#[test]
fn length_exists_thinking_and_show_of_a_file() {
    let world = World::new("sqlite");
    assert_eq!(world.ok(&["exists", "talk"]), "false");
    assert_eq!(world.json(&["exists", "@last"])["exists"], false);
    world.ok(&["new", "--id", "talk"]);
    assert_eq!(world.ok(&["exists", "talk"]), "true");
    assert_eq!(world.json(&["length", "talk"])["length"], 0);
    world.ok(&["inject", "talk", "--role", "user", "--text", "hello there"]);
    assert_eq!(world.ok(&["length", "talk"]), "1");
    assert_eq!(world.run(&["length", "unknown-id"]).status, Some(3));
    world.ok(&["thinking", "talk", "high"]);
    assert_eq!(world.json(&["context", "talk"])["thinking"], "high");
    assert_eq!(world.run(&["thinking", "talk", "extreme"]).status, Some(2));

    let file = world.path("talk.jsonl");
    world.ok(&["export", "talk", "--format", "jsonl", "-o", file.to_str().unwrap()]);
    world.ok(&["erase", "talk", "--yes"]);
    let shown = world.ok(&["show", file.to_str().unwrap()]);
    assert!(shown.contains("hello there"), "{shown}");
    assert_eq!(world.lines(&["show", file.to_str().unwrap()])[0]["text"], "hello there");
    assert_eq!(world.ok(&["exists", "talk"]), "false", "the file was not imported");
    assert_eq!(world.run(&["show", "missing.jsonl"]).status, Some(1));
    std::fs::write(world.path("noise.jsonl"), "not a session\n").unwrap();
    assert_eq!(world.run(&["--json", "show", "noise.jsonl"]).status, Some(1));
}

#[test]
fn a_file_that_a_chat_message_mentions_becomes_an_input() {
    let world = World::new("sqlite");
    std::fs::create_dir_all(world.path("notes")).unwrap();
    std::fs::write(world.path("notes/trees.txt"), "The oak is old.\n").unwrap();
    let model = reading(&world, "trees.txt", "The oak is old.");
    let terminal = Terminal::open(&world, &["chat", "--model", &model]);
    terminal.send_line("how old is it, @ana? see @notes/trees.txt, not @missing.txt");
    terminal.wait_for("no file missing.txt");
    terminal.wait_for("added trees.txt");
    terminal.wait_for("It says: The oak is old.");
    terminal.wait_for_prompt();
    terminal.press("C-d");
    terminal.wait_for_end();
    assert_eq!(world.lines(&["input", "ls", "@last"])[0]["name"], "trees.txt");
    assert!(world.texts("@last", None)[1].contains("see @notes/trees.txt"), "the message is unchanged");
}
