//! Control groups for a sandboxed program, in directories that the operator has delegated to Sapwood. A directory may be of
//! version 1 or 2, and its files show which controllers it has. The kernel then enforces the limits of these controllers
//! exactly; the supervisor polls the others.
//!
//! Sapwood creates no groups elsewhere, even as root: a part of the hierarchy has one writer, which is usually systemd or a
//! container runtime.

use std::fs;
use std::path::{Path, PathBuf};

use super::limits::{Limit, ResourceLimits};

/// Maximum number of groups of ended supervisors to remove at a time.
const STALE_GROUPS_MAX: usize = 64;
const PREFIX: &str = "sapwood-";

/// The groups of one program. Removed on drop.
pub struct ControlGroups {
    dirs: Vec<PathBuf>,
}

impl ControlGroups {
    /// Create a group with these limits in each directory.
    pub fn create(parents: &[PathBuf], limits: &ResourceLimits) -> Result<Self, String> {
        let mut groups = Self { dirs: Vec::new() };
        for parent in parents {
            remove_stale(parent);
            // Fails if the parent has processes of its own or is of version 1. Its controllers are then as they are.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory +pids");
            let dir = parent.join(format!("{PREFIX}{}", std::process::id()));
            let failed = |why: std::io::Error| format!("control group {}: {why}", dir.display());
            fs::create_dir(&dir).map_err(failed)?;
            groups.dirs.push(dir.clone());
            set_limits(&dir, limits).map_err(failed)?;
        }
        Ok(groups)
    }

    /// The files to which a process writes 0 to become a member.
    pub fn member_files(&self) -> Vec<PathBuf> {
        self.dirs.iter().map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// The limit that the kernel enforced.
    pub fn reached(&self) -> Option<Limit> {
        let count = |dir: &PathBuf, file: &str, key: &str| read_count(&dir.join(file), key).unwrap_or(0) > 0;
        let is_out_of_memory =
            |dir| count(dir, "memory.events", "oom_kill") || count(dir, "memory.oom_control", "oom_kill");
        if self.dirs.iter().any(is_out_of_memory) {
            return Some(Limit::Memory);
        }
        self.dirs.iter().any(|dir| count(dir, "pids.events", "max")).then_some(Limit::Processes)
    }

    /// Let no member start another process, and kill all members where the kernel can do so at once.
    pub fn stop(&self) {
        for dir in &self.dirs {
            // Each file exists only for some versions and controllers.
            let _ = write_existing(&dir.join("pids.max"), "0");
            let _ = write_existing(&dir.join("cgroup.kill"), "1");
        }
    }

    /// Remove the groups after their members have ended.
    pub fn remove(&self) {
        for dir in &self.dirs {
            // Fails while a member lives. A later supervisor then removes the group.
            let _ = fs::remove_dir(dir);
        }
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Become a member of groups.
pub fn join(member_files: &[PathBuf]) -> Result<(), String> {
    for file in member_files {
        write_existing(file, "0").map_err(|why| format!("{}: {why}", file.display()))?;
    }
    Ok(())
}

fn set_limits(dir: &Path, limits: &ResourceLimits) -> std::io::Result<()> {
    let (memory, processes) = (limits.memory_bytes_max.to_string(), limits.processes_max.to_string());
    let settings = [
        ("memory.max", memory.as_str()),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("memory.limit_in_bytes", &memory),
        ("memory.memsw.limit_in_bytes", &memory),
        ("pids.max", &processes),
    ];
    for (file, value) in settings {
        match write_existing(&dir.join(file), value) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
    }
    Ok(())
}

fn write_existing(file: &Path, value: &str) -> std::io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

/// Read the number in the line `KEY NUMBER` of a file.
fn read_count(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Remove the groups of supervisors that were killed.
fn remove_stale(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let is_stale = |dir: &PathBuf| {
        let pid = dir.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    for dir in entries.map(|entry| entry.path()).filter(is_stale).take(STALE_GROUPS_MAX) {
        let _ = fs::remove_dir(dir);
    }
}
