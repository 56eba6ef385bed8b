//! Ways out to the network.

pub mod provider;
