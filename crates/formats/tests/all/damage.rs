//! Damage is reported by line and does not stop the import. For any bytes, an importer terminates and its
//! drafts are valid.

use proptest::prelude::*;
use sapwood_core::fixture::{MemLog, corrupt};
use sapwood_formats::import::steps::StepBatch;
use sapwood_formats::import::{Format, LINE_BYTES_MAX, reader};
use serde_json::json;

use crate::taking::{import, import_with, lines};

const FIXTURES: &[(Format, &str)] = &[
    (Format::ClaudeCode, include_str!("../fixtures/claude-code.jsonl")),
    (Format::Codex, include_str!("../fixtures/codex.jsonl")),
    (Format::Pi, include_str!("../fixtures/pi-v3.jsonl")),
    (Format::Pi, include_str!("../fixtures/pi-v1.jsonl")),
    (Format::Operator, include_str!("../fixtures/operator.jsonl")),
    (Format::GeminiCli, include_str!("../fixtures/gemini-cli.jsonl")),
    (Format::OpenCode, include_str!("../fixtures/opencode-rows.jsonl")),
    (Format::RoleFiles, include_str!("../fixtures/role-transcript.json")),
    (Format::Messages, include_str!("../fixtures/messages-openai.json")),
    (Format::Messages, include_str!("../fixtures/messages-anthropic.json")),
    (Format::Messages, include_str!("../fixtures/messages.jsonl")),
];

#[test]
fn every_fixture_is_valid_and_a_second_import_adds_nothing() {
    for (format, text) in FIXTURES {
        let imported = import(*format, text);
        assert_eq!(imported.codes(), [], "{format:?}");
        assert!(imported.context().len() > 2, "{format:?}: {:?}", imported.context());
        let again = crate::taking::import_again(*format, imported.log, text);
        assert_eq!((again.added, again.codes()), (0, Vec::new()), "{format:?}");
    }
}

#[test]
fn every_fixture_is_detected() {
    for (format, text) in FIXTURES.iter().filter(|(format, _)| *format != Format::OpenCode) {
        assert_eq!(sapwood_formats::import::detect::detect(text.as_bytes()), Some(*format));
    }
}

#[test]
fn a_file_without_its_header_is_named_after_the_file() {
    let lost = [
        (Format::Codex, FIXTURES[1].1, "rollout-2026-03-04T05-06-07-x", "rollout-2026-03-04T05-06-07-x"),
        (
            Format::Pi,
            FIXTURES[2].1,
            "2026-01-02T03-04-05-000Z_0199dddd-0000-7000-8000-000000000007",
            "0199dddd-0000-7000-8000-000000000007",
        ),
        (Format::Operator, FIXTURES[4].1, "s-1", "s-1"),
    ];
    for (format, text, file, session) in lost {
        let (_, rest) = text.split_once('\n').unwrap();
        for beginning in ["", "{\"type\":\"session\",\"vers\n"] {
            let text = format!("{beginning}{rest}");
            assert_eq!(sapwood_formats::import::detect::detect(text.as_bytes()), Some(format));
            let read = |file: &str| {
                import_with(format, MemLog::default(), |batch| {
                    let mut reader = reader(format, file).unwrap();
                    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
                        reader.push_line(line.as_bytes(), number, batch);
                    }
                    reader.finish(batch);
                })
            };
            let imported = read(file);
            assert_eq!(imported.session.as_ref().map(|session| session.id.as_str()), Some(session));
            assert!(imported.codes().contains(&(1, "import.no_header")), "{:?}", imported.codes());
            assert_eq!(
                imported.context(),
                import(format, FIXTURES.iter().find(|(own, _)| *own == format).unwrap().1).context()
            );
            let began = imported.session.unwrap().at;
            assert_eq!(Some(began), imported.log.entries().next().map(|entry| entry.meta.at));
            assert_eq!(read("-").session, None, "without a name there is no session");
        }
    }
}

fn user(uuid: &str, parent: Option<&str>, text: &str) -> serde_json::Value {
    json!({ "type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s-1", "message": { "role": "user", "content": text } })
}

#[test]
fn torn_spliced_and_duplicate_lines_are_reported_and_the_rest_is_imported() {
    let good = [user("u1", None, "one"), user("u2", Some("u1"), "two"), user("u3", Some("u2"), "three")];
    let mut text = lines(&good);
    text.push_str("{\"type\":\"user\",\"uuid\":\"u4\",\"par{\"type\":\"user\"}\n");
    text.push_str(&format!("{}\n", user("u2", Some("u1"), "two again")));
    text.push_str(&format!("{}\n", user("u5", Some("missing"), "orphan")));
    text.push_str(&format!("{}\n", user("u6", Some("u6"), "its own parent")));
    text.push_str("{\"type\":\"user\",\"uuid\":\"u7\",\"message\":{\"con");
    let imported = import(Format::ClaudeCode, &text);
    assert_eq!(
        imported.codes(),
        [
            (4, "import.bad_line"),
            (5, "import.duplicate"),
            (8, "import.torn"),
            (6, "import.missing_parent"),
            (7, "import.missing_parent"),
        ]
    );
    assert_eq!(imported.context(), ["u:one", "u:two", "u:three", "u:orphan", "u:its own parent"]);
}

#[test]
fn a_record_after_its_child_is_imported() {
    let values = [
        user("u1", None, "one"),
        user("u3", Some("u2"), "three"),
        user("u2", Some("u1"), "two"),
        user("u4", Some("u2"), "four"),
    ];
    let imported = import(Format::ClaudeCode, lines(&values));
    assert_eq!(imported.codes(), [(2, "import.missing_parent")]);
    assert_eq!(imported.context(), ["u:one", "u:two", "u:four"]);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "three").count(), 1);
}

#[test]
fn a_file_without_a_conversation_is_not_a_session() {
    let imported =
        import(Format::ClaudeCode, lines(&[json!({ "type": "summary", "summary": "x", "leafUuid": "y" })]));
    assert!(imported.session.is_none());
    assert_eq!(imported.added, 0);
}

#[test]
fn a_line_of_a_hundred_megabytes_is_reported_and_not_loaded() {
    let mut text = lines(&[user("u1", None, "one")]).into_bytes();
    text.extend(std::iter::repeat_n(b'x', 100 << 20));
    text.push(b'\n');
    text.extend_from_slice(lines(&[user("u2", Some("u1"), "two")]).as_bytes());
    assert!(text.len() > LINE_BYTES_MAX);
    let imported = import(Format::ClaudeCode, &text);
    assert_eq!(imported.codes(), [(2, "import.too_long")]);
    assert_eq!(imported.context(), ["u:one", "u:two"]);
}

#[test]
fn invalid_utf8_and_unpaired_surrogates_are_replaced_and_reported() {
    let mut text = lines(&[user("u1", None, "PLACE"), user("u2", Some("u1"), "HALF")]).into_bytes();
    let at = text.windows(5).position(|window| window == b"PLACE").unwrap();
    text[at] = 0xff;
    let text = text.windows(4).position(|window| window == b"HALF").map(|at| {
        let mut mended = text[..at].to_vec();
        mended.extend_from_slice(b"\\ud83d");
        mended.extend_from_slice(&text[at + 4..]);
        mended
    });
    let imported = import(Format::ClaudeCode, text.unwrap());
    assert_eq!(imported.codes(), [(1, "import.mended"), (2, "import.mended")]);
    assert_eq!(imported.context(), ["u:\u{fffd}LACE", "u:\u{fffd}"]);
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!(
        "{}{{\"type\":\"user\",\"uuid\":\"u2\",\"parentUuid\":\"u1\",\"toolUseResult\":{deep}}}\n{{\"x\":{deep}}}\n",
        lines(&[user("u1", None, "one")])
    );
    let imported = import(Format::ClaudeCode, &text);
    assert_eq!(imported.context(), ["u:one"]);
    assert_eq!(imported.codes().len(), 2, "{:?}", imported.codes());
}

#[test]
fn the_import_of_a_file_with_only_problems_stops() {
    let text = "{\"oops\n".repeat(5_000);
    for format in [Format::ClaudeCode, Format::Codex, Format::Pi] {
        let imported = import(format, lines(&[user("u1", None, "one")]) + &text);
        assert!(!imported.problems.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_bytes_never_break_an_importer(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for (format, _) in FIXTURES {
            import(*format, &bytes);
        }
    }

    #[test]
    fn damaged_files_never_break_an_importer(seed in any::<u64>()) {
        for (format, text) in FIXTURES {
            import(*format, corrupt(text, seed));
        }
    }

    #[test]
    fn a_file_imported_in_two_passes_gives_the_same_context(seed in any::<u64>()) {
        for (format, text) in FIXTURES.iter().filter(|(_, text)| !text.starts_with(['[', '{']) || text.lines().count() > 4) {
            if matches!(format, Format::RoleFiles) || text.starts_with("[") || text.starts_with("{\n") {
                continue;
            }
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let cut = 1 + (seed as usize) % all.len();
            let first = import(*format, all[..cut].concat());
            let whole = import(*format, text);
            let extended = crate::taking::import_again(*format, first.log, text);
            prop_assert_eq!(extended.context(), whole.context(), "{:?} cut at {}", format, cut);
        }
    }
}

#[test]
fn problems_after_valid_records_do_not_drop_them() {
    let good = "{\"role\":\"user\",\"content\":\"good\"}\n".repeat(100);
    for bad in ["{\n".repeat(2_000), "1\n".repeat(2_000)] {
        let lines = import(Format::Messages, format!("{good}{bad}"));
        assert_eq!(lines.context().len(), 100);
    }
    let document = format!("[{}{}1]", good.replace('\n', ","), "1,".repeat(2_000));
    let imported = import(Format::Messages, document);
    assert_eq!(imported.context().len(), 100);
    assert!(imported.codes().len() <= sapwood_formats::import::PROBLEMS_MAX, "{}", imported.codes().len());
}

#[test]
fn the_import_of_a_file_without_a_session_stops() {
    let feed = format!("[{}1]", "1,".repeat(300_000));
    let mut batch = StepBatch::default();
    reader(Format::RoleFiles, "feed").unwrap().push_document(feed.as_bytes(), &mut batch);
    assert!(batch.is_given_up() && batch.is_nameless());
    assert!(batch.steps.len() < 110_000, "{}", batch.steps.len());
}
