//! Tests of the server over HTTP on loopback. Every response is validated against the OpenAPI document.

#![allow(clippy::unwrap_used)]

mod abuse;
mod actor;
mod approvals;
mod audit;
mod auth;
mod bounds;
mod console;
mod document;
mod example;
mod feed;
mod flows;
mod fuzz;
mod harness;
mod imports;
mod inputs;
mod keys;
mod long;
mod memory;
mod named;
mod parallel;
mod rights;
mod sessions;
mod shares;
mod streams;
mod turns;
mod wire;
