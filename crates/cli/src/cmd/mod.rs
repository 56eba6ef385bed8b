//! The commands, one file each; small commands on the same subject share a file. A command checks its options, calls
//! the engine, and prints the result.

pub mod about;
pub mod agent;
pub mod agent_adopt;
pub mod allowance;
pub mod apikey;
pub mod approvals;
pub mod approve;
pub mod archives;
pub mod audit;
pub mod backup;
pub mod bench;
pub mod branch;
pub mod cancel;
pub mod chat;
pub mod compact;
pub mod context;
pub mod doctor;
pub mod erase;
pub mod events;
pub mod export;
mod export_user;
pub mod feed;
pub mod files;
pub mod flow;
pub mod fork;
pub mod graft;
pub mod hold;
pub mod hook;
pub mod import;
pub mod info;
pub mod inject;
pub mod keychain;
pub mod label_rename;
pub mod ledger;
pub mod length_exists;
pub mod lifecycle;
pub mod ls;
pub mod memory;
pub mod migrate;
pub mod model;
pub mod new;
pub mod prune;
pub mod restore;
pub mod resume;
pub mod retention;
pub mod sandbox;
pub mod search;
pub mod send;
pub mod serve;
pub mod session_options;
pub mod set;
pub mod share;
pub mod show;
pub mod skill;
pub mod store;
pub mod thinking;
pub mod tree;
pub mod trigger;
pub mod trim;
pub mod uncompact;
pub mod usage;

use std::io::Write;

use sapwood::core::port::store::Appended;
use serde::Serialize;

use crate::app::App;
use crate::failure::Result;

/// The output of a command that appends: the new end of the log, and the parent of the next entry.
#[derive(Serialize)]
struct Change {
    seq: u32,
    leaf: Option<u32>,
}

fn print_change(app: &mut App, appended: &Appended, text: &str) -> Result<()> {
    let head = appended.head;
    if app.out.is_json() {
        return app.out.json(&Change { seq: head.seq.0, leaf: head.leaf.map(|leaf| leaf.0) });
    }
    Ok(writeln!(app.out, "{text}")?)
}
