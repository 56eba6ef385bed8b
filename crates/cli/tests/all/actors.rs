//! Child processes that are killed with their test, their acknowledgements, and random numbers from a printed seed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::harness::{CommandResult, World, log_file, user};

/// A child process that does not outlive its test.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A message that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub seq: u64,
    pub id: String,
}

impl Ack {
    pub fn parse(line: &str) -> Self {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} is not JSON"));
        Self { seq: value["seq"].as_u64().unwrap(), id: value["id"].as_str().unwrap().to_owned() }
    }
}

/// A message in a log, as printed by `sapwood events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedMessage {
    pub ack: Ack,
    pub text: String,
}

/// Returns all messages of a session in order. Checks that they form one path: each is the parent of the next.
pub fn read_log(world: &World, session: &str) -> Vec<LoggedMessage> {
    let events = world.lines(&["events", session]);
    let messages = events.iter().enumerate().map(|(at, event)| {
        assert_eq!(event["seq"], at + 1, "I1: a seq is missing or duplicated");
        assert_eq!(event["parent"].as_u64().unwrap_or(0), at as u64, "the messages are not one path");
        let text = event["entry"]["parts"][0]["text"].as_str().unwrap().to_owned();
        LoggedMessage { ack: Ack::parse(&event.to_string()), text }
    });
    messages.collect()
}

/// Imports a session with one message, because a store may keep an empty session only in memory.
pub fn seed(world: &World) -> String {
    let file = world.path("seed.jsonl");
    std::fs::write(&file, log_file("seeded", &[(None, user("the first"))])).unwrap();
    world.ok(&["import", file.to_str().unwrap()]);
    "seeded".to_owned()
}

/// A message as a line of stdin.
pub fn line(text: &str) -> String {
    format!("{}\n", serde_json::json!({ "role": "user", "content": text }))
}

/// `sapwood inject --message -`, fed message by message.
pub struct Injector {
    child: ChildGuard,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Injector {
    pub fn start(world: &World, session: &str, extra: &[&str]) -> Self {
        Self::of(world.command(&[&["inject", session, "--message", "-", "--json"], extra].concat()))
    }

    pub fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildGuard(command.spawn().unwrap());
        let (stdin, stdout) = (child.0.stdin.take(), child.0.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Sends messages in one write and returns their acknowledgements, which are incomplete if the process ended.
    pub fn send(&mut self, texts: &[&str]) -> Vec<Ack> {
        let lines: String = texts.iter().map(|text| line(text)).collect();
        // Ignore a failed write: if the process has ended, acknowledgements are missing.
        let _ = self.stdin.as_mut().unwrap().write_all(lines.as_bytes());
        texts.iter().map_while(|_| self.next_ack()).collect()
    }

    fn next_ack(&mut self) -> Option<Ack> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.ends_with('\n').then(|| Ack::parse(&line))
    }

    /// Closes stdin and waits for the process to end.
    pub fn finish(mut self) -> CommandResult {
        self.stdin = None;
        let (mut stdout, mut stderr) = (Vec::new(), String::new());
        self.stdout.read_to_end(&mut stdout).unwrap();
        self.child.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        CommandResult { status: self.child.0.wait().unwrap().code(), stdout, stderr }
    }

    /// Kills the process as `kill -9` does.
    pub fn kill(mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }
}

/// Checks that the doctor reports nothing except torn ends. It reports these even after they were truncated.
pub fn assert_healthy(world: &World) {
    let ran = world.run(&["doctor", "--json"]);
    let diagnosis: Value = serde_json::from_str(ran.out().trim())
        .unwrap_or_else(|_| panic!("doctor printed {:?} and {:?}", ran.out(), ran.stderr));
    let findings = diagnosis["findings"].as_array().unwrap();
    let wrong: Vec<&Value> = findings.iter().filter(|finding| finding["rule"] != "torn").collect();
    assert!(wrong.is_empty(), "doctor found {wrong:?}");
    assert_eq!(ran.status, Some(i32::from(!findings.is_empty())));
}

/// Random numbers from a seed (SplitMix64). The seed is printed, so that a failure can be repeated.
pub struct SeededRng(u64);

impl SeededRng {
    pub fn from_env() -> Self {
        let given = std::env::var("SAPWOOD_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let now =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = given.unwrap_or_else(now);
        eprintln!("SAPWOOD_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn with_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Returns random letters, which do not compress well.
    pub fn letters(&mut self, count: u64) -> String {
        (0..count).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }
}
