//! The resource limits of a sandboxed program, and the text that explains a reached limit. Pure.

use serde::{Deserialize, Serialize};

/// Bytes of a MiB, the unit of the settings `memory_mb` and `file_mb`.
pub const MIB: u64 = 1 << 20;

/// What a program and every process that it starts may use together. File size and open files count per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResourceLimits {
    pub memory_bytes_max: u64,
    /// Maximum number of processes and threads.
    pub processes_max: u64,
    pub cpu_seconds_max: u64,
    /// Maximum size of a file that the program writes.
    pub file_bytes_max: u64,
    pub open_files_max: u64,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            memory_bytes_max: 3 << 30,
            processes_max: 1_024,
            cpu_seconds_max: 7_200,
            file_bytes_max: 2 << 30,
            open_files_max: 4_096,
        }
    }
}

impl ResourceLimits {
    /// The default limits, with at most half of the machine's memory.
    pub fn for_machine(physical_bytes: Option<u64>) -> Self {
        let limits = Self::default();
        let half = physical_bytes.map_or(u64::MAX, |bytes| bytes / 2);
        Self { memory_bytes_max: limits.memory_bytes_max.min(half), ..limits }
    }

    /// The smaller of both limits, one by one.
    pub fn narrowed(self, other: &Narrowed) -> Self {
        let least = |limit: u64, wanted: Option<u64>| wanted.map_or(limit, |wanted| limit.min(wanted));
        let in_bytes = |mib: Option<u64>| mib.map(|mib| mib.saturating_mul(MIB));
        Self {
            memory_bytes_max: least(self.memory_bytes_max, in_bytes(other.memory_mb)),
            processes_max: least(self.processes_max, other.processes),
            cpu_seconds_max: least(self.cpu_seconds_max, other.cpu_s),
            file_bytes_max: least(self.file_bytes_max, in_bytes(other.file_mb)),
            open_files_max: least(self.open_files_max, other.open_files),
        }
    }
}

/// The limits that an agent may lower.
pub type Narrowed = sapwood_core::port::tool::ProgramLimits;

/// The kind of a program, which names its table in `sapwood.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// A command of `run_command`, and git.
    #[default]
    Command,
    /// A program that is an MCP server.
    Mcp,
    /// A hook of the operator.
    Hook,
}

impl Profile {
    pub fn as_str(self) -> &'static str {
        match self {
            Profile::Command => "command",
            Profile::Mcp => "mcp",
            Profile::Hook => "hook",
        }
    }
}

/// A limit that a program reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Processes,
    CpuTime,
    FileSize,
    OpenFiles,
}

impl Limit {
    /// The key of the limit in `sapwood.toml`.
    pub fn key(self) -> &'static str {
        match self {
            Limit::Memory => "memory_mb",
            Limit::Processes => "processes",
            Limit::CpuTime => "cpu_s",
            Limit::FileSize => "file_mb",
            Limit::OpenFiles => "open_files",
        }
    }

    fn value(self, limits: &ResourceLimits) -> String {
        match self {
            Limit::Memory => format!("{} MiB of memory", limits.memory_bytes_max / MIB),
            Limit::Processes => format!("{} processes and threads", limits.processes_max),
            Limit::CpuTime => format!("{} s of processor time", limits.cpu_seconds_max),
            Limit::FileSize => format!("{} MiB per file", limits.file_bytes_max / MIB),
            Limit::OpenFiles => format!("{} open files per process", limits.open_files_max),
        }
    }

    /// The limit, its value and how to raise it.
    pub fn explain(self, limits: &ResourceLimits, profile: Profile) -> String {
        let agent = match profile {
            Profile::Command | Profile::Mcp => ", and in sandbox of the agent if it sets a lower value",
            Profile::Hook => "",
        };
        format!(
            "limit reached: {}. To raise it, set {} in [sandbox.{}] of your sapwood.toml{agent}",
            self.value(limits),
            self.key(),
            profile.as_str(),
        )
    }
}

/// Messages of the operating system with which programs report a limit that does not end them.
const SYSTEM_MESSAGES: &[(&str, Limit)] = &[
    ("File too large", Limit::FileSize),
    ("File size limit exceeded", Limit::FileSize),
    ("Too many open files", Limit::OpenFiles),
    ("CPU time limit exceeded", Limit::CpuTime),
];

/// The limit that the output of a failed program mentions.
pub fn limit_in_output(output: &str) -> Option<Limit> {
    SYSTEM_MESSAGES.iter().find(|(message, _)| output.contains(message)).map(|(_, limit)| *limit)
}

/// The limit that ends a process with this signal.
pub fn limit_of_signal(signal: i32) -> Option<Limit> {
    const XCPU: i32 = 24;
    const XFSZ: i32 = 25;
    match signal {
        XCPU => Some(Limit::CpuTime),
        XFSZ => Some(Limit::FileSize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_can_lower_limits_but_not_raise_them() {
        let operator = ResourceLimits { processes_max: 50, ..ResourceLimits::default() };
        let agent =
            Narrowed { memory_mb: Some(100), processes: Some(5_000), cpu_s: Some(0), ..Narrowed::default() };
        let limits = operator.narrowed(&agent);
        assert_eq!(
            (limits.memory_bytes_max, limits.processes_max, limits.cpu_seconds_max),
            (100 * MIB, 50, 0)
        );
        assert_eq!(operator.narrowed(&Narrowed::default()), operator);
        let huge = Narrowed { memory_mb: Some(u64::MAX), ..Narrowed::default() };
        assert_eq!(operator.narrowed(&huge), operator);
    }

    #[test]
    fn an_explanation_names_the_limit_its_value_and_the_setting() {
        let limits = ResourceLimits { memory_bytes_max: 200 * MIB, ..ResourceLimits::default() };
        let text = Limit::Memory.explain(&limits, Profile::Command);
        for part in ["200 MiB of memory", "memory_mb", "[sandbox.command]", "sapwood.toml"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!Limit::Memory.explain(&limits, Profile::Hook).contains("agent"));
    }

    #[test]
    fn a_small_machine_gets_half_of_its_memory() {
        assert_eq!(ResourceLimits::for_machine(Some(2 << 30)).memory_bytes_max, 1 << 30);
        assert_eq!(ResourceLimits::for_machine(None), ResourceLimits::default());
    }
}
