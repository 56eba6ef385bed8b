//! OIDC tokens: a JWT signed by a key of the pinned issuer, for the pinned audience, that has not expired. Only
//! asymmetric signatures count; what a token says of itself is believed after its signature was checked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use sapwood::core::port::clock::Clock;
use sapwood::{Scope, SystemClock, TenantId};
use serde::Deserialize;

use crate::door::refused;
use crate::problem::{Problem, Result};

/// How far clocks may be apart.
const LEEWAY_S: i64 = 60;
/// How long fetched keys are used without asking again.
const KEYS_LIVE: Duration = Duration::from_secs(3_600);
/// Between two fetches because a token names a key that is not known.
const REFETCH_PAUSE: Duration = Duration::from_secs(30);
/// Keys of an issuer that are looked at.
const KEYS_MAX: usize = 64;

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
}

/// Which tenant a token belongs to.
pub enum Tenancy {
    Fixed(TenantId),
    Claim(String),
}

pub struct Oidc {
    config: OidcConfig,
    source: Box<dyn KeySource>,
    keys: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    keys: Arc<Vec<Jwk>>,
    at: Option<Instant>,
}

#[derive(Debug, Deserialize)]
struct JwkSet {
    keys: Vec<Jwk>,
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
        Self { config, source, keys: Mutex::default() }
    }

    pub async fn verify(&self, text: &str) -> Result<Scope> {
        let token = Token::parse(text).ok_or_else(refused)?;
        let keys = self.keys(&token.head).await?;
        if !keys.iter().take(KEYS_MAX).any(|key| key.fits(&token.head) && key.has_signed(&token)) {
            return Err(refused());
        }
        self.read_claims(&token.claims).ok_or_else(refused)
    }

    fn read_claims(&self, claims: &serde_json::Value) -> Option<Scope> {
        let now = SystemClock.now().0 / 1_000;
        let is_ours =
            claims["iss"].as_str()? == self.config.issuer && has_audience(claims, &self.config.audience);
        let is_due = claims["exp"].as_i64()? + LEEWAY_S > now
            && claims.get("nbf").is_none_or(|nbf| nbf.as_i64().is_some_and(|nbf| nbf - LEEWAY_S <= now));
        if !is_ours || !is_due {
            return None;
        }
        let user = claims[&self.config.user_claim].as_str()?.parse().ok()?;
        let tenant = match &self.config.tenant {
            Tenancy::Fixed(tenant) => tenant.clone(),
            Tenancy::Claim(claim) => claims[claim].as_str()?.parse().ok()?,
        };
        Some(Scope::user(tenant, user))
    }

    /// The issuer's keys; fetched anew when they are old, or when a token names one that is not among them.
    async fn keys(&self, head: &Head) -> Result<Arc<Vec<Jwk>>> {
        let (keys, at) = {
            let held = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            (held.keys.clone(), held.at)
        };
        let age = at.map(|at| at.elapsed());
        let is_known = keys.iter().any(|key| key.fits(head));
        let is_fresh = age.is_some_and(|age| age < if is_known { KEYS_LIVE } else { REFETCH_PAUSE });
        if is_fresh {
            return Ok(keys);
        }
        match self.fetch().await {
            Ok(keys) => Ok(keys),
            // Keys that were good an hour ago are better than none.
            Err(_) if is_known => Ok(keys),
            Err(problem) => Err(problem),
        }
    }

    async fn fetch(&self) -> Result<Arc<Vec<Jwk>>> {
        let failed = |why: String| Problem::new("auth.keys", format!("the issuer's keys: {why}"));
        let bytes = self.source.load().await.map_err(failed)?;
        let set: JwkSet = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        let keys = Arc::new(set.keys);
        let mut held = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Fetched { keys: keys.clone(), at: Some(Instant::now()) };
        Ok(keys)
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
