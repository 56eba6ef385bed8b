//! Answer links signed with HMAC-SHA256. All servers of a store need the same key, so that each of them accepts the
//! links of the others.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use sapwood_core::port::links::{AnswerLinks, LinkClaim};

use crate::secret::Secret;

/// Minimum length of the key, in bytes.
pub const KEY_BYTES_MIN: usize = 32;
/// Maximum length of a token, in bytes. A longer one is not parsed.
const TOKEN_BYTES_MAX: usize = 4 << 10;
/// The path below which the server serves answer links.
pub const ANSWER_PATH: &str = "/answer/";
/// Separates these signatures from others made with the same key.
const PURPOSE: &[u8] = b"sapwood answer link v1\0";

/// Signs answer links for one public address.
pub struct SignedLinks {
    key: hmac::Key,
    public_url: String,
}

impl SignedLinks {
    /// `public_url` is the address at which clients reach the server. `None` if the key is too short.
    pub fn new(key: &Secret, public_url: &str) -> Option<Self> {
        let bytes = key.expose().as_bytes();
        let public_url = public_url.trim_end_matches('/').to_owned();
        (bytes.len() >= KEY_BYTES_MIN)
            .then(|| Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes), public_url })
    }

    fn token(&self, claim: &LinkClaim) -> String {
        let payload = serde_json::to_vec(claim).unwrap_or_default();
        let tag = hmac::sign(&self.key, &[PURPOSE, &payload].concat());
        format!("{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(tag))
    }
}

impl AnswerLinks for SignedLinks {
    fn url(&self, claim: &LinkClaim) -> String {
        format!("{}{ANSWER_PATH}{}", self.public_url, self.token(claim))
    }

    fn verify(&self, token: &str) -> Option<LinkClaim> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (payload, tag) = token.split_once('.')?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.key, &[PURPOSE, &payload].concat(), &tag).ok()?;
        serde_json::from_slice(&payload).ok()
    }
}

#[cfg(test)]
mod tests {
    use sapwood_core::entry::ApprovalAnswer;
    use sapwood_core::{Principal, TenantId, TimestampMs};

    use super::*;

    fn links(key: &str) -> SignedLinks {
        SignedLinks::new(&Secret::new(key.to_owned()), "https://example.org/").unwrap()
    }

    fn claim() -> LinkClaim {
        LinkClaim {
            tenant: TenantId::local(),
            approval: "s~12345678.1".to_owned(),
            by: Principal::System,
            operator: true,
            expires_at: TimestampMs(1_000),
            answers: vec![ApprovalAnswer::Approved, ApprovalAnswer::Denied],
        }
    }

    #[test]
    fn only_the_key_that_signed_a_link_verifies_it() {
        let (ours, theirs) = (links(&"k".repeat(32)), links(&"x".repeat(32)));
        let url = ours.url(&claim());
        let token = url.strip_prefix("https://example.org/answer/").unwrap();
        assert_eq!(ours.verify(token), Some(claim()));
        assert_eq!(theirs.verify(token), None);
        assert!(SignedLinks::new(&Secret::new("short".to_owned()), "https://example.org").is_none());
    }

    #[test]
    fn a_changed_token_is_refused() {
        let ours = links(&"k".repeat(32));
        let token = ours.token(&claim());
        let (payload, tag) = token.split_once('.').unwrap();
        let other = LinkClaim { expires_at: TimestampMs(9_000), ..claim() };
        let forged = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
        for bad in [format!("{forged}.{tag}"), format!("{payload}."), payload.to_owned(), String::new()] {
            assert_eq!(ours.verify(&bad), None, "{bad}");
        }
        assert_eq!(ours.verify(&"A".repeat(TOKEN_BYTES_MAX + 1)), None);
    }
}
