//! From a name to addresses that were checked. The HTTP client asks this and connects to exactly what it answers, so there
//! is no second lookup between check and use that could answer differently.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;

use super::EgressError;
use super::address::{Closed, closed_reason};

/// Most addresses one name may have.
const ADDRESSES_MAX: usize = 64;

/// Looks up names.
#[async_trait]
pub trait Resolver: Send + Sync {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Which addresses pass besides public ones: none, except in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Reach {
    #[default]
    Public,
    #[cfg(feature = "fixture")]
    PublicAnd(IpAddr),
}

impl Reach {
    fn includes(self, address: IpAddr) -> bool {
        match self {
            Reach::Public => closed_reason(address).is_none(),
            #[cfg(feature = "fixture")]
            Reach::PublicAnd(server) => address == server || closed_reason(address).is_none(),
        }
    }
}

/// A resolver whose every answer was checked.
#[derive(Clone)]
pub(super) struct CheckedResolver {
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) reach: Reach,
}

impl CheckedResolver {
    /// All addresses of the host, or none of them: an answer that mixes public and other addresses is an attack or a
    /// mistake, and picking the good ones would hide it.
    async fn resolve_checked(&self, host: &str) -> Result<Vec<SocketAddr>, EgressError> {
        let unresolved = |why: String| EgressError::Unresolved { host: host.to_owned(), why };
        let addresses = self.resolver.resolve(host).await.map_err(|error| unresolved(error.to_string()))?;
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return Err(unresolved(format!("it has {} addresses", addresses.len())));
        }
        if let Some(address) = addresses.iter().find(|address| !self.reach.includes(**address)) {
            let reason = closed_reason(*address).map_or("private", Closed::as_str);
            return Err(EgressError::Address { host: host.to_owned(), address: *address, reason });
        }
        // Port 0 stands for the URL's own.
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect())
    }
}

impl reqwest::dns::Resolve for CheckedResolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let this = self.clone();
        Box::pin(async move {
            let addresses = this.resolve_checked(name.as_str()).await?;
            let addresses: reqwest::dns::Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}
