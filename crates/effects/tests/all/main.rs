//! What the crate promises at its edge, tried from outside: real sockets, real TLS, real processes.

#![allow(clippy::unwrap_used)]

mod addresses;
mod egress;
mod http_request;
mod mcp;
mod models;
mod secrets;
mod stub;
mod world;
