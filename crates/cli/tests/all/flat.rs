//! Memory use of an import does not grow with the file, and a very long line is not loaded completely.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::World;

/// Additional memory allowed for the larger file, in KB: half of the difference in size.
const GROWTH_KB_MAX: u64 = 24 << 10;
/// Large enough to fill every bounded buffer and cache.
const SMALL_BYTES: usize = 48 << 20;
const LARGE_BYTES: usize = SMALL_BYTES + (48 << 20);
const LINE_TEXT_BYTES: usize = 48 << 10;

fn line(number: usize, text: &str) -> Value {
    let parent = number.checked_sub(1).map(|number| format!("u{number}"));
    json!({ "type": "user", "uuid": format!("u{number}"), "parentUuid": parent, "sessionId": "flat-1",
        "timestamp": "2026-01-02T03:04:05.000Z", "message": { "role": "user", "content": text } })
}

fn write_file(path: &Path, bytes_min: usize) -> usize {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let (mut bytes, mut lines) = (0, 0);
    while bytes < bytes_min {
        let text = format!("number {lines} of them ").repeat(LINE_TEXT_BYTES / 24);
        let text = format!("{}\n", line(lines, &text));
        out.write_all(text.as_bytes()).unwrap();
        (bytes, lines) = (bytes + text.len(), lines + 1);
    }
    lines
}

/// Returns a record of a few bytes, so that most of the memory growth is the bookkeeping per record.
fn short_line(format: &str, number: usize) -> Value {
    let at = "2026-01-02T03:04:05.000Z";
    match (format, number) {
        ("codex", 0) => json!({ "timestamp": at, "type": "session_meta", "payload": { "id": "flat-2" } }),
        ("codex", _) => {
            let content = json!([{ "type": "input_text", "text": "go on" }]);
            let payload = json!({ "type": "message", "role": "user", "content": content });
            json!({ "timestamp": at, "type": "response_item", "payload": payload })
        }
        _ => line(number, "go on"),
    }
}

fn write_short_lines(path: &Path, format: &str, lines: usize) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    for number in 0..lines {
        writeln!(out, "{}", short_line(format, number)).unwrap();
    }
}

/// Imports a file into a new store. Returns the number of added entries, the problem codes, and the peak memory in KB.
fn import(path: &Path, options: &[&str]) -> (u64, Vec<String>, u64) {
    let world = World::new("sqlite");
    let mut command = world.bare();
    command.args(["--store", &world.url, "--json", "import"]).args(options).arg(path);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kb = 0;
    while child.try_wait().unwrap().is_none() {
        // The status file is missing or empty once the process has ended.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let high = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let high = high.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
        peak_kb = high.unwrap_or(0).max(peak_kb);
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let codes = report["problems"].as_array().unwrap().iter();
    let codes = codes.map(|problem| problem["code"].as_str().unwrap().to_owned()).collect();
    (report["added"].as_u64().unwrap(), codes, peak_kb)
}

#[test]
fn memory_does_not_grow_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut peaks = Vec::new();
    for bytes in [SMALL_BYTES, LARGE_BYTES] {
        let path = dir.path().join("session.jsonl");
        let lines = write_file(&path, bytes);
        let (added, codes, peak_kb) = import(&path, &[]);
        assert_eq!((added, codes), (lines as u64, Vec::new()));
        peaks.push(peak_kb);
    }
    let growth_kb = peaks[1].saturating_sub(peaks[0]);
    assert!(peaks[0] > 0 && growth_kb < GROWTH_KB_MAX, "{growth_kb} KB more: {peaks:?}");
}

#[test]
fn the_bookkeeping_per_record_is_small() {
    const FEW: usize = 60_000;
    const MANY: usize = 660_000;
    /// Twice the actual memory per record. A standard `HashMap` would need twice this limit.
    const RECORD_BYTES_MAX: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session.jsonl");
    for format in ["claude-code", "codex"] {
        let mut peaks = Vec::new();
        for lines in [FEW, MANY] {
            write_short_lines(&path, format, lines);
            let (added, codes, peak_kb) = import(&path, &["--dry-run", "--from", format]);
            assert!(added + 1 >= lines as u64 && codes.is_empty(), "{added} {codes:?}");
            peaks.push(peak_kb);
        }
        let each_bytes = (peaks[1].saturating_sub(peaks[0]) << 10) / (MANY - FEW) as u64;
        assert!(
            peaks[0] > 0 && each_bytes < RECORD_BYTES_MAX,
            "{format}: {each_bytes} bytes per record: {peaks:?}"
        );
    }
}

#[test]
fn a_line_of_hundreds_of_megabytes_takes_no_more_memory_than_the_longest_allowed_line() {
    const LONG_BYTES: usize = 300 << 20;
    const MEMORY_KB_MAX: u64 = 150 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session.jsonl");
    let mut out = BufWriter::new(File::create(&path).unwrap());
    writeln!(out, "{}", line(0, "before")).unwrap();
    let chunk = "word ".repeat(1 << 16);
    for _ in 0..LONG_BYTES / chunk.len() {
        out.write_all(chunk.as_bytes()).unwrap();
    }
    writeln!(out, "\n{}", line(1, "after")).unwrap();
    drop(out);
    let (added, codes, peak_kb) = import(&path, &[]);
    assert_eq!((added, codes), (2, vec!["import.too_long".to_owned()]));
    assert!(peak_kb > 0 && peak_kb < MEMORY_KB_MAX, "the import took {peak_kb} KB");
}

fn message_line(format: &str, number: usize, text: &str) -> Value {
    match format {
        "gemini-cli" => {
            json!({ "id": format!("m{number}"), "timestamp": "2026-01-02T03:04:05.000Z", "type": "user", "content": text })
        }
        _ => json!({ "role": "user", "content": text }),
    }
}

#[test]
fn messages_and_gemini_recordings_of_any_size_take_the_same_memory() {
    const BYTES: [usize; 2] = [48 << 20, 270 << 20];
    /// Additional memory allowed for the larger file: the index, the store's pages, and noise.
    const MORE_KB_MAX: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session-x.jsonl");
    for format in ["gemini-cli", "messages"] {
        let mut peaks = Vec::new();
        for bytes_min in BYTES {
            let mut out = BufWriter::new(File::create(&path).unwrap());
            if format == "gemini-cli" {
                writeln!(out, "{}", json!({ "sessionId": "flat-3", "projectHash": "x", "startTime": "2026-01-02T03:04:05.000Z" })).unwrap();
            }
            let (mut bytes, mut lines) = (0, 0);
            while bytes < bytes_min {
                let text = format!("number {lines} of them ").repeat(4 * LINE_TEXT_BYTES / 24);
                let text = format!("{}\n", message_line(format, lines, &text));
                out.write_all(text.as_bytes()).unwrap();
                (bytes, lines) = (bytes + text.len(), lines + 1);
            }
            drop(out);
            let (added, codes, peak_kb) = import(&path, &["--dry-run"]);
            assert_eq!((added, codes), (lines as u64, Vec::new()), "{format}");
            peaks.push(peak_kb);
        }
        let more_kb = peaks[1].saturating_sub(peaks[0]);
        assert!(peaks[0] > 0 && more_kb < MORE_KB_MAX, "{format}: {more_kb} KB more: {peaks:?}");
    }
}
