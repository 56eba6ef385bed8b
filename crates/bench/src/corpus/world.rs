//! The simulated project: files that exist for a while, and the messages and tool output about them.

use std::fmt::Write as _;

use super::CorpusCall;
use super::rng::Rng;
use super::words::{ASKS, CODE, JSON_LINES, LISTING, LOGS, SENTENCES, TRACES, Vocabulary};

/// Number of files in use at a time.
const FILES: usize = 40;
/// Number of messages after which one file is replaced by another.
const MESSAGES_PER_FILE: u64 = 60;
/// Start time of the transcript, in Unix seconds.
const DAY: u64 = 1_760_000_000;

struct SourceFile {
    path: String,
    /// Names and types used in this file, for the slots %i and %T.
    names: Vec<String>,
    types: Vec<String>,
    /// The file's package, for the slot %m.
    package: String,
    lines: Vec<String>,
}

pub(super) struct World {
    pub(super) rng: Rng,
    words: Vocabulary,
    files: Vec<SourceFile>,
    clock: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let words = Vocabulary::new(&mut rng);
        let mut world = Self { rng, words, files: Vec::with_capacity(FILES), clock: DAY };
        for _ in 0..FILES {
            let file = world.new_file();
            world.files.push(file);
        }
        world
    }

    pub(super) fn advance(&mut self, number: u64) {
        self.clock += 3 + number % 11;
        if number.is_multiple_of(MESSAGES_PER_FILE) {
            let slot = self.rng.below(FILES);
            self.files[slot] = self.new_file();
        }
    }

    fn new_file(&mut self) -> SourceFile {
        let name = self.rng.pick(&self.words.names);
        let directory = self.rng.pick(&self.words.modules);
        let package = self.rng.pick_skewed(&self.words.modules);
        let ending = self.rng.pick(&["rs", "rs", "rs", "ts", "py", "toml"]);
        let path = format!("crates/{package}/src/{directory}/{name}.{ending}");
        let package = package.clone();
        let names = (0..14).map(|_| self.rng.pick(&self.words.names).clone()).collect();
        let types = (0..6).map(|_| self.rng.pick(&self.words.types).clone()).collect();
        let mut file = SourceFile { path, names, types, package, lines: Vec::new() };
        for _ in 0..self.rng.between(80, 400) {
            let mut line = String::new();
            let template = *self.rng.pick(CODE);
            fill(&mut line, template, &mut self.rng, &self.words, &file, self.clock);
            file.lines.push(line);
        }
        file
    }

    /// Pick the file of a message. Files with a low index are picked more often.
    fn file(&mut self) -> usize {
        self.rng.below(FILES).min(self.rng.below(FILES))
    }

    fn line(&mut self, out: &mut String, templates: &[&str], file: usize) {
        let template = *self.rng.pick(templates);
        fill(out, template, &mut self.rng, &self.words, &self.files[file], self.clock);
    }

    pub(super) fn user_message(&mut self) -> String {
        let target = self.rng.log_normal(240.0, 0.6, 40, 3_000);
        let mut text = String::with_capacity(target + 200);
        let file = self.file();
        while text.len() < target {
            self.line(&mut text, ASKS, file);
            text.push(' ');
        }
        text.truncate(text.trim_end().len());
        text
    }

    pub(super) fn assistant_message(&mut self) -> String {
        let target = self.rng.log_normal(1_020.0, 0.55, 80, 12_000);
        let mut text = String::with_capacity(target + 1_000);
        let file = self.file();
        while text.len() < target {
            match self.rng.below(10) {
                0 => self.heading(&mut text),
                1 | 2 => self.bullets(&mut text, file),
                3..=5 => self.quote(&mut text, file),
                6 => self.before_and_after(&mut text, file),
                _ => self.paragraph(&mut text, file),
            }
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn heading(&mut self, text: &mut String) {
        let (first, second) = (self.rng.pick_skewed(&self.words.prose), self.rng.pick(&self.words.prose));
        let _ = write!(text, "## {first} {second}\n\n");
    }

    fn bullets(&mut self, text: &mut String, file: usize) {
        for _ in 0..self.rng.between(2, 5) {
            text.push_str("- ");
            self.line(text, SENTENCES, file);
            text.push('\n');
        }
        text.push('\n');
    }

    fn quote(&mut self, text: &mut String, file: usize) {
        let count = self.rng.between(4, 14);
        let from = self.rng.below(self.files[file].lines.len());
        self.block(text, file, from, count);
    }

    /// Write a few lines before and after a change to one of them, like an answer that proposes a change.
    fn before_and_after(&mut self, text: &mut String, file: usize) {
        let count = self.rng.between(4, 12);
        let from = self.rng.below(self.files[file].lines.len());
        self.block(text, file, from, count);
        self.line(text, SENTENCES, file);
        text.push_str("\n\n");
        let changed = from + self.rng.below(count);
        if changed < self.files[file].lines.len() {
            let mut line = String::new();
            self.line(&mut line, CODE, file);
            self.files[file].lines[changed] = line;
        }
        self.block(text, file, from, count);
    }

    fn block(&mut self, text: &mut String, file: usize, from: usize, count: usize) {
        text.push_str("```rust\n");
        for line in self.files[file].lines.iter().skip(from).take(count) {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("```\n\n");
    }

    fn paragraph(&mut self, text: &mut String, file: usize) {
        for _ in 0..self.rng.between(2, 5) {
            self.line(text, SENTENCES, file);
            text.push(' ');
        }
        text.push_str("\n\n");
    }

    pub(super) fn call(&mut self, number: u64) -> CorpusCall {
        let call_id = format!("call_{number:08x}{:08x}", self.rng.next() as u32);
        let file = self.file();
        let (tool, input) = match self.rng.below(10) {
            0..=2 => ("read_file", self.read_input(file)),
            3 | 4 => ("grep", self.grep_input(file)),
            5..=7 => ("bash", self.bash_input(file)),
            _ => ("apply_patch", self.patch_input(file)),
        };
        CorpusCall { call_id, tool, input }
    }

    fn read_input(&mut self, file: usize) -> String {
        let (from, lines) = (self.rng.below(400), self.rng.between(40, 200));
        format!(r#"{{"path":"{}","offset":{from},"limit":{lines}}}"#, self.files[file].path)
    }

    fn grep_input(&mut self, file: usize) -> String {
        let name = self.rng.pick(&self.files[file].names);
        let package = self.rng.pick(&self.words.modules);
        format!(r#"{{"pattern":"\\b{name}\\b","path":"crates/{package}","context":{}}}"#, self.rng.below(4))
    }

    fn bash_input(&mut self, file: usize) -> String {
        let package = self.rng.pick(&self.words.modules);
        let name = self.rng.pick(&self.files[file].names);
        let (lines, timeout) = (self.rng.between(20, 200), self.rng.between(10, 600) * 1_000);
        format!(
            r#"{{"command":"cd /work/{package} && RUST_BACKTRACE=1 cargo test -p {package} {name} -- --nocapture 2>&1 | tail -n {lines}","timeout_ms":{timeout}}}"#
        )
    }

    fn patch_input(&mut self, file: usize) -> String {
        let mut patch = format!("--- a/{0}\n+++ b/{0}\n", self.files[file].path);
        self.hunk(&mut patch, file, 6);
        serde_json::json!({ "patch": patch }).to_string()
    }

    fn hunk(&mut self, out: &mut String, file: usize, lines: usize) {
        let from = self.rng.below(self.files[file].lines.len());
        let _ = writeln!(out, "@@ -{from},{lines} +{from},{lines} @@");
        for number in from..(from + lines).min(self.files[file].lines.len()) {
            let changed = self.rng.percent(30);
            out.push(if changed { '-' } else { ' ' });
            out.push_str(&self.files[file].lines[number]);
            out.push('\n');
            if changed {
                out.push('+');
                self.line(out, CODE, file);
                out.push('\n');
            }
        }
    }

    pub(super) fn output(&mut self, tool: &str) -> String {
        let target = self.rng.log_normal(1_470.0, 0.8, 500, 20_000);
        let mut out = String::with_capacity(target + 300);
        let file = self.file();
        match (tool, self.rng.below(8)) {
            ("read_file", _) => self.numbered(&mut out, target, file),
            ("grep", _) => self.matches(&mut out, target),
            ("apply_patch", _) => self.diff(&mut out, target),
            (_, 0) => self.repeat(&mut out, target, TRACES, file),
            (_, 1) => self.repeat(&mut out, target, JSON_LINES, file),
            (_, 2) => self.repeat(&mut out, target, LISTING, file),
            _ => self.repeat(&mut out, target, LOGS, file),
        }
        out
    }

    fn repeat(&mut self, out: &mut String, target: usize, templates: &[&str], file: usize) {
        while out.len() < target {
            let template = *self.rng.pick(templates);
            for _ in 0..self.rng.between(1, 12) {
                self.line(out, &[template], file);
                out.push('\n');
            }
        }
        out.truncate(out[..out.len() - 1].rfind('\n').unwrap_or(out.len()));
    }

    fn numbered(&mut self, out: &mut String, target: usize, mut file: usize) {
        while out.len() < target {
            let from = self.rng.below(self.files[file].lines.len());
            for (number, line) in self.files[file].lines.iter().enumerate().skip(from) {
                let _ = writeln!(out, "{:>6}\t{line}", number + 1);
                if out.len() >= target {
                    return;
                }
            }
            file = self.file();
        }
    }

    fn matches(&mut self, out: &mut String, target: usize) {
        while out.len() < target {
            let file = self.file();
            let hits = self.rng.between(1, 8);
            let file = &self.files[file];
            for _ in 0..hits {
                let number = self.rng.below(file.lines.len());
                let _ = writeln!(out, "{}:{}:{}", file.path, number + 1, file.lines[number]);
            }
        }
    }

    fn diff(&mut self, out: &mut String, target: usize) {
        while out.len() < target {
            let file = self.file();
            let _ = writeln!(out, "diff --git a/{0} b/{0}", self.files[file].path);
            self.hunk(out, file, 12);
        }
    }
}

/// Write a template with its slots filled, see [`super::words`].
fn fill(out: &mut String, template: &str, rng: &mut Rng, words: &Vocabulary, file: &SourceFile, clock: u64) {
    let mut parts = template.split('%');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (slot, rest) = part.split_at(part.len().min(1));
        match slot {
            "i" => out.push_str(rng.pick_skewed::<String>(&file.names)),
            "I" => out.push_str(rng.pick::<String>(&words.names)),
            "T" => out.push_str(rng.pick_skewed::<String>(&file.types)),
            "m" => out.push_str(&file.package),
            "w" => out.push_str(rng.pick_skewed::<&str>(&words.prose)),
            "p" => out.push_str(&file.path),
            "n" => push_number(out, rng.below(100)),
            "N" => push_number(out, rng.below(100_000)),
            "h" => push_hex(out, rng.next(), 8),
            "u" => push_uuid(out, rng),
            "t" => push_time(out, clock + rng.next() % 3_600),
            _ => out.push_str(slot),
        }
        out.push_str(rest);
    }
}

fn push_number(out: &mut String, mut number: usize) {
    let mut digits = [0u8; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

fn push_hex(out: &mut String, mut bits: u64, digits: usize) {
    for _ in 0..digits {
        out.push(char::from(b"0123456789abcdef"[(bits & 15) as usize]));
        bits >>= 4;
    }
}

fn push_uuid(out: &mut String, rng: &mut Rng) {
    let (high, low) = (rng.next(), rng.next());
    push_hex(out, high, 8);
    for (bits, digits) in [(high >> 32, 4), (high >> 48, 4), (low, 4), (low >> 16, 12)] {
        out.push('-');
        push_hex(out, bits, digits);
    }
}

fn push_time(out: &mut String, seconds: u64) {
    let (day, second) = (seconds / 86_400 - 20_370, seconds % 86_400);
    let _ = write!(
        out,
        "2025-{:02}-{:02}T{:02}:{:02}:{:02}",
        9 + day / 30 % 4,
        1 + day % 30,
        second / 3_600,
        second / 60 % 60,
        second % 60
    );
}
