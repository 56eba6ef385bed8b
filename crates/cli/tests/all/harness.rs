//! Runs the binary in a temporary directory and captures its output.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A store in a temporary directory.
pub struct World {
    pub dir: tempfile::TempDir,
    pub url: String,
}

/// The exit status and output of one run.
pub struct CommandResult {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl CommandResult {
    pub fn out(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Parses the JSON error on stderr.
    pub fn error(&self) -> Value {
        let value: Value = serde_json::from_str(self.stderr.trim())
            .unwrap_or_else(|_| panic!("stderr is not a JSON error: {:?}", self.stderr));
        let error = &value["error"];
        for key in ["code", "message", "hint"] {
            assert!(error[key].as_str().is_some_and(|text| !text.is_empty()), "{key} is missing: {value}");
        }
        error.clone()
    }
}

/// Runs a check on each store that is persistent and needs no server.
pub fn on_each_store(check: impl Fn(&World)) {
    for scheme in ["sqlite", "jsonl"] {
        eprintln!("--- {scheme}");
        check(&World::new(scheme));
    }
}

impl World {
    pub fn new(scheme: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if scheme == "postgres" {
            return Self { dir, url: sapwood_store::conformance::cluster::shared().new_database() };
        }
        let url = format!("{scheme}:{}", dir.path().join(format!("store.{scheme}")).display());
        Self { dir, url }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the user's own `sapwood.toml`.
    pub fn configure(&self, text: &str) {
        let home = self.path(".local/share/sapwood");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("sapwood.toml"), text).unwrap();
    }

    /// Returns a command for the binary in this directory, without a store.
    pub fn bare(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sapwood"));
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if ["SAPWOOD_", "OTEL_"].iter().any(|ours| name_text.starts_with(ours)) {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.dir.path()).env("USER", "tester").env_remove("XDG_DATA_HOME");
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare();
        command.args(["--store", &self.url]).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> CommandResult {
        finish(self.command(args))
    }

    pub fn run_with(&self, args: &[&str], stdin: &[u8]) -> CommandResult {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let bytes = stdin.to_vec();
        // Write from a separate thread: if the child fills its output pipe while it reads, both processes would block.
        let writer = std::thread::spawn(move || pipe.write_all(&bytes));
        let ran = ran(child.wait_with_output().unwrap());
        let _ = writer.join().unwrap();
        ran
    }

    pub fn spawn(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs a command that must succeed. Returns its stdout without the last line break.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.status, Some(0), "{args:?} failed: {}", ran.stderr);
        ran.out().trim_end_matches('\n').to_owned()
    }

    /// Runs a command with `--json` that must succeed and print one document.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?} printed {text:?}"))
    }

    /// Runs a command with `--json` that must succeed and print JSON Lines.
    pub fn lines(&self, args: &[&str]) -> Vec<Value> {
        parse_lines(&self.ok(&[args, &["--json"]].concat()))
    }

    /// Runs a command with `--json` that must fail with this exit code, an empty stdout and a JSON error.
    pub fn fail(&self, exit: i32, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert_eq!(ran.status, Some(exit), "{args:?}: stdout {:?}, stderr {:?}", ran.out(), ran.stderr);
        assert_eq!(ran.out(), "", "{args:?} printed data although it failed");
        ran.error()
    }

    /// Creates a session with these messages: `u:hello`, `a:hi`, `s:note`.
    pub fn session(&self, messages: &[&str]) -> String {
        let id = self.json(&["new"])["id"].as_str().unwrap().to_owned();
        self.add_messages(&id, messages);
        id
    }

    pub fn add_messages(&self, session: &str, messages: &[&str]) {
        for message in messages {
            let (role, text) = message.split_once(':').unwrap();
            let role = match role {
                "u" => "user",
                "a" => "assistant",
                "s" => "system",
                other => panic!("`{other}` is not a role in this notation"),
            };
            self.ok(&["inject", session, "--role", role, "--text", text]);
        }
    }

    /// Returns the texts of the context, in order.
    pub fn texts(&self, session: &str, at: Option<&str>) -> Vec<String> {
        let mut args = vec!["context", session];
        args.extend(at.iter().flat_map(|at| ["--at", at]));
        texts_of(&self.json(&args))
    }
}

pub fn texts_of(context: &Value) -> Vec<String> {
    let messages = context["messages"].as_array().unwrap();
    messages.iter().map(|message| message["text"].as_str().unwrap().to_owned()).collect()
}

pub fn parse_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} is not JSON")))
        .collect()
}

pub fn finish(mut command: Command) -> CommandResult {
    ran(command.output().unwrap())
}

fn ran(output: std::process::Output) -> CommandResult {
    let stderr = String::from_utf8(output.stderr).unwrap();
    CommandResult { status: output.status.code(), stdout: output.stdout, stderr }
}

/// Returns the id of entry `n` in a log from [`log_file`].
pub fn id(n: u32) -> String {
    format!("0190a000-0000-7000-8000-{n:012x}")
}

/// Builds a file to import: a header, and a line for each body with its parent.
pub fn log_file(session: &str, entries: &[(Option<u32>, Value)]) -> String {
    let header = serde_json::json!({ "type": "session_header", "version": 2, "id": session, "timestamp": 1_700_000_000_000u64 });
    let mut text = format!("{header}\n");
    for (at, (parent, body)) in entries.iter().enumerate() {
        let seq = at as u32 + 1;
        let mut line = serde_json::json!({
            "type": body["type"], "seq": seq, "id": id(seq), "parent_id": parent.map(id),
            "timestamp": 1_700_000_000_000u64 + u64::from(seq), "by": "user:ana",
        });
        for (key, value) in body.as_object().unwrap() {
            line[key] = value.clone();
        }
        text.push_str(&format!("{line}\n"));
    }
    text
}

pub fn user(text: &str) -> Value {
    serde_json::json!({ "type": "user_message", "parts": [{ "type": "text", "text": text }] })
}

pub fn assistant(text: &str) -> Value {
    serde_json::json!({ "type": "assistant_message", "parts": [{ "type": "text", "text": text }], "stop": "stop" })
}

pub fn compaction(summary: &str, first_kept: u32) -> Value {
    serde_json::json!({
        "type": "compaction", "summary": summary, "first_kept": id(first_kept),
        "strategy": "llm", "trigger": "manual",
    })
}
