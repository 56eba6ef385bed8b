//! Calls the function of a command.

use std::io::Write;

use sapwood::store::DamagedLog;

use crate::app::App;
use crate::args::{self, Cli, Command};
use crate::cmd::{
    about, agent, allowance, apikey, approvals, approve, archives, audit, backup, branch, cancel, chat,
    compact, context, doctor, erase, events, export, feed, files, flow, fork, graft, hold, hook, import,
    info, inject, keychain, label_rename, ledger, length_exists, lifecycle, ls, memory, migrate, model, new,
    prune, restore, resume, retention, sandbox, search, send, serve, set, share, show, skill, store,
    thinking, tree, trigger, trim, uncompact, usage,
};
use crate::failure::Result;

pub async fn run(cli: Cli) -> Result<()> {
    let Cli { global, command } = cli;
    let command = match command {
        Command::Completions(args) => return about::completions(&args, args::command(), global.format()),
        Command::Version(_) => return about::version(global.format()),
        Command::Migrate(args) => return Box::pin(migrate::run(args, &global)).await,
        Command::Backup(args) => return Box::pin(backup::run(args, &global)).await,
        Command::Restore(args) => return Box::pin(restore::run(args, &global)).await,
        Command::Keychain(args) => return keychain::run(&args, &global),
        Command::Agent(args) => return Box::pin(agent::run(args, &global)).await,
        Command::Sandbox(args) => return sandbox::run(&args, &global),
        Command::Model(args) => return Box::pin(model::run(args, &global)).await,
        command => command,
    };
    let damaged_log = match &command {
        Command::Doctor(args) => args.damaged_log(),
        _ => DamagedLog::Refuse,
    };
    let mut app = App::open(&global, damaged_log)?;
    // Box the future: the futures of the commands are large, and only one of them runs.
    let done = Box::pin(dispatch(&mut app, command)).await;
    app.engine.hooks().settled().await;
    done?;
    Ok(app.out.flush()?)
}

pub async fn dispatch(app: &mut App, command: Command) -> Result<()> {
    match command {
        Command::Chat(args) => Box::pin(chat::run(app, args)).await,
        Command::Send(args) => Box::pin(send::run(app, args)).await,
        Command::Cancel(args) => cancel::run(app, args).await,
        Command::Resume(args) => Box::pin(resume::run(app, args)).await,
        Command::Approvals(args) => approvals::run(app, args).await,
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
        Command::Set(args) => set::run(app, args).await,
        Command::Thinking(args) => thinking::run(app, args).await,
        Command::Input(args) => files::input(app, args).await,
        Command::Artifact(args) => files::artifact(app, args).await,
        Command::Length(args) => length_exists::length(app, args).await,
        Command::Exists(args) => length_exists::exists(app, args).await,
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
        command @ (Command::Flow(_) | Command::Trigger(_) | Command::Skill(_) | Command::Hook(_)) => {
            dispatch_extension(app, command).await
        }
        command @ (Command::Allowance(_) | Command::Hold(_) | Command::Retention(_) | Command::Store(_)) => {
            dispatch_store(app, command).await
        }
        Command::Agent(_)
        | Command::Model(_)
        | Command::Bench(_)
        | Command::Keychain(_)
        | Command::Sandbox(_)
        | Command::Migrate(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Completions(_)
        | Command::Version(_) => Ok(()),
    }
}

/// Commands about the store: what users may use, and what it keeps.
async fn dispatch_store(app: &mut App, command: Command) -> Result<()> {
    match command {
        Command::Allowance(args) => allowance::run(app, args).await,
        Command::Hold(args) => hold::run(app, args).await,
        Command::Retention(args) => retention::run(app, args).await,
        Command::Store(args) => store::run(app, args).await,
        _ => Ok(()),
    }
}

/// Commands about flows, and about what extends a session.
async fn dispatch_extension(app: &mut App, command: Command) -> Result<()> {
    match command {
        Command::Flow(args) => Box::pin(flow::run(app, args)).await,
        Command::Trigger(args) => Box::pin(trigger::run(app, args)).await,
        Command::Skill(args) => skill::run(app, args).await,
        Command::Hook(args) => hook::run(app, args).await,
        _ => Ok(()),
    }
}
