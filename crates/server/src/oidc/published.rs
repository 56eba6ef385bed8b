//! Where an issuer publishes its keys: a file, or a URL that is asked through the guarded client.

use std::path::PathBuf;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sapwood::effects::egress::{AllowedHosts, Egress, EgressError, EgressLimits, EgressRequest, Extent};

use super::KeySource;

/// How long a fetch of keys may take, and how large a set is read.
const LIMITS: EgressLimits = EgressLimits { request_ms_max: 10_000, body_bytes_max: 1 << 20 };

/// A JWK set in a file, read anew each time.
pub struct JwksFile(pub PathBuf);

impl KeySource for JwksFile {
    fn load(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        let read = std::fs::read(&self.0).map_err(|error| format!("{}: {error}", self.0.display()));
        async move { read }.boxed()
    }
}

/// A JWK set at a URL: only over https, and only from the host that was configured.
pub struct JwksUrl {
    url: String,
    egress: Egress,
}

impl JwksUrl {
    pub fn new(url: String) -> Result<Self, EgressError> {
        let host = url.strip_prefix("https://").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let egress = Egress::new(AllowedHosts::parse(&[host.to_owned()])?, LIMITS)?;
        Ok(Self::through(url, egress))
    }

    /// Asks through a client that is there already.
    pub fn through(url: String, egress: Egress) -> Self {
        Self { url, egress }
    }

    async fn fetch(&self) -> Result<Vec<u8>, String> {
        let request = EgressRequest {
            method: Default::default(),
            url: self.url.clone(),
            headers: Default::default(),
            body: None,
        };
        let response = self.egress.fetch(request).await.map_err(|error| error.to_string())?;
        match (response.status.is_success(), response.extent) {
            (false, _) => Err(format!("{} answered {}", self.url, response.status)),
            (true, Extent::CutAtLimit) => {
                Err(format!("{} answered with more than {} bytes", self.url, LIMITS.body_bytes_max))
            }
            (true, Extent::Whole) => Ok(response.body),
        }
    }
}

impl KeySource for JwksUrl {
    fn load(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        self.fetch().boxed()
    }
}
