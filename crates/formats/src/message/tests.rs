//! Valid messages, and the errors for invalid ones.

use proptest::prelude::*;
use sapwood_core::content::Reasoning;
use sapwood_core::entry::Usage;

use super::*;

fn read(json: &str) -> Vec<Body> {
    read_message(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn read_one(json: &str) -> Body {
    let mut bodies = read(json);
    assert_eq!(bodies.len(), 1, "{json}");
    bodies.remove(0)
}

fn assistant(json: &str) -> AssistantMessage {
    match read_one(json) {
        Body::AssistantMessage(message) => message,
        other => panic!("{json} gave {other:?}"),
    }
}

/// Check that the message is refused, and that the error text contains every fragment.
fn assert_refused(json: &str, fragments: &[&str]) {
    let error = read_message(json.as_bytes()).expect_err(json).to_string();
    for fragment in fragments {
        assert!(error.contains(fragment), "{json}: {error:?} does not contain {fragment:?}");
    }
}

fn input(json: &str) -> Json {
    Json::parse(json).unwrap()
}

#[test]
fn plain_text_becomes_a_body_of_its_role() {
    let user: Body = UserMessage { parts: vec![Part::text("hi")], origin: None }.into();
    assert_eq!(read_one(r#"{"role":"user","content":"hi"}"#), user);
    assert_eq!(read_one(r#"{"content":[{"type":"text","text":"hi"}],"role":"user"}"#), user);
    assert_eq!(read_one(r#"{"role":"user","content":["hi"]}"#), user);
    assert_eq!(read_one(r#"{"role":"user","content":[{"type":"input_text","text":"hi"}]}"#), user);
    let note: Body = SystemNote { text: "be brief".to_owned(), reason: None }.into();
    for role in ["system", "developer"] {
        assert_eq!(read_one(&format!(r#"{{"role":"{role}","content":"be brief"}}"#)), note);
    }
    assert_eq!(assistant(r#"{"role":"assistant","content":"yes"}"#).parts, [Part::text("yes")]);
}

#[test]
fn sapwoods_own_parts_are_read() {
    let blob = sapwood_core::BlobHash::of(b"x");
    let json = format!(
        r#"{{"role":"assistant","content":[{{"type":"reasoning","text":"hm"}},{{"type":"text","text":"a"}},
            {{"type":"media","blob":"{blob}","mime":"image/png","bytes":3}},
            {{"type":"tool_call","call_id":"c","name":"ls","input":{{ "z":1,"a":2 }}}}],"model":"m","cost_nano_usd":7}}"#
    );
    let message = assistant(&json);
    assert_eq!(message.parts[0], Part::Reasoning(Reasoning { text: "hm".to_owned(), redacted: false }));
    assert!(matches!(&message.parts[2], Part::Media(media) if media.blob == blob && media.bytes == 3));
    assert_eq!(message.parts[3], Part::tool_call("c", "ls", input(r#"{ "z":1,"a":2 }"#)));
    assert_eq!(
        (message.model.as_deref(), message.cost_nano_usd, message.stop),
        (Some("m"), Some(7), Stop::ToolUse)
    );
}

#[test]
fn openai_calls_and_results_are_read() {
    let message = assistant(
        r#"{"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"function_call":null,
            "tool_calls":[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\": \".\"}"}},
                          {"id":"c2","type":"function","function":{"name":"now","arguments":""}},
                          {"id":"c3","type":"custom","custom":{"name":"sh","input":"ls -l"}}]}"#,
    );
    let calls = [
        Part::tool_call("c1", "ls", input(r#"{"path": "."}"#)),
        Part::tool_call("c2", "now", input("{}")),
        Part::tool_call("c3", "sh", input(r#""ls -l""#)),
    ];
    assert_eq!((message.parts.as_slice(), message.stop), (calls.as_slice(), Stop::ToolUse));
    let result =
        read_one(r#"{"role":"tool","tool_call_id":"c1","name":"ls","content":[{"type":"text","text":"a"}]}"#);
    assert!(matches!(result, Body::ToolResult(result)
        if result.call_id == "c1" && result.tool.as_deref() == Some("ls") && result.parts == [Part::text("a")]));
}

#[test]
fn invalid_json_arguments_are_kept_as_a_string() {
    let json = r#"{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"n","arguments":"{oops"}}]}"#;
    assert_eq!(assistant(json).parts, [Part::tool_call("c", "n", input(r#""{oops""#))]);
}

#[test]
fn an_anthropic_answer_is_read_without_its_signature() {
    let message = assistant(
        r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude","stop_reason":"tool_use","stop_sequence":null,
            "content":[{"type":"thinking","thinking":"let me see","signature":"SECRET"},
                       {"type":"redacted_thinking","data":"SECRET"},
                       {"type":"text","text":"I look","cache_control":{"type":"ephemeral"}},
                       {"type":"tool_use","id":"t1","name":"read","input":{"path":"a"}}],
            "usage":{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,
                     "service_tier":"standard"}}"#,
    );
    assert!(!format!("{message:?}").contains("SECRET"));
    assert_eq!(message.parts[1], Part::Reasoning(Reasoning { text: String::new(), redacted: true }));
    assert_eq!(message.parts[3], Part::tool_call("t1", "read", input(r#"{"path":"a"}"#)));
    let usage = Usage { input: 10, output: 5, cache_read: 100, cache_write: 7, reasoning: 0 };
    assert_eq!((message.usage, message.stop), (Some(usage), Stop::ToolUse));
}

#[test]
fn an_anthropic_user_message_with_results_becomes_several_bodies() {
    let bodies = read(
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"done"},
            {"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"no"}]},
            {"type":"tool_result","tool_use_id":"t3"},
            {"type":"text","text":"and now"},{"type":"text","text":"go on"}]}"#,
    );
    let kinds: Vec<&str> = bodies.iter().map(|body| body.kind().as_str()).collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "tool_result", "user_message"]);
    assert!(
        matches!(&bodies[1], Body::ToolResult(result) if result.is_error && result.parts == [Part::text("no")])
    );
    assert_eq!(bodies[3].text(), "and now\ngo on");
}

#[test]
fn usage_is_read_under_every_vendors_names() {
    let usage =
        |usage: &str| assistant(&format!(r#"{{"role":"assistant","content":"x","usage":{usage}}}"#)).usage;
    let cases = [
        (r#"{"input":1,"output":2,"cache_read":3,"cache_write":4,"reasoning":5}"#, [1, 2, 3, 4, 5]),
        (r#"{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}"#, [10, 2, 0, 0, 0]),
        (
            r#"{"prompt_tokens":10,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4},
                "completion_tokens_details":{"reasoning_tokens":8}}"#,
            [6, 9, 4, 0, 8],
        ),
        (
            r#"{"input_tokens":10,"output_tokens":9,"input_tokens_details":{"cached_tokens":10}}"#,
            [0, 9, 10, 0, 0],
        ),
    ];
    for (json, [input, output, cache_read, cache_write, reasoning]) in cases {
        assert_eq!(usage(json), Some(Usage { input, output, cache_read, cache_write, reasoning }), "{json}");
    }
}

#[test]
fn stop_reasons_are_read_under_every_vendors_names() {
    let cases = [
        (r#""stop":"aborted""#, Stop::Aborted),
        (r#""finish_reason":"tool_calls""#, Stop::ToolUse),
        (r#""stop_reason":"end_turn""#, Stop::Stop),
        (r#""stop_reason":"max_tokens""#, Stop::Length),
        (r#""stop_reason":"refusal""#, Stop::ContentFilter),
    ];
    for (field, stop) in cases {
        assert_eq!(
            assistant(&format!(r#"{{"role":"assistant","content":"x",{field}}}"#)).stop,
            stop,
            "{field}"
        );
    }
}

#[test]
fn errors_in_the_envelope_are_named() {
    assert_refused(r#"{"content":"x"}"#, &["no role"]);
    assert_refused(r#"{"role":null,"content":"x"}"#, &["no role"]);
    assert_refused(r#"{"role":"wizard","content":"x"}"#, &["wizard", "user, assistant, tool"]);
    assert_refused(r#"{"role":3,"content":"x"}"#, &["role", "a string", "a number"]);
    assert_refused(r#"{"role":"user"}"#, &["content", "missing"]);
    assert_refused(r#"{"role":"user","content":[]}"#, &["content", "empty"]);
    assert_refused(r#"{"role":"user","content":7}"#, &["content", "a string or an array", "a number"]);
    assert_refused(r#"{"role":"user","content":"x","temprature":1}"#, &["temprature"]);
    assert_refused(r#"{"role":"user","content":"x","model":"m"}"#, &["model", "user"]);
    assert_refused(r#"{"role":"user","role":"tool","content":"x"}"#, &["role", "twice"]);
    assert_refused(r#"{"role":"assistant"}"#, &["content", "missing"]);
    assert_refused(r#"{"role":"tool","content":"x"}"#, &["tool_call_id", "missing"]);
    assert_refused(
        r#"{"role":"tool","content":"x","tool_call_id":"a","call_id":"b"}"#,
        &["call_id", "differs from another"],
    );
    assert_refused(r#"["role"]"#, &["an object", "an array"]);
    assert_refused("", &["not valid JSON"]);
    assert_refused(r#"{"role":"user","content":"x"} {}"#, &["not valid JSON"]);
    assert_refused(r#"{"role":"assistant","content":"x","type":"letter"}"#, &["letter"]);
}

#[test]
fn errors_in_a_part_include_its_location() {
    assert_refused(r#"{"role":"user","content":[{"type":"text"}]}"#, &["content[0].text", "missing"]);
    assert_refused(r#"{"role":"user","content":["a",{"text":"x"}]}"#, &["content[1].type", "missing"]);
    assert_refused(r#"{"role":"user","content":[{"type":"hologram"}]}"#, &["content[0]", "hologram"]);
    assert_refused(
        r#"{"role":"user","content":[{"type":"tool_use","id":"a","name":"n","input":{}}]}"#,
        &["tool call", "user"],
    );
    assert_refused(
        r#"{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"a"}]}"#,
        &["tool_result"],
    );
    assert_refused(
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"","name":"n","input":{}}]}"#,
        &["id", "empty"],
    );
    assert_refused(
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"n"}]}"#,
        &["input", "missing"],
    );
    assert_refused(
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"n","input":{"x":1e999}}]}"#,
        &["input"],
    );
    assert_refused(
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}"#,
        &["tool_calls[0].function"],
    );
    assert_refused(r#"{"role":"assistant","content":null,"tool_calls":{}}"#, &["tool_calls", "an array"]);
    assert_refused(
        r#"{"role":"system","content":[{"type":"reasoning","text":"x"}]}"#,
        &["reasoning", "system"],
    );
    assert_refused(r#"{"role":"user","content":"\ud800"}"#, &["content"]);
}

#[test]
fn inline_media_is_returned_beside_the_bodies() {
    const PNG: &str = "iVBORw0KGgo=";
    let url = format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{PNG}"}}}}"#);
    let plain_url = format!(r#"{{"type":"input_image","image_url":"data:image/jpeg;base64,{PNG}"}}"#);
    let anthropic =
        format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{PNG}"}}}}"#);
    let own = format!(r#"{{"type":"media","mime":"image/png","data":"{PNG}"}}"#);
    let nested = format!(r#"{{"type":"tool_result","tool_use_id":"t","content":[{own}]}}"#);
    for part in [url, plain_url, anthropic, own, nested] {
        let json = format!(r#"{{"role":"user","content":[{part}]}}"#);
        let message = read_message_with_media(json.as_bytes()).unwrap();
        assert_eq!(message.media, [b"\x89PNG\r\n\x1a\n".to_vec()], "{json}");
        let [Part::Media(media)] = message.bodies[0].parts() else { panic!("{json}") };
        assert_eq!(media.blob, sapwood_core::BlobHash::of(&message.media[0]));
        assert_eq!((media.mime.as_str(), media.bytes), ("image/png", 8), "the type follows the content");
        assert_eq!(read_message(json.as_bytes()).unwrap_err().code(), "input.inline_media");
    }
}

#[test]
fn media_by_url_and_damaged_media_are_refused() {
    let by_url =
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}]}"#;
    let source =
        r#"{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://example.org"}}]}"#;
    for json in [by_url, source] {
        assert_eq!(read_message_with_media(json.as_bytes()).unwrap_err().code(), "input.inline_media");
        assert_refused(json, &["base64"]);
    }
    let damaged = r#"{"role":"user","content":[{"type":"media","mime":"image/png","data":"!"}]}"#;
    assert_refused(damaged, &["content[0]", "base64"]);
}

#[test]
fn an_extension_can_write_its_own_entries_but_not_the_engines() {
    let json = r#"{"role":"custom","custom_type":"ext","content":"hi","details":{"a":1}}"#;
    let Body::CustomMessage(message) = &read_message(json.as_bytes()).unwrap()[0] else { panic!() };
    assert!(message.display && message.custom_type == "ext" && message.details.is_some());
    let json = r#"{"role":"info","custom_type":"ext","data":{"a":[1,2]}}"#;
    let Body::CustomInfo(info) = &read_message(json.as_bytes()).unwrap()[0] else { panic!() };
    assert_eq!((info.custom_type.as_str(), info.data.get()), ("ext", r#"{"a":[1,2]}"#));
    for name in ["sapwood.flow", "turn_terms", "openai_response", "sapwood.input"] {
        assert_refused(&format!(r#"{{"role":"info","custom_type":"{name}","data":1}}"#), &["reserved"]);
        assert_refused(
            &format!(r#"{{"role":"custom","custom_type":"{name}","content":"x"}}"#),
            &["reserved"],
        );
    }
    assert_refused(r#"{"role":"info","custom_type":"ext"}"#, &["data is missing"]);
    assert_refused(r#"{"role":"custom","custom_type":"ext"}"#, &["content is missing"]);
}

#[test]
fn every_number_is_bounded() {
    let usage = |value: &str| format!(r#"{{"role":"assistant","content":"x","usage":{{"input":{value}}}}}"#);
    for bad in ["-1", "1.5", "1e30", "18446744073709551616", "1000000000001", "1e2"] {
        assert_refused(&usage(bad), &["usage.input", "whole number", bad]);
    }
    assert_refused(&usage("\"7\""), &["usage.input", "a string"]);
    assert_refused(
        r#"{"role":"tool","tool_call_id":"a","content":"","duration_ms":99999999999999}"#,
        &["duration_ms"],
    );
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    assert_refused(
        &format!(r#"{{"role":"tool","tool_call_id":"{long}","content":""}}"#),
        &["tool_call_id", "512"],
    );
    let parts = "\"x\",".repeat(PARTS_MAX) + "\"x\"";
    assert_refused(&format!(r#"{{"role":"user","content":[{parts}]}}"#), &["content", "10000"]);
    let error = read_message(&vec![b' '; BODY_BYTES_MAX + 1]).unwrap_err();
    assert!(matches!(error, MessageError::TooLarge { .. }));
}

#[test]
fn nesting_is_limited_and_cannot_overflow_the_stack() {
    let call = |depth: usize| {
        let input = "[".repeat(depth) + &"]".repeat(depth);
        format!(
            r#"{{"role":"assistant","content":[{{"type":"tool_call","call_id":"c","name":"n","input":{input}}}]}}"#
        )
    };
    assert!(read_message(call(90).as_bytes()).is_ok());
    assert_refused(&call(101), &["nested"]);
    assert_refused(&call(1_000_000), &["nested"]);
    let arguments = "[".repeat(200_000);
    assert_refused(
        &format!(
            r#"{{"role":"assistant","content":"","tool_calls":[{{"id":"c","function":{{"name":"n","arguments":"{arguments}"}}}}]}}"#
        ),
        &["arguments", "nested"],
    );
    // Brackets inside strings are not nesting.
    let text = "[{".repeat(1_000);
    read(&format!(r#"{{"role":"user","content":"\\\"{text}"}}"#));
}

/// Generate almost valid messages from random combinations of keys and values.
fn almost_valid_message() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec![
        "null",
        "3",
        "-1e400",
        "\"x\"",
        "[]",
        "{}",
        "[{}]",
        "true",
        r#"[{"type":"text","text":"a"}]"#,
        r#"[{"type":7}]"#,
        r#"[{"type":"tool_use","id":"a","name":"b","input":[1]}]"#,
        r#"{"input":1}"#,
        "\"user\"",
        "\"assistant\"",
        "\"tool\"",
        "\"system\"",
        r#"[{"id":"x","function":{"name":"y","arguments":"{"}}]"#,
        "\"\\ud800\"",
    ]);
    let key = prop::sample::select(vec![
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "usage",
        "stop",
        "model",
        "name",
        "is_error",
        "refusal",
        "reasoning_content",
        "type",
        "id",
        "duration_ms",
        "extra",
    ]);
    prop::collection::vec((key, value), 0..6).prop_map(|fields| {
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_message(&bytes);
    }

    #[test]
    fn almost_valid_messages_never_panic_and_round_trip(json in almost_valid_message()) {
        for body in read_message(json.as_bytes()).unwrap_or_default() {
            let bytes = sapwood_core::entry::codec::encode(&body);
            let again = sapwood_core::entry::codec::decode(sapwood_core::entry::LOG_VERSION, body.kind(), &bytes);
            prop_assert_eq!(again.unwrap(), body);
        }
    }
}

#[test]
fn the_fast_path_agrees_with_the_general_reader() {
    let cases = [
        r#"{"role":"user","content":"hello"}"#,
        r#" {"content":"\u00e9\n\"\ud83d\ude00", "role":"user"} "#,
        r#"{"role":"user","content":""}"#,
        r#"{"role":"us\u0065r","content":"hello"}"#,
        r#"{"role":"user","content":"a","content":"b"}"#,
        r#"{"role":"user","content":"a","name":null}"#,
        r#"{"role":"user","content":"a","name":"b"}"#,
        r#"{"role":"user","content":null}"#,
        r#"{"role":"user","content":"\ud800"}"#,
        r#"{"role":"user","content":"a"} {}"#,
        r#"{"role":"assistant","content":"a"}"#,
        r#"["user","hello"]"#,
        r#"{"role":"user"}"#,
    ];
    for json in cases {
        assert_eq!(
            read_message(json.as_bytes()),
            read_any(json.as_bytes(), &mut MediaSink::default()),
            "{json}"
        );
    }
    for json in [&cases[0], &cases[1], &cases[2]] {
        assert!(read_plain_text(json.as_bytes()).is_some(), "{json}");
    }
}
