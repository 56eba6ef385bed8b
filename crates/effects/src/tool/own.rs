//! Tools of a program that embeds Sapwood: a closure as a tool, and the source that offers such tools to the sessions
//! whose agent lists them.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::tool::{ToolError, ToolGrant, ToolOutput, ToolSpec};
use serde_json::Value;

use super::host::{EFFECT_TOOLS, ENGINE_TOOLS};
use super::schema::InputSchema;
use super::{Tool, ToolSource};

/// Maximum length of a tool's name, in bytes. Providers refuse longer names.
const NAME_BYTES_MAX: usize = 64;

/// A tool that is an async closure.
pub struct ToolFn<F> {
    spec: ToolSpec,
    closure: F,
}

impl<F, Fut, Out> ToolFn<F>
where
    F: Fn(Value) -> Fut + Send + Sync,
    Fut: Future<Output = Out> + Send,
    Out: Into<ToolOutput>,
{
    /// Create a tool from its description and its implementation. The input matches the spec's schema.
    pub fn new(spec: ToolSpec, closure: F) -> Self {
        Self { spec, closure }
    }
}

#[async_trait]
impl<F, Fut, Out> Tool for ToolFn<F>
where
    F: Fn(Value) -> Fut + Send + Sync,
    Fut: Future<Output = Out> + Send,
    Out: Into<ToolOutput>,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        (self.closure)(input.clone()).await.into()
    }
}

/// The tools of the embedding program. A session gets those that its grant lists.
pub struct OwnTools(Vec<Arc<dyn Tool>>);

impl OwnTools {
    /// Check the names and schemas of the tools, so that a mistake is reported before the first turn.
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Result<Self, ToolError> {
        let mut names = Vec::new();
        for spec in tools.iter().map(|tool| tool.spec()) {
            check_spec(&spec, &names)?;
            names.push(spec.name);
        }
        Ok(Self(tools))
    }
}

fn check_spec(spec: &ToolSpec, others: &[String]) -> Result<(), ToolError> {
    let name = &spec.name;
    let invalid = |what: String, why: String| Err(ToolError::Invalid { what, why });
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        let why = format!("use 1 to {NAME_BYTES_MAX} ASCII letters, digits, _ and -");
        return invalid(format!("the tool name {name:?}"), why);
    }
    if [EFFECT_TOOLS, ENGINE_TOOLS].concat().contains(&name.as_str()) || others.contains(name) {
        return invalid(format!("the tool name {name:?}"), "another tool has this name".to_owned());
    }
    match InputSchema::compile(&spec.input_schema.to_value()) {
        Ok(_) => Ok(()),
        Err(why) => invalid(format!("the schema of {name}"), why),
    }
}

#[async_trait]
impl ToolSource for OwnTools {
    async fn open(&self, grant: &ToolGrant) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
        let is_granted = |tool: &&Arc<dyn Tool>| grant.tools.contains(&tool.spec().name);
        Ok(self.0.iter().filter(is_granted).cloned().collect())
    }
}
