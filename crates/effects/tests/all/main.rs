//! Tests of effects against the real thing: sockets, processes, files. One binary, a module for each subject.

#![allow(clippy::unwrap_used)]

mod models;
