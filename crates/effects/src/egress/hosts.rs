//! The allowlist of hosts that tools may reach, and the check of a URL against it. Pure. Names are compared after
//! normalization by the URL parser of the HTTP client, so that the checked host is always the connected host.

use std::net::IpAddr;

use url::{Host, Url};

use super::EgressError;
use super::address::non_public_reason;

/// Maximum number of entries in a list.
pub const HOSTS_MAX: usize = 256;
/// Maximum length of a URL, in bytes.
pub const URL_BYTES_MAX: usize = 8 << 10;
/// Default port of an entry.
const HTTPS_PORT: u16 = 443;

/// Exact hosts with their ports. An empty list denies all requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedHosts(Vec<AllowedHost>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    host: Host<String>,
    port: u16,
}

impl AllowedHosts {
    /// Parse `HOST` or `HOST:PORT` entries. Anything else, such as a wildcard or a URL, is an error: silently
    /// ignoring an entry would mislead users about the allowed hosts.
    pub fn parse(entries: &[String]) -> Result<Self, EgressError> {
        if entries.len() > HOSTS_MAX {
            return Err(EgressError::TooLarge { what: "allowed_hosts", max: HOSTS_MAX });
        }
        entries.iter().map(|entry| parse_entry(entry)).collect::<Result<_, _>>().map(Self)
    }

    /// Parse a URL and accept it if it is https, has a listed host and port, and contains no credentials.
    pub fn admit(&self, text: &str) -> Result<Url, EgressError> {
        if text.len() > URL_BYTES_MAX {
            return Err(EgressError::TooLarge { what: "the URL", max: URL_BYTES_MAX });
        }
        // The parser would silently drop tabs and line breaks.
        if text.contains(|c: char| c.is_control()) {
            return Err(EgressError::Url { why: "control characters are not allowed".to_owned() });
        }
        let url = Url::parse(text).map_err(|error| EgressError::Url { why: error.to_string() })?;
        self.admit_url(url)
    }

    /// Like [`Self::admit`], for a parsed URL such as a redirect target.
    pub fn admit_url(&self, mut url: Url) -> Result<Url, EgressError> {
        if url.scheme() != "https" {
            return Err(EgressError::Scheme { scheme: url.scheme().to_owned() });
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressError::UserInfo);
        }
        let requested = AllowedHost {
            host: url.host().map(plain_host).ok_or_else(|| EgressError::Url { why: "no host".to_owned() })?,
            port: url.port().unwrap_or(HTTPS_PORT),
        };
        if !self.0.contains(&requested) {
            return Err(EgressError::Host { host: requested.host.to_string(), port: requested.port });
        }
        if let Some(address) = literal_address(&requested.host) {
            refuse_non_public(&requested.host.to_string(), address)?;
        }
        // Use the normalized name from here on: for the resolver, the certificate and the next redirect.
        url.set_host(Some(&requested.host.to_string()))
            .map_err(|error| EgressError::Url { why: error.to_string() })?;
        Ok(url)
    }
}

fn refuse_non_public(host: &str, address: IpAddr) -> Result<(), EgressError> {
    match non_public_reason(address) {
        Some(reason) => Err(EgressError::Address { host: host.to_owned(), address, reason: reason.as_str() }),
        None => Ok(()),
    }
}

/// The host without the trailing dot of an absolute name.
fn plain_host(host: Host<&str>) -> Host<String> {
    match host {
        Host::Domain(name) => Host::Domain(name.strip_suffix('.').unwrap_or(name).to_owned()),
        Host::Ipv4(address) => Host::Ipv4(address),
        Host::Ipv6(address) => Host::Ipv6(address),
    }
}

fn literal_address(host: &Host<String>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::V4(*address)),
        Host::Ipv6(address) => Some(IpAddr::V6(*address)),
    }
}

fn parse_entry(entry: &str) -> Result<AllowedHost, EgressError> {
    let bad = |why: &str| EgressError::Entry { entry: entry.to_owned(), why: why.to_owned() };
    if entry.is_empty()
        || entry.contains(|c: char| c.is_whitespace() || c.is_control() || "/\\?#@*%".contains(c))
    {
        return Err(bad("expected HOST or HOST:PORT, without scheme, path or wildcard"));
    }
    let url = Url::parse(&format!("https://{entry}/")).map_err(|error| bad(&error.to_string()))?;
    let host = url.host().map(plain_host).ok_or_else(|| bad("the host is missing"))?;
    if let Some(address) = literal_address(&host) {
        refuse_non_public(entry, address).map_err(|error| bad(&error.to_string()))?;
    }
    Ok(AllowedHost { host, port: url.port().unwrap_or(HTTPS_PORT) })
}
