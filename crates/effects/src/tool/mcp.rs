//! Tools of the MCP servers in an agent's configuration. A server's tools are listed when the toolbox is opened and do
//! not change after that, even if the server announces changes. HTTP servers are called through the session's
//! [`Egress`]. Server programs run with a clean environment in the sandbox.

mod child;
mod http;
mod programs;
mod result;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use rmcp::model::{CallToolRequestParams, Tool as RemoteTool};
use sapwood_core::Json;
use sapwood_core::port::tool::{Replay, ToolError, ToolGrant, ToolOutput, ToolSpec, Touch};
use serde_json::Value;

use super::Tool;
use crate::egress::Egress;
use crate::secret::Secrets;
pub use programs::{McpFiles, McpProfile, McpPrograms};
use server::ServerHandle;

/// Maximum number of servers per agent, and of tools per server.
pub const SERVERS_MAX: usize = 32;
pub const SERVER_TOOLS_MAX: usize = 256;
/// Maximum length of a tool name that providers accept.
pub const TOOL_NAME_BYTES_MAX: usize = 64;
/// Maximum length of the description and of the schema passed to a model.
const DESCRIPTION_CHARS_MAX: usize = 4_096;
const SCHEMA_BYTES_MAX: usize = 64 << 10;

/// Timeouts and restart limit of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpLimits {
    /// Timeout for start, handshake and listing of tools.
    pub start_ms_max: u64,
    pub call_ms_max: u64,
    /// Maximum number of restarts of a server that died.
    pub restarts_max: u32,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self { start_ms_max: 60_000, call_ms_max: 120_000, restarts_max: 3 }
    }
}

/// Start the grant's servers and list their tools. Fails if a server cannot be reached, because a session that
/// silently lacks tools would fail later in unexpected ways.
pub async fn open_mcp_tools(
    grant: &ToolGrant,
    egress: &Egress,
    secrets: &Arc<Secrets>,
    limits: McpLimits,
    programs: &Arc<McpPrograms>,
) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
    if grant.mcp_servers.len() > SERVERS_MAX {
        let why = format!("{} servers exceed the limit of {SERVERS_MAX}", grant.mcp_servers.len());
        return Err(ToolError::Invalid { what: "mcp_servers".to_owned(), why });
    }
    let open =
        |(name, config): (&String, _)| ServerHandle::new(name, config, programs, egress, secrets, limits);
    let servers: Vec<Arc<ServerHandle>> = grant.mcp_servers.iter().map(open).map(Arc::new).collect();
    let listed = futures_util::future::join_all(servers.iter().map(|server| server.list_tools())).await;
    let (mut tools, mut names): (Vec<Arc<dyn Tool>>, _) = (Vec::new(), BTreeSet::new());
    for (server, listed) in servers.iter().zip(listed) {
        let why = |why| ToolError::Server { server: server.name().to_owned(), why };
        for remote in listed.map_err(why)? {
            let name = tool_name(server.name(), &server.scrub(&remote.name), &mut names);
            tools.extend(McpTool::new(server, &remote, name).map(|tool| Arc::new(tool) as Arc<dyn Tool>));
        }
    }
    Ok(tools)
}

struct McpTool {
    server: Arc<ServerHandle>,
    remote_name: String,
    spec: ToolSpec,
}

impl McpTool {
    /// Returns `None` for a tool whose schema is too long or invalid, because no model could call it correctly.
    fn new(server: &Arc<ServerHandle>, remote: &RemoteTool, name: String) -> Option<Self> {
        let text = server.scrub(&Value::Object(remote.input_schema.as_ref().clone()).to_string());
        let schema: Option<Value> =
            serde_json::from_str(&text).ok().filter(|schema| jsonschema::validator_for(schema).is_ok());
        let Some(schema) = schema.filter(|_| text.len() <= SCHEMA_BYTES_MAX) else {
            tracing::warn!(server = server.name(), tool = name, "tool omitted: schema invalid or too long");
            return None;
        };
        let description = server.scrub(remote.description.as_deref().unwrap_or_default());
        let spec = ToolSpec {
            name,
            description: description.chars().take(DESCRIPTION_CHARS_MAX).collect(),
            input_schema: Json::from_value(&schema),
            touch: touch_of(remote),
            replay: Replay::Never,
        };
        Some(Self { server: server.clone(), remote_name: remote.name.to_string(), spec })
    }
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let mut params = CallToolRequestParams::new(self.remote_name.clone());
        params.arguments = input.as_object().cloned();
        self.server.call(params).await
    }
}

/// Trusts the server's read-only hint. A malicious server could change data without approval, so agents must use only
/// trusted servers.
fn touch_of(remote: &RemoteTool) -> Touch {
    match remote.annotations.as_ref().and_then(|annotations| annotations.read_only_hint) {
        Some(true) => Touch::Reads,
        Some(false) | None => Touch::Acts,
    }
}

/// Build the name `mcp__SERVER__TOOL` from characters that providers accept. A truncated or conflicting name gets a
/// hash of the full name as a suffix, so that it is the same in every run.
fn tool_name(server: &str, tool: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = format!("mcp__{}__{}", clean_name(server), clean_name(tool));
    let name = match plain.len() <= TOOL_NAME_BYTES_MAX && !taken.contains(&plain) {
        true => plain,
        false => {
            let suffix = format!("_{:08x}", hash_name(&format!("{server}\0{tool}")));
            let kept = plain.len().min(TOOL_NAME_BYTES_MAX - suffix.len());
            format!("{}{suffix}", &plain[..kept])
        }
    };
    taken.insert(name.clone());
    name
}

fn clean_name(name: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().map(clean).collect()
}

/// FNV-1a hash. The standard library's hash may change between releases, but tool names are stored in logs.
fn hash_name(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_clean_short_unique_and_stable() {
        let mut taken = BTreeSet::new();
        assert_eq!(tool_name("git", "log", &mut taken), "mcp__git__log");
        assert_eq!(tool_name("my server", "read.file/é", &mut taken), "mcp__my_server__read_file__");
        assert_eq!(tool_name("a", "b__c", &mut taken), "mcp__a__b__c");
        let conflicting = tool_name("a__b", "c", &mut taken);
        assert_eq!(conflicting, format!("mcp__a__b__c_{:08x}", hash_name("a__b\0c")));
        let (long_1, long_2) = (format!("{}1", "x".repeat(99)), format!("{}2", "x".repeat(99)));
        let (name_1, name_2) = (tool_name("s", &long_1, &mut taken), tool_name("s", &long_2, &mut taken));
        assert_eq!((name_1.len(), name_2.len()), (TOOL_NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX));
        assert_ne!(name_1, name_2);
    }
}
