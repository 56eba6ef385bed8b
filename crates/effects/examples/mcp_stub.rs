//! The tests' MCP server as a program that communicates over stdin and stdout.

#[path = "../tests/all/stub.rs"]
mod stub;

use rmcp::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let running = stub::Stub.serve(rmcp::transport::stdio()).await.expect("the handshake succeeds");
    let _ = running.waiting().await;
}
