//! Format detection.

use sapwood_formats::import::Format;
use sapwood_formats::import::detect::detect;

#[test]
fn every_format_is_detected_by_its_first_lines() {
    let cases: &[(&str, Option<Format>)] = &[
        (r#"{"type":"session_header","version":2,"id":"s","timestamp":5}"#, Some(Format::Sapwood)),
        (
            "{\"type\":\"session_header\",\"version\":2,\"id\":\"s\",\"timestamp\":5}\n{\"type\":\"user_message\",\"seq\":1}\n",
            Some(Format::Sapwood),
        ),
        (
            "{\"type\":\"session_header\",\"id\":\"s\",\"timestamp\":5.5,\"cwd\":\"/\"}\n{\"type\":\"message\",\"id\":\"a\"}\n",
            Some(Format::Operator),
        ),
        (
            r#"{"type":"session","version":3,"id":"s","timestamp":"2026-01-02T03:04:05Z","cwd":"/"}"#,
            Some(Format::Pi),
        ),
        (r#"{"type":"session","id":"s","timestamp":17.5,"cwd":"/"}"#, Some(Format::Operator)),
        (
            "{\"type\":\"session\",\"id\":\"s\",\"timestamp\":\"2026-01-02T03:04:05Z\",\"cwd\":\"/\"}\n{\"type\":\"message\",\"id\":\"a\",\"parent_id\":null}\n",
            Some(Format::Operator),
        ),
        (
            "{\"type\":\"session\",\"id\":\"s\",\"timestamp\":\"2026-01-02T03:04:05Z\",\"cwd\":\"/\"}\n{\"type\":\"message\",\"message\":{}}\n",
            Some(Format::Pi),
        ),
        (
            "{\"type\":\"session\",\"id\":\"s\",\"timestamp\":\"2026-01-02T03:04:05Z\",\"cwd\":\"/\"}\n{\"type\":\"message\",\"id\":\"a\",\"parentId\":null}\n",
            Some(Format::Pi),
        ),
        (r#"{"timestamp":"x","type":"session_meta","payload":{"id":"t"}}"#, Some(Format::Codex)),
        ("{\"type\":\"summary\",\"summary\":\"x\",\"leafUuid\":\"y\"}\n", Some(Format::ClaudeCode)),
        (
            "{\"type\":\"permission-mode\",\"sessionId\":\"s\"}\n{\"parentUuid\":null,\"type\":\"user\",\"uuid\":\"u\"}\n",
            Some(Format::ClaudeCode),
        ),
        (r#"{"sessionId":"s","projectHash":"h","startTime":"x"}"#, Some(Format::GeminiCli)),
        (
            "{\n  \"roleName\": \"owner\",\n  \"logicalSessionId\": \"f__owner\",\n  \"transcriptHistory\": []\n}",
            Some(Format::RoleFiles),
        ),
        (r#"[{"role":"user","content":"x"}]"#, Some(Format::Messages)),
        (r#"{"role":"user","content":"x"}"#, Some(Format::Messages)),
        ("{\n \"model\": \"m\",\n \"messages\": []\n}", Some(Format::Messages)),
        ("SQLite format 3\0…", Some(Format::OpenCode)),
        ("Dear Sir or Madam\n", None),
        ("", None),
        (r#"{"hello":"world"}"#, None),
    ];
    for (text, format) in cases {
        assert_eq!(detect(text.as_bytes()), *format, "{text}");
    }
}

#[test]
fn a_first_line_longer_than_the_inspected_part_is_detected() {
    let long = format!(
        r#"{{"parentUuid":null,"isSidechain":false,"type":"user","message":{{"content":"{}"#,
        "x".repeat(300_000)
    );
    assert_eq!(detect(long.as_bytes()), Some(Format::ClaudeCode));
}
