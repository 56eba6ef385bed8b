//! Projections: pure folds of entries. Folding entry by entry and folding all entries at once have the same result
//! (I10).

pub mod artifacts;
pub mod context;
pub mod context_state;
pub mod context_stream;
pub mod event;
pub mod feed;
mod feed_item;
pub mod ledger;
pub mod outline;
pub mod path_marks;
pub mod path_runs;
pub mod rounds;
pub mod session_filter;
pub mod summary;
pub mod timeline;
pub mod tree_index;
pub mod turn_outcomes;
pub mod usage;
