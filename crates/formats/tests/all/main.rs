//! The formats, out and in: one binary, a module per noun.

#![allow(clippy::unwrap_used)] // A test may panic, its helpers too.

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
