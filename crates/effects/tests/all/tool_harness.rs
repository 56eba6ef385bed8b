//! A tool host with a project and a scratch directory, and helpers that call its tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_core::content::{Json, ToolCall};
use sapwood_core::port::tool::{FsScope, OutputPart, ToolGrant, ToolHost, ToolOutput, Toolbox};
use sapwood_effects::sandbox::Launcher;
use sapwood_effects::tool::host::{EFFECT_TOOLS, Host, Settings};
use serde_json::Value;
use tempfile::TempDir;

pub const SESSION: &str = "01900000-0000-7000-8000-000000000001";

pub struct ToolHarness {
    dir: TempDir,
    pub settings: Settings,
}

impl ToolHarness {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("project")).unwrap();
        let mut settings = Settings::new(dir.path().join("scratch"));
        settings.launcher = Launcher::Binary(env!("CARGO_BIN_EXE_sapwood-launcher").into());
        Self { dir, settings }
    }

    /// A path next to the project and the scratch directory, outside of both scopes.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }
    pub fn project(&self) -> PathBuf {
        self.outside("project")
    }
    pub fn scratch(&self) -> PathBuf {
        self.outside("scratch").join("acme").join(SESSION).join("files")
    }

    /// Write a file in the project.
    pub fn put(&self, path: &str, content: &str) -> PathBuf {
        let path = self.project().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub fn grant(&self, fs_scope: FsScope, allowed_commands: &[&str]) -> ToolGrant {
        ToolGrant {
            tenant: "acme".parse().unwrap(),
            session: SESSION.parse().unwrap(),
            cwd: Some(self.project().display().to_string()),
            fs_scope,
            tools: EFFECT_TOOLS.iter().map(|name| (*name).to_owned()).collect(),
            allowed_commands: allowed_commands.iter().map(|command| (*command).to_owned()).collect(),
            allowed_hosts: Vec::new(),
            mcp_servers: Default::default(),
            sandbox: Default::default(),
        }
    }

    pub async fn open(&self, fs_scope: FsScope, allowed_commands: &[&str]) -> Tools {
        let host = Host::new(self.settings.clone());
        Tools(host.open(&self.grant(fs_scope, allowed_commands)).await.unwrap())
    }
}

pub struct Tools(pub Arc<dyn Toolbox>);

impl Tools {
    pub async fn call(&self, name: &str, input: Value) -> ToolOutput {
        self.0.run(&call(name, input)).await
    }

    /// Call a tool that must succeed, and return its text.
    pub async fn succeeds(&self, name: &str, input: Value) -> String {
        let output = self.call(name, input).await;
        let text = text_of(&output);
        assert!(!output.is_error, "{name} failed: {text}");
        text
    }

    /// Call a tool that must fail, and return its text.
    pub async fn fails(&self, name: &str, input: Value) -> String {
        let output = self.call(name, input.clone()).await;
        let text = text_of(&output);
        assert!(output.is_error, "{name} {input} succeeded: {text}");
        text
    }
}

pub fn call(name: &str, input: Value) -> ToolCall {
    ToolCall { call_id: "c1".into(), name: name.into(), input: Json::from_value(&input) }
}

pub fn text_of(output: &ToolOutput) -> String {
    let texts = output.parts.iter().map(|part| match part {
        OutputPart::Text(text) => text.clone(),
        OutputPart::Media { mime, .. } => format!("<{mime}>"),
    });
    texts.collect::<Vec<_>>().join("\n")
}

pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}
