//! Errors as the command line reports them: a stable code, a message, a hint and an exit code.

use std::borrow::Cow;
use std::path::Path;

use sapwood::core::StoreError;
use sapwood::formats::MessageError;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit status of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The reader closed the output pipe, as in `sapwood ls | head -1`. This is not an error, so nothing is printed.
    Closed,
    Failed,
    Usage,
    NotFound,
    Conflict,
    Denied,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    pub fn status(self) -> u8 {
        match self {
            Exit::Closed => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Conflict => 4,
            Exit::Denied => 5,
            Exit::Interrupted => 130,
        }
    }

    fn of(code: &str) -> Self {
        match code {
            "session.not_found"
            | "artifact.not_found"
            | "entry.not_found"
            | "blob.not_found"
            | "key.not_found"
            | "memory.not_found"
            | "graft.not_found"
            | "agent.not_found"
            | "hook.not_found"
            | "skill.not_found"
            | "trigger.not_found"
            | "approval.not_found"
            | "approval.link_not_found"
            | "flow.not_found"
            | "hold.not_found"
            | "session.not_compacted" => Exit::NotFound,
            "session.conflict"
            | "session.key_reused"
            | "memory.conflict"
            | "session.exists"
            | "session.stale_fence"
            | "session.leased"
            | "session.archived"
            | "session.held"
            | "turn.running"
            | "turn.interrupted"
            | "turn.none"
            | "turn.queue_full"
            | "approval.expired"
            | "trigger.imported"
            | "flow.imported"
            | "agent.mismatch"
            | "store.format"
            | "session.not_configured"
            | "session.configured"
            | "flow.ended" => Exit::Conflict,
            "session.denied"
            | "memory.denied"
            | "graft.withheld"
            | "agent.untrusted"
            | "server.open"
            | "hook.refused"
            | "model.not_allowed"
            | "model.denied"
            | "operator.required"
            | "trigger.target_denied" => Exit::Denied,
            "address.ambiguous"
            | "session.reserved_id"
            | "entry.misplaced"
            | "config.invalid"
            | "flow.invalid" => Exit::Usage,
            other if other.starts_with("input.") => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Failure {
    pub code: Cow<'static, str>,
    pub message: String,
    pub hint: String,
    pub exit: Exit,
}

impl Failure {
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let code = code.into();
        let (hint, exit) = (hint_for(&code).to_owned(), Exit::of(&code));
        Self { code, message: message.into(), hint, exit }
    }

    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: "input.usage".into(), message: message.into(), hint: hint.into(), exit: Exit::Usage }
    }

    /// Reports a user's file (not a store file) that cannot be read or written.
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => "file.not_found",
            std::io::ErrorKind::StorageFull => "store.disk_full",
            _ => "file.io",
        };
        Self::new(code, format!("{}: {error}", path.display()))
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Prefixes the message with the location of the failure.
    pub fn at(mut self, location: impl std::fmt::Display) -> Self {
        self.message = format!("{location}: {}", self.message);
        self
    }
}

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<MessageError> for Failure {
    fn from(error: MessageError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// An I/O error converted with `?` is an output error. For a file, use [`Failure::file`], which includes the path.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let mut failure = Self::new("output.failed", format!("failed to write the output: {error}"));
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            failure.exit = Exit::Closed;
        }
        failure
    }
}

/// The hint for codes without a specific hint.
const GENERAL_HINT: &str = "run `sapwood help` to list the commands";

fn hint_for(code: &str) -> &'static str {
    match code {
        "input.option" => "run `sapwood help compact` to see the options",
        "compact.no_model" => {
            "choose a model with --model, or use --compact-strategy observation_mask, which needs none"
        }
        "compact.not_smaller" => "use --force to compact anyway, or keep fewer messages with --keep-last",
        "compact.failed" => "retry, or use --compact-strategy observation_mask; the session was not changed",
        "entry.not_found" => {
            "run `sapwood tree SESSION` to list the entries, then give a seq, an id, a unique prefix or a label"
        }
        "entry.misplaced" => "run `sapwood tree SESSION --all` to list the entries of the tree",
        "blob.not_found" => {
            "add the file with `sapwood input add SESSION FILE`, or give its data as base64: an entry can only refer to a stored blob"
        }
        "artifact.not_found" => {
            "run `sapwood input ls SESSION` or `sapwood artifact ls SESSION` to list the names"
        }
        "address.ambiguous" => "give more characters of the id",
        "input.role" => r#"write a message as {"role": "user", "content": "…"}"#,
        "input.unknown_key" => "remove the key or correct it: unknown keys are never dropped silently",
        "input.inline_media" => {
            "give the media as base64, or add the file with `sapwood input add SESSION FILE`"
        }
        "input.too_large" => "split it, or add large content with `sapwood input add SESSION FILE`",
        "input.invalid" => "run `sapwood help COMMAND` to see what is accepted",
        "config.invalid" => {
            "valid keys in sapwood.toml: store, tenant, user, durability, key_file, keychain, agent, model, models, pressure, prune, providers, server, memory, hooks, triggers, skills"
        }
        "agent.invalid" => {
            "correct the file; run `sapwood agent check` to list the mistakes in all agent files"
        }
        "agent.mismatch" => {
            "remove agent_ref from the node, name the session's agent, or use another session: a session keeps its agent"
        }
        "file.io" => "check the path and its permissions",
        "file.not_found" => "check the path",
        "file.exists" => "use --force to overwrite it",
        "key.readable" => "run `chmod 600 FILE`",
        "key.missing" => "set SAPWOOD_KEY, use --key-file, or run `sapwood keychain set`",
        "build.feature" => {
            "build with the feature: cargo build --release -p sapwood-cli --features encryption"
        }
        "key.not_found" => "run `sapwood key ls` to list the keys",
        "hold.not_found" => "run `sapwood hold` to list the legal holds",
        "operator.required" => "run the command without --as",
        "model.denied" => "choose an allowed model; `sapwood allowance ls` lists them",
        "allowance.exceeded" => "wait until the next day (UTC), or raise it with `sapwood allowance set`",
        "server.open" => "create a key with `sapwood key new --user NAME`, or listen on 127.0.0.1",
        "server.address" => {
            "check whether another server is using this address, or choose another with --addr"
        }
        "audit.broken" => "compare the audit log with a backup: it was changed outside Sapwood",
        "doctor.findings" => {
            "run `sapwood doctor --repair` to rebuild derived data; the log itself is never changed"
        }
        "import.nothing" => {
            "see the problems listed above; set --from FORMAT if the format was not detected correctly"
        }
        "bench.missing" => "build it with `cargo build --release -p sapwood-bench`",
        "output.failed" => "check the destination of the output",
        memory if memory.starts_with("memory.") || memory.starts_with("graft.") => memory_hint_for(memory),
        session if session.starts_with("session.") => session_hint_for(session),
        store if store.starts_with("store.") => store_hint_for(store),
        other => turn_hint_for(other),
    }
}

/// Hints for errors of memories and grafts.
fn memory_hint_for(code: &str) -> &'static str {
    match code {
        "memory.not_found" => "run `sapwood memory ls` to list the memories",
        "graft.not_found" => "run `sapwood graft digest SOURCE` to list its rounds and artifacts",
        "graft.withheld" => {
            "ask the owner of the source session to share it; erased content cannot be recovered"
        }
        "memory.conflict" => "check the current version with `sapwood memory show ID`, then retry",
        "memory.denied" => {
            "ask its owner: only the owner, or the user who shared it with the tenant, can change a memory"
        }
        _ => GENERAL_HINT,
    }
}

/// Hints for session errors.
fn session_hint_for(code: &str) -> &'static str {
    match code {
        "session.not_found" => "run `sapwood ls` to list your sessions, or `sapwood new` to create one",
        "session.exists" => "choose another --id, or omit it to generate one",
        "session.reserved_id" => "choose another --id: this prefix is reserved for flow runs and triggers",
        "session.configured" => {
            "import the session again under another --id, or fork it before its first turn, and adopt the agent there"
        }
        "session.not_configured" => {
            "send it a message first; if that fails, set `agent` in your own sapwood.toml to an agent that `sapwood agent check` accepts"
        }
        "session.key_reused" => {
            "use a new idempotency key for each new request; reuse a key only to retry the same request"
        }
        "session.conflict" => {
            "another client wrote to the session: check it with `sapwood info SESSION`, then retry"
        }
        "session.stale_fence" | "session.leased" => {
            "another process is writing to this session: wait for it to finish, then retry"
        }
        "session.denied" => {
            "ask the session's owner to do it; to let you write, the owner runs `sapwood share SESSION USER --role collaborator`"
        }
        "session.not_compacted" => "run `sapwood archives SESSION` to list the compactions on all branches",
        "session.held" => "run `sapwood hold` to list the legal holds; an operator can release them",
        "session.archived" => "run `sapwood archive SESSION --reopen` to reopen it",
        _ => GENERAL_HINT,
    }
}

/// Hints for store errors.
fn store_hint_for(code: &str) -> &'static str {
    match code {
        "store.incomplete" => {
            "run `sapwood doctor` to see what is damaged; the other sessions are shown above"
        }
        "store.damaged" => {
            "run `sapwood doctor` to list the damage, and `sapwood doctor --repair` to rebuild derived data"
        }
        "store.too_new" => "upgrade sapwood; the store was not changed",
        "store.format" => "when every server runs this version, run `sapwood store upgrade` once, then retry",
        "store.locked" => "set SAPWOOD_KEY or SAPWOOD_KEY_FILE, or keychain = true in sapwood.toml",
        "store.read_only" => "check the permissions of the file and of its directory",
        "store.disk_full" => "free some disk space and retry; acknowledged writes are safe",
        "store.unreachable" => {
            "check that the database server is running, or that the store's file was not moved or deleted, then retry"
        }
        "store.busy" => {
            "another process has locked the store: retry, or find the process that has the file open"
        }
        "store.io" => "check the path and its permissions",
        "store.untrusted" => {
            "set sslrootcert=FILE in the URL to the CA that signed the certificate; for sslmode see docs/scale.md"
        }
        _ => "run `sapwood doctor` to check the store",
    }
}

/// Hints for errors of turns, models, flows, triggers, skills and hooks.
fn turn_hint_for(code: &str) -> &'static str {
    match code {
        "turn.running" => "wait for it, cancel it with `sapwood cancel SESSION`, or send with --queue",
        "turn.interrupted" => {
            "run `sapwood resume SESSION` to continue it, or `sapwood cancel SESSION` to end it"
        }
        "turn.none" => "run `sapwood send SESSION TEXT` to start a turn",
        "turn.cancelled" => "run `sapwood send SESSION TEXT` to continue from here",
        "turn.limit" => "raise the agent's limits, or start a new session",
        "turn.queue_full" => "wait for the running turn, or cancel it with `sapwood cancel SESSION`",
        "approval.expired" => "send the message again, or raise approval_wait.expire_after_s in the agent",
        "approval.not_found" => {
            "it was already answered or its turn has ended; run `sapwood feed SESSION` to see what happened"
        }
        "model.no_key" => {
            "set the key, or choose another model with --model PROVIDER/NAME; run `sapwood model ls` to list the models"
        }
        "model.key_refused" => "check the provider's API key",
        "model.unknown" => {
            "choose another model with --model PROVIDER/NAME: run `sapwood model ls` to list the models, or use demo"
        }
        "model.not_allowed" => {
            "choose another model; a scripted model must be named in the operator's sapwood.toml or agent files, or with --model"
        }
        "model.unreachable" => "check the network and the provider's base_url",
        "model.rate_limited" | "model.overloaded" => "retry later, or set a fallback_chain for the agent",
        "flow.not_found" => "run `sapwood flow ls` to list the runs",
        "flow.ended" => "run `sapwood flow run FILE` to start another run",
        "flow.imported" => {
            "run `sapwood flow show RUN` to view it, or `sapwood flow run FILE` to start your own run"
        }
        "flow.invalid" => "correct the listed mistakes, then check again with `sapwood flow check FILE`",
        "flow.cancelled" => "run `sapwood flow run FILE` to start another run",
        "turn_limit" => "raise the limit with `sapwood set SESSION --turns-max N`, or start a new session",
        "trigger.not_found" => {
            "run `sapwood trigger ls` to list triggers; define them as [[triggers]] in your own sapwood.toml"
        }
        "trigger.imported" => "erase that session, or give the trigger another name",
        "trigger.target_denied" => {
            "ask the session's owner to share it with the trigger's owner, or choose another session"
        }
        "skill.not_found" => {
            "run `sapwood skill ls` to list skills; create one as a directory .sapwood/skills/NAME with a SKILL.md"
        }
        "hook.refused" => "run `sapwood hook ls` to list the installed hooks",
        "budget_exceeded" => {
            "raise the budget with `sapwood set SESSION --budget-usd USD`, or start a new session"
        }
        "context_overflow" => "run `sapwood compact SESSION` to shrink the context",
        _ => GENERAL_HINT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_codes_have_a_specific_hint() {
        for code in
            ["session.not_found", "session.conflict", "session.denied", "store.disk_full", "store.too_new"]
        {
            assert_ne!(hint_for(code), hint_for("no such code"), "{code}");
        }
    }

    /// A user of the command line does not send requests.
    #[test]
    fn hints_do_not_mention_the_http_api() {
        let source = include_str!("failure.rs");
        let hints = source.split("fn hint_for").nth(1).and_then(|rest| rest.split("mod tests").next());
        for line in hints.unwrap_or_default().lines() {
            for foreign in
                ["/v1/", "POST ", "PATCH ", "GET ", "Idempotency-Key", "Retry-After", "Authorization"]
            {
                assert!(!line.contains(foreign), "{line}");
            }
        }
    }

    #[test]
    fn exit_codes_match_the_documented_table() {
        assert_eq!(Failure::new("session.not_found", "").exit.status(), 3);
        assert_eq!(Failure::new("session.exists", "").exit.status(), 4);
        assert_eq!(Failure::new("session.denied", "").exit.status(), 5);
        assert_eq!(Failure::new("input.role", "").exit.status(), 2);
        assert_eq!(Failure::new("store.io", "").exit.status(), 1);
    }
}
