//! Send arbitrary bytes to a server with an in-memory store. See `bodies/server.rs`.

#![no_main]

#[path = "../bodies/server.rs"]
mod body;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sapwood::store::{OpenOptions, open};
use sapwood::{Agent, Engine, Principal, Scope, SystemClock, TenantId};
use sapwood_server::auth::Authenticator;
use sapwood_server::{Listening, Settings, State};

static SERVER: LazyLock<SocketAddr> = LazyLock::new(start);

fn start() -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("the runtime starts");
    let store = open("memory:", OpenOptions::default()).expect("an in-memory store opens");
    let engine = Engine::new(store, Arc::new(SystemClock));
    let local = Scope::operator(TenantId::local(), Principal::User("local".parse().expect("a valid name")));
    let auth = Authenticator::new(engine.store().clone(), Some(local), None);
    let second = Duration::from_secs(1);
    let settings = Settings { head_time_max: second, request_time_max: second, rate: None, ..Settings::default() };
    let state = State::new(engine, auth, settings, vec![Agent::default()]);
    let listening = runtime.block_on(Listening::bind(([127, 0, 0, 1], 0).into(), state)).expect("a free port exists");
    let addr = listening.addr;
    std::thread::spawn(move || runtime.block_on(listening.run(std::future::pending())));
    addr
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(*SERVER, data));
