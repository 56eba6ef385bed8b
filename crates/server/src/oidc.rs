//! OIDC tokens: a JWT signed by a key of the pinned issuer, for the pinned audience, that has not expired. Only
//! asymmetric signatures count; what a token says of itself is believed after its signature was checked.
//!
//! The issuer is asked for its keys when they are old, or when a token was signed by none of them, which is how a new key
//! becomes known; but one caller at a time, and not again before a pause has passed, whatever tokens come in.

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

use crate::auth::refused;
use crate::problem::{Problem, Result};

/// How far clocks may be apart.
const LEEWAY_MS: i64 = 60_000;
/// What the names of users begin with whose claim is no name of ours.
const ESCAPED: &str = "oidc:";
/// Keys of an issuer that are looked at.
const KEYS_MAX: usize = 64;

/// When the issuer is asked for its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTimes {
    /// How long fetched keys are used without asking again.
    pub live: Duration,
    /// Between two fetches because a token was signed by a key that is not known.
    pub refetch_pause: Duration,
    /// After a fetch that failed.
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

/// Where the issuer's keys come from: a file or a URL, as a JWK set.
pub trait KeySource: Send + Sync {
    fn load(&self) -> BoxFuture<'_, std::result::Result<Vec<u8>, String>>;
}

pub struct OidcConfig {
    pub issuer: String,
    pub audience: String,
    /// The claim that names the user.
    pub user_claim: String,
    pub tenant: Tenancy,
    pub times: KeyTimes,
}

/// Which tenant a token belongs to.
pub enum Tenancy {
    Fixed(TenantId),
    Claim(String),
}

pub struct Oidc {
    config: OidcConfig,
    source: Box<dyn KeySource>,
    held: Mutex<CachedKeys>,
    /// One at a time asks the issuer; the others wait for what it gets.
    asking: Semaphore,
}

/// The issuer's keys, as far as they are known.
#[derive(Default, Clone)]
struct CachedKeys {
    keys: Arc<Vec<Jwk>>,
    /// When these keys came.
    since: Option<Instant>,
    /// When the issuer was last asked, and what went wrong then.
    tried: Option<Instant>,
    failure: Option<String>,
}

/// Keys of other shapes are no use here, and no reason to do without the others.
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
struct Head {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
}

/// A token, taken apart.
struct Token<'t> {
    signed: &'t [u8],
    head: Head,
    claims: serde_json::Value,
    signature: Vec<u8>,
}

impl Oidc {
    pub fn new(config: OidcConfig, source: Box<dyn KeySource>) -> Self {
        Self { config, source, held: Mutex::default(), asking: Semaphore::new(1) }
    }

    /// Whom a token stands for, and until when.
    pub async fn verify(&self, text: &str) -> Result<(Scope, TimestampMs)> {
        let token = Token::parse(text).ok_or_else(refused)?;
        let held = self.held().clone();
        let is_signed = token.is_signed_by(&held.keys);
        let is_fresh = held.since.is_some_and(|since| since.elapsed() < self.config.times.live);
        if !(is_signed && is_fresh) {
            match self.renewed_keys().await {
                Ok(keys) if token.is_signed_by(&keys) => {}
                Ok(_) => return Err(refused()),
                // Keys that were good an hour ago are better than none.
                Err(_) if is_signed => {}
                Err(problem) => return Err(problem),
            }
        }
        self.read_claims(&token.claims).ok_or_else(refused)
    }

    fn read_claims(&self, claims: &serde_json::Value) -> Option<(Scope, TimestampMs)> {
        let now = SystemClock.now();
        let is_ours =
            claims["iss"].as_str()? == self.config.issuer && has_audience(claims, &self.config.audience);
        let expires_at = TimestampMs(millis_of(&claims["exp"])?.saturating_add(LEEWAY_MS));
        let has_begun = |nbf| millis_of(nbf).is_some_and(|nbf| nbf.saturating_sub(LEEWAY_MS) <= now.0);
        if !is_ours || expires_at <= now || !claims.get("nbf").is_none_or(has_begun) {
            return None;
        }
        let user = user_of(claims[&self.config.user_claim].as_str()?)?;
        let tenant = match &self.config.tenant {
            Tenancy::Fixed(tenant) => tenant.clone(),
            Tenancy::Claim(claim) => claims[claim].as_str()?.parse().ok()?,
        };
        Some((Scope::user(tenant, user), expires_at))
    }

    fn held(&self) -> MutexGuard<'_, CachedKeys> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The issuer's keys, asked for again unless that was done a moment ago.
    async fn renewed_keys(&self) -> Result<Arc<Vec<Jwk>>> {
        let _place = self.asking.acquire().await;
        let held = self.held().clone();
        if !held.is_settled(self.config.times) {
            let fetched = self.fetch().await;
            self.held().learn(fetched);
        }
        let held = self.held();
        match &held.failure {
            None => Ok(held.keys.clone()),
            Some(why) => Err(Problem::new("auth.keys", format!("the issuer's keys: {why}"))),
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
    fn is_settled(&self, times: KeyTimes) -> bool {
        let pause = if self.failure.is_some() { times.failed_pause } else { times.refetch_pause };
        self.tried.is_some_and(|tried| tried.elapsed() < pause)
    }

    fn learn(&mut self, fetched: std::result::Result<Vec<Jwk>, String>) {
        let now = Some(Instant::now());
        self.tried = now;
        match fetched {
            Ok(keys) => (self.keys, self.since, self.failure) = (Arc::new(keys), now, None),
            Err(why) => self.failure = Some(why),
        }
    }
}

/// A time in seconds, whole or not.
fn millis_of(claim: &serde_json::Value) -> Option<i64> {
    claim.as_f64().map(|seconds| (seconds * 1_000.0) as i64)
}

/// The user that a claim names. Issuers use characters that our names have not got (`auth0|…`): these are escaped behind a
/// prefix, and what is too long is hashed, so that no two claims become one user.
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
        serde_json::Value::Array(several) => several.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    }
}

impl<'t> Token<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (head, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            signed: signed.as_bytes(),
            head: serde_json::from_slice(&decode(head)?).ok()?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
            signature: decode(signature)?,
        })
    }

    fn is_signed_by(&self, keys: &[Jwk]) -> bool {
        keys.iter().any(|key| key.fits(&self.head) && key.has_signed(self))
    }
}

impl Jwk {
    /// A key is only good for the algorithm it was made for, and for the token that names it.
    fn fits(&self, head: &Head) -> bool {
        let is_kind = match head.alg.as_str() {
            "RS256" => self.kty == "RSA",
            "ES256" => self.kty == "EC" && self.crv == "P-256",
            "EdDSA" => self.kty == "OKP" && self.crv == "Ed25519",
            _ => false,
        };
        is_kind
            && self.usage.as_deref().is_none_or(|usage| usage == "sig")
            && (head.kid.is_none() || head.kid == self.kid)
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
    fn no_two_claims_become_one_user() {
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
