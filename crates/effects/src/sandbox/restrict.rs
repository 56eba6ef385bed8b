//! Gives up this process's rights, on Linux: capabilities, files and signals by Landlock, sockets by seccomp. It touches its own process
//! only, and what is given up stays so for every program that comes after.

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

/// The newest rules that are asked for. Older kernels enforce what they know of them.
const RULES: ABI = ABI::V7;
/// Largest file a program may write.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Devices every program may use.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// Whether the kernel enforces at least the oldest rules about files.
pub fn is_landlock_available() -> bool {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

pub fn give_up_rights(confinement: &Confinement) -> Result<(), String> {
    drop_capabilities().map_err(|why| format!("capabilities cannot be dropped: {why}"))?;
    limit_resources().map_err(|why| format!("limits cannot be set: {why}"))?;
    restrict_files(confinement).map_err(|why| format!("Landlock: {why}"))?;
    refuse_calls(confinement.network).map_err(|why| format!("seccomp: {why}"))
}

/// What root keeps: its rights over files and its own processes, about as in a container.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);

/// Some capabilities lead around Landlock: with CAP_PERFMON the environment of every process can be read. Root gets back
/// on the next exec whatever is left in the bounding set, so it has to go from there.
fn drop_capabilities() -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        match remove_capability_from_bounding_set(capability) {
            // Whoever may not do this has none to lose by an exec; and an old kernel does not know them all.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(why) => return Err(why),
        }
    }
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let (effective, permitted) = (effective & KEPT, permitted & KEPT);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

fn limit_resources() -> rustix::io::Result<()> {
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Fsize, at_most(FILE_BYTES_MAX))
}

/// Even a program with open files enters a Landlock domain: from inside one it can neither trace nor signal the processes
/// outside, and so cannot read their memory and environment.
fn restrict_files(confinement: &Confinement) -> Result<(), landlock::RulesetError> {
    let everything = AccessFs::from_all(RULES);
    let root = [Path::new("/")];
    let mut rules = Ruleset::default().handle_access(everything)?.scope(Scope::from_all(RULES))?;
    if confinement.network == Network::Denied {
        rules = rules.handle_access(AccessNet::from_all(RULES))?;
    }
    let rules = rules.create()?;
    let rules = match &confinement.files {
        FileRights::Open => rules.add_rules(path_beneath_rules(root, everything))?,
        FileRights::Confined { read, write } => {
            let writing = everything & !(AccessFs::MakeChar | AccessFs::MakeBlock);
            rules
                .add_rules(path_beneath_rules(read, AccessFs::from_read(RULES)))?
                .add_rules(path_beneath_rules(write, writing))?
                .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
        }
    };
    rules.restrict_self().map(drop)
}

/// Calls that no confined program needs and that would lead around the other rules: kernel keyrings hold secrets, io_uring
/// does what seccomp cannot see, and the rest looks into other processes.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
];

/// Landlock knows TCP only; without `socket` there is no UDP, no Unix socket and nothing else either. Pairs of connected
/// sockets, which lead nowhere but to each other, are a call of their own and stay.
fn refuse_calls(network: Network) -> Result<(), String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|why| format!("{why}"))?;
    let sockets: &[libc::c_long] = if network == Network::Denied { &[libc::SYS_socket] } else { &[] };
    let calls = REFUSED.iter().chain(sockets).flat_map(|call| spellings(*call));
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EACCES as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch).map_err(|why| why.to_string())?;
    let program: BpfProgram = filter.try_into().map_err(|why| format!("{why}"))?;
    seccompiler::apply_filter(&program).map_err(|why| why.to_string())
}

/// On x86-64 a call has a second number, of the x32 interface, which some kernels serve.
fn spellings(call: libc::c_long) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let second = cfg!(target_arch = "x86_64").then_some(call | X32);
    std::iter::once(call).chain(second)
}
