//! Tests of all formats in one binary, one module per topic.

#![allow(clippy::unwrap_used)] // Tests and their helpers may panic.

mod claude_code;
mod codex;
mod damage;
mod detect;
mod documents;
mod exports;
mod fuzz;
mod growth;
mod jsonl;
mod opencode;
mod pi;
mod responses;
mod role_files;
mod taking;
mod workflow;
