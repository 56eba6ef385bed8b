//! Tables of addresses and names: which are public, and which a host list allows.

use sapwood_effects::egress::address::{NonPublic, non_public_reason};
use sapwood_effects::egress::{AllowedHosts, EgressError};

const SPECIAL: &[(NonPublic, &[&str])] = &[
    (NonPublic::Unspecified, &["0.0.0.0", "::"]),
    (NonPublic::Loopback, &["127.0.0.1", "127.1.2.3", "127.255.255.255", "::1"]),
    (
        NonPublic::Private,
        &[
            "10.0.0.1",
            "10.255.255.255",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "fc00::1",
            "fd12:3456::1",
            "fec0::1",
        ],
    ),
    (NonPublic::LinkLocal, &["169.254.0.1", "169.254.255.255", "fe80::1", "febf::1"]),
    (NonPublic::SharedCarrier, &["100.64.0.1", "100.127.255.255"]),
    (NonPublic::Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"]),
    (NonPublic::Broadcast, &["255.255.255.255"]),
    (
        NonPublic::Documentation,
        &["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1", "3fff:fff::1"],
    ),
    (NonPublic::Benchmarking, &["198.18.0.1", "198.19.255.255", "2001:2::1"]),
    (
        NonPublic::Reserved,
        &[
            "0.1.2.3",
            "192.0.0.1",
            "192.0.0.192",
            "192.88.99.1",
            "240.0.0.1",
            "254.1.1.1",
            "100::1",
            "2001:20::1",
            "4000::1",
            "5f00::1",
            "8000::1",
        ],
    ),
    (
        NonPublic::CloudMetadata,
        &["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"],
    ),
    (
        NonPublic::Embedded,
        &[
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:8.8.8.8",
            "::ffff:7f00:1",
            "::127.0.0.1",
            "::10.0.0.1",
            "::2",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "2002:808:808::",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2600:1::5efe:10.0.0.1",
            "2600:1::200:5efe:7f00:1",
        ],
    ),
];

#[test]
fn every_special_address_is_refused_with_its_reason() {
    for (reason, addresses) in SPECIAL {
        for address in *addresses {
            assert_eq!(non_public_reason(address.parse().unwrap()), Some(*reason), "{address}");
        }
    }
}

#[test]
fn public_addresses_are_allowed() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "126.255.255.255",
        "128.0.0.1",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.255.255",
        "192.169.0.1",
        "198.17.255.255",
        "198.20.0.1",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "2a00:1450::1",
        "3ffe::1",
    ] {
        assert_eq!(non_public_reason(address.parse().unwrap()), None, "{address}");
    }
}

fn hosts(entries: &[&str]) -> AllowedHosts {
    AllowedHosts::parse(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_listed_host_is_allowed_in_all_its_spellings() {
    let list = hosts(&[
        "Example.com",
        "bücher.example",
        "api.example.com:8443",
        "1.1.1.1",
        "[2606:4700:4700::1111]",
    ]);
    for url in [
        "https://example.com/",
        "https://EXAMPLE.COM/a?b#c",
        "https://example.com./",
        "https://example.com:443/",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://BÜCHER.example./",
        "https://api.example.com:8443/",
        "https://1.1.1.1/",
        "https://0x01010101/",
        "https://[2606:4700:4700:0:0:0:0:1111]/",
        "HTTPS://example.com",
    ] {
        assert!(list.admit(url).is_ok(), "{url}: {:?}", list.admit(url));
    }
}

#[test]
fn misleading_names_are_refused() {
    let list = hosts(&["example.com", "api.example.com:8443", "bücher.example"]);
    for url in [
        "https://evil.com/",
        "https://example.com.evil.com/",
        "https://evilexample.com/",
        "https://sub.example.com/",
        "https://example.co/",
        "https://example.com:8443/",
        "https://example.com:80/",
        "https://api.example.com/",
        "https://evil.com/example.com",
        "https://evil.com?example.com",
        "https://evil.com#@example.com/",
        "https://evil.com\\.example.com/",
        "https://evil.com%2fexample.com/",
        "https://example.com%00.evil.com/",
        "https://exаmple.com/",
        "https://examp1e.com/",
        "https://bucher.example/",
        "https://xn--bcher-kvb.example/",
        "https://example.com../",
        "https://1.1.1.1/",
        "https://[2606:4700:4700::1111]/",
        "https:///",
    ] {
        assert!(list.admit(url).is_err(), "{url}");
    }
    // URLs with a user name or password are rejected, even for an allowed host.
    for url in [
        "https://example.com@evil.com/",
        "https://user@example.com/",
        "https://:pw@example.com/",
        "https://a:b@example.com/",
    ] {
        assert_eq!(list.admit(url), Err(EgressError::UserInfo), "{url}");
    }
    for url in [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "ws://example.com/",
        "data:text/plain,x",
    ] {
        assert_eq!(list.admit(url).unwrap_err().code(), "egress.scheme", "{url}");
    }
    for url in [
        "https://example.com/\r\nHost: evil.com",
        "https://exam\tple.com/",
        "https://example.com/\0",
        "example.com",
        "",
    ] {
        assert_eq!(list.admit(url).unwrap_err().code(), "egress.url", "{url:?}");
    }
}

#[test]
fn an_empty_list_denies_everything() {
    for url in ["https://example.com/", "https://1.1.1.1/", "https://localhost/"] {
        assert_eq!(hosts(&[]).admit(url).unwrap_err().code(), "egress.host", "{url}");
    }
}

#[test]
fn no_spelling_of_a_private_address_can_be_listed() {
    for entry in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "10.1",
        "0",
        "0xa9fea9fe",
        "169.254.169.254",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fd00:ec2::254]",
        "①②⑦.⓪.⓪.①",
    ] {
        let error = AllowedHosts::parse(&[entry.to_owned()]).unwrap_err();
        assert_eq!(error.code(), "egress.entry", "{entry}: {error}");
    }
}

#[test]
fn an_invalid_entry_is_an_error() {
    for entry in [
        "",
        "*",
        "*.example.com",
        "https://example.com",
        "example.com/path",
        "user@example.com",
        "a b",
        "example.com:99999",
        "%65xample.com",
    ] {
        let error = AllowedHosts::parse(&[entry.to_owned()]).unwrap_err();
        assert_eq!(error.code(), "egress.entry", "{entry}");
    }
    let many = vec!["example.com".to_owned(); 257];
    assert_eq!(AllowedHosts::parse(&many).unwrap_err().code(), "egress.too_large");
}
