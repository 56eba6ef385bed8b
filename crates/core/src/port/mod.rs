//! The ports: all interfaces to external systems. Core defines them; stores, effects and the engine implement them.

pub mod audit;
pub mod blob;
pub mod clock;
pub mod document;
pub mod embedder;
pub mod hook;
pub mod keys;
pub mod links;
pub mod memory;
pub mod model;
pub mod new_session;
pub mod page;
pub mod records;
pub mod skill;
pub mod store;
pub mod store_error;
pub mod store_health;
pub mod summariser;
pub mod tokens;
pub mod tool;
pub mod trigger;
