//! Classifies IP addresses as public or not. Pure. Every address that is not clearly public is refused with a reason.
//! Addresses that embed another address are refused without checking the embedded one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonPublic {
    Unspecified,
    Loopback,
    Private,
    LinkLocal,
    SharedCarrier,
    Multicast,
    Broadcast,
    Documentation,
    Benchmarking,
    Reserved,
    CloudMetadata,
    /// IPv6 with an embedded IPv4 address or a tunnel endpoint.
    Embedded,
}

impl NonPublic {
    pub fn as_str(self) -> &'static str {
        match self {
            NonPublic::Unspecified => "unspecified",
            NonPublic::Loopback => "loopback",
            NonPublic::Private => "private",
            NonPublic::LinkLocal => "link-local",
            NonPublic::SharedCarrier => "carrier-shared",
            NonPublic::Multicast => "multicast",
            NonPublic::Broadcast => "broadcast",
            NonPublic::Documentation => "documentation",
            NonPublic::Benchmarking => "benchmarking",
            NonPublic::Reserved => "reserved",
            NonPublic::CloudMetadata => "cloud metadata",
            NonPublic::Embedded => "embedded IPv4",
        }
    }
}

type Block4 = ([u8; 4], u32, NonPublic);
type Block6 = ([u16; 8], u32, NonPublic);

/// Special IPv4 blocks from the IANA registry, and the metadata addresses of clouds. The first match determines the
/// reason, so narrow blocks are first.
const BLOCKS_V4: &[Block4] = &[
    ([169, 254, 169, 254], 32, NonPublic::CloudMetadata),
    ([100, 100, 100, 200], 32, NonPublic::CloudMetadata),
    // Azure's host agent. The address is in a public range.
    ([168, 63, 129, 16], 32, NonPublic::CloudMetadata),
    ([255, 255, 255, 255], 32, NonPublic::Broadcast),
    ([0, 0, 0, 0], 32, NonPublic::Unspecified),
    ([0, 0, 0, 0], 8, NonPublic::Reserved),
    ([10, 0, 0, 0], 8, NonPublic::Private),
    ([100, 64, 0, 0], 10, NonPublic::SharedCarrier),
    ([127, 0, 0, 0], 8, NonPublic::Loopback),
    ([169, 254, 0, 0], 16, NonPublic::LinkLocal),
    ([172, 16, 0, 0], 12, NonPublic::Private),
    ([192, 0, 0, 0], 24, NonPublic::Reserved),
    ([192, 0, 2, 0], 24, NonPublic::Documentation),
    ([192, 31, 196, 0], 24, NonPublic::Reserved),
    ([192, 52, 193, 0], 24, NonPublic::Reserved),
    ([192, 88, 99, 0], 24, NonPublic::Reserved),
    ([192, 168, 0, 0], 16, NonPublic::Private),
    ([192, 175, 48, 0], 24, NonPublic::Reserved),
    ([198, 18, 0, 0], 15, NonPublic::Benchmarking),
    ([198, 51, 100, 0], 24, NonPublic::Documentation),
    ([203, 0, 113, 0], 24, NonPublic::Documentation),
    ([224, 0, 0, 0], 4, NonPublic::Multicast),
    ([240, 0, 0, 0], 4, NonPublic::Reserved),
];

/// Special IPv6 blocks. Unlisted addresses outside 2000::/3 are treated as reserved.
const BLOCKS_V6: &[Block6] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, NonPublic::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, NonPublic::Loopback),
    // IPv4-mapped, IPv4-translated and IPv4-compatible.
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, NonPublic::Embedded),
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, NonPublic::Embedded),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, NonPublic::Embedded),
    // NAT64, well-known and local-use prefixes.
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, NonPublic::Embedded),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, NonPublic::Embedded),
    // Teredo and 6to4.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, NonPublic::Embedded),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, NonPublic::Embedded),
    ([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, NonPublic::Benchmarking),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, NonPublic::Documentation),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, NonPublic::Documentation),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, NonPublic::Reserved),
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, NonPublic::Reserved),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, NonPublic::CloudMetadata),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, NonPublic::CloudMetadata),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, NonPublic::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, NonPublic::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, NonPublic::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, NonPublic::Multicast),
];
/// The block of public IPv6 hosts.
const GLOBAL_UNICAST: Block6 = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3, NonPublic::Reserved);

/// Returns why an address must not be reached, or `None` if it is public.
pub fn non_public_reason(address: IpAddr) -> Option<NonPublic> {
    match address {
        IpAddr::V4(v4) => non_public_v4(v4),
        IpAddr::V6(v6) => non_public_v6(v6),
    }
}

fn non_public_v4(address: Ipv4Addr) -> Option<NonPublic> {
    let bits = address.to_bits();
    BLOCKS_V4
        .iter()
        .find(|(start, prefix_bits, _)| {
            (bits ^ Ipv4Addr::from(*start).to_bits()).leading_zeros() >= *prefix_bits
        })
        .map(|(.., reason)| *reason)
}

fn non_public_v6(address: Ipv6Addr) -> Option<NonPublic> {
    let listed = BLOCKS_V6.iter().find(|block| is_in_block(address, block)).map(|(.., reason)| *reason);
    listed
        .or_else(|| is_isatap(address).then_some(NonPublic::Embedded))
        .or_else(|| (!is_in_block(address, &GLOBAL_UNICAST)).then_some(NonPublic::Reserved))
}

fn is_in_block(address: Ipv6Addr, (start, prefix_bits, _): &Block6) -> bool {
    (address.to_bits() ^ Ipv6Addr::from(*start).to_bits()).leading_zeros() >= *prefix_bits
}

/// ISATAP: an interface id of `[02]00:5efe:a.b.c.d` tunnels to that IPv4 address, with any prefix.
fn is_isatap(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    matches!(segments[4], 0 | 0x200) && segments[5] == 0x5efe
}
