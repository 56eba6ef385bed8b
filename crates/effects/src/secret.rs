//! Secret values are only used where a request is sent or signed, or a process starts (I12). All other code uses
//! `secret:NAME`. Values are redacted from all output. They are read from variables named `SAPWOOD_SECRET_NAME`, so that
//! agents cannot read the rest of the environment, or from a lookup such as the OS keychain.

use std::borrow::Cow;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use sapwood_core::port::tool::{OutputPart, ToolOutput};
use zeroize::Zeroizing;

/// Prefix of the environment variables that contain secrets.
pub const SECRET_VARIABLE_PREFIX: &str = "SAPWOOD_SECRET_";
/// Prefix of a reference to a secret in a text.
pub const SECRET_REFERENCE: &str = "secret:";
/// Minimum length of a value. Shorter values cannot be redacted, because they may occur in ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;
/// Maximum length of a value, and of a name.
pub const SECRET_BYTES_MAX: usize = 64 << 10;
pub const SECRET_NAME_BYTES_MAX: usize = 64;

/// A value that is never printed or stored, and is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(Zeroizing::new(value.into()))
    }
    /// The secret value. Use it only where a request is sent or signed, or a process starts.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("invalid secret name {name:?}: use capitals, digits and underscores")]
    Name { name: String },
    #[error("no secret {name}")]
    Missing { name: String },
    #[error(
        "the secret {name} has {bytes} bytes; redaction requires {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}"
    )]
    Length { name: String, bytes: usize },
}

impl SecretError {
    pub fn code(&self) -> &'static str {
        match self {
            SecretError::Name { .. } => "secret.name",
            SecretError::Missing { .. } => "secret.missing",
            SecretError::Length { .. } => "secret.length",
        }
    }
}

/// Looks up a secret by name, for example in the OS keychain.
pub type SecretLookup = Box<dyn Fn(&str) -> Option<Secret> + Send + Sync>;

/// A value to redact, in all encodings in which it may appear.
struct KnownSecret {
    name: String,
    secret: Secret,
    forms: Vec<Zeroizing<Vec<u8>>>,
    usage: SecretUsage,
}

/// Whether `secret:NAME` resolves to the value, or the value is only redacted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretUsage {
    Resolvable,
    RedactOnly,
}

/// All secrets of a process, shared by all sessions: a value that one session resolved is redacted in every session's
/// output.
#[derive(Default)]
pub struct Secrets {
    known: RwLock<Vec<KnownSecret>>,
    lookup: Option<SecretLookup>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(…)")
    }
}

impl Secrets {
    /// Take the variables that begin with [`SECRET_VARIABLE_PREFIX`]. The caller reads the environment.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let secrets = Self::default();
        for (variable, value) in variables {
            if let Some(name) = variable.strip_prefix(SECRET_VARIABLE_PREFIX) {
                secrets.register(name, Secret::new(value), SecretUsage::Resolvable);
            }
        }
        secrets
    }

    /// Use a lookup for names that no variable defines.
    pub fn with_lookup(self, lookup: SecretLookup) -> Self {
        Self { lookup: Some(lookup), ..self }
    }

    /// Redact a value from every output without making it available to tools. Used for provider keys. Ignores values
    /// shorter than [`SECRET_BYTES_MIN`].
    pub fn guard(&self, name: &str, secret: Secret) {
        if secret.expose().len() >= SECRET_BYTES_MIN {
            self.register(name, secret, SecretUsage::RedactOnly);
        }
    }

    pub fn resolve(&self, name: &str) -> Result<Secret, SecretError> {
        if !is_name(name) {
            return Err(SecretError::Name { name: name.chars().take(SECRET_NAME_BYTES_MAX).collect() });
        }
        let secret = match self.find_resolvable(name) {
            Some(secret) => secret,
            None => {
                let found = self.lookup.as_ref().and_then(|lookup| lookup(name));
                let secret = found.ok_or_else(|| SecretError::Missing { name: name.to_owned() })?;
                self.register(name, secret.clone(), SecretUsage::Resolvable);
                secret
            }
        };
        let bytes = secret.expose().len();
        match (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes) {
            true => Ok(secret),
            false => Err(SecretError::Length { name: name.to_owned(), bytes }),
        }
    }

    /// Replace every `secret:NAME` in the text with its value. Returns a secret, because the result may contain one.
    pub fn expand(&self, text: &str) -> Result<Secret, SecretError> {
        let (mut filled, mut rest) = (Zeroizing::new(String::new()), text);
        while let Some(at) = rest.find(SECRET_REFERENCE) {
            let (before, after) = (&rest[..at], &rest[at + SECRET_REFERENCE.len()..]);
            let name_end =
                after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            filled.push_str(before);
            // `topsecret:` and `secret: ` are ordinary text.
            if name_end == 0 || before.ends_with(|c: char| c.is_alphanumeric()) {
                filled.push_str(SECRET_REFERENCE);
                rest = after;
            } else {
                filled.push_str(self.resolve(&after[..name_end])?.expose());
                rest = &after[name_end..];
            }
        }
        filled.push_str(rest);
        Ok(Secret(filled))
    }

    /// Replace every known value in the text with `[secret:NAME]`.
    pub fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.scrub_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    pub fn scrub_bytes<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<(usize, usize, &str)> = Vec::new();
        for entry in known.iter() {
            for form in &entry.forms {
                found.extend(find_all(bytes, form).map(|at| (at, at + form.len(), entry.name.as_str())));
            }
        }
        if found.is_empty() { Cow::Borrowed(bytes) } else { Cow::Owned(replace_ranges(bytes, found)) }
    }

    /// Redact known secrets in a tool's output: in its texts, bytes and names.
    pub fn scrub_output(&self, output: ToolOutput) -> ToolOutput {
        let scrub_part = |part| match part {
            OutputPart::Text(text) => OutputPart::Text(self.scrub(&text).into_owned()),
            OutputPart::Media { mime, name, bytes } => OutputPart::Media {
                mime: self.scrub(&mime).into_owned(),
                name: name.map(|name| self.scrub(&name).into_owned()),
                bytes: self.scrub_bytes(&bytes).into_owned(),
            },
        };
        ToolOutput { parts: output.parts.into_iter().map(scrub_part).collect(), is_error: output.is_error }
    }

    fn find_resolvable(&self, name: &str) -> Option<Secret> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found =
            known.iter().find(|entry| entry.name == name && entry.usage == SecretUsage::Resolvable)?;
        Some(found.secret.clone())
    }

    fn register(&self, name: &str, secret: Secret, usage: SecretUsage) {
        let forms = forms_of(secret.expose());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|entry| entry.name == name && entry.secret == secret && entry.usage == usage) {
            known.push(KnownSecret { name: name.to_owned(), secret, forms, usage });
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= SECRET_NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The encodings of a value: plain, JSON, URL, base64 at any offset, hexadecimal.
fn forms_of(value: &str) -> Vec<Zeroizing<Vec<u8>>> {
    if value.len() < SECRET_BYTES_MIN {
        return Vec::new();
    }
    let escaped = escape_json(value);
    let mut forms = vec![
        value.to_owned(),
        escape_json(&escaped),
        escaped,
        encode_url(value, "%20", HexCase::Upper),
        encode_url(value, "+", HexCase::Upper),
        encode_url(value, "%20", HexCase::Lower),
        encode_hex(value, HexCase::Lower),
        encode_hex(value, HexCase::Upper),
    ];
    for offset in 0..3 {
        forms.push(encode_base64_core(&STANDARD_NO_PAD, value, offset));
        forms.push(encode_base64_core(&URL_SAFE_NO_PAD, value, offset));
    }
    forms.sort();
    forms.dedup();
    forms.into_iter().map(|form| Zeroizing::new(form.into_bytes())).collect()
}

fn escape_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[derive(Clone, Copy)]
enum HexCase {
    Upper,
    Lower,
}

fn hex_of(byte: u8, case: HexCase) -> String {
    match case {
        HexCase::Upper => format!("{byte:02X}"),
        HexCase::Lower => format!("{byte:02x}"),
    }
}

fn encode_hex(value: &str, case: HexCase) -> String {
    value.bytes().map(|byte| hex_of(byte, case)).collect()
}

fn encode_url(value: &str, space: &str, case: HexCase) -> String {
    let encode = |byte: u8| match byte {
        b' ' => space.to_owned(),
        b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{}", hex_of(byte, case)),
    };
    value.bytes().map(encode).collect()
}

/// The base64 characters that depend only on the value if `offset` bytes (modulo three) precede it. They also match a
/// password inside `user:password`.
fn encode_base64_core(alphabet: &impl Engine, value: &str, offset: usize) -> String {
    let mut padded = Zeroizing::new(vec![0; offset]);
    padded.extend_from_slice(value.as_bytes());
    let encoded = Zeroizing::new(alphabet.encode(&*padded));
    encoded[(offset * 8).div_ceil(6)..padded.len() * 8 / 6].to_owned()
}

fn find_all<'b>(bytes: &'b [u8], form: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    let first = form[0];
    let starts = bytes.len().saturating_sub(form.len() - 1);
    bytes[..starts]
        .iter()
        .enumerate()
        .filter(move |(_, byte)| **byte == first)
        .map(|(at, _)| at)
        .filter(move |at| bytes[*at..].starts_with(form))
}

/// Replace the ranges. Overlapping ranges are merged, so that no part of a secret remains between them.
fn replace_ranges(bytes: &[u8], mut found: Vec<(usize, usize, &str)>) -> Vec<u8> {
    found.sort_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
    let (mut out, mut done) = (Vec::with_capacity(bytes.len()), 0);
    for (start, end, name) in found {
        if start >= done {
            out.extend_from_slice(&bytes[done..start]);
            out.extend_from_slice(format!("[{SECRET_REFERENCE}{name}]").as_bytes());
        }
        done = done.max(end);
    }
    out.extend_from_slice(&bytes[done..]);
    out
}
