//! The descendants of a process on Linux, read from `/proc`: their number, memory and processor time.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, Signal};

/// A process as its `stat` file describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Pid,
    group: Pid,
    is_living: bool,
    threads: u64,
    /// Processor time of the process.
    own_ticks: u64,
    /// Processor time of its children that it waited for.
    reaped_ticks: u64,
    resident_pages: u64,
}

/// What the descendants of a process use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeUsage {
    pub living: Vec<Pid>,
    pub threads: u64,
    pub cpu_seconds: u64,
    /// The sum of resident memory. Pages that several processes share count more than once.
    pub resident_bytes: u64,
}

/// Read what the descendants of a process use. If it is a subreaper, its tree contains every process that its children
/// started.
pub fn read_usage(root: Pid) -> TreeUsage {
    usage_of(&list_processes(), root)
}

/// The memory of these processes, where a page that N processes share counts 1/N for each of them.
pub fn proportional_bytes(pids: &[Pid]) -> u64 {
    pids.iter().filter_map(|pid| read_proportional(*pid)).sum()
}

/// Kill every living descendant of a process, and return their number. `/proc` lists processes by their id, and a new
/// process has a higher id than its parent, so one pass also finds most processes that start during the pass.
///
/// The process groups of the descendants are killed as a whole. The kernel does this at once, so that not even a process
/// that is being started escapes. The descendants are in their own sessions, so their groups contain no other process.
pub fn kill_descendants_once(root: Pid) -> usize {
    let mut tree = HashSet::from([root]);
    let mut groups = HashSet::from([rustix::process::getpgrp()]);
    let mut killed = 0;
    for process in pids().filter_map(read_process) {
        if !tree.contains(&process.parent) {
            continue;
        }
        tree.insert(process.pid);
        if process.is_living {
            killed += 1;
            if groups.insert(process.group) {
                let _ = rustix::process::kill_process_group(process.group, Signal::KILL);
            }
            // The process may have exited in the meantime.
            let _ = rustix::process::kill_process(process.pid, Signal::KILL);
        }
    }
    killed
}

/// The number of processes and threads of the machine. Reading it is much cheaper than listing them.
pub fn count_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// The number of processes and threads of a user.
pub fn count_of_user(uid: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let is_owned =
        |pid: &i32| std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid);
    pids().filter(is_owned).filter_map(read_process).map(|process| process.threads).sum()
}

fn usage_of(processes: &[Process], root: Pid) -> TreeUsage {
    let page_bytes = rustix::param::page_size() as u64;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut usage = TreeUsage::default();
    let mut ticks = processes.iter().find(|process| process.pid == root).map_or(0, |root| root.reaped_ticks);
    for process in descendants(processes, root) {
        ticks += process.own_ticks + process.reaped_ticks;
        if process.is_living {
            usage.living.push(process.pid);
            usage.threads += process.threads;
            usage.resident_bytes += process.resident_pages.saturating_mul(page_bytes);
        }
    }
    usage.cpu_seconds = ticks / ticks_per_second;
    usage
}

fn descendants(processes: &[Process], root: Pid) -> Vec<Process> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found: Vec<Process> = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    // A list of children is removed when it is used, so the loop ends even if ids were reused while they were read.
    while let Some(parent) = found.get(next).map(|process| process.pid) {
        found.extend(children.remove(&parent).unwrap_or_default());
        next += 1;
    }
    found
}

fn list_processes() -> Vec<Process> {
    pids().filter_map(read_process).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read_process(pid: i32) -> Option<Process> {
    parse_stat(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parse `PID (NAME) STATE PARENT …`, where the name may contain parentheses and spaces.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The position in proc_pid_stat(5), where the state is field 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Process {
        pid: Pid::from_raw(pid)?,
        parent: Pid::from_raw(fields.get(1)?.parse().ok()?)?,
        group: Pid::from_raw(fields.get(2)?.parse().ok()?)?,
        is_living: !matches!(*fields.first()?, "Z" | "X"),
        own_ticks: number(14)? + number(15)?,
        reaped_ticks: number(16).unwrap_or(0) + number(17).unwrap_or(0),
        threads: number(20)?,
        resident_pages: number(24)?,
    })
}

fn read_proportional(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()?.saturating_mul(1_024))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, is_living: bool) -> Process {
        let pid_of = |raw| Pid::from_raw(raw).unwrap();
        Process {
            pid: pid_of(pid),
            parent: pid_of(parent),
            group: pid_of(pid),
            is_living,
            threads: 2,
            own_ticks: 100,
            reaped_ticks: 50,
            resident_pages: 3,
        }
    }

    #[test]
    fn a_tree_contains_children_at_any_depth_and_only_those() {
        let processes = [
            process(1, 9, true),
            process(5, 1, true),
            process(6, 5, false),
            process(7, 6, true),
            process(8, 2, true),
        ];
        let usage = usage_of(&processes, Pid::from_raw(1).unwrap());
        let living: Vec<i32> = usage.living.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        assert_eq!(living, [5, 7]);
        assert_eq!(usage.threads, 4);
        // 50 ticks of reaped children of the root, and 150 of each of the three descendants.
        assert_eq!(usage.cpu_seconds, 500 / rustix::param::clock_ticks_per_second());
        assert_eq!(usage.resident_bytes, 6 * rustix::param::page_size() as u64);
    }

    #[test]
    fn a_name_may_contain_parentheses_and_spaces() {
        let stat = "42 (a) b (c)) S 7 42 42 0 -1 4194304 1 0 0 0 11 22 33 44 20 0 5 0 100 4096 9 0";
        let process = parse_stat(42, stat).unwrap();
        assert_eq!(
            (process.parent.as_raw_nonzero().get(), process.threads, process.resident_pages),
            (7, 5, 9)
        );
        assert_eq!((process.own_ticks, process.reaped_ticks, process.is_living), (33, 77, true));
        assert_eq!(parse_stat(42, "42 (a) S"), None);
    }

    #[test]
    fn this_process_has_memory_and_is_not_its_own_descendant() {
        let own = rustix::process::getpid();
        assert!(!read_usage(own).living.contains(&own));
        assert!(proportional_bytes(&[own]) > 0);
    }
}
