//! The tools as a session meets them: through a host, a grant and a box.

#![allow(clippy::unwrap_used)]

mod command;
mod desk;
mod escapes;
mod files;
mod git;
mod host;
