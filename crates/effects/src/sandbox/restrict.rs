//! Drops the rights of this process on Linux: capabilities, files and signals with Landlock, sockets and user namespaces
//! with seccomp, and resource limits. The restrictions apply to this process and are inherited by every program it
//! executes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::limits::ResourceLimits;
use super::{Confinement, FileRights, Network, cgroup, process_tree};

/// The newest Landlock ABI to request. Older kernels enforce the rules they support.
const LANDLOCK_ABI: ABI = ABI::V7;
/// Seconds between the signal for too much processor time and the kill.
const CPU_GRACE_S: u64 = 5;
/// The kernel first kills processes with this value when the machine runs out of memory.
const OOM_SCORE: &str = "1000";
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

/// Prepare this process to become the program: join its control groups, accept the limits and drop rights.
pub fn enter(confinement: &Confinement, member_files: &[PathBuf]) -> Result<(), String> {
    // Without its supervisor, nothing would limit the program.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // Raising the value is always allowed, except without /proc.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    limit_user_processes(&confinement.limits);
    cgroup::join(member_files)?;
    limit_resources(&confinement.limits)?;
    drop_rights(confinement)
}

pub fn drop_rights(confinement: &Confinement) -> Result<(), String> {
    if confinement.files == FileRights::Unconfined {
        return Ok(());
    }
    drop_capabilities().map_err(|why| format!("failed to drop capabilities: {why}"))?;
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

/// Limits that the kernel enforces per process.
pub fn limit_resources(limits: &ResourceLimits) -> Result<(), String> {
    let settings = [
        (Resource::Core, 0, 0),
        (Resource::Fsize, limits.file_bytes_max, limits.file_bytes_max),
        (Resource::Nofile, limits.open_files_max, limits.open_files_max),
        (Resource::Cpu, limits.cpu_seconds_max, limits.cpu_seconds_max.saturating_add(CPU_GRACE_S)),
    ];
    for (resource, current, maximum) in settings {
        // Only root could raise a limit that this process already has.
        let inherited = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = Rlimit { current: Some(current.min(inherited)), maximum: Some(maximum.min(inherited)) };
        setrlimit(resource, limit).map_err(|why| format!("failed to set resource limits: {why}"))?;
    }
    Ok(())
}

/// Limit the number of processes of the user, as a bound on what can start between two measurements of the supervisor. The
/// limit counts all processes of the user, so the existing ones are added. It would not bind root.
fn limit_user_processes(limits: &ResourceLimits) {
    if rustix::process::getuid().is_root() {
        return;
    }
    let existing = process_tree::count_of_user(rustix::process::getuid().as_raw());
    let inherited = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
    let most = existing.saturating_add(limits.processes_max).saturating_add(1).min(inherited);
    // The supervisor counts too, so a failure only removes the additional bound.
    let _ = setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) });
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
        FileRights::Unconfined | FileRights::Open => rules.add_rules(path_beneath_rules(root, everything))?,
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
///
/// A new user namespace has all capabilities inside of it, and so reaches much of the kernel that is otherwise closed.
/// The flags of `clone3` are in memory, where seccomp cannot see them. It fails as if the kernel did not know it, and
/// programs then use `clone`.
fn deny_system_calls(network: Network) -> Result<(), String> {
    let sockets: &[libc::c_long] = if network == Network::Denied { &[libc::SYS_socket] } else { &[] };
    let denied = DENIED_CALLS.iter().chain(sockets).map(|call| (*call, Vec::new()));
    let namespaces = [libc::SYS_unshare, libc::SYS_clone].map(|call| Ok((call, vec![new_user_namespace()?])));
    let namespaces = namespaces.into_iter().collect::<Result<Vec<_>, String>>()?;
    apply_filter(denied.chain(namespaces).collect(), libc::EACCES)?;
    apply_filter(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)
}

/// Matches a first argument that contains the flag for a new user namespace.
fn new_user_namespace() -> Result<SeccompRule, String> {
    let flag = libc::CLONE_NEWUSER as u64;
    SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(|why| why.to_string())
}

/// Let calls that match a rule fail with this error. A call without rules always fails.
fn apply_filter(calls: Vec<(libc::c_long, Vec<SeccompRule>)>, error: libc::c_int) -> Result<(), String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|why| format!("{why}"))?;
    let numbered = calls
        .into_iter()
        .flat_map(|(call, rules)| call_numbers(call).map(move |number| (number, rules.clone())));
    let rules: BTreeMap<i64, Vec<SeccompRule>> = numbered.collect();
    let refusal = SeccompAction::Errno(error as u32);
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
