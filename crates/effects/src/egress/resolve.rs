//! Resolves names to checked addresses. The HTTP client uses this resolver and connects only to the addresses it
//! returns. There is no second lookup between check and use that could return a different result.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;

use super::EgressError;
use super::address::{NonPublic, non_public_reason};

/// Maximum number of addresses per name.
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

/// The addresses that may be reached. Only tests accept an address that is not public.
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
            Reach::Public => non_public_reason(address).is_none(),
            #[cfg(feature = "fixture")]
            Reach::PublicAnd(server) => address == server || non_public_reason(address).is_none(),
        }
    }
}

/// A resolver that checks every address.
#[derive(Clone)]
pub(super) struct CheckedResolver {
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) reach: Reach,
}

impl CheckedResolver {
    /// Return all addresses of the host, or an error if one of them is not public. A mix of public and other
    /// addresses is an attack or a mistake, and using only the public ones would hide it.
    async fn resolve_checked(&self, host: &str) -> Result<Vec<SocketAddr>, EgressError> {
        let unresolved = |why: String| EgressError::Unresolved { host: host.to_owned(), why };
        let addresses = self.resolver.resolve(host).await.map_err(|error| unresolved(error.to_string()))?;
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return Err(unresolved(format!("found {} addresses", addresses.len())));
        }
        if let Some(address) = addresses.iter().find(|address| !self.reach.includes(**address)) {
            let reason = non_public_reason(*address).map_or("private", NonPublic::as_str);
            return Err(EgressError::Address { host: host.to_owned(), address: *address, reason });
        }
        // The client replaces port 0 with the URL's port.
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
