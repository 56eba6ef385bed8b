//! See `bodies/import.rs`.

#![no_main]

#[path = "../bodies/import.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(sapwood_formats::import::Format::Messages, data));
