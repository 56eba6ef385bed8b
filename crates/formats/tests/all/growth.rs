//! Files that grow between two imports: after the second import, the context and the usage equal those of a
//! fresh import, regardless of how much the first import read.

use sapwood_core::entry::UserMessage;
use sapwood_core::fixture::{Dice, MemLog};
use sapwood_core::{Part, Seq};
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{import, import_again, lines};

const FIXTURES: &[(Format, &str)] = &[
    (Format::ClaudeCode, include_str!("../fixtures/claude-code.jsonl")),
    (Format::ClaudeCode, include_str!("../fixtures/claude-code-helper.jsonl")),
    (Format::Codex, include_str!("../fixtures/codex.jsonl")),
    (Format::Codex, include_str!("../fixtures/codex-old-compaction.jsonl")),
    (Format::Pi, include_str!("../fixtures/pi-v1.jsonl")),
    (Format::Pi, include_str!("../fixtures/pi-v2.jsonl")),
    (Format::Pi, include_str!("../fixtures/pi-v3.jsonl")),
    (Format::Operator, include_str!("../fixtures/operator.jsonl")),
    (Format::Operator, include_str!("../fixtures/operator-iso.jsonl")),
    (Format::GeminiCli, include_str!("../fixtures/gemini-cli.jsonl")),
    (Format::OpenCode, include_str!("../fixtures/opencode-rows.jsonl")),
];

/// Import every prefix, then a longer prefix, then the whole file twice.
fn check_growth(format: Format, text: &str) {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let fresh = import(format, text);
    for count in 0..=lines.len() {
        let first = import(format, lines[..count].concat());
        let more = count + (lines.len() - count) / 2;
        let twice = import_again(format, copy(&first.log), lines[..more].concat());
        for log in [first.log, twice.log] {
            let whole = import_again(format, log, text);
            let after = format!("{} after {count} and {more} lines", format.as_str());
            assert_eq!(whole.context(), fresh.context(), "{after}");
            assert_eq!(whole.spend(), fresh.spend(), "{after}");
            let again = import_again(format, whole.log, text);
            assert_eq!(again.added, 0, "{after}");
            assert_eq!(again.context(), fresh.context(), "{after}");
        }
    }
}

fn copy(log: &MemLog) -> MemLog {
    let mut copy = MemLog::default();
    for entry in log.entries() {
        let meta = &entry.meta;
        let draft = sapwood_core::Draft {
            id: Some(meta.id),
            at: meta.at,
            by: Some(meta.by.clone()),
            turn: meta.turn,
            body: entry.body.clone(),
        };
        copy.append(vec![draft]).unwrap();
    }
    copy
}

#[test]
fn a_file_grown_from_any_prefix_equals_a_fresh_import() {
    for (format, text) in FIXTURES {
        check_growth(*format, text);
    }
}

/// Generate a Claude Code session: responses over several records with growing usage, results in between,
/// subagents, compactions.
fn random_claude_code(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let (mut records, mut last, mut uuid) = (Vec::new(), None::<String>, 0);
    let mut add = |parent: Option<String>, more: Value| {
        uuid += 1;
        let mut record = json!({ "uuid": format!("e{uuid}"), "parentUuid": parent, "sessionId": "s-1", "isSidechain": false });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        records.push(record);
        Some(format!("e{uuid}"))
    };
    for turn in 0..4 {
        let said = json!({ "type": "user", "message": { "role": "user", "content": format!("ask {turn}") } });
        last = add(last, said);
        for round in 0..1 + dice.below(2) {
            let (mut waiting, count) = (Vec::new(), 1 + dice.below(4));
            for number in 0..count {
                let call = format!("c{turn}-{round}-{number}");
                let block = match dice.below(3) {
                    0 => json!({ "type": "text", "text": format!("say {call}") }),
                    _ => {
                        waiting.push(call.clone());
                        json!({ "type": "tool_use", "id": call, "name": "Read", "input": {} })
                    }
                };
                let usage =
                    json!({ "input_tokens": 10, "output_tokens": if number + 1 == count { 50 } else { 1 } });
                let message = json!({ "id": format!("m{turn}-{round}"), "model": "m", "content": [block], "usage": usage });
                last = add(last, json!({ "type": "assistant", "message": message }));
                if dice.one_in(3) {
                    last = add(last, json!({ "type": "progress" }));
                }
                if let Some(call) = waiting.pop().filter(|_| number + 1 == count || dice.one_in(2)) {
                    let block = json!({ "type": "tool_result", "tool_use_id": call, "content": format!("result of {call}") });
                    last = add(
                        last,
                        json!({ "type": "user", "message": { "role": "user", "content": [block] } }),
                    );
                }
            }
        }
        if dice.one_in(3) {
            let boundary = json!({ "type": "system", "subtype": "compact_boundary", "logicalParentUuid": last, "compactMetadata": {} });
            let boundary = add(None, boundary);
            let summary = json!({ "type": "user", "isCompactSummary": true, "message": { "role": "user", "content": format!("so far {turn}") } });
            last = add(boundary, summary);
        }
    }
    lines(&records)
}

/// Generate a Codex rollout: counts that are early, late, repeated or missing, rollbacks and compactions.
fn random_codex(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let mut records = vec![
        json!({ "type": "session_meta", "payload": { "id": "s-1", "cwd": "/w", "model_provider": "openai" } }),
    ];
    let mut add = |kind: &str, payload: Value| records.push(json!({ "type": kind, "payload": payload }));
    let (mut input, mut output) = (0, 0);
    let mut count = |dice: &mut Dice| {
        let (more_in, more_out) = (dice.below(50) as u64, dice.below(5) as u64);
        (input, output) = (input + more_in, output + more_out);
        let tokens = |input: u64, output: u64| json!({ "input_tokens": input, "output_tokens": output });
        json!({ "type": "token_count", "info": { "total_token_usage": tokens(input, output), "last_token_usage": tokens(more_in, more_out) } })
    };
    let message = |role: &str, text: String| json!({ "type": "message", "role": role, "content": [{ "type": "input_text", "text": text }] });
    for step in 0..30 {
        match dice.below(12) {
            0 | 1 => add("response_item", message("user", format!("ask {step}"))),
            2..=4 => add("response_item", message("assistant", format!("say {step}"))),
            5 => {
                add(
                    "response_item",
                    json!({ "type": "function_call", "name": "sh", "arguments": "{}", "call_id": format!("c{step}") }),
                );
                let result = json!({ "type": "function_call_output", "call_id": format!("c{step}"), "output": format!("result {step}") });
                add("response_item", result);
            }
            6..=8 => add("event_msg", count(&mut dice)),
            9 => add("turn_context", json!({ "model": format!("gpt-{}", dice.below(2)) })),
            10 => add("event_msg", json!({ "type": "thread_rolled_back", "num_turns": dice.below(3) })),
            _ if dice.one_in(2) => add("compacted", json!({ "message": format!("so far {step}") })),
            _ => add(
                "compacted",
                json!({ "message": "", "replacement_history": [message("user", format!("in short {step}"))] }),
            ),
        }
    }
    lines(&records)
}

/// Generate a Gemini CLI session: messages that are rewritten as they and their usage grow, and rewinds.
fn random_gemini_cli(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let mut records =
        vec![json!({ "sessionId": "s-1", "projectHash": "h", "startTime": "2026-04-05T06:07:00.000Z" })];
    let (mut path, mut next): (Vec<(String, String, u64)>, u32) = (Vec::new(), 0);
    for _ in 0..14 {
        match dice.below(8) {
            0 if path.len() > 1 => {
                let back = dice.below(path.len());
                records.push(json!({ "$rewindTo": path[back].0 }));
                path.truncate(back);
                continue;
            }
            1 => {
                records.push(json!({ "$set": { "summary": format!("about {}", dice.below(9)) } }));
                continue;
            }
            2 | 3 if !path.is_empty() => {
                let last = path.last_mut().unwrap();
                if dice.below(2) == 0 {
                    last.1.push_str(" more");
                }
                last.2 += dice.below(3) as u64 * 10;
            }
            _ => {
                next += 1;
                path.push((format!("g{next}"), format!("words {next}"), dice.below(2) as u64 * 5));
            }
        }
        let (id, text, input) = path.last().unwrap();
        let kind = if id.ends_with(['1', '3', '5', '7', '9']) { "user" } else { "gemini" };
        let mut record =
            json!({ "id": id, "timestamp": "2026-04-05T06:07:01.000Z", "type": kind, "content": text });
        if kind == "gemini" && *input > 0 {
            record["tokens"] = json!({ "input": input, "output": 0, "cached": 0, "thoughts": 0 });
        }
        records.push(record);
    }
    lines(&records)
}

#[test]
fn random_sessions_grown_from_any_prefix_equal_a_fresh_import() {
    for seed in 0..40 {
        check_growth(Format::ClaudeCode, &random_claude_code(seed));
        check_growth(Format::Codex, &random_codex(seed));
        check_growth(Format::GeminiCli, &random_gemini_cli(seed));
    }
}

fn codex_rewound() -> (String, String) {
    let message = |role: &str, text: &str| json!({ "type": "response_item", "payload": { "type": "message", "role": role, "content": text } });
    let mut records = vec![
        json!({ "type": "session_meta", "payload": { "id": "s-1" } }),
        message("user", "one"),
        message("assistant", "first"),
        message("user", "two"),
        message("assistant", "second"),
    ];
    let before = lines(&records);
    records.push(json!({ "type": "event_msg", "payload": { "type": "thread_rolled_back", "num_turns": 1 } }));
    (before, lines(&records))
}

#[test]
fn a_rewind_without_new_messages_moves_the_leaf_once() {
    let gemini = |rewind: bool| {
        let mut records =
            vec![json!({ "sessionId": "s-1", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z" })];
        for (id, kind, text) in
            [("1", "user", "one"), ("2", "gemini", "first"), ("3", "user", "two"), ("4", "gemini", "second")]
        {
            records.push(json!({ "id": id, "type": kind, "content": text }));
        }
        records.extend(rewind.then(|| json!({ "$rewindTo": "3" })));
        lines(&records)
    };
    let operator = |rewind: bool| {
        let mut records =
            vec![json!({ "type": "session_header", "id": "op-1", "timestamp": 1.5, "cwd": "/" })];
        let said = [
            ("m1", None, "user", "one"),
            ("m2", Some("m1"), "assistant", "first"),
            ("m3", Some("m2"), "user", "two"),
            ("m4", Some("m3"), "assistant", "second"),
        ];
        for (id, parent, role, text) in said {
            records.push(json!({ "type": "message", "id": id, "parent_id": parent, "message": { "role": role, "content": text } }));
        }
        records.extend(
            rewind.then(|| json!({ "type": "leaf", "id": "l1", "parent_id": "m4", "target_id": "m2" })),
        );
        lines(&records)
    };
    let cases = [
        (Format::Codex, codex_rewound()),
        (Format::GeminiCli, (gemini(false), gemini(true))),
        (Format::Operator, (operator(false), operator(true))),
    ];
    for (format, (before, after)) in cases {
        let first = import(format, &before);
        assert_eq!(first.context(), ["u:one", "a:first", "u:two", "a:second"], "{}", format.as_str());
        let rewound = import_again(format, first.log, &after);
        assert_eq!(
            (rewound.context(), rewound.added),
            (vec!["u:one".into(), "a:first".into()], 1),
            "{}",
            format.as_str()
        );
        let again = import_again(format, rewound.log, &after);
        assert_eq!(again.added, 0, "{}", format.as_str());
    }
}

#[test]
fn a_rewind_does_not_affect_a_session_changed_by_the_user() {
    let (before, after) = codex_rewound();
    let mut continued = import(Format::Codex, &before).log;
    continued.push(UserMessage { parts: vec![Part::text("here")], origin: None }).unwrap();
    let again = import_again(Format::Codex, continued, &after);
    assert_eq!(again.context().last().unwrap(), "u:here");
    assert_eq!(again.added, 0);

    let mut moved = import(Format::Codex, &after).log;
    let first = moved.entry(Seq(1)).meta.id;
    moved.push(sapwood_core::entry::LeafMoved { to: Some(first) }).unwrap();
    let again = import_again(Format::Codex, moved, &after);
    assert_eq!(
        (again.context(), again.added),
        (vec!["u:one".to_owned()], 0),
        "the rewind was already imported"
    );
}

/// An opencode database in use: messages are added, grow, are reverted, and are restored or removed by the
/// next message.
#[derive(Default)]
struct Database {
    /// The texts of each message, and its usage.
    messages: Vec<(Vec<String>, u64)>,
    revert: Option<(usize, Option<usize>)>,
    was_cleared: bool,
}

impl Database {
    fn change(&mut self, dice: &mut Dice) {
        let count = self.messages.len();
        match dice.below(6) {
            0 | 1 => {
                if let Some((message, part)) = self.revert.take() {
                    self.was_cleared = true;
                    let kept = part.map_or(0, |part| part + 1);
                    self.messages.truncate(message + 1);
                    self.messages[message].0.truncate(kept.saturating_sub(1));
                    self.messages.retain(|(texts, _)| !texts.is_empty());
                }
                self.messages.push((vec![format!("words {}", dice.below(1_000))], 0));
            }
            2 if count > 0 => self.messages[count - 1].0.push(format!("more {}", dice.below(1_000))),
            3 if count > 0 => self.messages[count - 1].1 += 1 + dice.below(50) as u64,
            4 if count > 0 => {
                let message = dice.below(count);
                let part = (dice.below(2) == 0).then(|| dice.below(self.messages[message].0.len()));
                self.revert = Some((message, part));
            }
            5 => self.revert = None,
            _ => {}
        }
    }

    fn rows(&self) -> String {
        let (message, part) =
            (|at: usize| format!("msg_{at:03}"), |at: usize, part: usize| format!("prt_{at:03}_{part:03}"));
        let revert = self
            .revert
            .map(|(at, kept)| json!({ "messageID": message(at), "partID": kept.map(|kept| part(at, kept)) }));
        let mut rows = vec![
            json!({ "table": "session", "id": "ses_1", "title": "Shop", "time_created": 1, "revert": revert }),
        ];
        for (at, (texts, input)) in self.messages.iter().enumerate() {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let tokens =
                json!({ "input": input, "output": 0, "reasoning": 0, "cache": { "read": 0, "write": 0 } });
            let data = json!({ "role": role, "modelID": "m", "providerID": "p", "tokens": tokens });
            rows.push(json!({ "table": "message", "id": message(at), "time_created": at + 2, "data": data }));
            for (number, text) in texts.iter().enumerate() {
                let data = json!({ "type": "text", "text": text });
                rows.push(json!({ "table": "part", "id": part(at, number), "message_id": message(at), "data": data }));
            }
        }
        lines(&rows)
    }
}

#[test]
fn importing_a_database_after_each_change_equals_a_fresh_import() {
    for seed in 0..300 {
        let (mut dice, mut database, mut log) = (Dice::new(seed), Database::default(), MemLog::default());
        for change in 0..20 {
            database.change(&mut dice);
            let rows = database.rows();
            let (grown, fresh) =
                (import_again(Format::OpenCode, log, &rows), import(Format::OpenCode, &rows));
            assert_eq!(grown.context(), fresh.context(), "seed {seed}, change {change}: {rows}");
            if !database.was_cleared {
                assert_eq!(grown.spend(), fresh.spend(), "seed {seed}, change {change}: {rows}");
            }
            let again = import_again(Format::OpenCode, grown.log, &rows);
            assert_eq!(
                (again.added, again.context()),
                (0, fresh.context()),
                "seed {seed}, change {change}: {rows}"
            );
            log = again.log;
        }
    }
}
