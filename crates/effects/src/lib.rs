//! The only network egress, processes and secrets of Sapwood: models, tools, the addresses they may reach.
