//! Parse arbitrary bytes as client input: a message, the input of a response, an id. The input must be
//! parsed or refused, and it must be possible to append and display parsed entries.

use sapwood_core::fixture::MemLog;
use sapwood_formats::message::read_message;
use sapwood_formats::responses::items::Items;
use sapwood_formats::responses::read::read_input;
use sapwood_formats::responses::{ItemId, ResponseId};

pub fn run(data: &[u8]) {
    let mut bodies = read_message(data).unwrap_or_default();
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = (ItemId::parse(text), ResponseId::parse(text));
    }
    if let Ok(value) = serde_json::from_slice(data)
        && let Ok(incoming) = read_input(&value)
    {
        bodies.extend(incoming.bodies);
    }
    let (mut log, mut items) = (MemLog::default(), Items::default());
    for body in bodies {
        log.push(body).expect("parsed entries can be appended");
    }
    log.entries().for_each(|entry| items.apply(entry));
    let _ = log.context();
}
