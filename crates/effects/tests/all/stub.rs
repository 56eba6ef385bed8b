//! An MCP server for tests, with well-behaved and misbehaving tools. Runs as a program (`examples/mcp_stub.rs`) and
//! over HTTP.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, InitializeResult,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::json;

#[derive(Clone)]
pub struct Stub;

/// The signature of a PNG file.
pub const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n";

impl ServerHandler for Stub {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let schema = std::sync::Arc::new(schema.as_object().expect("an object").clone());
        let tool = |name: &'static str| Tool::new(name, format!("does {name}"), schema.clone());
        let mut tools: Vec<Tool> =
            ["picture", "env", "pid", "die", "hang", "freeze", "refuse", "spawn"].map(tool).into();
        tools.extend(["connect", "read", "allocate", "detach", "deep"].map(tool));
        // A tool whose description leaks the server's key.
        let boast = format!("my key is {}", std::env::var("TOKEN").unwrap_or_default());
        tools.push(Tool::new("boast", boast, schema.clone()));
        tools.push(tool("echo").with_annotations(ToolAnnotations::new().read_only(true)));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = arguments.get("text").and_then(|text| text.as_str()).unwrap_or_default().to_owned();
        let text_result = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        let result = match request.name.as_ref() {
            "echo" => text_result(text),
            "picture" => {
                CallToolResult::success(vec![ContentBlock::image(STANDARD.encode(PICTURE), "image/png")])
            }
            "env" => text_result(std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect()),
            "pid" => text_result(std::process::id().to_string()),
            "refuse" => CallToolResult::error(vec![ContentBlock::text("not today")]),
            "spawn" => {
                let child = tokio::process::Command::new("sleep").arg("600").spawn().expect("sleep starts");
                text_result(child.id().unwrap_or_default().to_string())
            }
            "connect" => match std::net::TcpStream::connect(&text) {
                Ok(_) => text_result("connected".to_owned()),
                Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
            },
            "read" => match std::fs::read_to_string(&text) {
                Ok(content) => text_result(content),
                Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
            },
            // Keeps the memory until the program is stopped.
            "allocate" => {
                let bytes = text.parse::<usize>().unwrap_or(0) << 20;
                let memory = std::hint::black_box(vec![1_u8; bytes]);
                tokio::time::sleep(Duration::from_secs(600)).await;
                text_result(memory.len().to_string())
            }
            "deep" => {
                let depth = text.parse().unwrap_or(0);
                let nested = (0..depth).fold(json!(1), |inner, _| json!([inner]));
                CallToolResult::structured(nested)
            }
            "detach" => {
                let script = "setsid sleep 600 >/dev/null 2>&1 & echo $!";
                let output = tokio::process::Command::new("sh").args(["-c", script]).output().await;
                text_result(String::from_utf8_lossy(&output.expect("sh starts").stdout).trim().to_owned())
            }
            "die" => {
                eprintln!("dying of {text}");
                std::process::exit(3)
            }
            "hang" => {
                tokio::time::sleep(Duration::from_secs(600)).await;
                text_result(String::new())
            }
            // Blocks the runtime's only thread, so that not even a ping is answered.
            "freeze" => {
                std::thread::sleep(Duration::from_secs(600));
                text_result(String::new())
            }
            other => return Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        };
        Ok(CallToolResponse::Complete(result))
    }
}
