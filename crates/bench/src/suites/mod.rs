//! The axes. Each axis uses the shared stores of the stage and returns its figures.

pub mod append;
pub mod compaction;
pub mod context;
pub mod control;
pub mod disk;
pub mod fork;
pub mod full;
pub mod http;
pub mod import;
pub mod list;
pub mod load;
pub mod memories;
pub mod memory;
pub mod postgres;
pub mod search;
pub mod stream;
pub mod turn;
