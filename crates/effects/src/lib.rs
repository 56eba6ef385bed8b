//! The only network egress, processes and secrets of Sapwood: models, tools, the addresses they may reach. Nothing here
//! knows the log: what goes in are requests and grants, what comes out are pieces and outputs.

pub mod egress;
pub mod hook;
pub mod model;
pub mod sandbox;
pub mod secret;
pub mod skill;
pub mod tokens;
pub mod tool;
pub mod trigger;
