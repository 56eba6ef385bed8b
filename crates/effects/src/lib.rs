//! Models, tools, hooks, skills, triggers, documents and answer links, with their outgoing requests, child processes and
//! secrets. This crate does not access the log: it accepts requests and grants, and returns reply events and tool
//! outputs.

pub mod answer_link;
pub mod document;
pub mod egress;
mod extract;
pub mod hook;
pub mod model;
pub mod sandbox;
pub mod secret;
pub mod skill;
pub mod tokens;
pub mod tool;
pub mod trigger;
