//! Black-box tests of the real binary, on each persistent store.

#![allow(clippy::unwrap_used)]

mod harness;
mod terminal;

mod addresses;
mod agents;
mod approvals;
mod backup;
#[cfg(unix)]
mod bench;
mod canary;
mod chat;
mod compact;
mod compat;
mod confidence;
mod errors;
mod events;
mod examples;
#[cfg(target_os = "linux")]
mod flat;
mod flips;
mod flow_kill;
mod flow_sessions;
mod flows;
mod format_2;
mod gate;
mod hooks;
mod inject;
mod inputs;
mod interop;
mod members;
mod memory;
mod migrate;
mod models;
mod openai;
mod proofs;
mod sandbox;
mod sdk;
mod serve;
mod servers;
mod shapes;
mod shares;
mod skills;
mod statements;
mod telemetry;
mod text;
mod torture;
mod transfer;
mod tree;
mod triggers;
mod turn_kill;
mod turns;
mod uploads;

mod actors;
mod crowd;
mod damage;
mod disk;
mod keychain;
mod kill;
mod leases;
mod library;
mod power;
