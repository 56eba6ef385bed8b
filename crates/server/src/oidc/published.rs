//! Sources of an issuer's keys: a file, or a URL that is fetched through the egress client.

use std::path::PathBuf;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sapwood::effects::egress::{AllowedHosts, Egress, EgressError, EgressLimits, EgressRequest, Extent};

use super::KeySource;

/// Time and size limits of a key fetch.
const LIMITS: EgressLimits = EgressLimits { request_ms_max: 10_000, body_bytes_max: 1 << 20 };

/// A JWK set in a file. Every load reads the file again.
pub struct JwksFile(pub PathBuf);

impl KeySource for JwksFile {
    fn load(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        let read = std::fs::read(&self.0).map_err(|error| format!("{}: {error}", self.0.display()));
        async move { read }.boxed()
    }
}

/// A JWK set at a URL. Only https URLs on the configured host are allowed.
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

    /// Creates a source that fetches through an existing client.
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
            (false, _) => Err(format!("{} returned {}", self.url, response.status)),
            (true, Extent::CutAtLimit) => {
                Err(format!("the response of {} has more than {} bytes", self.url, LIMITS.body_bytes_max))
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
