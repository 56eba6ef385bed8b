//! An HMAC-SHA256 signature over a timestamp and a body, with a shared secret. The signed timestamp limits replays.

use ring::hmac;

use crate::secret::Secret;

/// The signed time in milliseconds since the Unix epoch.
pub const TIMESTAMP_HEADER: &str = "sapwood-timestamp";
/// The signature: `v1=` followed by hexadecimal digits.
pub const SIGNATURE_HEADER: &str = "sapwood-signature";
/// Maximum difference between the signed time and the current time.
pub const SKEW_MS_MAX: i64 = 300_000;
const VERSION: &str = "v1=";

/// Sign a body with a timestamp.
pub fn sign(secret: &Secret, at_ms: i64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
    let tag = hmac::sign(&key, &signed_bytes(at_ms, body));
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{VERSION}{hex}")
}

/// Why a signature is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("invalid signature timestamp")]
    Time,
    #[error("the signature timestamp differs by more than {} s from the current time", SKEW_MS_MAX / 1_000)]
    Skew,
    #[error("the signature does not match")]
    Wrong,
}

/// Verify a signature in constant time.
pub fn verify(
    secret: &Secret,
    timestamp: &str,
    signature: &str,
    body: &[u8],
    now_ms: i64,
) -> Result<(), SignatureError> {
    let at_ms: i64 = timestamp.parse().map_err(|_| SignatureError::Time)?;
    let digits = signature.strip_prefix(VERSION).ok_or(SignatureError::Wrong)?;
    let tag = read_hex(digits).ok_or(SignatureError::Wrong)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
    hmac::verify(&key, &signed_bytes(at_ms, body), &tag).map_err(|_| SignatureError::Wrong)?;
    // Checked last, so that only a sender with the secret learns about the skew.
    if at_ms.abs_diff(now_ms) > SKEW_MS_MAX.unsigned_abs() {
        return Err(SignatureError::Skew);
    }
    Ok(())
}

fn signed_bytes(at_ms: i64, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{at_ms}.").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn read_hex(digits: &str) -> Option<Vec<u8>> {
    let is_hex = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    is_hex.then(|| (0..digits.len()).step_by(2).filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_time_and_body_match() {
        let secret = Secret::new("correct horse battery".to_owned());
        let other = Secret::new("correct horse batterie".to_owned());
        let signed = sign(&secret, 1_000, b"body");
        let check = |secret: &Secret, time: &str, signature: &str, body: &[u8]| {
            verify(secret, time, signature, body, 2_000)
        };
        assert_eq!(check(&secret, "1000", &signed, b"body"), Ok(()));
        assert_eq!(check(&other, "1000", &signed, b"body"), Err(SignatureError::Wrong));
        assert_eq!(check(&secret, "1001", &signed, b"body"), Err(SignatureError::Wrong));
        assert_eq!(check(&secret, "1000", &signed, b"bodies"), Err(SignatureError::Wrong));
        assert_eq!(check(&secret, "soon", &signed, b"body"), Err(SignatureError::Time));
        assert_eq!(check(&secret, "1000", &signed[3..], b"body"), Err(SignatureError::Wrong));
        assert_eq!(check(&secret, "1000", "v1=zz", b"body"), Err(SignatureError::Wrong));
    }

    #[test]
    fn an_old_signature_is_rejected() {
        let secret = Secret::new("correct horse battery".to_owned());
        let signed = sign(&secret, 1_000, b"");
        let late = 1_000 + SKEW_MS_MAX + 1;
        assert_eq!(verify(&secret, "1000", &signed, b"", late), Err(SignatureError::Skew));
    }

    #[test]
    fn matches_the_signature_computed_by_openssl() {
        // openssl: printf '1000.body' | openssl dgst -sha256 -hmac 'correct horse battery'
        let secret = Secret::new("correct horse battery".to_owned());
        let expected = "v1=7bfaf501b473fe13a86b7e72ffaca0caeae3fb1edfa8dd4a49d76b647ffbbd30";
        assert_eq!(sign(&secret, 1_000, b"body"), expected);
    }
}
