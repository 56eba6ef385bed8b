//! Detects texts that look like keys. Context variables are plain text in the log, so a value that looks like a secret
//! is refused (I12). This is a heuristic based on known key formats and the character mix of random tokens. Hashes and
//! ids are allowed: they are random but not secret. A reference `secret:NAME` does not look like a key.

/// Key prefixes of known issuers, and the minimum number of characters that follow.
const PREFIXES: &[(&str, usize)] = &[
    ("sk-ant-", 16),
    ("sk-proj-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("whsec_", 16),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("github_pat_", 30),
    ("glpat-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("xoxa-", 16),
    ("xoxr-", 16),
    ("xoxs-", 16),
    ("xapp-", 16),
    ("AIza", 30),
    ("ya29.", 20),
    ("hf_", 24),
    ("npm_", 30),
    ("pypi-", 40),
    ("gsk_", 30),
    ("xai-", 30),
    ("dop_v1_", 32),
    ("shpat_", 24),
    ("AGE-SECRET-KEY-1", 30),
];
/// Minimum length of a random token that mixes upper case, lower case and digits.
const RANDOM_CHARS_MIN: usize = 32;
/// Prefixes of AWS access key ids; sixteen capitals and digits follow.
const AWS_ID_PREFIXES: &[&str] = &["AKIA", "ASIA"];
const AWS_ID_CHARS: usize = 20;

/// A description of the key that the text seems to contain, if any.
pub fn looks_like_key(text: &str) -> Option<&'static str> {
    if contains_private_key(text) {
        return Some("a private key");
    }
    if text.split_whitespace().any(contains_password) {
        return Some("a URL with a password");
    }
    text.split(|c: char| !is_token_char(c)).find_map(token_shape)
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.+/~".contains(c)
}

fn token_shape(token: &str) -> Option<&'static str> {
    if has_known_prefix(token) || is_aws_id(token) {
        Some("an API key")
    } else if is_signed_token(token) {
        Some("a signed token")
    } else if token.split(['/', '.']).any(is_random) || is_aws_secret(token) {
        Some("a random token")
    } else {
        None
    }
}

fn contains_private_key(text: &str) -> bool {
    text.split("-----BEGIN ").skip(1).any(|rest| {
        rest.split("-----").next().is_some_and(|title| title.trim_end().ends_with("PRIVATE KEY"))
            || rest.starts_with("PGP PRIVATE KEY BLOCK")
    })
}

/// `scheme://user:password@host`.
fn contains_password(word: &str) -> bool {
    let Some((_, rest)) = word.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user_info, _)) = authority.rsplit_once('@') else { return false };
    user_info.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

fn has_known_prefix(token: &str) -> bool {
    let known = PREFIXES
        .iter()
        .any(|(prefix, tail)| token.strip_prefix(prefix).is_some_and(|rest| rest.len() >= *tail));
    // `sk-` is also a prefix of package names, which are rarely this long and rarely contain digits.
    let bare = token.strip_prefix("sk-").is_some_and(|rest| rest.len() >= 20 && rest.bytes().any(is_digit));
    known || bare
}

fn is_aws_id(token: &str) -> bool {
    token.len() == AWS_ID_CHARS
        && AWS_ID_PREFIXES.iter().any(|prefix| token.starts_with(prefix))
        && token.bytes().all(|byte| byte.is_ascii_uppercase() || is_digit(byte))
}

/// Whether the token is an AWS secret key. Its alphabet includes the slash, so the parts between slashes may be too
/// short to detect.
fn is_aws_secret(token: &str) -> bool {
    token.len() == 40 && !token.starts_with('/') && !token.contains(['.', '-', '_']) && is_random(token)
}

/// Whether the token has three parts, of which the first two are JSON objects in base64.
fn is_signed_token(token: &str) -> bool {
    let parts: Vec<&str> = token.split('.').collect();
    parts.len() == 3 && parts[..2].iter().all(|part| part.starts_with("eyJ") && part.len() > 10)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

/// Whether a text looks random. Random tokens often switch between upper case, lower case and digits. Names made of
/// words rarely do, and hexadecimal digits and UUIDs have one case only.
fn is_random(text: &str) -> bool {
    let bytes = text.as_bytes();
    let has = |class: fn(&u8) -> bool| bytes.iter().any(class);
    if bytes.len() < RANDOM_CHARS_MIN
        || !(has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit))
    {
        return false;
    }
    let changes = bytes.windows(2).filter(|pair| class_of(pair[0]) != class_of(pair[1])).count();
    changes * 5 >= bytes.len() * 2
}

fn class_of(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' => 0,
        b'a'..=b'z' => 1,
        b'0'..=b'9' => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Join the parts of a sample key. They are separate so that secret scanners do not report them.
    fn joined(head: &str, tail: &str) -> String {
        format!("{head}{tail}")
    }

    #[test]
    fn keys_of_known_issuers_are_detected_alone_and_in_a_sentence() {
        let keys = [
            joined("sk-", "abcdefghij0123456789abcd"),
            joined("sk-ant-", "api03-AbCdEfGhIjKlMnOpQrStUv"),
            joined("ghp_", "0123456789abcdefghijABCDEFGHIJ012345"),
            joined("github_pat_", "11ABCDEFG0123456789_abcdefghijklmnopqrstuvwxyz"),
            joined("glpat-", "abcdefghij0123456789"),
            joined("xoxb-", "123456789012-1234567890123-abcDEF"),
            joined("AKIA", "IOSFODNN7EXAMPLE"),
            joined("AIza", "SyA1234567890abcdefghijklmnopqrstuv"),
            joined("hf_", "abcdefghijklmnopqrstuvwxyzABCDEFGH"),
            joined("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"),
            joined("wJalrXUtnFEMI/K7MDENG/", "bPxRfiCYEXAMPLEKEY"),
            joined("Zx81kQ0pLm3Vt7Yb2Nc9", "Rd4Wf6Hg5Js8Ka1T"),
            joined("-----BEGIN OPENSSH ", "PRIVATE KEY-----\nb3BlbnNzaC1rZXk"),
            joined("postgres://app:hunter2", "@db.example.com/prod"),
        ];
        for key in keys {
            assert!(looks_like_key(&key).is_some(), "{key}");
            let sentence = format!("please use API_KEY=\"{key}\", thank you");
            assert!(looks_like_key(&sentence).is_some(), "{sentence}");
        }
    }

    #[test]
    fn ordinary_values_pass() {
        let values = [
            "",
            "production",
            "the secret is in the keychain under secret:GITHUB_TOKEN",
            "sk-learn-tutorial-for-beginners",
            "da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "0192f3c4-5a6b-7c8d-9e0f-123456789abc",
            "/home/ada/Projects/SapwoodEngine2/crates/effects/src/egress/mod.rs",
            "myVeryLongVariableNameWithManyWordsAndNumbers123",
            "https://example.com/a/b?page=2#L10",
            "ssh://git@example.com/repo.git",
            "2026-11-16T10:00:00+01:00",
            "-----BEGIN CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----",
        ];
        for value in values {
            assert_eq!(looks_like_key(value), None, "{value}");
        }
    }
}
