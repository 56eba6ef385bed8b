//! The command line. The options of each command are in its file below `cmd/`.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd;
use crate::failure::Failure;
use crate::global_args::Global;
use crate::render::{self, Format};

const AFTER_HELP: &str = "\
Examples:
  sapwood chat                              chat in the terminal
  sapwood chat -p 'Explain this' < a.diff   one answer, for scripts
  sapwood search timeout                    find a session by its text
  sapwood help fork                         options and examples of a command

SESSION is an id, a unique prefix of an id, or @last (the session updated most recently).
ENTRY is a sequence number, an id, a unique prefix of an id, or a label.
With --json, output is one JSON document or one JSON line per item; errors are
{\"error\":{\"code\",\"message\",\"hint\"}} on stderr.
Exit codes: 0 success, 1 failure, 2 usage error, 3 not found, 4 conflict, 5 permission denied.";

/// The commands in the groups that `sapwood --help` shows. A test checks that every command is in a group.
const GROUPS: &[(&str, &[&str])] = &[
    ("Talk to a model", &["chat", "send", "resume", "cancel", "approvals", "approve", "deny"]),
    (
        "Create and find sessions",
        &["new", "ls", "search", "info", "exists", "rename", "close", "archive", "erase"],
    ),
    (
        "Read a session",
        &[
            "show", "feed", "tree", "context", "length", "events", "ledger", "usage", "archives", "ancestry",
            "audit",
        ],
    ),
    (
        "Change a session",
        &["inject", "input", "artifact", "branch", "fork", "label", "reset", "set", "thinking"],
    ),
    ("Fit the context window", &["compact", "uncompact", "trim", "prune"]),
    ("Share and remember", &["share", "members", "memory", "graft"]),
    ("Move data", &["import", "export", "migrate", "backup", "restore"]),
    ("Automate", &["flow", "agent", "model", "skill", "hook", "trigger"]),
    (
        "Operate",
        &[
            "serve",
            "key",
            "tenant",
            "allowance",
            "hold",
            "retention",
            "store",
            "sandbox",
            "doctor",
            "bench",
            "keychain",
            "completions",
            "version",
            "help",
        ],
    ),
];
/// The description of `help`, which clap adds only when it builds the parser. Repeated here for the list of groups.
const HELP_ABOUT: &str = "Print this message or the help of a command";
const HEADING: anstyle::Style = anstyle::Style::new().bold().underline();
/// Width of the name column in the grouped list.
const NAME_COLUMNS: usize = 12;

/// Durable, branching, searchable sessions for AI agents.
#[derive(Debug, Parser)]
#[command(name = "sapwood", version, after_help = AFTER_HELP, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
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
    Approvals(cmd::approvals::ApprovalsArgs),
    Approve(cmd::approve::ApproveArgs),
    Deny(cmd::approve::DenyArgs),
    Inject(cmd::inject::InjectArgs),
    Branch(cmd::branch::BranchArgs),
    Fork(cmd::fork::ForkArgs),
    Label(cmd::label_rename::LabelArgs),
    Rename(cmd::label_rename::RenameArgs),
    Reset(cmd::branch::ResetArgs),
    Set(cmd::set::SetArgs),
    Thinking(cmd::thinking::ThinkingArgs),
    Input(cmd::files::InputArgs),
    Artifact(cmd::files::ArtifactArgs),
    Trim(cmd::trim::TrimArgs),
    Compact(cmd::compact::CompactArgs),
    Uncompact(cmd::uncompact::UncompactArgs),
    Prune(cmd::prune::PruneArgs),
    Close(cmd::lifecycle::CloseArgs),
    Archive(cmd::lifecycle::ArchiveArgs),
    Erase(cmd::erase::EraseArgs),
    Search(cmd::search::SearchArgs),
    Info(cmd::info::InfoArgs),
    Length(cmd::length_exists::LengthArgs),
    Exists(cmd::length_exists::ExistsArgs),
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
    Backup(cmd::backup::BackupArgs),
    Restore(cmd::restore::RestoreArgs),
    Store(cmd::store::StoreArgs),
    Bench(cmd::bench::BenchArgs),
    Agent(cmd::agent::AgentArgs),
    Model(cmd::model::ModelArgs),
    Allowance(cmd::allowance::AllowanceArgs),
    Hold(cmd::hold::HoldArgs),
    Retention(cmd::retention::RetentionArgs),
    Hook(cmd::hook::HookArgs),
    Skill(cmd::skill::SkillArgs),
    Trigger(cmd::trigger::TriggerArgs),
    Keychain(cmd::keychain::KeychainArgs),
    Sandbox(cmd::sandbox::SandboxArgs),
    Completions(cmd::about::CompletionsArgs),
    Version(cmd::about::VersionArgs),
}

/// The clap command, with its subcommands listed in groups.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let groups = group_help(&command);
    let heading = HEADING;
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{heading}Global options:{heading:#}\n{{options}}\n\n{{after-help}}"
    ))
}

fn group_help(command: &clap::Command) -> String {
    let heading = HEADING;
    let name_style = anstyle::Style::new().bold();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{heading}{title}:{heading:#}\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or_else(|| HELP_ABOUT.to_owned(), ToString::to_string);
            text.push_str(&format!("  {name_style}{name:NAME_COLUMNS$}{name_style:#} {about}\n"));
        }
        text.push('\n');
    }
    text
}

/// Parse the command line. If it is invalid or asks for help, print the error or the help and return the exit code.
pub fn parse() -> Result<Cli, ExitCode> {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed stdout is not an error.
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

/// Whether an invalid command line contains `--json`.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Convert clap's error: its tips become the hint, and its other lines, except the usage, become the message.
pub fn usage_failure(error: &clap::Error) -> Failure {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        return Failure::usage("no command was given", "run `sapwood help` to list the commands");
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
    let hint = if hint.is_empty() {
        "run `sapwood help COMMAND` to see the options".to_owned()
    } else {
        hint.join("; ")
    };
    Failure::usage(message.join(" "), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_help_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut command = command();
        command.build();
        let mut known: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }

    /// Every command has a description and an example, and every argument a description.
    #[test]
    fn every_command_and_argument_is_described() {
        let mut command = command();
        command.build();
        let mut faults = Vec::new();
        let mut pending: Vec<(String, clap::Command)> =
            command.get_subcommands().map(|one| (one.get_name().to_owned(), one.clone())).collect();
        while let Some((path, one)) = pending.pop() {
            if path.split(' ').any(|name| name == "help") {
                continue;
            }
            let children =
                one.get_subcommands().map(|child| (format!("{path} {}", child.get_name()), child.clone()));
            pending.extend(children);
            if one.get_about().is_none() {
                faults.push(format!("{path} has no description"));
            }
            if !one.get_after_help().is_some_and(|help| help.to_string().contains("sapwood ")) {
                faults.push(format!("{path} has no example"));
            }
            let undescribed = one.get_arguments().filter(|arg| arg.get_help().is_none());
            faults.extend(undescribed.map(|arg| format!("{path} does not describe {}", arg.get_id())));
        }
        assert_eq!(faults, Vec::<String>::new());
    }
}
