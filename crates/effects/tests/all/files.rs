//! The file tools in normal use.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use sapwood_core::port::tool::{FsScope, OutputPart};
use serde_json::json;

use crate::tool_harness::{ToolHarness, read};

#[tokio::test]
async fn a_range_of_lines_can_be_read() {
    let harness = ToolHarness::new();
    let text: String = (1..=5_000).map(|n| format!("line {n}\n")).collect();
    harness.put("long.txt", &text);
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let whole = toolbox.succeeds("read_file", json!({"path": "long.txt"})).await;
    assert!(whole.starts_with("line 1\n") && whole.contains("line 2000\n") && !whole.contains("line 2001\n"));
    assert!(whole.ends_with("[lines 1 to 2000 of 5000; continue with offset 2001]"));
    let some = toolbox.succeeds("read_file", json!({"path": "long.txt", "offset": 4999, "limit": 5})).await;
    assert_eq!(some, "line 4999\nline 5000\n");
    assert!(
        toolbox
            .fails("read_file", json!({"path": "long.txt", "offset": 5001}))
            .await
            .contains("only 5000 lines")
    );
    harness.put("empty", "");
    assert!(toolbox.succeeds("read_file", json!({"path": "empty"})).await.contains("empty"));
    harness.put("wide", &"x".repeat(1 << 20));
    let wide = toolbox.succeeds("read_file", json!({"path": "wide"})).await;
    assert!(wide.len() < 300_000 && wide.contains("was truncated"));
}

#[tokio::test]
async fn images_are_returned_as_they_are_and_other_binary_files_are_refused() {
    let harness = ToolHarness::new();
    let png = [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 20_000]].concat();
    fs::write(harness.project().join("p.png"), &png).unwrap();
    fs::write(harness.project().join("blob"), [1, 2, 0, 3]).unwrap();
    fs::write(harness.project().join("latin"), b"caf\xe9\n").unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let output = toolbox.call("read_file", json!({"path": "p.png"})).await;
    let expected = OutputPart::Media { mime: "image/png".into(), name: Some("p.png".into()), bytes: png };
    assert_eq!(output.parts, [expected]);
    assert!(toolbox.fails("read_file", json!({"path": "blob"})).await.contains("binary file"));
    assert!(toolbox.succeeds("read_file", json!({"path": "latin"})).await.contains("not UTF-8"));
    assert!(toolbox.fails("read_file", json!({"path": "."})).await.contains("a directory"));
    assert!(toolbox.fails("read_file", json!({"path": "none"})).await.contains("does not exist"));
}

#[tokio::test]
async fn a_written_file_is_replaced_and_keeps_its_permissions() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert!(
        toolbox
            .succeeds("write_file", json!({"path": "a/b/c.txt", "content": "one"}))
            .await
            .contains("created")
    );
    let path = harness.project().join("a/b/c.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    assert!(
        toolbox
            .succeeds("write_file", json!({"path": "a/b/c.txt", "content": "two"}))
            .await
            .contains("replaced")
    );
    assert_eq!(read(&path), "two");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o751);
    assert_eq!(fs::read_dir(harness.project().join("a/b")).unwrap().count(), 1, "no temporary file is left");
    assert!(toolbox.fails("write_file", json!({"path": "a/b", "content": ""})).await.contains("a directory"));
    assert!(
        toolbox.fails("write_file", json!({"path": "a/b/c.txt/d", "content": ""})).await.contains("c.txt")
    );
    assert!(toolbox.fails("write_file", json!({"path": ".", "content": ""})).await.contains("a directory"));
    let too_long = "x".repeat((8 << 20) + 1);
    assert!(toolbox.fails("write_file", json!({"path": "big", "content": too_long})).await.contains("limit"));
}

#[tokio::test]
async fn an_edit_must_match_exactly_one_place() {
    let harness = ToolHarness::new();
    let path = harness.put("f.rs", "fn a() {}\nfn b() {}\nfn a() {}\n");
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let edit = |old: &str, new: &str| json!({"path": "f.rs", "old_text": old, "new_text": new});
    assert!(toolbox.fails("edit_file", edit("fn a", "fn x")).await.contains("2 times"));
    assert!(toolbox.fails("edit_file", edit("fn z", "fn x")).await.contains("does not occur in f.rs"));
    assert!(toolbox.fails("edit_file", edit("fn b", "fn b")).await.contains("the same"));
    let diff = toolbox.succeeds("edit_file", edit("fn b() {}", "fn b() { 1 }")).await;
    assert!(diff.contains("-fn b() {}\n+fn b() { 1 }"), "{diff}");
    let mut all = edit("fn a", "fn c");
    all["replace_all"] = true.into();
    toolbox.succeeds("edit_file", all).await;
    assert_eq!(read(path), "fn c() {}\nfn b() { 1 }\nfn c() {}\n");
}

#[tokio::test]
async fn a_directory_is_listed_without_protected_files() {
    let harness = ToolHarness::new();
    for path in ["b.txt", "a/x", ".env", ".git/config", ".github/ci"] {
        harness.put(path, "12345");
    }
    symlink("b.txt", harness.project().join("l")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert_eq!(toolbox.succeeds("list_directory", json!({})).await, ".github/\na/\nb.txt  5\nl@");
    assert_eq!(toolbox.succeeds("list_directory", json!({"path": "a"})).await, "x  5");
    assert!(toolbox.fails("list_directory", json!({"path": "b.txt"})).await.contains("not a directory"));
    let full = harness.open(FsScope::Full, &[]).await;
    assert!(full.succeeds("list_directory", json!({})).await.contains(".env"));
}

#[tokio::test]
async fn files_are_found_by_name_and_lines_by_content() {
    let harness = ToolHarness::new();
    harness.put("src/main.rs", "fn main() {}\n// needle\n");
    harness.put("src/deep/lib.rs", "// Needle here\n");
    harness.put("target/out.rs", "// needle\n");
    harness.put("src/skip.rs", "// needle\n");
    harness.put(".env", "needle\n");
    harness.put(".gitignore", "/target\n");
    harness.put("src/.gitignore", "skip.*\n");
    fs::write(harness.project().join("bytes"), b"\0needle\n").unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    assert_eq!(
        toolbox.succeeds("find_files", json!({"pattern": "*.rs"})).await,
        "src/deep/lib.rs\nsrc/main.rs"
    );
    assert_eq!(toolbox.succeeds("find_files", json!({"pattern": "src/*.rs"})).await, "src/main.rs");
    let below = toolbox.succeeds("find_files", json!({"pattern": "*.rs", "path": "src/deep"})).await;
    assert_eq!(below, "src/deep/lib.rs");
    assert!(toolbox.succeeds("find_files", json!({"pattern": "*.py"})).await.contains("no matching files"));
    let lines = toolbox.succeeds("search_text", json!({"pattern": "needle"})).await;
    assert_eq!(lines, "src/main.rs:2:// needle");
    let lines = toolbox
        .succeeds("search_text", json!({"pattern": "n.edle", "ignore_case": true, "path": "src"}))
        .await;
    assert_eq!(lines, "src/deep/lib.rs:1:// Needle here\nsrc/main.rs:2:// needle");
    let one = toolbox
        .succeeds("search_text", json!({"pattern": "fn main() {", "literal": true, "path": "src/main.rs"}))
        .await;
    assert_eq!(one, "src/main.rs:1:fn main() {}");
    let cut = toolbox.succeeds("search_text", json!({"pattern": "eedle", "limit": 1})).await;
    assert!(cut.contains("only the first 1 lines"), "{cut}");
    assert!(toolbox.fails("search_text", json!({"pattern": "("})).await.contains("invalid pattern"));
    assert!(
        toolbox.fails("find_files", json!({"pattern": "*", "path": "gone"})).await.contains("does not exist")
    );
}

#[tokio::test]
async fn a_path_may_have_many_spellings_inside_the_scope() {
    let harness = ToolHarness::new();
    harness.put("src/a.txt", "here");
    symlink("src", harness.project().join("link")).unwrap();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let absolute = harness.project().join("src/a.txt").display().to_string();
    for path in
        ["src/a.txt", "./src/./a.txt", "src/../src/a.txt", "gone/../src/a.txt", "link/a.txt", &absolute]
    {
        assert_eq!(toolbox.succeeds("read_file", json!({"path": path})).await, "here", "{path}");
    }
    toolbox.succeeds("write_file", json!({"path": "link/a.txt", "content": "there"})).await;
    assert_eq!(read(harness.project().join("src/a.txt")), "there");
}

#[tokio::test]
async fn the_full_scope_reaches_every_path() {
    let harness = ToolHarness::new();
    fs::write(harness.outside("x.key"), "open").unwrap();
    symlink(harness.outside("x.key"), harness.project().join("link")).unwrap();
    let toolbox = harness.open(FsScope::Full, &[]).await;
    for path in ["../x.key", "link", &harness.outside("x.key").display().to_string()] {
        assert_eq!(toolbox.succeeds("read_file", json!({"path": path})).await, "open", "{path}");
    }
    toolbox.succeeds("write_file", json!({"path": "../new/y", "content": "1"})).await;
    assert_eq!(read(harness.outside("new/y")), "1");
}
