//! What can be typed. Each command's own options stand in its file under `cmd/`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::cmd;
use crate::failure::Failure;
use crate::render::{self, Format};

const AFTER_HELP: &str = "\
SESSION is an id, a unique prefix of one, or @last. ENTRY is a seq, an id, a unique prefix, or a label.
With --json data is one JSON document, or a line per item; errors are {\"error\":{\"code\",\"message\",\"hint\"}} on stderr.
Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 denied.";

/// Sessions for AI agents: durable, branching, searchable.
#[derive(Debug, Parser)]
#[command(name = "sapwood", version, after_help = AFTER_HELP, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Global {
    /// The store: sqlite:FILE, jsonl:DIR, postgres://USER@HOST/DB or memory:
    #[arg(long, global = true, value_name = "URL", env = "SAPWOOD_STORE", hide_env_values = true)]
    #[arg(help_heading = "Everywhere")]
    pub store: Option<String>,
    /// Where the default store and the user's sapwood.toml live
    #[arg(long, global = true, value_name = "DIR", env = "SAPWOOD_HOME", hide_env_values = true)]
    #[arg(help_heading = "Everywhere")]
    pub home: Option<PathBuf>,
    /// The tenant to work in
    #[arg(long, global = true, value_name = "TENANT", help_heading = "Everywhere")]
    pub tenant: Option<String>,
    /// Act as this user: only their own and shared sessions
    #[arg(long = "as", global = true, value_name = "USER", help_heading = "Everywhere")]
    pub as_user: Option<String>,
    /// A file that holds the store's encryption key
    #[arg(long, global = true, value_name = "FILE", env = "SAPWOOD_KEY_FILE", hide_env_values = true)]
    #[arg(help_heading = "Everywhere")]
    pub key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
}

impl Global {
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(cmd::serve::ServeArgs),
    Chat(cmd::chat::ChatArgs),
    New(cmd::new::NewArgs),
    Ls(cmd::ls::LsArgs),
    Show(cmd::show::ShowArgs),
    Tree(cmd::tree::TreeArgs),
    Context(cmd::context::ContextArgs),
    Events(cmd::events::EventsArgs),
    Send(cmd::send::SendArgs),
    Cancel(cmd::cancel::CancelArgs),
    Resume(cmd::resume::ResumeArgs),
    Approve(cmd::approve::ApproveArgs),
    Deny(cmd::approve::DenyArgs),
    Inject(cmd::inject::InjectArgs),
    Branch(cmd::branch::BranchArgs),
    Fork(cmd::fork::ForkArgs),
    Label(cmd::label_rename::LabelArgs),
    Rename(cmd::label_rename::RenameArgs),
    Reset(cmd::branch::ResetArgs),
    Trim(cmd::trim::TrimArgs),
    Compact(cmd::compact::CompactArgs),
    Uncompact(cmd::uncompact::UncompactArgs),
    Prune(cmd::prune::PruneArgs),
    Close(cmd::lifecycle::CloseArgs),
    Archive(cmd::lifecycle::ArchiveArgs),
    Erase(cmd::erase::EraseArgs),
    Search(cmd::search::SearchArgs),
    Info(cmd::info::InfoArgs),
    Ancestry(cmd::fork::AncestryArgs),
    Usage(cmd::usage::UsageArgs),
    Feed(cmd::feed::FeedArgs),
    Flow(cmd::flow::FlowArgs),
    Ledger(cmd::ledger::LedgerArgs),
    Archives(cmd::archives::ArchivesArgs),
    Members(cmd::share::MembersArgs),
    Share(cmd::share::ShareArgs),
    Audit(cmd::audit::AuditArgs),
    Memory(cmd::memory::MemoryArgs),
    Graft(cmd::graft::GraftArgs),
    Key(cmd::apikey::KeyArgs),
    Tenant(cmd::apikey::TenantArgs),
    Export(cmd::export::ExportArgs),
    Import(cmd::import::ImportArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Migrate(cmd::migrate::MigrateArgs),
    Bench(crate::bench::BenchArgs),
    Agent(cmd::agent::AgentArgs),
    Hook(cmd::hook::HookArgs),
    Skill(cmd::skill::SkillArgs),
    Trigger(cmd::trigger::TriggerArgs),
    Keychain(cmd::keychain::KeychainArgs),
    Completions(cmd::about::CompletionsArgs),
    Version(cmd::about::VersionArgs),
}

/// Reads the command line, or says what is wrong with it and how to end.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody is left to tell if even this cannot be printed.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ if wants_json() => render::report(&usage_failure(&error), Format::Json),
        _ => {
            let _ = error.print();
            ExitCode::from(2)
        }
    })
}

/// A command line that could not be read may still have asked for JSON.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Clap's text for people, taken apart: what is wrong, and what to do about it.
pub fn usage_failure(error: &clap::Error) -> Failure {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        return Failure::usage("no command was given", "sapwood help shows the commands");
    }
    let text = error.render().to_string();
    let (mut message, mut hint) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(tip) = line.strip_prefix("tip: ") {
            hint.push(tip);
        } else if !line.starts_with("Usage:") && !line.starts_with("For more information") {
            message.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let hint =
        if hint.is_empty() { "sapwood help COMMAND shows the options".to_owned() } else { hint.join("; ") };
    Failure::usage(message.join(" "), hint)
}

/// A number of things: whole, and zero or more.
pub fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u32::MAX))
}

/// A number of tokens: whole, and zero or more.
pub fn tokens(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// A number of rows: whole, and one or more.
pub fn rows(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("it must be a whole number from 1 to {}", u32::MAX)),
        Ok(rows) => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
