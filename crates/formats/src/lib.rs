//! Readers and writers for Sapwood's own files and the formats of other programs. All functions are pure:
//! they take their input as arguments, and return their output or write it to the caller's writer. Nothing
//! here opens a file.
//!
//! - [`message`] — a single message from a user or a program.
//! - [`export`] — a session as a file, in Sapwood's format or another one.
//! - [`import`] — a file as entries, line by line, with a report of its problems.
//! - [`responses`] — items, responses and stream events of OpenAI's Conversations and Responses APIs.
//! - [`workflow`] — a session as a deterministic YAML document, and a strict reader for it.

pub mod export;
pub mod header;
pub mod import;
pub mod message;
pub mod responses;
pub mod workflow;

pub use message::{MessageError, MessageIn, read_message, read_message_with_media};
