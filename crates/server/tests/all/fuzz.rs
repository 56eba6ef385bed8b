//! Runs the body of the fuzz target `server` over its seeds and over deterministically mutated seeds.

#[path = "../../../../fuzz/bodies/server.rs"]
mod body;

use std::path::Path;
use std::time::Duration;

use sapwood_core::fixture::corrupt;
use sapwood_server::Settings;

use crate::harness::TestServer;

/// Mutations per seed, unless `FUZZ_CHANGES` is set.
const CHANGES: u64 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn arbitrary_bytes_get_a_response_or_are_disconnected() {
    let second = Duration::from_secs(1);
    let settings =
        Settings { head_time_max: second, request_time_max: second, rate: None, ..Settings::default() };
    let server = TestServer::bare(settings).await;
    let addr = server.addr;
    let changes = std::env::var("FUZZ_CHANGES").map_or(CHANGES, |number| number.parse().unwrap());
    let sent = tokio::task::spawn_blocking(move || {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/server");
        let mut sent = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let seed = std::fs::read(seed.unwrap().path()).unwrap();
            body::run(addr, &seed);
            (0..changes).for_each(|change| body::run(addr, &corrupt(&seed, change)));
            sent += changes + 1;
        }
        sent
    });
    assert!(sent.await.unwrap() > changes, "there are seeds");
}
