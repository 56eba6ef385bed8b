//! The names of custom entries. Sapwood stores some of its data in custom entries and trusts them, so callers must not
//! write entries with the same names.

/// Maximum length of a custom type, in bytes.
pub const CUSTOM_TYPE_BYTES_MAX: usize = 128;

/// Prefixes of the names that only Sapwood may use.
const RESERVED_PREFIXES: &[&str] = &["sapwood", "openai_", "role-files:", "turn_terms"];

/// Whether only Sapwood may write custom entries with this name.
pub fn is_reserved(custom_type: &str) -> bool {
    RESERVED_PREFIXES.iter().any(|prefix| custom_type.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn the_names_that_the_engine_trusts_are_reserved() {
        for name in [
            crate::input::INPUT_NOTE,
            crate::delegation::DELEGATION_INFO,
            "sapwood.memory",
            "sapwood.flow",
            "sapwood.flow_post",
            "sapwood.hook",
            "sapwood.trigger",
            "sapwood.pressure",
            "sapwood.usage",
            "turn_terms",
            "openai_response",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        assert!(!is_reserved("my-extension"));
    }
}
