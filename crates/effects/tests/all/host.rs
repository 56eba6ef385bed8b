//! Opening toolboxes: the tools they contain, rejected grants, redaction of secrets.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::content::Json;
use sapwood_core::port::tool::{
    FsScope, Replay, ToolError, ToolGrant, ToolHost, ToolOutput, ToolSpec, Touch,
};
use sapwood_effects::secret::Secrets;
use sapwood_effects::tool::host::{EFFECT_TOOLS, Host};
use sapwood_effects::tool::{OwnTools, Tool, ToolFn, ToolSource};
use serde_json::{Value, json};

use crate::tool_harness::{ToolHarness, Tools, call};

const CANARY: &str = "canary-in-a-box";

#[tokio::test]
async fn a_toolbox_has_exactly_the_granted_tools() {
    let harness = ToolHarness::new();
    let mut grant = harness.grant(FsScope::Project, &[]);
    grant.tools = ["read_file", "git_commit", "ask_user", "recall"].map(str::to_owned).into();
    let toolbox = Host::new(harness.settings.clone()).open(&grant).await.unwrap();
    let names: Vec<&str> = toolbox.specs().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["read_file", "git_commit"]);
    let why = toolbox.check(&call("write_file", json!({}))).unwrap_err();
    assert!(why.contains("no tool write_file") && why.contains("read_file"), "{why}");
    assert!(toolbox.run(&call("write_file", json!({"path": "a", "content": ""}))).await.is_error);
    assert!(!harness.project().join("a").exists());
}

#[tokio::test]
async fn an_unknown_tool_name_is_rejected_with_the_known_ones() {
    let harness = ToolHarness::new();
    let mut grant = harness.grant(FsScope::Project, &[]);
    grant.tools.push("read_fiel".to_owned());
    let Err(refused) = Host::new(harness.settings.clone()).open(&grant).await else {
        panic!("the toolbox was opened")
    };
    let ToolError::Unknown { name, known } = refused else { panic!("{refused}") };
    assert_eq!(name, "read_fiel");
    assert!(known.contains("read_file") && known.contains("ask_user"), "{known}");
}

#[tokio::test]
async fn each_tool_declares_what_it_touches_and_whether_it_may_be_replayed() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Project, &["ls"]).await;
    assert_eq!(toolbox.0.specs().len(), EFFECT_TOOLS.len());
    for spec in toolbox.0.specs() {
        let expected = match spec.name.as_str() {
            "write_file" | "edit_file" => (Touch::Edits, Replay::Never),
            "run_command" | "http_request" => (Touch::Acts, Replay::Never),
            "git_commit" => (Touch::Commits, Replay::Never),
            _ => (Touch::Reads, Replay::Safe),
        };
        assert_eq!((spec.touch, spec.replay), expected, "{}", spec.name);
    }
}

#[tokio::test]
async fn invalid_input_is_explained_and_not_run() {
    let harness = ToolHarness::new();
    let toolbox = harness.open(FsScope::Project, &[]).await;
    let wrong = call("write_file", json!({"path": "a", "content": 1, "mode": "x"}));
    let why = toolbox.0.check(&wrong).unwrap_err();
    assert!(why.contains("input/content") && why.contains("string") && why.contains("mode"), "{why}");
    assert!(toolbox.0.run(&wrong).await.is_error);
    assert!(!harness.project().join("a").exists());
}

#[tokio::test]
async fn scratch_directories_are_private_and_separate_and_can_be_removed() {
    let harness = ToolHarness::new();
    let host = Host::new(harness.settings.clone());
    let one = harness.grant(FsScope::Sandboxed, &[]);
    let mut other = one.clone();
    other.tenant = "ACME".parse().unwrap();
    let (first, second) = (host.open(&one).await.unwrap(), host.open(&other).await.unwrap());
    first.run(&call("write_file", json!({"path": "a", "content": "mine"}))).await;
    assert!(second.run(&call("read_file", json!({"path": "a"}))).await.is_error);
    let mut dir = harness.scratch();
    while dir != harness.outside("scratch") {
        let mode = dir.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", dir.display());
        dir.pop();
    }
    host.remove_scratch(&one.tenant, &one.session).unwrap();
    assert!(!harness.scratch().exists());
    host.remove_scratch(&one.tenant, &one.session).unwrap();
}

#[tokio::test]
async fn a_scope_without_its_directory_is_rejected() {
    let harness = ToolHarness::new();
    let host = Host::new(harness.settings.clone());
    for cwd in [None, Some("relative"), Some("/does/not/exist")] {
        let mut grant = harness.grant(FsScope::Project, &[]);
        grant.cwd = cwd.map(str::to_owned);
        let refused = host.open(&grant).await.err().expect("the toolbox was opened");
        assert_eq!(refused.code(), "tool.no_directory", "{cwd:?}");
    }
    let mut grant = harness.grant(FsScope::Project, &["a; b"]);
    assert_eq!(host.open(&grant).await.err().unwrap().code(), "tool.invalid");
    grant.allowed_commands = vec!["*".to_owned()];
    assert_eq!(host.open(&grant).await.err().unwrap().code(), "tool.invalid");
}

#[tokio::test]
async fn every_output_is_redacted_including_errors() {
    let mut harness = ToolHarness::new();
    let secrets = [("SAPWOOD_SECRET_WORD".to_owned(), CANARY.to_owned())];
    harness.settings.secrets = Arc::new(Secrets::from_variables(secrets));
    harness.put("a", &format!("the word is {CANARY}\n"));
    let toolbox = harness.open(FsScope::Project, &["cat *"]).await;
    for (name, input) in [
        ("read_file", json!({"path": "a"})),
        ("search_text", json!({"pattern": "word"})),
        ("run_command", json!({"command": "cat a"})),
    ] {
        let text = toolbox.succeeds(name, input).await;
        assert!(text.contains("[secret:WORD]") && !text.contains(CANARY), "{name}: {text}");
    }
    assert!(!toolbox.fails("read_file", json!({"path": CANARY})).await.contains(CANARY));
    assert!(!toolbox.fails(&format!("no_{CANARY}"), json!({})).await.contains(CANARY));
}

#[tokio::test]
async fn network_and_mcp_tools_are_in_the_toolbox() {
    let mut harness = ToolHarness::new();
    let secrets = [("SAPWOOD_SECRET_WORD".to_owned(), CANARY.to_owned())];
    harness.settings.secrets = Arc::new(Secrets::from_variables(secrets));
    let mut grant = harness.grant(FsScope::Sandboxed, &[]);
    grant.mcp_servers.insert("stub".to_owned(), crate::mcp::stdio(&[("WORD", "secret:WORD")]));
    let toolbox = Tools(Host::new(harness.settings.clone()).open(&grant).await.unwrap());
    let env = toolbox.succeeds("mcp__stub__env", json!({})).await;
    assert!(env.contains("WORD=[secret:WORD]"), "{env}");
    assert!(
        toolbox.0.check(&call("mcp__stub__echo", json!({"text": 1}))).unwrap_err().contains("input/text")
    );
    let refused = toolbox.fails("http_request", json!({"url": "https://example.com/"})).await;
    assert!(refused.contains("example.com"), "{refused}");
    grant.allowed_hosts = vec!["not a host/".to_owned()];
    assert_eq!(Host::new(harness.settings.clone()).open(&grant).await.err().unwrap().code(), "tool.invalid");
}

/// A custom tool of the embedding program.
struct Greet;

#[async_trait]
impl Tool for Greet {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "greet".to_owned(),
            description: "Greets.".to_owned(),
            input_schema: Json::parse(r#"{"type": "object"}"#).unwrap(),
            touch: Touch::Reads,
            replay: Replay::Safe,
        }
    }
    async fn run(&self, _: &Value) -> ToolOutput {
        ToolOutput::text("hello")
    }
}

#[async_trait]
impl ToolSource for Greet {
    async fn open(&self, grant: &ToolGrant) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
        let is_granted = grant.tools.iter().any(|name| name == "greet");
        Ok(is_granted.then(|| Arc::new(Greet) as Arc<dyn Tool>).into_iter().collect())
    }
}

#[tokio::test]
async fn a_program_can_add_its_own_tools_but_not_under_a_taken_name() {
    let mut harness = ToolHarness::new();
    harness.settings.sources = vec![Arc::new(Greet)];
    let mut grant = harness.grant(FsScope::Sandboxed, &[]);
    grant.tools = vec!["greet".to_owned()];
    let toolbox = Tools(Host::new(harness.settings.clone()).open(&grant).await.unwrap());
    assert_eq!(toolbox.succeeds("greet", json!({})).await, "hello");
    harness.settings.sources.push(Arc::new(Greet));
    assert_eq!(Host::new(harness.settings.clone()).open(&grant).await.err().unwrap().code(), "tool.invalid");
}

fn named(name: &str, schema: Value) -> Arc<dyn Tool> {
    Arc::new(ToolFn::new(ToolSpec::new(name, "A test.", &schema), |_| async { "done" }))
}

#[tokio::test]
async fn a_closure_is_a_tool_of_the_sessions_that_list_it() {
    let mut harness = ToolHarness::new();
    let tools = vec![named("mine", json!({"type": "object"})), named("other", json!({"type": "object"}))];
    harness.settings.sources = vec![Arc::new(OwnTools::new(tools).unwrap())];
    let mut grant = harness.grant(FsScope::Sandboxed, &[]);
    grant.tools = vec!["mine".to_owned()];
    let toolbox = Tools(Host::new(harness.settings.clone()).open(&grant).await.unwrap());
    assert_eq!(toolbox.succeeds("mine", json!({})).await, "done");
    assert_eq!(toolbox.0.specs().len(), 1);
}

#[test]
fn own_tools_with_mistakes_are_refused_before_any_turn() {
    let object = || json!({"type": "object"});
    for (tools, part) in [
        (vec![named("read_file", object())], "another tool"),
        (vec![named("recall", object())], "another tool"),
        (vec![named("mine", object()), named("mine", object())], "another tool"),
        (vec![named("my tool", object())], "ASCII"),
        (vec![named("mine", json!({"type": "no such type"}))], "the schema of mine"),
    ] {
        let error = OwnTools::new(tools).err().unwrap();
        assert_eq!(error.code(), "tool.invalid");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn an_error_of_a_closure_is_an_output_that_the_model_reads() {
    let failed: Result<String, &str> = Err("no such city");
    assert_eq!(ToolOutput::from(failed), ToolOutput::error("no such city"));
    assert_eq!(ToolOutput::from(Ok::<_, &str>("sunny")), ToolOutput::text("sunny"));
}
