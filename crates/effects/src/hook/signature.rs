//! A signature over a time and a body: HMAC-SHA256 under a secret that both sides have. The time is part of what is signed,
//! so that what was overheard is of no use later.

use ring::hmac;

use crate::secret::Secret;

/// Milliseconds since the Unix epoch, as they were signed.
pub const TIMESTAMP_HEADER: &str = "sapwood-timestamp";
/// `v1=` and the hexadecimal digits.
pub const SIGNATURE_HEADER: &str = "sapwood-signature";
/// How far the time of a signature may be from ours.
pub const SKEW_MS_MAX: i64 = 300_000;
const VERSION: &str = "v1=";

/// Signs a body at a time.
pub fn sign(secret: &Secret, at_ms: i64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
    let tag = hmac::sign(&key, &signed_bytes(at_ms, body));
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{VERSION}{hex}")
}

/// Why a signature is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the time of the signature cannot be read")]
    Time,
    #[error("the time of the signature is more than {} s from ours", SKEW_MS_MAX / 1_000)]
    Skew,
    #[error("the signature does not fit")]
    Wrong,
}

/// Checks a signature in constant time.
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
    // Said only to whoever has the secret.
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
    fn only_the_same_secret_time_and_body_fit() {
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
    fn a_signature_is_of_no_use_later() {
        let secret = Secret::new("correct horse battery".to_owned());
        let signed = sign(&secret, 1_000, b"");
        let late = 1_000 + SKEW_MS_MAX + 1;
        assert_eq!(verify(&secret, "1000", &signed, b"", late), Err(SignatureError::Skew));
    }

    #[test]
    fn the_signature_is_the_one_that_others_compute() {
        // openssl: printf '1000.body' | openssl dgst -sha256 -hmac 'correct horse battery'
        let secret = Secret::new("correct horse battery".to_owned());
        let expected = "v1=7bfaf501b473fe13a86b7e72ffaca0caeae3fb1edfa8dd4a49d76b647ffbbd30";
        assert_eq!(sign(&secret, 1_000, b"body"), expected);
    }
}
