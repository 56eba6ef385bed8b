//! See `bodies/workflow.rs`.

#![no_main]

#[path = "../bodies/workflow.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
