//! Provider keys and their sources. A key has no `Display`, its `Debug` output is `ProviderKey(…)`, and it is wiped
//! when dropped. Keys are looked up for every call, so that a changed or revoked key takes effect.

use std::fmt;

use reqwest::header::HeaderValue;
use zeroize::Zeroizing;

pub struct ProviderKey(Zeroizing<String>);

impl ProviderKey {
    /// Trims whitespace, which files and shells often add. No key contains whitespace.
    pub fn new(value: String) -> Self {
        let value = Zeroizing::new(value);
        Self(Zeroizing::new(value.trim().to_owned()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key as a header value after `prefix`, marked as sensitive. `None` if the key contains characters that
    /// headers do not allow.
    pub(super) fn header(&self, prefix: &str) -> Option<HeaderValue> {
        let text = Zeroizing::new(format!("{prefix}{}", self.0.as_str()));
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Remove the key from a provider's response, which may repeat it.
    pub(super) fn scrub(&self, text: &str) -> String {
        if self.is_empty() { text.to_owned() } else { text.replace(self.0.as_str(), "[key]") }
    }
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderKey(…)")
    }
}

/// A source of keys, queried by environment variable name such as `OPENAI_API_KEY`. A keychain may use other names
/// internally. The source is queried on the task that makes the model call, so it must return quickly.
pub trait KeySource: Send + Sync {
    fn find_key(&self, variable: &str) -> Option<ProviderKey>;
}

impl<F: Fn(&str) -> Option<ProviderKey> + Send + Sync> KeySource for F {
    fn find_key(&self, variable: &str) -> Option<ProviderKey> {
        self(variable)
    }
}

/// Reads keys from the environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvironmentKeys;

impl KeySource for EnvironmentKeys {
    fn find_key(&self, variable: &str) -> Option<ProviderKey> {
        std::env::var(variable).ok().map(ProviderKey::new).filter(|key| !key.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_prints_itself() {
        let key = ProviderKey::new("  canary-4711\n".into());
        assert_eq!(format!("{key:?}"), "ProviderKey(…)");
        let header = key.header("Bearer ").unwrap();
        assert_eq!(header.as_bytes(), b"Bearer canary-4711");
        assert!(!format!("{header:?}").contains("canary"));
        assert_eq!(key.scrub("wrong key canary-4711."), "wrong key [key].");
    }

    #[test]
    fn a_key_with_invalid_header_characters_has_no_header() {
        assert!(ProviderKey::new("two\nlines".into()).header("").is_none());
    }
}
