//! Exports, and round trips through an import.

use sapwood_core::entry::{
    AssistantMessage, Body, Compaction, Details, ModelChanged, Stop, Strategy, ToolResult, Trigger,
    UserMessage,
};
use sapwood_core::fixture::MemLog;
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Part, Principal, TimestampMs};
use sapwood_formats::export::{html, markdown, role_files, tree};
use sapwood_formats::import::Format;
use sapwood_formats::import::pi::Dialect;

use crate::taking::{ImportResult, import};

fn user(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

fn summary() -> Summary {
    let new = NewSession::new("s-1".parse().unwrap(), TimestampMs(1_767_323_045_678));
    Summary::new(&new, Principal::System)
}

fn log_of(bodies: Vec<Body>) -> MemLog {
    let mut log = MemLog::default();
    for body in bodies {
        log.push(body).unwrap();
    }
    log
}

fn facts() -> role_files::RoleFacts {
    role_files::RoleFacts { role: "agent".into(), logical_id: summary().id.to_string(), ..Default::default() }
}

/// Export to a format and import again.
fn round_trip(format: Format, log: &MemLog) -> ImportResult {
    import(format, export(format, log))
}

fn export(format: Format, log: &MemLog) -> Vec<u8> {
    let blobs = Default::default();
    match format {
        Format::RoleFiles => {
            role_files::transcript(&log.path(None).entries, &facts()).to_string().into_bytes()
        }
        _ => {
            let dialect = if format == Format::Pi { Dialect::Pi } else { Dialect::Operator };
            let mut exporter = tree::Exporter::new(Vec::new(), dialect);
            exporter.header(&summary()).unwrap();
            log.entries().for_each(|entry| exporter.line(&entry.to_record(), &blobs).unwrap());
            exporter.finish().unwrap()
        }
    }
}

#[test]
fn a_missing_compaction_summary_round_trips() {
    let cut = Compaction::new(Strategy::Imported, Trigger::Imported);
    let log = log_of(vec![user("old"), cut.into(), user("kept"), user("new")]);
    for format in [Format::Pi, Format::Operator, Format::RoleFiles] {
        let once = round_trip(format, &log);
        assert_eq!(once.context(), ["u:kept", "u:new"], "{}", format.as_str());
        let twice = round_trip(format, &once.log);
        assert_eq!(twice.context(), ["u:kept", "u:new"], "{}", format.as_str());
        assert_eq!(twice.log.entries().filter(|entry| entry.body.text() == "old").count(), 1);
    }
}

#[test]
fn models_and_the_files_of_a_summary_round_trip() {
    let details = Details { files_read: vec!["a.rs".to_owned()], ..Details::default() };
    let summary = Some("so far".to_owned());
    let cut = Compaction { summary, details, ..Compaction::new(Strategy::Llm, Trigger::Manual) };
    let model = ModelChanged { model: "openrouter/lab/small".to_owned() };
    let log = log_of(vec![model.into(), user("old"), cut.into()]);
    for format in [Format::Pi, Format::Operator] {
        let back = round_trip(format, &log);
        assert_eq!(back.log.context().model.as_deref(), Some("openrouter/lab/small"));
        let files = back.log.entries().find_map(|entry| match &entry.body {
            Body::Compaction(compaction) => Some(compaction.details.files_read.clone()),
            _ => None,
        });
        assert_eq!(files.unwrap(), ["a.rs"]);
    }
}

#[test]
fn only_an_address_in_angle_brackets_becomes_a_mail_link() {
    let text =
        "<me@x.org> [a](mailto:you@x.org) [b](javascript:alert(1)) <javascript:alert(2)> [c](me@x.org)";
    let log = log_of(vec![user(text)]);
    let page = html::page(&summary(), &log.path(None).entries, &Default::default());
    assert!(page.contains("href=\"mailto:me@x.org\">me@x.org</a>"), "{page}");
    assert!(page.contains("href=\"mailto:you@x.org\""), "{page}");
    assert!(!page.contains("mailto:#") && !page.contains("href=\"javascript"), "{page}");
}

#[test]
fn pages_contain_no_terminal_control_characters() {
    let log = log_of(vec![user("a\u{1b}]0;title\u{7}b\r\n```\n\u{9b}2J\u{0}\n\tend\n```")]);
    let path = log.path(None).entries;
    for page in [html::page(&summary(), &path, &Default::default()), markdown::page(&summary(), &path)] {
        let found = page.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
        assert_eq!(found, None, "{page:?}");
        assert!(page.contains("a\u{fffd}]0;title\u{fffd}b") && page.contains("\tend"), "{page:?}");
    }
}

#[test]
fn role_files_include_messages_kept_from_a_non_message_entry() {
    let mut log = log_of(vec![user("old")]);
    log.push(Body::from(ModelChanged { model: "m".to_owned() })).unwrap();
    let kept = log.entries().last().unwrap().meta.id;
    log.push(user("kept")).unwrap();
    let cut = |text: &str| Compaction {
        summary: Some(text.to_owned()),
        first_kept: Some(kept),
        ..Compaction::new(Strategy::Llm, Trigger::Manual)
    };
    for text in ["so far", "so far again"] {
        log.push(Body::from(cut(text))).unwrap();
        log.push(user("new")).unwrap();
    }
    let back = round_trip(Format::RoleFiles, &log).context();
    assert_eq!(back, ["u:so far again", "u:kept", "u:new", "u:new"], "the same messages as in the context");
}

/// Build an answer with a tool call, and a result without a tool name, as Claude Code and Codex write them.
fn log_with_unnamed_result() -> MemLog {
    let call = Part::tool_call("c1", "Read", sapwood_core::Json::from_value(&serde_json::json!({})));
    let answer = AssistantMessage {
        parts: vec![call],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::ToolUse,
    };
    let result = ToolResult {
        call_id: "c1".to_owned(),
        tool: None,
        parts: vec![Part::text("words")],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    };
    log_of(vec![user("read"), answer.into(), result.into()])
}

#[test]
fn every_export_names_a_result_after_its_call() {
    let log = log_with_unnamed_result();
    for format in [Format::Pi, Format::Operator, Format::RoleFiles] {
        let tools = |imported: &ImportResult| {
            imported.log.entries().find_map(|entry| match &entry.body {
                Body::ToolResult(result) => Some(result.tool.clone()),
                _ => None,
            })
        };
        assert_eq!(tools(&round_trip(format, &log)), Some(Some("Read".to_owned())), "{}", format.as_str());
    }
    let path = log.path(None).entries;
    assert!(markdown::page(&summary(), &path).contains("Result of `Read`"));
    assert!(html::page(&summary(), &path, &Default::default()).contains("Result <code>Read</code>"));
    let transcript = role_files::transcript(&path[2..], &facts()).to_string();
    assert!(transcript.contains(r#""toolName":"""#), "the tool is unknown: {transcript}");
    let back = import(Format::RoleFiles, transcript);
    assert!(
        back.log
            .entries()
            .any(|entry| matches!(&entry.body, Body::ToolResult(result) if result.tool.is_none()))
    );
}

#[test]
fn arguments_are_exported_as_an_object_and_round_trip() {
    use sapwood_core::Json;
    use serde_json::{Value, json};
    let inputs =
        [json!("*** Begin Patch"), json!([1, 2]), json!(7), json!({ "input": "its own" }), json!({})];
    let call = |input: &Value| Part::tool_call("c1", "apply_patch", Json::from_value(input));
    let answer = |input: &Value| AssistantMessage {
        parts: vec![call(input)],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::ToolUse,
    };
    for format in [Format::Pi, Format::Operator] {
        for input in &inputs {
            let log = log_of(vec![user("mend it"), answer(input).into()]);
            let text = String::from_utf8(export(format, &log)).unwrap();
            let record: Value = serde_json::from_str(text.lines().nth(2).unwrap()).unwrap();
            assert!(record["message"]["content"][0]["arguments"].is_object(), "{record}");
            let back = import(format, &text);
            let restored = back.log.entries().find_map(|entry| {
                entry.body.parts().iter().find_map(Part::as_tool_call).map(|call| call.input.to_value())
            });
            assert_eq!(restored.as_ref(), Some(input), "{}", format.as_str());
            let again = String::from_utf8(export(format, &back.log)).unwrap();
            let lines = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&again), lines(&text), "{}", format.as_str());
        }
    }
}

#[test]
fn the_instructions_in_operators_header_round_trip() {
    use sapwood_core::entry::ContextChanged;
    let system = ContextChanged { system: Some("Be brief.".to_owned()), ..ContextChanged::default() };
    let log = log_of(vec![system.into(), user("one"), user("two")]);
    let text = String::from_utf8(export(Format::Operator, &log)).unwrap();
    assert!(text.lines().next().unwrap().contains(r#""system_prompt":"Be brief.""#), "{text}");
    let back = import(Format::Operator, &text);
    assert_eq!((back.context(), back.codes()), (vec!["u:one".to_owned(), "u:two".to_owned()], vec![]));
    assert_eq!(back.log.context().system.as_deref(), Some("Be brief."));
    let again = export(Format::Operator, &back.log);
    let twice = import(Format::Operator, &again);
    assert_eq!(twice.log.entries().count(), back.log.entries().count(), "a second round trip adds no lines");
    let pi = String::from_utf8(export(Format::Pi, &log)).unwrap();
    assert!(!pi.contains("system_prompt"), "{pi}");
}
