//! Classifies IP addresses as public or not. Pure. Every address that is not clearly public is refused with a reason.
//! Addresses that embed another address are refused without checking the embedded one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
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

impl Closed {
    pub fn as_str(self) -> &'static str {
        match self {
            Closed::Unspecified => "unspecified",
            Closed::Loopback => "loopback",
            Closed::Private => "private",
            Closed::LinkLocal => "link-local",
            Closed::SharedCarrier => "carrier-shared",
            Closed::Multicast => "multicast",
            Closed::Broadcast => "broadcast",
            Closed::Documentation => "documentation",
            Closed::Benchmarking => "benchmarking",
            Closed::Reserved => "reserved",
            Closed::CloudMetadata => "cloud metadata",
            Closed::Embedded => "embedding IPv6",
        }
    }
}

type Block4 = ([u8; 4], u32, Closed);
type Block6 = ([u16; 8], u32, Closed);

/// Special IPv4 blocks from the IANA registry. The first match determines the reason, so narrow blocks are first.
const BLOCKS_V4: &[Block4] = &[
    ([169, 254, 169, 254], 32, Closed::CloudMetadata),
    ([100, 100, 100, 200], 32, Closed::CloudMetadata),
    // Azure's host agent. The address is in a public range.
    ([168, 63, 129, 16], 32, Closed::CloudMetadata),
    ([255, 255, 255, 255], 32, Closed::Broadcast),
    ([0, 0, 0, 0], 32, Closed::Unspecified),
    ([0, 0, 0, 0], 8, Closed::Reserved),
    ([10, 0, 0, 0], 8, Closed::Private),
    ([100, 64, 0, 0], 10, Closed::SharedCarrier),
    ([127, 0, 0, 0], 8, Closed::Loopback),
    ([169, 254, 0, 0], 16, Closed::LinkLocal),
    ([172, 16, 0, 0], 12, Closed::Private),
    ([192, 0, 0, 0], 24, Closed::Reserved),
    ([192, 0, 2, 0], 24, Closed::Documentation),
    ([192, 31, 196, 0], 24, Closed::Reserved),
    ([192, 52, 193, 0], 24, Closed::Reserved),
    ([192, 88, 99, 0], 24, Closed::Reserved),
    ([192, 168, 0, 0], 16, Closed::Private),
    ([192, 175, 48, 0], 24, Closed::Reserved),
    ([198, 18, 0, 0], 15, Closed::Benchmarking),
    ([198, 51, 100, 0], 24, Closed::Documentation),
    ([203, 0, 113, 0], 24, Closed::Documentation),
    ([224, 0, 0, 0], 4, Closed::Multicast),
    ([240, 0, 0, 0], 4, Closed::Reserved),
];

/// Special IPv6 blocks. Unlisted addresses outside 2000::/3 are treated as reserved.
const BLOCKS_V6: &[Block6] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, Closed::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, Closed::Loopback),
    // IPv4-mapped, IPv4-translated and IPv4-compatible.
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, Closed::Embedded),
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, Closed::Embedded),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, Closed::Embedded),
    // NAT64, well-known and local-use prefixes.
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, Closed::Embedded),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, Closed::Embedded),
    // Teredo and 6to4.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, Closed::Embedded),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, Closed::Embedded),
    ([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, Closed::Benchmarking),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Closed::Documentation),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Closed::Documentation),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, Closed::Reserved),
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, Closed::Reserved),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, Closed::CloudMetadata),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Closed::CloudMetadata),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Closed::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, Closed::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, Closed::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Closed::Multicast),
];
/// The block of public IPv6 hosts.
const GLOBAL_UNICAST: Block6 = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3, Closed::Reserved);

/// Returns why an address must not be reached, or `None` if it is public.
pub fn closed_reason(address: IpAddr) -> Option<Closed> {
    match address {
        IpAddr::V4(v4) => closed_v4(v4),
        IpAddr::V6(v6) => closed_v6(v6),
    }
}

fn closed_v4(address: Ipv4Addr) -> Option<Closed> {
    let bits = address.to_bits();
    BLOCKS_V4
        .iter()
        .find(|(start, prefix_bits, _)| {
            (bits ^ Ipv4Addr::from(*start).to_bits()).leading_zeros() >= *prefix_bits
        })
        .map(|(.., reason)| *reason)
}

fn closed_v6(address: Ipv6Addr) -> Option<Closed> {
    let listed = BLOCKS_V6.iter().find(|block| is_in_block(address, block)).map(|(.., reason)| *reason);
    listed
        .or_else(|| is_isatap(address).then_some(Closed::Embedded))
        .or_else(|| (!is_in_block(address, &GLOBAL_UNICAST)).then_some(Closed::Reserved))
}

fn is_in_block(address: Ipv6Addr, (start, prefix_bits, _): &Block6) -> bool {
    (address.to_bits() ^ Ipv6Addr::from(*start).to_bits()).leading_zeros() >= *prefix_bits
}

/// ISATAP: an interface id of `[02]00:5efe:a.b.c.d` tunnels to that IPv4 address, with any prefix.
fn is_isatap(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    matches!(segments[4], 0 | 0x200) && segments[5] == 0x5efe
}
