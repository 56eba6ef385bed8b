//! Other people's shapes, in and out, as pure functions: bytes come in as arguments and go out through a writer the
//! caller gives. Nothing here opens a file.
//!
//! - [`message`]: one message as a person or a program hands it in.
//! - [`export`]: a session as a file, record by record.
//! - [`import`]: a file as entries, line by line, with a report of what is wrong with it.
//! - [`responses`]: what OpenAI's clients send and expect to get.
//! - [`workflow`]: a session as a deterministic YAML document, and that document read strictly.

pub mod export;
pub mod header;
pub mod import;
pub mod message;
pub mod responses;
pub mod workflow;

pub use message::{MessageError, read_message};
