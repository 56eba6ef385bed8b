//! Models, tools, hooks, skills and triggers, with their outgoing requests, child processes and secrets. This crate
//! knows nothing about the log: it accepts requests and grants, and returns reply events and tool outputs.

pub mod egress;
pub mod hook;
pub mod model;
pub mod sandbox;
pub mod secret;
pub mod skill;
pub mod tokens;
pub mod tool;
pub mod trigger;
