//! Cookie sign-in for browsers. The console sends its credential once and receives it as a cookie that scripts cannot
//! read and pages of other sites cannot send. The server stores nothing, so the cookie is valid on every server with
//! the same keys, until the key expires or is revoked. A request with the cookie must originate from the console. A
//! request that changes data must also have a header that HTML forms cannot set.

use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::problem::{Problem, Result};

const NAME: &str = "sapwood";
/// Proves that the console's script sent the request.
pub const CSRF_HEADER: &str = "x-sapwood-csrf";
/// Maximum length of a credential that fits into a cookie.
const CREDENTIAL_BYTES_MAX: usize = 3_800;

/// Returns the credential in the cookie.
pub fn credential(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut ours = pairs.filter(|(name, value)| *name == NAME && !value.is_empty());
    ours.next().map(|(_, value)| value)
}

/// Fails unless the console sent the request.
pub fn check_site(method: &Method, headers: &HeaderMap) -> Result<()> {
    let is_from_console = is_own_origin(headers) && (method.is_safe() || headers.contains_key(CSRF_HEADER));
    if is_from_console {
        return Ok(());
    }
    let detail = "cookies are accepted only in requests from the console's own page";
    Err(Problem::new("auth.origin", detail))
}

/// Whether the request originates from this host. Ignores the scheme: a proxy that terminates TLS changes it.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text("host").unwrap_or_default();
    let bare = |origin: &str| origin.split_once("://").map_or(String::new(), |(_, host)| host.to_owned());
    let is_same_host = text("origin").is_none_or(|origin| bare(origin) == host);
    is_same_host && is_same_site(headers)
}

/// Whether `Sec-Fetch-Site` allows the request. Only browsers send this header.
pub fn is_same_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    site.is_none_or(|site| matches!(site, b"same-origin" | b"none"))
}

/// Returns a session cookie that contains the credential.
pub fn set_cookie(credential: &str, headers: &HeaderMap) -> Result<HeaderValue> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte);
    if credential.len() > CREDENTIAL_BYTES_MAX || !credential.bytes().all(is_plain) {
        return Err(Problem::invalid("this credential does not fit into a cookie"));
    }
    let is_tls = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if is_tls { "; Secure" } else { "" };
    let cookie = format!("{NAME}={credential}; Path=/v1; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&cookie).map_err(|_| Problem::invalid("this credential does not fit into a cookie"))
}

/// Returns a cookie header that deletes the cookie.
pub fn delete_cookie() -> HeaderValue {
    HeaderValue::from_static("sapwood=; Path=/v1; HttpOnly; SameSite=Strict; Max-Age=0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let found = headers(&[("cookie", "a=b; sapwood=sapwood_x; c=d")]);
        assert_eq!(credential(&found), Some("sapwood_x"));
        assert_eq!(credential(&headers(&[("cookie", "sapwood=; xsapwood=1")])), None);
    }

    #[test]
    fn only_our_own_page_may_use_the_cookie_and_changes_need_the_csrf_header() {
        let host = ("host", "s.example:7420");
        let own = ("origin", "https://s.example:7420");
        let script = (CSRF_HEADER, "1");
        let good: [&[(&str, &str)]; 2] =
            [&[host, own, script], &[host, ("sec-fetch-site", "same-origin"), script]];
        for pairs in good {
            assert!(check_site(&Method::POST, &headers(pairs)).is_ok(), "{pairs:?}");
        }
        let bad: [&[(&str, &str)]; 5] = [
            &[host, own],
            &[host, ("origin", "https://evil.example"), script],
            &[host, ("origin", "http://s.example:3000"), script],
            &[host, ("origin", "null"), script],
            &[host, ("sec-fetch-site", "same-site"), script],
        ];
        for pairs in bad {
            assert!(check_site(&Method::POST, &headers(pairs)).is_err(), "{pairs:?}");
        }
        assert!(check_site(&Method::GET, &headers(&[host])).is_ok());
        assert!(check_site(&Method::GET, &headers(&[host, ("sec-fetch-site", "cross-site")])).is_err());
    }

    #[test]
    fn credentials_that_could_inject_cookie_attributes_are_rejected() {
        assert!(set_cookie("sapwood_abc-_", &HeaderMap::new()).is_ok());
        assert!(set_cookie("a; Domain=evil.example", &HeaderMap::new()).is_err());
        assert!(set_cookie(&"a".repeat(5_000), &HeaderMap::new()).is_err());
    }
}
