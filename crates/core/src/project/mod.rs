//! Projections: pure folds of entries. Folding entry by entry gives the same result as folding all at once (I10).

pub mod artifacts;
pub mod context;
pub mod event;
pub mod feed;
pub mod ledger;
pub mod outline;
pub mod rounds;
pub mod session_filter;
pub mod summary;
pub mod timeline;
pub mod usage;
