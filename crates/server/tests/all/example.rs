//! Runs the Rust example client in `examples/`.

#[path = "../../../../examples/rust/client.rs"]
mod client;

use crate::harness::TestServer;

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_example_runs_a_turn() {
    let server = TestServer::open().await;
    let mut output = String::new();
    let url = format!("http://{}", server.addr);
    client::talk(&url, &server.key("ana"), "hello", |text| output.push_str(text)).await.unwrap();
    assert_eq!(output, "Hello, you.");
    let refused = client::talk(&url, "sapwood_wrong", "hello", |_| ()).await.unwrap_err();
    assert!(refused.to_string().contains("401"), "{refused}");
}
