//! The commands, one file each; small commands on the same subject share a file. A command checks its options, calls
//! one method of the engine, and prints the result.

pub mod about;
pub mod agent;
pub mod apikey;
pub mod approve;
pub mod archives;
pub mod audit;
pub mod branch;
pub mod cancel;
pub mod chat;
pub mod compact;
pub mod context;
pub mod doctor;
pub mod erase;
pub mod events;
pub mod export;
pub mod feed;
pub mod flow;
pub mod fork;
pub mod graft;
pub mod hook;
pub mod import;
pub mod info;
pub mod inject;
pub mod keychain;
pub mod label_rename;
pub mod ledger;
pub mod lifecycle;
pub mod ls;
pub mod memory;
pub mod migrate;
pub mod new;
pub mod prune;
pub mod resume;
pub mod search;
pub mod send;
pub mod serve;
pub mod session_options;
pub mod share;
pub mod show;
pub mod skill;
pub mod tree;
pub mod trigger;
pub mod trim;
pub mod uncompact;
pub mod usage;

use std::io::Write;

use sapwood::core::port::store::Appended;
use serde::Serialize;

use crate::app::App;
use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::render::{Format, Out};

pub async fn run(cli: Cli) -> Result<()> {
    let Cli { global, command } = cli;
    let command = match command {
        Command::Completions(args) => return about::completions(&args, global.format()),
        Command::Version(_) => return about::version(global.format()),
        Command::Bench(args) => return Box::pin(bench(args, global.format())).await,
        Command::Migrate(args) => return Box::pin(migrate::run(args, &global)).await,
        Command::Keychain(args) => return keychain::run(&args, &global),
        Command::Agent(args) => return agent::run(args, &global),
        command => command,
    };
    let mut app = App::open(&global)?;
    // Box the future: the futures of the commands are large, and only one of them runs.
    let done = Box::pin(dispatch(&mut app, command)).await;
    app.engine.hooks_settled().await;
    done?;
    Ok(app.out.flush()?)
}

pub async fn dispatch(app: &mut App, command: Command) -> Result<()> {
    match command {
        Command::Chat(args) => Box::pin(chat::run(app, args)).await,
        Command::Send(args) => Box::pin(send::run(app, args)).await,
        Command::Cancel(args) => cancel::run(app, args).await,
        Command::Resume(args) => Box::pin(resume::run(app, args)).await,
        Command::Approve(args) => Box::pin(approve::approve(app, args)).await,
        Command::Deny(args) => Box::pin(approve::deny(app, args)).await,
        Command::New(args) => new::run(app, args).await,
        Command::Ls(args) => ls::run(app, args).await,
        Command::Show(args) => show::run(app, args).await,
        Command::Tree(args) => tree::run(app, args).await,
        Command::Context(args) => context::run(app, args).await,
        Command::Events(args) => events::run(app, args).await,
        Command::Inject(args) => inject::run(app, args).await,
        Command::Branch(args) => branch::run(app, args).await,
        Command::Reset(args) => branch::reset(app, args).await,
        Command::Fork(args) => fork::run(app, args).await,
        Command::Ancestry(args) => fork::ancestry(app, args).await,
        Command::Label(args) => label_rename::label(app, args).await,
        Command::Rename(args) => label_rename::rename(app, args).await,
        Command::Trim(args) => trim::run(app, args).await,
        Command::Compact(args) => compact::run(app, args).await,
        Command::Uncompact(args) => uncompact::run(app, args).await,
        Command::Prune(args) => prune::run(app, args).await,
        Command::Close(args) => lifecycle::close(app, args).await,
        Command::Archive(args) => lifecycle::archive(app, args).await,
        Command::Erase(args) => erase::run(app, args).await,
        Command::Search(args) => search::run(app, args).await,
        Command::Info(args) => info::run(app, args).await,
        Command::Usage(args) => usage::run(app, args).await,
        Command::Feed(args) => feed::run(app, args).await,
        Command::Flow(args) => Box::pin(flow::run(app, args)).await,
        Command::Ledger(args) => ledger::run(app, args).await,
        Command::Archives(args) => archives::run(app, args).await,
        Command::Members(args) => share::members(app, args).await,
        Command::Share(args) => share::run(app, args).await,
        Command::Audit(args) => audit::run(app, args).await,
        Command::Memory(args) => Box::pin(memory::run(app, args)).await,
        Command::Graft(args) => Box::pin(graft::run(app, args)).await,
        Command::Key(args) => apikey::run(app, args).await,
        Command::Tenant(args) => apikey::tenant(app, args).await,
        Command::Serve(args) => Box::pin(serve::run(app, args)).await,
        Command::Export(args) => export::run(app, args).await,
        Command::Import(args) => Box::pin(import::run(app, args)).await,
        Command::Doctor(args) => doctor::run(app, args).await,
        Command::Trigger(args) => Box::pin(trigger::run(app, args)).await,
        Command::Skill(args) => skill::run(app, args).await,
        Command::Hook(args) => hook::run(app, args).await,
        Command::Agent(_)
        | Command::Bench(_)
        | Command::Keychain(_)
        | Command::Migrate(_)
        | Command::Completions(_)
        | Command::Version(_) => Ok(()),
    }
}

/// Runs the benchmarks, which create their own stores and never open the user's store.
async fn bench(args: crate::bench::BenchArgs, format: Format) -> Result<()> {
    let mut out = Out::new(format);
    let met = crate::bench::run(args, format == Format::Json, &mut out).await;
    let met = met.map_err(|error| Failure::new("bench.failed", format!("{error:#}")))?;
    out.flush()?;
    if met { Ok(()) } else { Err(Failure::new("bench.goals", "not every goal was met")) }
}

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
