//! One MCP server: its connection, failures and restarts. A call that was running when the server died is not
//! retried, because it may have had effects. The next call restarts the server, a limited number of times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientRequest, Implementation, InitializeRequestParams,
    PaginatedRequestParams, PingRequest, Tool as RemoteTool,
};
use rmcp::service::{RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{Peer, RoleClient, ServiceExt};
use sapwood_core::port::tool::{McpServer, ToolOutput};
use tokio::sync::Mutex;

use super::child::ServerChild;
use super::http::EgressClient;
use super::programs::ServerProgram;
use super::result::read_result;
use super::{McpLimits, McpPrograms, SERVER_TOOLS_MAX};
use crate::egress::{Egress, check_headers, parse_header};
use crate::secret::Secrets;

/// Maximum number of pages in a list of tools.
const TOOL_PAGES_MAX: usize = 64;
/// Timeout of the ping that is sent after a call timed out.
const PING_MS_MAX: u64 = 3_000;

pub(super) struct ServerHandle {
    name: String,
    config: McpServer,
    programs: Arc<McpPrograms>,
    egress: Egress,
    secrets: Arc<Secrets>,
    limits: McpLimits,
    /// Held while connecting, so that concurrent callers start only one server.
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    connection: Option<Arc<Connection>>,
    starts: u32,
}

/// A connection to the server. Dropping it closes the session and kills the program.
struct Connection {
    service: RunningService<RoleClient, InitializeRequestParams>,
    child: Option<ServerChild>,
}

impl Connection {
    fn is_alive(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }
    async fn explain(&self, error: &ServiceError) -> String {
        match &self.child {
            Some(child) => with_stderr(&error.to_string(), &child.stderr_tail().await),
            None => error.to_string(),
        }
    }
}

impl ServerHandle {
    pub(super) fn new(
        name: &str,
        config: &McpServer,
        programs: &Arc<McpPrograms>,
        egress: &Egress,
        secrets: &Arc<Secrets>,
        limits: McpLimits,
    ) -> Self {
        Self {
            name: name.to_owned(),
            config: config.clone(),
            programs: programs.clone(),
            egress: egress.clone(),
            secrets: secrets.clone(),
            limits,
            state: Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Redact all known secrets in a text from the server.
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.scrub(text).into_owned()
    }

    /// Start the server and list its tools.
    pub(super) async fn list_tools(&self) -> Result<Vec<RemoteTool>, String> {
        let list = async {
            let connection = self.connect().await?;
            match read_tools(connection.service.peer()).await {
                Ok(tools) => Ok(tools),
                Err(error) => Err(connection.explain(&error).await),
            }
        };
        self.with_timeout(self.limits.start_ms_max, list).await.map_err(|why| self.scrub(&why))
    }

    /// Call a tool. Every error is reported to the model.
    pub(super) async fn call(&self, params: CallToolRequestParams) -> ToolOutput {
        let output = match self.with_timeout(self.limits.start_ms_max, self.connect()).await {
            Ok(connection) => self.call_on(&connection, params).await,
            Err(why) => Err(format!("MCP server {} failed before the call: {why}", self.name)),
        };
        self.secrets.scrub_output(output.unwrap_or_else(ToolOutput::error))
    }

    async fn call_on(
        &self,
        connection: &Arc<Connection>,
        params: CallToolRequestParams,
    ) -> Result<ToolOutput, String> {
        let peer = connection.service.peer();
        let limit = Duration::from_millis(self.limits.call_ms_max);
        match tokio::time::timeout(limit, peer.call_tool_once(params)).await {
            Ok(Ok(CallToolResponse::Complete(result))) => Ok(read_result(result)),
            Ok(Ok(_)) => Err(format!("MCP server {} requests input, which is not supported", self.name)),
            Ok(Err(ServiceError::McpError(error))) => {
                Err(format!("MCP server {} rejected the call: {}", self.name, error.message))
            }
            Ok(Err(error)) => {
                // First read why the program ended: killing it closes its error output.
                let why = connection.explain(&error).await;
                self.drop_connection(connection).await;
                Err(format!(
                    "MCP server {} failed during the call, which may have had effects: {why}",
                    self.name
                ))
            }
            Err(_) => {
                self.close_if_unresponsive(connection).await;
                let limit_ms = self.limits.call_ms_max;
                Err(format!(
                    "MCP server {} returned no result within {limit_ms} ms; the call may have had effects",
                    self.name
                ))
            }
        }
    }

    /// Ends the connection if the server does not answer a ping. After a timeout, the server may only be slow.
    async fn close_if_unresponsive(&self, connection: &Arc<Connection>) {
        let ping = connection.service.peer().send_request(ClientRequest::PingRequest(PingRequest::default()));
        let answer = tokio::time::timeout(Duration::from_millis(PING_MS_MAX), ping).await;
        // An MCP error is also an answer. Other errors mean that the connection is dead.
        if !matches!(answer, Ok(Ok(_) | Err(ServiceError::McpError(_)))) {
            self.drop_connection(connection).await;
        }
    }

    /// Drop a connection for all its users.
    async fn drop_connection(&self, connection: &Arc<Connection>) {
        if let Some(child) = &connection.child {
            child.kill();
        }
        let mut state = self.state.lock().await;
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            state.connection = None;
        }
    }

    async fn connect(&self) -> Result<Arc<Connection>, String> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| connection.is_alive()) {
            return Ok(connection.clone());
        }
        if state.starts > self.limits.restarts_max {
            return Err(format!(
                "it failed too often and is not restarted again ({} restarts)",
                state.starts - 1
            ));
        }
        state.connection = None;
        state.starts += 1;
        let connection = Arc::new(self.start().await?);
        state.connection = Some(connection.clone());
        Ok(connection)
    }

    async fn start(&self) -> Result<Connection, String> {
        match &self.config {
            McpServer::Stdio { command, args, env, sandbox } => {
                let program = self.programs.find(command, args, sandbox.as_ref())?;
                self.start_program(&program, env).await
            }
            McpServer::Http { url, headers } => self.start_session(url, headers).await,
        }
    }

    async fn start_program(
        &self,
        program: &ServerProgram,
        env: &BTreeMap<String, String>,
    ) -> Result<Connection, String> {
        let (child, stdout, stdin) = ServerChild::start(program, env, &self.secrets)?;
        match client_info().serve((stdout, stdin)).await {
            Ok(service) => Ok(Connection { service, child: Some(child) }),
            Err(error) => {
                let why = with_stderr(&error.to_string(), &child.stderr_tail().await);
                Err(format!("{why}{}", program.confinement_note()))
            }
        }
    }

    async fn start_session(
        &self,
        url: &str,
        headers: &BTreeMap<String, String>,
    ) -> Result<Connection, String> {
        let admitted = self.egress.admit(url).map_err(|error| error.to_string())?;
        let mut filled = HeaderMap::new();
        for (name, value) in headers {
            let value = self.secrets.expand(value).map_err(|error| error.to_string())?;
            let (name, value) = parse_header(name, value.expose()).map_err(|error| error.to_string())?;
            filled.append(name, value);
        }
        check_headers(&filled).map_err(|error| error.to_string())?;
        let client = EgressClient { egress: self.egress.clone(), headers: filled };
        let config = StreamableHttpClientTransportConfig::with_uri(admitted.as_str());
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let service = client_info().serve(transport).await.map_err(|error| error.to_string())?;
        Ok(Connection { service, child: None })
    }

    async fn with_timeout<T>(
        &self,
        limit_ms: u64,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        tokio::time::timeout(Duration::from_millis(limit_ms), work)
            .await
            .unwrap_or_else(|_| Err(format!("it did not answer within {limit_ms} ms")))
    }
}

fn client_info() -> InitializeRequestParams {
    let name = Implementation::new("sapwood", env!("CARGO_PKG_VERSION"));
    InitializeRequestParams::new(Default::default(), name)
}

fn with_stderr(why: &str, stderr_tail: &str) -> String {
    if stderr_tail.is_empty() { why.to_owned() } else { format!("{why}; stderr: {stderr_tail}") }
}

async fn read_tools(peer: &Peer<RoleClient>) -> Result<Vec<RemoteTool>, ServiceError> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..TOOL_PAGES_MAX {
        let page = peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor))).await?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() >= SERVER_TOOLS_MAX {
            break;
        }
    }
    tools.truncate(SERVER_TOOLS_MAX);
    Ok(tools)
}
