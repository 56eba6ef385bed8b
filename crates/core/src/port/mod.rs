//! Every seam to the world, in one folder. Core says what it needs; stores, effects and the engine provide it.

pub mod blob;
pub mod clock;
pub mod embedder;
pub mod hook;
pub mod keys;
pub mod memory;
pub mod model;
pub mod skill;
pub mod store;
pub mod summariser;
pub mod tokens;
pub mod tool;
pub mod trigger;
