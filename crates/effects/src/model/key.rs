//! Keys of providers, and where they come from. A key has no `Display`, prints as `ProviderKey(…)`, and is wiped when dropped; it
//! is looked up for each call, so one that was changed or taken back is noticed.

use std::fmt;

use reqwest::header::HeaderValue;
use zeroize::Zeroizing;

pub struct ProviderKey(Zeroizing<String>);

impl ProviderKey {
    /// Blanks around it are dropped: they come from files and shells, and no key has any.
    pub fn new(value: String) -> Self {
        let value = Zeroizing::new(value);
        Self(Zeroizing::new(value.trim().to_owned()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a header's value behind `prefix`, marked so that nothing prints it. None when a header cannot carry it.
    pub(super) fn header(&self, prefix: &str) -> Option<HeaderValue> {
        let text = Zeroizing::new(format!("{prefix}{}", self.0.as_str()));
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// A provider may repeat the key in what it answers.
    pub(super) fn scrub(&self, text: &str) -> String {
        if self.is_empty() { text.to_owned() } else { text.replace(self.0.as_str(), "[key]") }
    }
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderKey(…)")
    }
}

/// Where keys come from. They are asked for by the name of their environment variable, such as `OPENAI_API_KEY`; what a
/// keychain calls them is its own affair. It is asked on the task that makes the call, so it should answer at once.
pub trait KeySource: Send + Sync {
    fn find_key(&self, variable: &str) -> Option<ProviderKey>;
}

impl<F: Fn(&str) -> Option<ProviderKey> + Send + Sync> KeySource for F {
    fn find_key(&self, variable: &str) -> Option<ProviderKey> {
        self(variable)
    }
}

/// Keys from the environment.
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
    fn a_key_that_no_header_can_carry_is_no_header() {
        assert!(ProviderKey::new("two\nlines".into()).header("").is_none());
    }
}
