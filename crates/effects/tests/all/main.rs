//! Integration tests of the crate's public behavior with real files, processes, sockets and TLS.

#![allow(clippy::unwrap_used)]

mod addresses;
mod command;
mod documents;
mod egress;
mod escapes;
mod files;
mod git;
mod harness;
mod hooks;
mod host;
mod http_request;
mod limits;
mod mcp;
mod models;
mod secrets;
mod stub;
mod tool_harness;
