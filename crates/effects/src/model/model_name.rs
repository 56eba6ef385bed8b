//! The spellings of model names. Pure. Programs, gateways and clouds spell the name of one model in different ways;
//! this module reduces them to the name that the model's own provider uses.

/// Regions and vendors that Bedrock puts before a model's name, as in `us.anthropic.claude-…`.
const CLOUD_PREFIXES: &[&str] = &[
    "us",
    "us-gov",
    "eu",
    "apac",
    "ap",
    "jp",
    "au",
    "ca",
    "sa",
    "global",
    "anthropic",
    "openai",
    "google",
    "amazon",
    "meta",
    "mistral",
    "deepseek",
    "qwen",
];
/// Variants that gateways put after a model's name, as in `gpt-4o:free`.
const GATEWAY_VARIANTS: &[&str] =
    &["free", "beta", "extended", "thinking", "online", "nitro", "floor", "exacto"];
/// Aliases for the newest edition, which Vertex puts after an `@`.
const NEWEST_ALIASES: &[&str] = &["latest", "default"];

/// First segments of names in other programs: clouds, gateways and resource paths. A name with any other first segment
/// names a provider that is not configured here, and must not be sent to another one.
const FOREIGN_PREFIXES: &[&str] = &[
    "accounts",
    "amazon-bedrock",
    "anthropic-vertex",
    "azure",
    "azure-openai",
    "azure-openai-responses",
    "bedrock",
    "github-copilot",
    "google",
    "google-antigravity",
    "google-gemini-cli",
    "google-vertex",
    "google-vertex-anthropic",
    "litellm",
    "models",
    "openai-codex",
    "opencode",
    "openrouter",
    "projects",
    "publishers",
    "vercel-ai-gateway",
    "vertex",
    "vertex_ai",
];

/// Whether the name has no provider, or the prefix of a cloud or a gateway.
pub fn is_portable(given: &str) -> bool {
    match given.trim().split_once('/') {
        None => true,
        Some((prefix, _)) => FOREIGN_PREFIXES.contains(&prefix) || prefix.starts_with("arn:"),
    }
}

/// Reduce a name to the spelling of the model's own provider. Examples:
///
/// | given | result |
/// |---|---|
/// | `us.anthropic.claude-sonnet-4-5-20250929-v1:0` (Bedrock) | `claude-sonnet-4-5-20250929` |
/// | `publishers/anthropic/models/claude-opus-4-5@20251101` (Vertex) | `claude-opus-4-5-20251101` |
/// | `openrouter/anthropic/claude-sonnet-4.5:beta` (OpenRouter) | `claude-sonnet-4-5` |
/// | `models/gemini-2.5-pro` (Gemini) | `gemini-2.5-pro` |
/// | `claude-sonnet-4-5-20250929[1m]` (Claude Code) | `claude-sonnet-4-5-20250929` |
pub fn plain_name(given: &str) -> String {
    let lower = given.trim().to_ascii_lowercase();
    let last = lower.rsplit('/').next().unwrap_or_default();
    let without_option = last.split_once('[').map_or(last, |(name, _)| name);
    let without_cloud = strip_cloud_prefixes(without_option);
    let without_variant = strip_variant(without_cloud);
    let mut name = without_edition_mark(strip_bedrock_version(without_variant));
    if name.starts_with("claude") {
        name = name.replace('.', "-");
    }
    name
}

fn strip_cloud_prefixes(mut name: &str) -> &str {
    while let Some((first, rest)) = name.split_once('.') {
        if !CLOUD_PREFIXES.contains(&first) || rest.is_empty() {
            break;
        }
        name = rest;
    }
    name
}

fn strip_variant(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((base, variant)) if GATEWAY_VARIANTS.contains(&variant) => base,
        _ => name,
    }
}

/// Strip the version that Bedrock adds, such as `-v1:0` or `-v2`.
fn strip_bedrock_version(name: &str) -> &str {
    let base = name.split_once(':').filter(|(_, rest)| rest.bytes().all(|byte| byte.is_ascii_digit()));
    let base = base.map_or(name, |(base, _)| base);
    match base.rsplit_once("-v") {
        Some((before, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            before
        }
        _ => name,
    }
}

/// Write Vertex' `@20250929` as `-20250929`, and drop an alias for the newest edition.
fn without_edition_mark(name: &str) -> String {
    match name.split_once('@') {
        Some((base, edition)) if NEWEST_ALIASES.contains(&edition) => base.to_owned(),
        Some((base, edition)) => format!("{base}-{edition}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_reduced_to_the_providers_spelling() {
        let cases = [
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5-20250929"),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-20250929"),
            ("anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5-20251101"),
            ("global.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5-20251001"),
            ("amazon-bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-20250929"),
            (
                "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-6-v1",
                "claude-opus-4-6",
            ),
            ("claude-opus-4-5@20251101", "claude-opus-4-5-20251101"),
            ("vertex_ai/claude-sonnet-4-5@latest", "claude-sonnet-4-5"),
            ("publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
            ("models/gemini-2.5-flash", "gemini-2.5-flash"),
            ("openrouter/anthropic/claude-sonnet-4.5:beta", "claude-sonnet-4-5"),
            ("openai/gpt-4.1", "gpt-4.1"),
            ("gpt-4o-2024-08-06", "gpt-4o-2024-08-06"),
            ("Claude-Sonnet-4-5-20250929[1m]", "claude-sonnet-4-5-20250929"),
            ("qwen3:8b", "qwen3:8b"),
            ("", ""),
        ];
        for (given, expected) in cases {
            assert_eq!(plain_name(given), expected, "{given}");
        }
    }
}
