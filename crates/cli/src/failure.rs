//! What can go wrong, as the person at the terminal meets it: a stable code, what and why, a hint, an exit code.

use std::borrow::Cow;
use std::path::Path;

use sapwood::core::StoreError;
use sapwood::formats::MessageError;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// What the process says when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The reader of our output went away (`sapwood ls | head -1`): nothing is wrong, and nothing is said.
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
            | "flow.not_found"
            | "session.not_compacted" => Exit::NotFound,
            "session.conflict"
            | "session.key_reused"
            | "memory.conflict"
            | "session.exists"
            | "session.stale_fence"
            | "session.leased"
            | "session.archived"
            | "turn.running"
            | "turn.interrupted"
            | "turn.none"
            | "trigger.imported"
            | "flow.imported"
            | "session.not_configured"
            | "flow.ended" => Exit::Conflict,
            "session.denied"
            | "memory.denied"
            | "graft.withheld"
            | "agent.untrusted"
            | "server.open"
            | "hook.refused"
            | "model.not_allowed"
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

    /// A file of the user's, not of the store's, that cannot be read or written.
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

    /// The same failure, with the place it happened at in front.
    pub fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
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

/// Only our own output goes through `?` as a plain I/O error; files say which they are with [`Failure::file`].
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let mut failure = Self::new("output.failed", format!("the output cannot be written: {error}"));
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            failure.exit = Exit::Closed;
        }
        failure
    }
}

fn hint_for(code: &str) -> &'static str {
    match code {
        "session.not_found" => "sapwood ls shows your sessions, sapwood new makes one",
        "session.exists" => "give another --id, or none: a new one is made up",
        "session.reserved_id" => {
            "give another --id: sapwood flow run and triggers make these sessions themselves"
        }
        "session.not_configured" => {
            "set agent in your own sapwood.toml to one that sapwood agent check accepts"
        }
        "session.key_reused" => "a new request takes a new key; the same request again takes the same key",
        "session.conflict" => "somebody else wrote to the session: look again with sapwood info, then retry",
        "session.stale_fence" | "session.leased" => {
            "another process writes this session: wait for it, then retry"
        }
        "session.denied" => {
            "ask the session's owner to share it: sapwood share SESSION USER --role collaborator"
        }
        "session.not_compacted" => "sapwood archives SESSION lists the compactions, on every branch",
        "input.option" => "sapwood help compact shows the options",
        "compact.no_model" => {
            "name one with --model, or take --compact-strategy observation_mask, which needs none"
        }
        "compact.failed" => "the session is as it was: retry, or take --compact-strategy observation_mask",
        "session.archived" => "sapwood archive SESSION --reopen lets it go on",
        "entry.not_found" => {
            "sapwood tree SESSION shows the entries: give a seq, an id, a unique prefix or a label"
        }
        "entry.misplaced" => "sapwood tree SESSION --all shows the entries that hang in the tree",
        "blob.not_found" => "upload the bytes first: an entry can only refer to a blob that is there",
        "address.ambiguous" => "give more characters of the id",
        "input.role" => r#"a message is {"role": "user", "content": "…"}"#,
        "input.unknown_key" => "remove the key, or put it where it belongs: nothing is dropped silently",
        "input.inline_media" => "upload the bytes as a blob and refer to it by its hash",
        "input.too_large" => "split it, or keep big content in a blob",
        "input.invalid" => "sapwood help COMMAND shows what is accepted",
        "config.invalid" => {
            "sapwood.toml takes: store, tenant, user, durability, key_file, keychain, agent, model, pressure, providers, server, hooks, triggers, skills"
        }
        "agent.invalid" => "correct the file; sapwood agent check shows every mistake of every agent",
        "file.io" => "check that the path is right and that you may use it",
        "file.not_found" => "check the path",
        "file.exists" => "--force overwrites it",
        "key.readable" => "chmod 600 FILE",
        "key.missing" => "give one with SAPWOOD_KEY, --key-file or sapwood keychain set",
        "build.feature" => "build one that can: cargo build --release -p sapwood-cli --features encryption",
        "key.not_found" => "sapwood key ls shows the keys",
        "memory.not_found" => "sapwood memory ls shows the memories",
        "graft.not_found" => "sapwood graft digest SOURCE shows its rounds and artifacts",
        "graft.withheld" => "ask the owner of the source to share it; what was erased is gone",
        "memory.conflict" => "look at it again with sapwood memory show ID, and retry",
        "memory.denied" => "only its owner, or whoever made it everybody's, changes a memory",
        "server.open" => "make a key first with sapwood key new --user NAME, or listen on 127.0.0.1",
        "server.address" => "is another server running there? --addr takes another address",
        "audit.broken" => "somebody changed the audit behind Sapwood's back: compare it with a backup",
        "doctor.findings" => {
            "sapwood doctor --repair rebuilds what is derived; the log itself is never changed"
        }
        "import.nothing" => {
            "see the problems listed above; --from FORMAT says what the file is, if it was taken for something else"
        }
        "bench.failed" => "give it a directory on a disk with some space: --dir",
        "bench.goals" => "the table says which; other work on this machine spoils the figures",
        "output.failed" => "check where the output goes",
        store if store.starts_with("store.") => store_hint_for(store),
        other => turn_hint_for(other),
    }
}

/// The same for what holds the sessions.
fn store_hint_for(code: &str) -> &'static str {
    match code {
        "store.damaged" => {
            "sapwood doctor says what is wrong, sapwood doctor --repair rebuilds what is derived"
        }
        "store.too_new" => "upgrade sapwood; nothing was changed",
        "store.locked" => "set SAPWOOD_KEY or SAPWOOD_KEY_FILE, or keychain = true in sapwood.toml",
        "store.read_only" => "check the permissions of the file and of its directory",
        "store.disk_full" => "free some space and retry: what was acknowledged is still there",
        "store.unreachable" => {
            "check that the database server runs and that the URL names it; the command can be repeated"
        }
        "store.busy" => "another process holds the store: retry, or see who has the file open",
        "store.io" => "check that the path is right and that you may use it",
        "store.untrusted" => {
            "sslrootcert=FILE in the URL names the CA that signed it; sslmode says what is asked for: docs/scale.md"
        }
        _ => "sapwood doctor checks the store",
    }
}

/// The same for turns and what they need.
fn turn_hint_for(code: &str) -> &'static str {
    match code {
        "turn.running" => "wait for it, cancel it with sapwood cancel SESSION, or send with --queue",
        "turn.interrupted" => "sapwood resume SESSION carries it on; sapwood cancel SESSION ends it",
        "turn.none" => "nothing runs in this session: sapwood send SESSION TEXT begins a turn",
        "turn.cancelled" => "sapwood send SESSION TEXT goes on from here",
        "turn.limit" => "give the agent higher limits, or begin a new session",
        "approval.not_found" => {
            "it was answered, or its turn is over; sapwood feed SESSION shows what happened"
        }
        "model.no_key" => {
            "set ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY …, or use demo, which needs none"
        }
        "model.key_refused" => "check the key",
        "model.unknown" => {
            "models are PROVIDER/NAME: anthropic/…, openai/…, gemini/…, ollama/…, or demo; --model of send and chat names another one"
        }
        "model.not_allowed" => {
            "choose another model; a scripted one must be named in the operator's sapwood.toml or agent files, or with --model here"
        }
        "model.unreachable" => "check the network and the provider's base_url",
        "model.rate_limited" | "model.overloaded" => "wait a little, or give the agent a fallback_chain",
        "flow.not_found" => "sapwood flow ls shows the runs",
        "flow.ended" => "sapwood flow run FILE begins another",
        "flow.imported" => "sapwood flow show RUN shows it; sapwood flow run FILE begins a run of your own",
        "flow.invalid" => "correct what is listed; sapwood flow check FILE looks again, and runs nothing",
        "flow.cancelled" => "sapwood flow run FILE begins another",
        "turn_limit" => "begin a new session, or fork this one: sapwood fork SESSION",
        "trigger.not_found" => {
            "sapwood trigger ls shows them; [[triggers]] in your own sapwood.toml makes one"
        }
        "trigger.imported" => "erase or rename that session, or give the trigger another name",
        "trigger.target_denied" => {
            "have its owner share the session with the trigger's owner, or name another session"
        }
        "skill.not_found" => {
            "sapwood skill ls shows them; a new one is a folder .sapwood/skills/NAME with a SKILL.md"
        }
        "hook.refused" => "sapwood hook ls shows the hooks that are asked",
        "budget_exceeded" => "raise the agent's budget and begin a new session with it",
        "context_overflow" => "sapwood compact SESSION makes room",
        _ => "sapwood help shows the commands",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_exit_table_has_its_own_hint() {
        for code in
            ["session.not_found", "session.conflict", "session.denied", "store.disk_full", "store.too_new"]
        {
            assert_ne!(hint_for(code), hint_for("no such code"), "{code}");
        }
    }

    #[test]
    fn exit_codes_follow_the_contract() {
        assert_eq!(Failure::new("session.not_found", "").exit.status(), 3);
        assert_eq!(Failure::new("session.exists", "").exit.status(), 4);
        assert_eq!(Failure::new("session.denied", "").exit.status(), 5);
        assert_eq!(Failure::new("input.role", "").exit.status(), 2);
        assert_eq!(Failure::new("store.io", "").exit.status(), 1);
    }
}
