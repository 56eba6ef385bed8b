//! Other people's shapes, in and out, as pure functions: bytes come in as arguments and go out through a writer the
//! caller gives. Nothing here opens a file.
//!
//! - [`message`]: one message as a person or a program hands it in.

pub mod message;

pub use message::{MessageError, read_message};
