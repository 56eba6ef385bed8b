//! Any bytes as what a client sends: a message, items of a conversation, the input of a response, an id. It is read or refused,
//! and what is read can be shown.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_formats::message::read_message;
use sapwood_formats::responses::read::read_input;
use sapwood_formats::responses::{ItemId, ResponseId};

fuzz_target!(|data: &[u8]| {
    let _ = read_message(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = (ItemId::parse(text), ResponseId::parse(text));
    }
    if let Ok(value) = serde_json::from_slice(data) {
        let _ = read_input(&value);
    }
});
