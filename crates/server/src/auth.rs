//! Who is calling. A request proves it with an API key or an OIDC token; without either it is let in only on loopback, as
//! the one who holds the store, and only as long as nobody made a key or configured tokens. The default is closed.

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

/// What every key begins with, so that people and scanners know one when they see it.
pub const KEY_PREFIX: &str = "sapwood_";
/// Longest credential that is looked at.
const CREDENTIAL_BYTES_MAX: usize = 16 << 10;
/// How long a look whether there are keys holds.
const LOOK_HOLDS: Duration = Duration::from_millis(200);

/// A new key: its public id, and the secret, 256 bits of chance. None if the system has no chance to give.
pub fn new_key() -> Option<(String, String)> {
    let (mut id, mut secret) = ([0u8; 8], [0u8; 32]);
    let random = SystemRandom::new();
    random.fill(&mut id).ok()?;
    random.fill(&mut secret).ok()?;
    let id = u64::from_be_bytes(id);
    Some((format!("key_{id:016x}"), format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret))))
}

/// Who is calling, proven.
#[derive(Debug, Clone)]
pub struct Caller {
    pub scope: Scope,
    /// The request that was proven.
    pub request: RequestId,
    proof: Proof,
}

#[derive(Debug, Clone)]
enum Proof {
    /// At the machine itself.
    Local,
    Key(Arc<ApiKey>),
    /// Good until then.
    Token(TimestampMs),
}

impl Caller {
    fn new(scope: Scope, proof: Proof) -> Self {
        Self { scope, request: RequestId::default(), proof }
    }

    /// The same, for the log.
    pub fn asking(self, request: RequestId) -> Self {
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

    /// Whether the caller has a key that operates the server.
    pub fn operates(&self) -> bool {
        matches!(&self.proof, Proof::Key(key) if key.allows(Grant::Operate))
    }

    /// Whether what the caller came with is good for this at all; what they may do with a session is the store's question.
    pub fn check(&self, right: Right) -> Result<()> {
        let Proof::Key(key) = &self.proof else { return Ok(()) };
        let needed = if right == Right::Read { Grant::Read } else { Grant::Write };
        if key.allows(needed) || key.allows(Grant::Operate) {
            return Ok(());
        }
        let detail = match needed {
            Grant::Read => "this key may not read",
            Grant::Write | Grant::Operate => "this key may only read",
        };
        Err(Problem::new("key.scope", detail))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    /// The guard has put it there.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(required)
    }
}

pub struct Authenticator {
    store: Arc<dyn Store>,
    /// Whom a request without a credential acts as.
    local: Option<Scope>,
    oidc: Option<Oidc>,
    /// Once there was a key, nobody comes in without.
    is_locked: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

impl Authenticator {
    pub fn new(store: Arc<dyn Store>, local: Option<Scope>, oidc: Option<Oidc>) -> Self {
        let is_locked = AtomicBool::new(local.is_none() || oidc.is_some());
        Self { store, local, oidc, is_locked, looked: Mutex::default() }
    }

    /// Whether a credential is needed.
    pub async fn is_locked(&self) -> Result<bool> {
        if self.is_locked.load(Ordering::Relaxed) {
            return Ok(true);
        }
        if self.looked_lately() {
            return Ok(false);
        }
        let has_keys = self.store.has_keys().await?;
        self.is_locked.store(has_keys, Ordering::Relaxed);
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(has_keys)
    }

    fn looked_lately(&self) -> bool {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.is_some_and(|at| at.elapsed() < LOOK_HOLDS)
    }

    /// Whether this server may listen there: elsewhere than on loopback only with keys or tokens.
    pub async fn may_listen(&self, addr: SocketAddr) -> Result<bool> {
        Ok(addr.ip().is_loopback() || self.is_locked().await?)
    }

    pub async fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<Caller> {
        let caller = match self.is_locked().await? {
            // Where nobody needs a key, one that comes along is of no interest: some clients cannot do without.
            false => self.admit_local(headers)?,
            true => match (credential(headers)?, cookie::credential(headers)) {
                (Some(credential), _) => self.prove(credential).await?,
                (None, Some(credential)) => {
                    cookie::check_site(method, headers)?;
                    self.prove(credential).await?
                }
                (None, None) => return Err(required()),
            },
        };
        let right = if method.is_safe() { Right::Read } else { Right::Write };
        caller.check(right)?;
        Ok(caller)
    }

    async fn prove(&self, credential: &str) -> Result<Caller> {
        if credential.starts_with(KEY_PREFIX) {
            return self.find_key(credential).await;
        }
        match &self.oidc {
            Some(oidc) => {
                let (scope, expires_at) = oidc.verify(credential).await?;
                Ok(Caller::new(scope, Proof::Token(expires_at)))
            }
            None => Err(refused()),
        }
    }

    async fn find_key(&self, credential: &str) -> Result<Caller> {
        let found = self.store.find_key(BlobHash::of(credential.as_bytes())).await?;
        let key = found.filter(|key| key.is_valid(SystemClock.now())).ok_or_else(refused)?;
        Ok(Caller::new(key.scope(), Proof::Key(Arc::new(key))))
    }

    /// Whether a caller whose stream has been open for a while may still come in.
    pub async fn recheck(&self, caller: &Caller) -> Result<()> {
        match &caller.proof {
            Proof::Local if self.is_locked().await? => Err(required()),
            Proof::Token(expires_at) if *expires_at <= SystemClock.now() => Err(refused()),
            Proof::Local | Proof::Token(_) => Ok(()),
            Proof::Key(key) => {
                let found = self.store.find_key(key.hash).await?;
                found.filter(|key| key.is_valid(SystemClock.now())).map(|_| ()).ok_or_else(refused)
            }
        }
    }

    /// A page in a browser on this machine can reach loopback too: it gives itself away by its origin, or by the name it
    /// believes to talk to.
    fn admit_local(&self, headers: &HeaderMap) -> Result<Caller> {
        let Some(scope) = self.local.clone() else { return Err(required()) };
        let host = text_of(headers, header::HOST).unwrap_or_default();
        let origin = text_of(headers, header::ORIGIN);
        let is_own = origin.is_none_or(|origin| origin == format!("http://{host}"));
        if !is_loopback_name(host) || !is_own || !cookie::is_same_site(headers) {
            let detail = "without a key this server answers this machine only, and no other site's pages";
            return Err(Problem::new("auth.origin", detail));
        }
        Ok(Caller::new(scope, Proof::Local))
    }
}

impl Caller {
    /// Whoever may name directories of the server's machine: its own operator.
    pub fn is_operator(&self) -> bool {
        self.scope.reach == Reach::Tenant
    }
}

/// What stands in `Authorization`.
pub fn credential(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| refused())?;
    let (scheme, credential) = text.split_once(' ').ok_or_else(refused)?;
    let credential = credential.trim();
    if !scheme.eq_ignore_ascii_case("bearer")
        || credential.is_empty()
        || credential.len() > CREDENTIAL_BYTES_MAX
    {
        return Err(refused());
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

fn required() -> Problem {
    Problem::new("auth.required", "this needs a key: Authorization: Bearer sapwood_…")
}

pub(crate) fn refused() -> Problem {
    Problem::new("auth.invalid", "this key or token is not known, was revoked, or has expired")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for good in ["localhost", "localhost:7420", "127.0.0.1:1", "[::1]:7420", "127.9.9.9"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in ["", "evil.example", "localhost.evil.example", "10.0.0.1:80", "[::2]", "127.0.0.1.nip.io"]
        {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
