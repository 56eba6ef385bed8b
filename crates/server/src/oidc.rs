//! OIDC tokens: unexpired JWTs signed by a key of the pinned issuer for the pinned audience. Only asymmetric
//! signatures are accepted, and claims are read only after the signature is verified.
//!
//! The issuer's keys are fetched when the cached keys have expired, or when a token was signed by none of them, because
//! the issuer may have added keys. Only one task fetches at a time, with a minimum pause between fetches, regardless of
//! how many tokens arrive.

mod published;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use sapwood::core::id::{NAME_BYTES_MAX, UserName};
use sapwood::core::port::clock::Clock;
use sapwood::core::{BlobHash, TimestampMs};
use sapwood::{Scope, SystemClock, TenantId};
use serde::Deserialize;
use tokio::sync::Semaphore;

pub use published::{JwksFile, JwksUrl};

use crate::problem::{Problem, Result};

/// Tolerated clock skew.
const LEEWAY_MS: i64 = 60_000;
/// Prefix of user names that were escaped because the claim is not a valid name.
const ESCAPED: &str = "oidc:";
/// Maximum number of keys per issuer.
const KEYS_MAX: usize = 64;

/// When the issuer's keys are fetched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTimes {
    /// TTL of fetched keys.
    pub live: Duration,
    /// Minimum pause after a successful fetch.
    pub refetch_pause: Duration,
    /// Minimum pause after a failed fetch.
    pub failed_pause: Duration,
}

impl Default for KeyTimes {
    fn default() -> Self {
        Self {
            live: Duration::from_secs(3_600),
            refetch_pause: Duration::from_secs(30),
            failed_pause: Duration::from_secs(5),
        }
    }
}

/// A source of the issuer's keys as a JWK set: a file or a URL.
pub trait KeySource: Send + Sync {
    fn load(&self) -> BoxFuture<'_, std::result::Result<Vec<u8>, String>>;
}

pub struct OidcConfig {
    pub issuer: String,
    pub audience: String,
    /// The claim that contains the user name.
    pub user_claim: String,
    pub tenant: Tenancy,
    pub times: KeyTimes,
}

/// How the tenant of a token is determined.
pub enum Tenancy {
    Fixed(TenantId),
    Claim(String),
}

pub struct Oidc {
    config: OidcConfig,
    source: Box<dyn KeySource>,
    cached: Mutex<CachedKeys>,
    /// Lets one task fetch at a time. Other tasks wait for its result.
    fetch_permit: Semaphore,
}

/// The cached keys of the issuer.
#[derive(Default, Clone)]
struct CachedKeys {
    keys: Arc<Vec<Jwk>>,
    /// When these keys were fetched.
    since: Option<Instant>,
    /// When the latest fetch ran, and its error.
    tried: Option<Instant>,
    failure: Option<String>,
}

/// A key set. Keys are parsed one by one, so that an unsupported key does not invalidate the others.
#[derive(Debug, Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
    /// Whether the token names extensions that a verifier must understand. This one understands none.
    #[serde(default, rename = "crit", deserialize_with = "is_present")]
    has_critical_extensions: bool,
    #[serde(default)]
    kid: Option<String>,
}

fn is_present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<bool, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// A parsed token.
struct Token<'t> {
    signed: &'t [u8],
    header: JwtHeader,
    claims: serde_json::Value,
    signature: Vec<u8>,
}

impl Oidc {
    pub fn new(config: OidcConfig, source: Box<dyn KeySource>) -> Self {
        Self { config, source, cached: Mutex::default(), fetch_permit: Semaphore::new(1) }
    }

    /// Verifies a token. Returns its scope and expiry.
    pub async fn verify(&self, text: &str) -> Result<(Scope, TimestampMs)> {
        let token = Token::parse(text).filter(|token| !token.header.has_critical_extensions);
        let token = token.ok_or_else(Problem::invalid_credential)?;
        let cached = self.cached().clone();
        let is_signed = token.is_signed_by(&cached.keys);
        let is_fresh = cached.since.is_some_and(|since| since.elapsed() < self.config.times.live);
        if !(is_signed && is_fresh) {
            match self.refresh_keys().await {
                Ok(keys) if token.is_signed_by(&keys) => {}
                Ok(_) => return Err(Problem::invalid_credential()),
                // If the fetch fails, the expired keys stay in use.
                Err(_) if is_signed => {}
                Err(problem) => return Err(problem),
            }
        }
        self.read_claims(&token.claims).ok_or_else(Problem::invalid_credential)
    }

    fn read_claims(&self, claims: &serde_json::Value) -> Option<(Scope, TimestampMs)> {
        let now = SystemClock.now();
        let is_for_us =
            claims["iss"].as_str()? == self.config.issuer && has_audience(claims, &self.config.audience);
        let expires_at = TimestampMs(millis_of(&claims["exp"])?.saturating_add(LEEWAY_MS));
        let has_begun = |nbf| millis_of(nbf).is_some_and(|nbf| nbf.saturating_sub(LEEWAY_MS) <= now.0);
        if !is_for_us || expires_at <= now || !claims.get("nbf").is_none_or(has_begun) {
            return None;
        }
        let user = user_of(claims[&self.config.user_claim].as_str()?)?;
        let tenant = match &self.config.tenant {
            Tenancy::Fixed(tenant) => tenant.clone(),
            Tenancy::Claim(claim) => claims[claim].as_str()?.parse().ok()?,
        };
        Some((Scope::user(tenant, user), expires_at))
    }

    fn cached(&self) -> MutexGuard<'_, CachedKeys> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches the issuer's keys. Returns the result of the previous fetch if its minimum pause has not passed.
    async fn refresh_keys(&self) -> Result<Arc<Vec<Jwk>>> {
        let _permit = self.fetch_permit.acquire().await;
        let cached = self.cached().clone();
        if !cached.is_within_pause(self.config.times) {
            let fetched = self.fetch().await;
            self.cached().store_result(fetched);
        }
        let cached = self.cached();
        match &cached.failure {
            None => Ok(cached.keys.clone()),
            Some(reason) => {
                Err(Problem::new("auth.keys", format!("failed to fetch the issuer's keys: {reason}")))
            }
        }
    }

    async fn fetch(&self) -> std::result::Result<Vec<Jwk>, String> {
        let bytes = self.source.load().await?;
        let set: JwkSet = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        Ok(keys.take(KEYS_MAX).collect())
    }
}

impl CachedKeys {
    fn is_within_pause(&self, times: KeyTimes) -> bool {
        let pause = if self.failure.is_some() { times.failed_pause } else { times.refetch_pause };
        self.tried.is_some_and(|tried| tried.elapsed() < pause)
    }

    fn store_result(&mut self, fetched: std::result::Result<Vec<Jwk>, String>) {
        let now = Some(Instant::now());
        self.tried = now;
        match fetched {
            Ok(keys) => (self.keys, self.since, self.failure) = (Arc::new(keys), now, None),
            Err(reason) => self.failure = Some(reason),
        }
    }
}

/// Converts a claim in seconds, possibly fractional, to milliseconds.
fn millis_of(claim: &serde_json::Value) -> Option<i64> {
    claim.as_f64().map(|seconds| (seconds * 1_000.0) as i64)
}

/// Maps a claim to a user name. Claims with characters that user names do not allow (`auth0|…`) are escaped and
/// prefixed, and long claims are hashed. No two claims map to the same user.
fn user_of(claim: &str) -> Option<UserName> {
    if let Ok(user) = claim.parse()
        && !claim.starts_with(ESCAPED)
    {
        return Some(user);
    }
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'@' | b'-' => char::from(byte).to_string(),
        _ => format!("+{byte:02X}"),
    };
    let escaped: String = claim.bytes().take(NAME_BYTES_MAX + 1).map(escape).collect();
    let name = format!("{ESCAPED}{escaped}");
    match claim.is_empty() {
        true => None,
        false => {
            name.parse().or_else(|_| format!("{ESCAPED}{}", BlobHash::of(claim.as_bytes())).parse()).ok()
        }
    }
}

fn has_audience(claims: &serde_json::Value, audience: &str) -> bool {
    match &claims["aud"] {
        serde_json::Value::String(only) => only == audience,
        serde_json::Value::Array(audiences) => audiences.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    }
}

impl<'t> Token<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            signed: signed.as_bytes(),
            header: serde_json::from_slice(&decode(header)?).ok()?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
            signature: decode(signature)?,
        })
    }

    fn is_signed_by(&self, keys: &[Jwk]) -> bool {
        keys.iter().any(|key| key.matches(&self.header) && key.has_signed(self))
    }
}

impl Jwk {
    /// Whether the key has the token's algorithm and, if the token contains a key id, the same id.
    fn matches(&self, header: &JwtHeader) -> bool {
        let is_kind = match header.alg.as_str() {
            "RS256" => self.kty == "RSA",
            "ES256" => self.kty == "EC" && self.crv == "P-256",
            "EdDSA" => self.kty == "OKP" && self.crv == "Ed25519",
            _ => false,
        };
        is_kind
            && self.usage.as_deref().is_none_or(|usage| usage == "sig")
            && (header.kid.is_none() || header.kid == self.kid)
    }

    fn has_signed(&self, token: &Token<'_>) -> bool {
        self.check(token).is_some()
    }

    fn check(&self, token: &Token<'_>) -> Option<()> {
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        match self.kty.as_str() {
            "RSA" => {
                let key = RsaPublicKeyComponents { n: decode(&self.n)?, e: decode(&self.e)? };
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, token.signed, &token.signature).ok()
            }
            "EC" => {
                let point = [vec![4], decode(&self.x)?, decode(&self.y)?].concat();
                let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                key.verify(token.signed, &token.signature).ok()
            }
            "OKP" => {
                let key = UnparsedPublicKey::new(&signature::ED25519, decode(&self.x)?);
                key.verify(token.signed, &token.signature).ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_claims_map_to_the_same_user() {
        let (long, longer) = ("|".repeat(200), "|".repeat(201));
        let claims = [
            "ana",
            "auth0|ana",
            "auth0+7Cana",
            "oidc:auth0+7Cana",
            "oidc:ana",
            "auth0|",
            "é",
            "-",
            &long,
            &longer,
        ];
        let users: std::collections::BTreeSet<String> =
            claims.iter().map(|claim| user_of(claim).expect(claim).to_string()).collect();
        assert_eq!(users.len(), claims.len(), "{users:?}");
        assert!(users.contains("ana") && users.contains("oidc:auth0+7Cana"));
        assert_eq!(user_of(""), None);
    }
}
