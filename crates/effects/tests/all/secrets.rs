//! Secrets: the sources of their values, and that no output contains a secret.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use sapwood_core::port::tool::{OutputPart, ToolOutput};
use sapwood_effects::secret::{Secret, Secrets};

pub const CANARY: &str = "c4n4ry/+ \"value\"-é-that?must&not=leak";

pub fn secrets() -> Secrets {
    let variables = [
        ("SAPWOOD_SECRET_CANARY", CANARY),
        ("SAPWOOD_SECRET_SHORT", "abc"),
        ("HOME_KEY", "not-a-secret-of-ours"),
    ];
    Secrets::from_variables(variables.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[test]
fn a_reference_is_expanded_alone_and_inside_a_text() {
    let secrets = secrets();
    assert_eq!(secrets.expand("secret:CANARY").unwrap().expose(), CANARY);
    assert_eq!(secrets.expand("Bearer secret:CANARY, x").unwrap().expose(), format!("Bearer {CANARY}, x"));
    for text in ["plain", "secret: CANARY", "topsecret:CANARY", "secret:"] {
        assert_eq!(secrets.expand(text).unwrap().expose(), text);
    }
}

#[test]
fn only_prefixed_variables_and_the_lookup_provide_secrets() {
    let secrets =
        secrets().with_lookup(Box::new(|name| (name == "CHAIN").then(|| Secret::new("from-the-keychain"))));
    assert_eq!(secrets.expand("secret:CHAIN").unwrap().expose(), "from-the-keychain");
    assert_eq!(secrets.scrub("got from-the-keychain"), "got [secret:CHAIN]");
    for (name, code) in [
        ("HOME_KEY", "secret.missing"),
        ("PATH", "secret.missing"),
        ("SAPWOOD_SECRET_CANARY", "secret.missing"),
        ("canary", "secret.name"),
        ("1A", "secret.name"),
        ("SHORT", "secret.length"),
    ] {
        let error = secrets.resolve(name).unwrap_err();
        assert_eq!(error.code(), code, "{name}");
        assert!(!format!("{error} {error:?}").contains("abc"), "{error}");
    }
}

#[test]
fn a_value_is_redacted_in_every_encoding() {
    let secrets = secrets();
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let percent = "c4n4ry%2F%2B%20%22value%22-%C3%A9-that%3Fmust%26not%3Dleak";
    let forms = [
        CANARY.to_owned(),
        serde_json::to_string(CANARY).unwrap(),
        serde_json::to_string(&serde_json::to_string(CANARY).unwrap()).unwrap(),
        percent.to_owned(),
        percent.to_lowercase(),
        percent.replace("%20", "+"),
        hex.to_uppercase(),
        hex,
        STANDARD.encode(CANARY),
        URL_SAFE.encode(CANARY),
        STANDARD.encode(format!("u:{CANARY}")),
        STANDARD.encode(format!("me:{CANARY}:x")),
        STANDARD.encode(format!("user:{CANARY}yz")),
    ];
    for form in forms {
        let scrubbed = secrets.scrub(&format!("<{form}>")).into_owned();
        assert!(scrubbed.contains("[secret:CANARY]"), "{form}: {scrubbed}");
        // A few Base64 characters at the edges may remain, because they also encode neighboring bytes.
        assert!(scrubbed.len() <= "<[secret:CANARY]>".len() + 16, "{form}: {scrubbed}");
    }
}

#[test]
fn other_texts_are_unchanged_and_not_copied() {
    let secrets = secrets();
    for text in ["", "abc abc abc", "c4n4ry", "nothing here"] {
        assert!(matches!(secrets.scrub(text), std::borrow::Cow::Borrowed(same) if same == text));
    }
}

#[test]
fn values_that_contain_or_overlap_each_other_are_redacted_completely() {
    let pairs = [("A", "abcdefgh"), ("B", "abcdefghijklmnop"), ("C", "mnopqrstuvwx")];
    let secrets = Secrets::from_variables(
        pairs.map(|(name, value)| (format!("SAPWOOD_SECRET_{name}"), value.to_owned())),
    );
    assert_eq!(secrets.scrub("1 abcdefghijklmnopqrstuvwx 2"), "1 [secret:B] 2");
    assert_eq!(secrets.scrub("abcdefgh-abcdefgh"), "[secret:A]-[secret:A]");
}

#[test]
fn a_guarded_key_is_redacted_and_cannot_be_resolved() {
    let secrets = Secrets::default();
    secrets.guard("ANTHROPIC_API_KEY", Secret::new("key-of-the-model"));
    assert_eq!(secrets.scrub("x-api-key: key-of-the-model"), "x-api-key: [secret:ANTHROPIC_API_KEY]");
    assert_eq!(secrets.resolve("ANTHROPIC_API_KEY").unwrap_err().code(), "secret.missing");
}

#[test]
fn secrets_are_redacted_in_texts_bytes_and_names() {
    let media = OutputPart::Media {
        mime: "text/x".to_owned(),
        name: Some(format!("{CANARY}.txt")),
        bytes: [b"\xff\xfe", CANARY.as_bytes()].concat(),
    };
    let output = ToolOutput { parts: vec![OutputPart::Text(format!("a {CANARY} b")), media], is_error: true };
    let shown = format!("{:?}", secrets().scrub_output(output));
    assert!(
        !shown.contains("c4n4ry")
            && shown.contains("a [secret:CANARY] b")
            && shown.contains("is_error: true"),
        "{shown}"
    );
}

#[test]
fn debug_output_contains_no_value() {
    let secrets = secrets();
    let shown =
        format!("{secrets:?} {:?} {:?}", secrets.resolve("CANARY"), secrets.expand("x secret:CANARY"));
    assert!(!shown.contains("c4n4ry"), "{shown}");
}
