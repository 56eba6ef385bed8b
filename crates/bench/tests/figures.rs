//! Runs the real program on its smallest axis.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

#[test]
fn every_figure_is_a_json_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_sapwood-bench"))
        .args(["--quick", "compaction", "--json"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!figures.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    for figure in &figures {
        let keys: Vec<&str> = figure.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["axis", "floor", "goal", "met", "name", "ratio", "unit", "value"]);
        assert_eq!(figure["axis"], "compaction");
    }
    // A debug build may miss a goal for speed.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}", output.status);
}

#[test]
fn a_usage_error_is_json_on_request() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_sapwood-bench")).args(["--json", "--wrong"]).output().unwrap();
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &error["error"]["code"]), (Some(2), &Value::from("input.usage")));
}
