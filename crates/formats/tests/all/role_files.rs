//! Role sessions: the import of each transcript key, and damaged transcripts.

use sapwood_core::entry::Body;
use sapwood_core::fixture::MemLog;
use sapwood_formats::import::{Format, reader};
use serde_json::{Value, json};

use crate::taking::{ImportResult, import, import_again, import_with};

fn transcript(more: Value) -> Value {
    let mut document = json!({ "roleName": "owner", "logicalSessionId": "flow-1__owner", "transcriptHistory": [
        { "role": "user", "content": "one" }, { "role": "assistant", "content": "two" },
    ] });
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    document
}

/// Return the data kept outside the tree under a custom type.
fn kept(imported: &ImportResult, custom_type: &str) -> Vec<Value> {
    let infos = imported.log.entries().filter_map(|entry| match &entry.body {
        Body::CustomInfo(info) if info.custom_type == custom_type => Some(info.data.get().to_owned()),
        _ => None,
    });
    infos.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

fn state(more: Value) -> Value {
    let imported = import(Format::RoleFiles, transcript(more).to_string());
    assert_eq!(imported.context(), ["u:one", "a:two"]);
    kept(&imported, "role-files:state").pop().unwrap()
}

#[test]
fn the_latest_context_usage_is_kept() {
    assert_eq!(state(json!({ "latestContextUsage": 1234 }))["latestContextUsage"], 1234.0);
    assert_eq!(state(json!({}))["latestContextUsage"], Value::Null);
}

#[test]
fn the_active_flag_of_a_role_is_kept() {
    assert_eq!(state(json!({ "isActive": true }))["isActive"], true);
    assert_eq!(state(json!({}))["isActive"], false);
}

#[test]
fn the_current_node_is_kept_with_its_number_of_exchanges() {
    let node = json!({ "nodeId": "n2", "exchanges": [{ "role": "user", "content": "one" }] });
    let state = state(json!({ "currentNodeId": "n2", "currentNodeContext": node }));
    assert_eq!(state["currentNodeId"], "n2");
    assert_eq!(state["currentNodeContext"], json!({ "nodeId": "n2", "exchanges": 1 }));
}

#[test]
fn feed_items_are_kept_outside_the_tree() {
    let feed = json!([{ "id": "1", "type": "user", "text": "one" }, { "id": "2", "type": "assistant", "text": "two" }]);
    let both = |feed: &str| {
        import_with(Format::RoleFiles, MemLog::default(), |batch| {
            let mut reader = reader(Format::RoleFiles, "transcript").unwrap();
            reader.push_document(transcript(json!({})).to_string().as_bytes(), batch);
            reader.push_document(feed.as_bytes(), batch);
        })
    };
    let imported = both(&feed.to_string());
    assert_eq!(json!(kept(&imported, "role-files:feed")), feed);
    assert_eq!(
        (imported.context(), imported.codes()),
        (vec!["u:one".to_owned(), "a:two".to_owned()], vec![])
    );
    let torn = feed.to_string();
    let torn = both(&torn[..torn.len() - 9]);
    assert_eq!(json!(kept(&torn, "role-files:feed")), json!([feed[0]]));
    assert_eq!(torn.codes(), [(1, "import.torn")]);
}

#[test]
fn a_torn_transcript_keeps_its_complete_messages_and_archives() {
    let archive = json!({ "id": "x", "trigger": "auto", "compactedAt": "2026-05-06T07:08:09.000Z",
        "archivedTranscriptHistory": [{ "role": "user", "content": "first" }, { "role": "assistant", "content": "answer" }],
        "replacementMessage": { "role": "user", "content": "so far" } });
    let document = json!({ "compactionArchives": [archive], "logicalSessionId": "flow-1__owner", "transcriptHistory": [
        { "role": "user", "content": "so far" }, { "role": "user", "content": "next" }, { "role": "assistant", "content": "done" } ] });
    let text = serde_json::to_string_pretty(&document).unwrap();
    let whole = import(Format::RoleFiles, &text);
    assert_eq!(whole.context(), ["u:so far", "u:next", "a:done"]);
    let cut = text.find("\"done\"").unwrap();
    let torn = import(Format::RoleFiles, &text[..cut]);
    assert_eq!(torn.context(), ["u:so far", "u:next"]);
    assert_eq!(torn.codes(), [(text[..cut].lines().count() as u64, "import.torn")]);
    let mended = import_again(Format::RoleFiles, torn.log, &text);
    assert_eq!(
        (mended.context(), mended.codes()),
        (whole.context(), vec![]),
        "the complete file extends the session"
    );
}

#[test]
fn a_transcript_without_a_name_is_reported_and_not_imported() {
    let imported = import(Format::RoleFiles, r#"{"roleName":"owner","transcriptHistory":[{"role":"us"#);
    assert!(imported.session.is_none());
    assert_eq!((imported.added, imported.codes()), (0, vec![(1, "import.torn")]));
}

#[test]
fn a_changed_system_prompt_is_imported_even_if_used_before() {
    let message = |role: &str, text: &str| json!({ "role": role, "content": text });
    let mut history = vec![message("user", "one"), message("assistant", "two")];
    let mut log = MemLog::default();
    for (number, (system, more)) in
        [("A", 0), ("A", 0), ("B", 0), ("B", 2), ("C", 1), ("A", 0), ("A", 1), ("B", 1), ("B", 0)]
            .iter()
            .enumerate()
    {
        for round in 0..*more {
            history.push(message(
                if round % 2 == 0 { "user" } else { "assistant" },
                &format!("{number} {round}"),
            ));
        }
        let file = transcript(json!({ "systemPrompt": system, "transcriptHistory": history })).to_string();
        let fresh = import(Format::RoleFiles, &file);
        let grown = import_again(Format::RoleFiles, log, &file);
        assert_eq!((grown.context(), grown.codes()), (fresh.context(), vec![]), "import {number}");
        assert_eq!(grown.log.context().system.as_deref(), Some(*system), "import {number}");
        let again = import_again(Format::RoleFiles, grown.log, &file);
        assert_eq!((again.added, again.context()), (0, fresh.context()), "import {number}");
        log = again.log;
    }
}

#[test]
fn a_changed_system_prompt_does_not_move_the_leaf_of_a_continued_session() {
    use sapwood_core::Part;
    use sapwood_core::entry::UserMessage;
    let file = |system: &str| transcript(json!({ "systemPrompt": system })).to_string();
    let mut log = import(Format::RoleFiles, file("A")).log;
    log.push(Body::from(UserMessage { parts: vec![Part::text("mine")], origin: None })).unwrap();
    let changed = import_again(Format::RoleFiles, log, file("B"));
    assert_eq!(changed.context(), ["u:one", "a:two", "u:mine"]);
}

#[test]
fn adding_or_removing_a_prompt_duplicates_nothing() {
    let (without, with) = (transcript(json!({})), transcript(json!({ "systemPrompt": "Be brief." })));
    for (first, second) in [(&without, &with), (&with, &without)] {
        let first = import(Format::RoleFiles, first.to_string());
        let entries = first.log.entries().count();
        let second = import_again(Format::RoleFiles, first.log, second.to_string());
        assert_eq!(second.context(), ["u:one", "a:two"]);
        let messages = second
            .log
            .entries()
            .filter(|entry| matches!(entry.body, Body::UserMessage(_) | Body::AssistantMessage(_)));
        assert_eq!(messages.count(), 2);
        assert!(second.log.entries().count() <= entries + 1, "at most the prompt is added");
    }
}

#[test]
fn only_a_prompt_that_is_too_long_is_skipped() {
    let long = transcript(json!({ "systemPrompt": "x".repeat(17 << 20) }));
    let imported = import(Format::RoleFiles, long.to_string());
    assert_eq!(imported.context(), ["u:one", "a:two"]);
    assert!(imported.codes().iter().all(|(_, code)| *code == "import.too_long"), "{:?}", imported.codes());
    assert!(!imported.log.entries().any(|entry| matches!(entry.body, Body::ContextChanged(_))));
}
