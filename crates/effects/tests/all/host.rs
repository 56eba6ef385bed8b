//! Opening boxes: which tools are in, what is refused, what is scrubbed.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use sapwood_core::port::tool::{FsScope, Replay, ToolError, ToolHost, Touch};
use sapwood_effects::tool::Scrub;
use sapwood_effects::tool::host::{HOST_TOOLS, Host};
use serde_json::json;

use crate::desk::{Desk, call};

#[tokio::test]
async fn a_box_has_the_granted_tools_and_no_others() {
    let desk = Desk::new();
    let mut grant = desk.grant(FsScope::Project, &[]);
    grant.tools = ["read_file", "git_commit", "ask_user", "recall"].map(str::to_owned).into();
    let toolbox = Host::new(desk.settings.clone()).open(&grant).await.unwrap();
    let names: Vec<&str> = toolbox.specs().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["read_file", "git_commit"]);
    let why = toolbox.check(&call("write_file", json!({}))).unwrap_err();
    assert!(why.contains("no tool write_file") && why.contains("read_file"), "{why}");
    assert!(toolbox.run(&call("write_file", json!({"path": "a", "content": ""}))).await.is_error);
    assert!(!desk.project().join("a").exists());
}

#[tokio::test]
async fn a_name_that_nobody_has_is_refused_with_what_there_is() {
    let desk = Desk::new();
    let mut grant = desk.grant(FsScope::Project, &[]);
    grant.tools.push("read_fiel".to_owned());
    let Err(refused) = Host::new(desk.settings.clone()).open(&grant).await else { panic!("it was opened") };
    let ToolError::Unknown { name, known } = refused else { panic!("{refused}") };
    assert_eq!(name, "read_fiel");
    assert!(known.contains("read_file") && known.contains("ask_user"), "{known}");
}

#[tokio::test]
async fn each_tool_says_what_it_touches_and_whether_it_may_run_again() {
    let desk = Desk::new();
    let toolbox = desk.open(FsScope::Project, &["ls"]).await;
    assert_eq!(toolbox.0.specs().len(), HOST_TOOLS.len());
    for spec in toolbox.0.specs() {
        let expected = match spec.name.as_str() {
            "write_file" | "edit_file" => (Touch::Edits, Replay::Never),
            "run_command" => (Touch::Acts, Replay::Never),
            "git_commit" => (Touch::Commits, Replay::Never),
            _ => (Touch::Reads, Replay::Safe),
        };
        assert_eq!((spec.touch, spec.replay), expected, "{}", spec.name);
    }
}

#[tokio::test]
async fn input_that_does_not_fit_is_explained_and_never_run() {
    let desk = Desk::new();
    let toolbox = desk.open(FsScope::Project, &[]).await;
    let wrong = call("write_file", json!({"path": "a", "content": 1, "mode": "x"}));
    let why = toolbox.0.check(&wrong).unwrap_err();
    assert!(why.contains("input/content") && why.contains("string") && why.contains("mode"), "{why}");
    assert!(toolbox.0.run(&wrong).await.is_error);
    assert!(!desk.project().join("a").exists());
}

#[tokio::test]
async fn scratch_directories_are_private_and_apart_and_can_be_removed() {
    let desk = Desk::new();
    let host = Host::new(desk.settings.clone());
    let one = desk.grant(FsScope::Sandboxed, &[]);
    let mut other = one.clone();
    other.tenant = "ACME".parse().unwrap();
    let (first, second) = (host.open(&one).await.unwrap(), host.open(&other).await.unwrap());
    first.run(&call("write_file", json!({"path": "a", "content": "mine"}))).await;
    assert!(second.run(&call("read_file", json!({"path": "a"}))).await.is_error);
    let mut dir = desk.scratch();
    while dir != desk.outside("scratch") {
        let mode = dir.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", dir.display());
        dir.pop();
    }
    host.remove_scratch(&one.tenant, &one.session).unwrap();
    assert!(!desk.scratch().exists());
    host.remove_scratch(&one.tenant, &one.session).unwrap();
}

#[tokio::test]
async fn a_scope_without_its_directory_is_refused() {
    let desk = Desk::new();
    let host = Host::new(desk.settings.clone());
    for cwd in [None, Some("relative"), Some("/does/not/exist")] {
        let mut grant = desk.grant(FsScope::Project, &[]);
        grant.cwd = cwd.map(str::to_owned);
        let refused = host.open(&grant).await.err().expect("it was opened");
        assert_eq!(refused.code(), "tool.no_directory", "{cwd:?}");
    }
    let mut grant = desk.grant(FsScope::Project, &["a; b"]);
    assert_eq!(host.open(&grant).await.err().unwrap().code(), "tool.invalid");
    grant.allowed_commands = vec!["*".to_owned()];
    assert_eq!(host.open(&grant).await.err().unwrap().code(), "tool.invalid");
}

struct Canary;

impl Scrub for Canary {
    fn scrub(&self, text: &str) -> String {
        text.replace("hunter2", "[secret]")
    }
}

#[tokio::test]
async fn every_output_is_scrubbed_errors_too() {
    let mut desk = Desk::new();
    desk.settings.scrub = Arc::new(Canary);
    desk.put("a", "the word is hunter2\n");
    let toolbox = desk.open(FsScope::Project, &["cat *"]).await;
    for (name, input) in [
        ("read_file", json!({"path": "a"})),
        ("search_text", json!({"pattern": "word"})),
        ("run_command", json!({"command": "cat a"})),
    ] {
        let text = toolbox.does(name, input).await;
        assert!(text.contains("[secret]") && !text.contains("hunter2"), "{name}: {text}");
    }
    assert!(!toolbox.fails("read_file", json!({"path": "hunter2"})).await.contains("hunter2"));
    assert!(!toolbox.fails("no_such_hunter2", json!({})).await.contains("hunter2"));
}
