//! Readers and writers for Sapwood's own files and the formats of other programs. All functions are pure:
//! they take their input as arguments, and return their output or write it to the caller's writer. Nothing
//! here opens a file.
//!
//! - [`message`] — a single message from a user or a program.
//! - [`export`] — a session as a file, record by record.
//! - [`import`] — a file as entries, line by line, with a report of its problems.
//! - [`responses`] — requests and responses of OpenAI's Responses API.
//! - [`workflow`] — a session as a deterministic YAML document, and a strict reader for it.

pub mod export;
pub mod header;
pub mod import;
pub mod message;
pub mod responses;
pub mod workflow;

pub use message::{MessageError, read_message};
