//! Authentication. A request carries an API key or an OIDC token. A request without a credential is accepted only on
//! loopback, as the operator, until the first key is created or OIDC is configured. All other requests are rejected.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sapwood::core::port::clock::Clock;
use sapwood::core::port::keys::{ApiKey, Grant};
use sapwood::core::port::store::Store;
use sapwood::core::scope::Reach;
use sapwood::core::{BlobHash, Right, TimestampMs};
use sapwood::{Scope, SystemClock};

use crate::cookie;
use crate::oidc::Oidc;
use crate::problem::{Problem, Result};
use crate::request_id::RequestId;

/// Prefix of every key, so that people and secret scanners recognize it.
pub const KEY_PREFIX: &str = "sapwood_";
/// Maximum length of a credential.
const CREDENTIAL_BYTES_MAX: usize = 16 << 10;
/// TTL of the cached "any API keys exist?" answer.
const HAS_KEYS_TTL: Duration = Duration::from_millis(200);

/// Generates a public id and a key of 256 random bits. Returns `None` if the system's random source fails.
pub fn new_key() -> Option<(String, String)> {
    let (mut id, mut secret) = ([0u8; 8], [0u8; 32]);
    let random = SystemRandom::new();
    random.fill(&mut id).ok()?;
    random.fill(&mut secret).ok()?;
    let id = u64::from_be_bytes(id);
    Some((format!("key_{id:016x}"), format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret))))
}

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Caller {
    pub scope: Scope,
    /// The id of the authenticated request.
    pub request: RequestId,
    proof: Proof,
}

#[derive(Debug, Clone)]
enum Proof {
    /// A process on this machine.
    Local,
    Key(Arc<ApiKey>),
    /// An OIDC token with its expiry.
    Token(TimestampMs),
}

impl Caller {
    fn new(scope: Scope, proof: Proof) -> Self {
        Self { scope, request: RequestId::default(), proof }
    }

    /// Sets the request id, for the log.
    pub fn with_request(self, request: RequestId) -> Self {
        Self { request, ..self }
    }

    pub fn is_local(&self) -> bool {
        matches!(self.proof, Proof::Local)
    }

    pub fn proof_name(&self) -> &'static str {
        match self.proof {
            Proof::Local => "local",
            Proof::Key(_) => "key",
            Proof::Token(_) => "token",
        }
    }

    pub fn has_operate_grant(&self) -> bool {
        matches!(&self.proof, Proof::Key(key) if key.allows(Grant::Operate))
    }

    /// Fails if the caller's key lacks the grant. Rights on a session are checked by the store.
    pub fn check(&self, right: Right) -> Result<()> {
        let Proof::Key(key) = &self.proof else { return Ok(()) };
        let needed = if right == Right::Read { Grant::Read } else { Grant::Write };
        if key.allows(needed) || key.allows(Grant::Operate) {
            return Ok(());
        }
        let detail = match needed {
            Grant::Read => "this key has no read access",
            Grant::Write | Grant::Operate => "this key is read-only",
        };
        Err(Problem::new("key.scope", detail))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    /// Returns the caller that the middleware has inserted.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(credential_required)
    }
}

pub struct Authenticator {
    store: Arc<dyn Store>,
    /// The scope of a local request without a credential.
    local: Option<Scope>,
    oidc: Option<Oidc>,
    /// Whether every request needs a credential. Set by the configuration or by the first key, and never cleared.
    is_locked: AtomicBool,
    keys_checked_at: Mutex<Option<Instant>>,
}

impl Authenticator {
    pub fn new(store: Arc<dyn Store>, local: Option<Scope>, oidc: Option<Oidc>) -> Self {
        let is_locked = AtomicBool::new(local.is_none() || oidc.is_some());
        Self { store, local, oidc, is_locked, keys_checked_at: Mutex::default() }
    }

    /// Whether a credential is required.
    pub async fn is_locked(&self) -> Result<bool> {
        if self.is_locked.load(Ordering::Relaxed) {
            return Ok(true);
        }
        if self.checked_recently() {
            return Ok(false);
        }
        let has_keys = self.store.has_keys().await?;
        self.is_locked.store(has_keys, Ordering::Relaxed);
        *self.keys_checked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(has_keys)
    }

    fn checked_recently(&self) -> bool {
        let keys_checked_at = self.keys_checked_at.lock().unwrap_or_else(PoisonError::into_inner);
        keys_checked_at.is_some_and(|at| at.elapsed() < HAS_KEYS_TTL)
    }

    /// Whether this server may listen on the address. Addresses other than loopback require keys or OIDC.
    pub async fn may_listen(&self, addr: SocketAddr) -> Result<bool> {
        Ok(addr.ip().is_loopback() || self.is_locked().await?)
    }

    pub async fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<Caller> {
        let caller = match self.is_locked().await? {
            // As long as no key is required, any API key sent is ignored: some clients always send one.
            false => self.admit_local(headers)?,
            true => match (credential(headers)?, cookie::credential(headers)) {
                (Some(credential), _) => self.authenticate(credential).await?,
                (None, Some(credential)) => {
                    cookie::check_site(method, headers)?;
                    self.authenticate(credential).await?
                }
                (None, None) => return Err(credential_required()),
            },
        };
        let right = if method.is_safe() { Right::Read } else { Right::Write };
        caller.check(right)?;
        Ok(caller)
    }

    async fn authenticate(&self, credential: &str) -> Result<Caller> {
        if credential.starts_with(KEY_PREFIX) {
            return self.find_key(credential).await;
        }
        match &self.oidc {
            Some(oidc) => {
                let (scope, expires_at) = oidc.verify(credential).await?;
                Ok(Caller::new(scope, Proof::Token(expires_at)))
            }
            None => Err(Problem::invalid_credential()),
        }
    }

    async fn find_key(&self, credential: &str) -> Result<Caller> {
        let found = self.store.find_key(BlobHash::of(credential.as_bytes())).await?;
        let key =
            found.filter(|key| key.is_valid(SystemClock.now())).ok_or_else(Problem::invalid_credential)?;
        Ok(Caller::new(key.scope(), Proof::Key(Arc::new(key))))
    }

    /// Fails if the credential of a caller with an open stream is no longer valid.
    pub async fn recheck(&self, caller: &Caller) -> Result<()> {
        match &caller.proof {
            Proof::Local if self.is_locked().await? => Err(credential_required()),
            Proof::Token(expires_at) if *expires_at <= SystemClock.now() => {
                Err(Problem::invalid_credential())
            }
            Proof::Local | Proof::Token(_) => Ok(()),
            Proof::Key(key) => {
                let found = self.store.find_key(key.hash).await?;
                found
                    .filter(|key| key.is_valid(SystemClock.now()))
                    .map(|_| ())
                    .ok_or_else(Problem::invalid_credential)
            }
        }
    }

    /// Accepts a local request without a credential. Web pages in a browser on this machine can also reach loopback.
    /// Their requests are recognized by the `Origin` or `Host` header and rejected.
    fn admit_local(&self, headers: &HeaderMap) -> Result<Caller> {
        let Some(scope) = self.local.clone() else { return Err(credential_required()) };
        let host = text_of(headers, header::HOST).unwrap_or_default();
        let origin = text_of(headers, header::ORIGIN);
        let is_own = origin.is_none_or(|origin| origin == format!("http://{host}"));
        if !is_loopback_name(host) || !is_own || !cookie::is_same_site(headers) {
            let detail = "requests without a key must come from this machine, not from another site's page";
            return Err(Problem::new("auth.origin", detail));
        }
        Ok(Caller::new(scope, Proof::Local))
    }
}

impl Caller {
    /// Whether the caller can access every session of the tenant. Only such callers may name directories on the server.
    pub fn is_operator(&self) -> bool {
        self.scope.reach == Reach::Tenant
    }
}

/// Returns the bearer credential of the `Authorization` header.
pub fn credential(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Problem::invalid_credential())?;
    let (scheme, credential) = text.split_once(' ').ok_or_else(Problem::invalid_credential)?;
    let credential = credential.trim();
    if !scheme.eq_ignore_ascii_case("bearer")
        || credential.is_empty()
        || credential.len() > CREDENTIAL_BYTES_MAX
    {
        return Err(Problem::invalid_credential());
    }
    Ok(Some(credential))
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn credential_required() -> Problem {
    Problem::new("auth.required", "this request needs an API key: send `Authorization: Bearer sapwood_…`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_host_names_are_accepted() {
        for good in ["localhost", "localhost:7420", "127.0.0.1:1", "[::1]:7420", "127.9.9.9"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in ["", "evil.example", "localhost.evil.example", "10.0.0.1:80", "[::2]", "127.0.0.1.nip.io"]
        {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
