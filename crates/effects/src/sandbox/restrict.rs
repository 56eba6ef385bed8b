//! Drops the rights of this process on Linux: capabilities, access to files and signals with Landlock, and sockets and
//! other system calls with seccomp. The restrictions apply to this process and to every program it executes.

use std::collections::BTreeMap;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

use super::{Confinement, FileRights, Network};

/// The newest Landlock ABI to request. Older kernels enforce the rules they support.
const LANDLOCK_ABI: ABI = ABI::V7;
/// Maximum size of a file that a program may write.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Devices that every program may use.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// Whether the kernel supports at least the oldest file rules.
pub fn is_landlock_available() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

pub fn drop_rights(confinement: &Confinement) -> Result<(), String> {
    drop_capabilities().map_err(|why| format!("failed to drop capabilities: {why}"))?;
    limit_resources().map_err(|why| format!("failed to set resource limits: {why}"))?;
    restrict_files(confinement).map_err(|why| format!("Landlock: {why}"))?;
    deny_system_calls(confinement.network).map_err(|why| format!("seccomp: {why}"))
}

/// Capabilities that root keeps, a subset of Docker's defaults.
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);

/// Drop capabilities that bypass Landlock: CAP_PERFMON, for example, allows reading the environment of every process.
/// They must also be removed from the bounding set, because root regains all capabilities in that set on `exec`.
fn drop_capabilities() -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().difference(KEPT_CAPABILITIES).iter() {
        match remove_capability_from_bounding_set(capability) {
            // PERM: a process without this right regains nothing on `exec`. INVAL: the kernel lacks this capability.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(why) => return Err(why),
        }
    }
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let (effective, permitted) = (effective & KEPT_CAPABILITIES, permitted & KEPT_CAPABILITIES);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

fn limit_resources() -> rustix::io::Result<()> {
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Fsize, at_most(FILE_BYTES_MAX))
}

/// Enter a Landlock domain, even if file access is open. From inside a domain a program cannot trace or signal
/// processes outside of it, and so cannot read their memory and environment.
fn restrict_files(confinement: &Confinement) -> Result<(), landlock::RulesetError> {
    let everything = AccessFs::from_all(LANDLOCK_ABI);
    let root = [Path::new("/")];
    let mut rules = Ruleset::default().handle_access(everything)?.scope(Scope::from_all(LANDLOCK_ABI))?;
    if confinement.network == Network::Denied {
        rules = rules.handle_access(AccessNet::from_all(LANDLOCK_ABI))?;
    }
    let rules = rules.create()?;
    let rules = match &confinement.files {
        FileRights::Open => rules.add_rules(path_beneath_rules(root, everything))?,
        FileRights::Confined { read, write } => {
            let writing = everything & !(AccessFs::MakeChar | AccessFs::MakeBlock);
            rules
                .add_rules(path_beneath_rules(read, AccessFs::from_read(LANDLOCK_ABI)))?
                .add_rules(path_beneath_rules(write, writing))?
                .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
        }
    };
    rules.restrict_self().map(drop)
}

/// System calls that no confined program needs and that would weaken the sandbox: kernel keyrings hold secrets,
/// io_uring operations bypass seccomp, `bpf` and `perf_event_open` can observe other processes, and `userfaultfd` makes
/// kernel races easier to exploit.
const DENIED_CALLS: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
];

/// Deny system calls with seccomp. Landlock restricts only TCP. Denying `socket` also prevents UDP, Unix sockets and
/// all other families. `socketpair` stays allowed, because its sockets are connected only to each other.
fn deny_system_calls(network: Network) -> Result<(), String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|why| format!("{why}"))?;
    let sockets: &[libc::c_long] = if network == Network::Denied { &[libc::SYS_socket] } else { &[] };
    let calls = DENIED_CALLS.iter().chain(sockets).flat_map(|call| call_numbers(*call));
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EACCES as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch).map_err(|why| why.to_string())?;
    let program: BpfProgram = filter.try_into().map_err(|why| format!("{why}"))?;
    seccompiler::apply_filter(&program).map_err(|why| why.to_string())
}

/// All numbers of a system call. On x86-64 each call has a second number for the x32 ABI, which some kernels support.
fn call_numbers(call: libc::c_long) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let second = cfg!(target_arch = "x86_64").then_some(call | X32);
    std::iter::once(call).chain(second)
}
