//! Runs the Rust example client in `examples/`.

#[path = "../../../../examples/rust/client.rs"]
mod client;

use crate::harness::House;

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_example_runs_a_turn() {
    let house = House::open().await;
    let mut said = String::new();
    let url = format!("http://{}", house.addr);
    client::talk(&url, &house.key("ana"), "hello", |text| said.push_str(text)).await.unwrap();
    assert_eq!(said, "Hello, you.");
    let refused = client::talk(&url, "sapwood_wrong", "hello", |_| ()).await.unwrap_err();
    assert!(refused.to_string().contains("401"), "{refused}");
}
