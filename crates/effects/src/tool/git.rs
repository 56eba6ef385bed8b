//! `git_status`, `git_diff` and `git_commit`. They run the git program and override every setting with which a
//! repository could execute code. Git runs confined like a command. The two read-only tools have no write access at
//! all.
//!
//! A repository is untrusted input. Its configuration can specify programs for hooks, the file system monitor, diffs,
//! text conversion, filters, signatures, editors and transports. The tools disable all of them. Filters have arbitrary
//! names, so the tools first read these names from the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::port::tool::{FsScope, Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::blocking::on_blocking_thread;
use super::files::protected;
use super::files::root::Root;
use super::process::{Program, ProgramEnd, ProgramResult, find_program, run};
use super::workspace::ToolWorkspace;
use super::{Tool, spec, text_field};
use crate::sandbox::{Confinement, FileRights, Network};

/// Time limit of a git command.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a commit message, in characters, and maximum number of paths.
const MESSAGE_CHARS_MAX: usize = 16_000;
const PATHS_MAX: usize = 500;
/// Number of bytes kept from the beginning and from the end of git's output, which may list many files.
const KEPT_BYTES: usize = 4 << 20;
/// Maximum length of a result, in characters.
const RESULT_CHARS_MAX: usize = 256 << 10;
/// Maximum number of files that are left out by name.
const LEFT_OUT_MAX: usize = 200;
/// Maximum size of a `.git` file and similar files that contain one path.
const LINK_BYTES_MAX: u64 = 8 << 10;

/// Settings that override the repository's configuration.
const SAFE_SETTINGS: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.gitProxy", ""),
    ("core.alternateRefsCommand", ""),
    ("core.attributesFile", "/dev/null"),
    ("credential.helper", ""),
    ("commit.gpgSign", "false"),
    ("commit.verbose", "false"),
    ("gpg.program", "false"),
    ("gpg.ssh.program", "false"),
    ("log.showSignature", "false"),
    ("diff.external", ""),
    ("diff.submodule", "short"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("protocol.allow", "never"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
];

/// Environment variables of every git command, in addition to those of every program.
const ENV: &[(&str, &str)] = &[
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
];

/// The git program in one workspace.
struct Git(Arc<ToolWorkspace>);

/// The access a git command needs to the repository.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RepositoryAccess {
    Read,
    Write,
}

/// The keys of the repository's configuration.
struct GitConfig {
    keys: Vec<String>,
}

impl GitConfig {
    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known == key)
    }

    /// Names of filters, which are programs that transform files.
    fn filters(&self) -> Vec<&str> {
        let name = |key: &'_ str| -> Option<(usize, usize)> {
            let rest = key.strip_prefix("filter.")?;
            Some(("filter.".len(), "filter.".len() + rest.rfind('.')?))
        };
        let mut names: Vec<&str> =
            self.keys.iter().filter_map(|key| name(key).map(|(from, to)| &key[from..to])).collect();
        names.dedup();
        names
    }
}

impl Git {
    async fn read_config(&self) -> Result<GitConfig, String> {
        let listed = self
            .run_with_settings(
                &["config", "--list", "--includes", "--name-only", "-z"],
                &[],
                RepositoryAccess::Read,
            )
            .await?;
        let listed = succeeded(&listed)?;
        Ok(GitConfig { keys: listed.split('\0').filter(|key| !key.is_empty()).map(str::to_owned).collect() })
    }

    /// Run git with all external programs of the repository disabled.
    async fn run(
        &self,
        config: &GitConfig,
        args: &[&str],
        access: RepositoryAccess,
    ) -> Result<ProgramResult, String> {
        let mut settings: Vec<(String, String)> = Vec::new();
        for filter in config.filters() {
            for (part, value) in [("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")] {
                settings.push((format!("filter.{filter}.{part}"), value.to_owned()));
            }
        }
        if !config.has("user.name") || !config.has("user.email") {
            let author = &self.0.git_author;
            settings.push(("user.name".to_owned(), author.name.clone()));
            settings.push(("user.email".to_owned(), author.address.clone()));
        }
        self.run_with_settings(args, &settings, access).await
    }

    async fn run_with_settings(
        &self,
        args: &[&str],
        settings: &[(String, String)],
        access: RepositoryAccess,
    ) -> Result<ProgramResult, String> {
        let workspace = &self.0;
        let directory = workspace.root.path().to_owned();
        let directories = find_git_directories(&directory)?;
        let path = find_program("git", &workspace.search_path, &directory)
            .ok_or_else(|| format!("failed to find git on the search path {}", workspace.search_path))?;
        let program = Program {
            path,
            args: ["--no-pager"].iter().chain(args).map(|arg| (*arg).to_owned()).collect(),
            env: self.env(&directory, settings),
            confinement: self.confinement(directories, access),
            directory,
            time_max: TIME_MAX,
            kept_bytes: KEPT_BYTES,
        };
        run(&workspace.launcher, &program).await.map_err(|why| format!("failed to start git: {why}"))
    }

    fn env(&self, directory: &Path, settings: &[(String, String)]) -> BTreeMap<String, String> {
        let mut env = self.0.env();
        env.extend(ENV.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        // Use neither a repository in a parent directory nor a work tree from the configuration.
        let parent = directory.parent().unwrap_or(directory);
        env.insert("GIT_CEILING_DIRECTORIES".to_owned(), parent.display().to_string());
        env.insert("GIT_WORK_TREE".to_owned(), directory.display().to_string());
        let safe_settings = SAFE_SETTINGS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut count = 0;
        for (key, value) in safe_settings.chain(settings.iter().cloned()) {
            env.insert(format!("GIT_CONFIG_KEY_{count}"), key);
            env.insert(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        env.insert("GIT_CONFIG_COUNT".to_owned(), count.to_string());
        env
    }

    fn confinement(&self, directories: Vec<PathBuf>, access: RepositoryAccess) -> Confinement {
        let mut confinement = match access {
            RepositoryAccess::Read => self.0.reading_confinement(),
            RepositoryAccess::Write => Confinement { network: Network::Denied, ..self.0.confinement() },
        };
        if let FileRights::Confined { read, write } = &mut confinement.files {
            match access {
                RepositoryAccess::Read => read.extend(directories),
                RepositoryAccess::Write => write.extend(directories),
            }
        }
        confinement
    }

    /// A call's paths as pathspecs. Defaults to the whole directory. Excludes protected files in the project scope.
    fn pathspecs(&self, paths: &[&str]) -> Result<Vec<String>, String> {
        let mut specs = Vec::new();
        for path in paths {
            let relative = self.0.root.relative_path(path).map_err(|refusal| refusal.to_string())?;
            let relative =
                if relative.as_os_str().is_empty() { ".".into() } else { relative.to_string_lossy() };
            specs.push(format!(":(literal){relative}"));
        }
        if specs.is_empty() {
            specs.push(".".to_owned());
        }
        if self.0.root.scope() == FsScope::Project {
            specs.extend(protected::exclusions());
        }
        Ok(specs)
    }

    async fn run_read_only(
        &self,
        args: &[&str],
        paths: &[&str],
        empty_note: &str,
    ) -> Result<ToolOutput, String> {
        let mut pathspecs = self.pathspecs(paths)?;
        let config = self.read_config().await?;
        let left_out = self.find_protected_names(&config, &pathspecs).await?;
        pathspecs.extend(left_out.iter().map(|path| exclusion(path)));
        let args: Vec<&str> =
            args.iter().copied().chain(["--"]).chain(pathspecs.iter().map(String::as_str)).collect();
        let text = succeeded(&self.run(&config, &args, RepositoryAccess::Read).await?)?;
        Ok(ToolOutput::text(if text.is_empty() { format!("[{empty_note}]") } else { text }))
    }

    /// Changed files with an ordinary name that are protected files, by their identity: hard links and bind mounts.
    async fn find_protected_names(
        &self,
        config: &GitConfig,
        pathspecs: &[String],
    ) -> Result<Vec<String>, String> {
        if self.0.root.scope() != FsScope::Project {
            return Ok(Vec::new());
        }
        let pathspecs = pathspecs.iter().map(String::as_str);
        let args: Vec<&str> = LIST_CHANGED.iter().copied().chain(pathspecs).collect();
        let listed = self.run(config, &args, RepositoryAccess::Read).await?;
        succeeded(&listed)?;
        let too_many = || "too many files have changed to check them: name some of them in paths".to_owned();
        let changed = changed_paths(&listed.stdout.complete().ok_or_else(too_many)?);
        let root = self.0.root.clone();
        on_blocking_thread(move || protected_among(&root, changed)).await?
    }

    async fn commit(&self, message: &str, paths: &[&str]) -> Result<ToolOutput, String> {
        let mut pathspecs = self.pathspecs(paths)?;
        let config = self.read_config().await?;
        self.check_filters(&config).await?;
        let left_out = self.find_protected_names(&config, &pathspecs).await?;
        pathspecs.extend(left_out.iter().map(|path| exclusion(path)));
        let with_pathspecs = |before: &[&str]| -> Vec<String> {
            before.iter().map(|arg| (*arg).to_owned()).chain(pathspecs.iter().cloned()).collect()
        };
        let add = with_pathspecs(&["add", "--all", "--"]);
        let add: Vec<&str> = add.iter().map(String::as_str).collect();
        succeeded(&self.run(&config, &add, RepositoryAccess::Write).await?)?;
        let message = format!("--message={message}");
        let commit = with_pathspecs(&[
            "commit",
            "--no-verify",
            "--no-gpg-sign",
            "--no-edit",
            "--only",
            &message,
            "--",
        ]);
        let commit: Vec<&str> = commit.iter().map(String::as_str).collect();
        let mut text = succeeded(&self.run(&config, &commit, RepositoryAccess::Write).await?)?;
        for path in left_out {
            text += &format!("[{path} is left out: it is another name of a protected file]\n");
        }
        Ok(ToolOutput::text(text))
    }

    /// Refuse a repository with filters, and changed files of Git LFS. Filters are disabled here, so the files would be
    /// committed unfiltered.
    async fn check_filters(&self, config: &GitConfig) -> Result<(), String> {
        if let [filter, ..] = config.filters()[..] {
            return Err(format!(
                "this repository uses the filter {filter}, which does not run here: commit manually"
            ));
        }
        let changed =
            ["ls-files", "--modified", "--others", "--exclude-standard", "--", ":(top,attr:filter=lfs)"];
        let lfs_files = succeeded(&self.run(config, &changed, RepositoryAccess::Read).await?)?;
        match lfs_files.lines().next() {
            Some(file) => Err(format!("{file} belongs in Git LFS: commit manually")),
            None => Ok(()),
        }
    }
}

/// Lists all changed, staged and new files, each as two letters, a space and the path.
const LIST_CHANGED: &[&str] = &[
    "status",
    "--porcelain=v1",
    "-z",
    "--untracked-files=all",
    "--no-renames",
    "--ignore-submodules=dirty",
    "--",
];

fn changed_paths(listed: &[u8]) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let paths = listed.split(|byte| *byte == 0).filter_map(|line| line.get(3..));
    paths.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))).collect()
}

/// The files among these that are other names of protected files, or may be.
fn protected_among(root: &Root, changed: Vec<PathBuf>) -> Result<Vec<String>, String> {
    let reader = root.reader();
    let mut found = Vec::new();
    for path in changed.iter().filter(|path| reader.check_identity(path).is_err()) {
        // A path that is not text cannot be passed on, so git could not leave it out.
        let text =
            path.to_str().ok_or_else(|| format!("{} is another name of a protected file", path.display()))?;
        found.push(text.to_owned());
    }
    match found.len() > LEFT_OUT_MAX {
        true => Err(format!("{} files are other names of protected files: commit manually", found.len())),
        false => Ok(found),
    }
}

fn exclusion(path: &str) -> String {
    format!(":(top,exclude,literal){path}")
}

fn succeeded(finished: &ProgramResult) -> Result<String, String> {
    match &finished.end {
        ProgramEnd::Exited(0) => Ok(truncated(finished.stdout.text())),
        ProgramEnd::TimedOut => Err(format!("git was killed after {} s", TIME_MAX.as_secs())),
        ProgramEnd::LimitReached(note) => Err(format!("git was stopped: {note}")),
        ProgramEnd::Exited(_) | ProgramEnd::Killed => {
            Err(format!("{}{}", finished.stdout.text(), finished.stderr.text()))
        }
    }
}

/// The beginning of a long text, with a note.
fn truncated(text: String) -> String {
    match text.char_indices().nth(RESULT_CHARS_MAX) {
        Some((end, _)) => format!("{}\n[… {} bytes omitted …]", &text[..end], text.len() - end),
        None => text,
    }
}

/// Find the git directories outside of the work tree. Returns an empty list if `.git` is a directory. A linked work
/// tree is accepted only if the repository refers back to it. Other links out of the directory are refused.
fn find_git_directories(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let link = directory.join(".git");
    let none = || format!("{} is not the top of a git repository", directory.display());
    let found = std::fs::symlink_metadata(&link).map_err(|_| none())?;
    if found.is_dir() {
        return Ok(Vec::new());
    }
    let target = found.is_file().then(|| read_path(&link)).flatten();
    let target = target.and_then(|text| text.strip_prefix("gitdir:").map(|path| directory.join(path.trim())));
    let target = target.and_then(|path| std::fs::canonicalize(path).ok()).ok_or_else(none)?;
    let back_link = read_path(&target.join("gitdir")).and_then(|path| std::fs::canonicalize(path).ok());
    if back_link.is_none() || back_link != std::fs::canonicalize(&link).ok() {
        return Err(format!("the repository at {} does not list this work tree", target.display()));
    }
    let common =
        read_path(&target.join("commondir")).and_then(|path| std::fs::canonicalize(target.join(path)).ok());
    Ok(common.into_iter().chain([target]).collect())
}

/// Read a small file that contains one path.
fn read_path(file: &Path) -> Option<String> {
    let is_small =
        std::fs::symlink_metadata(file).is_ok_and(|found| found.is_file() && found.len() <= LINK_BYTES_MAX);
    let text = is_small.then(|| std::fs::read_to_string(file).ok()).flatten()?;
    Some(text.trim().to_owned())
}

fn into_output(result: Result<ToolOutput, String>) -> ToolOutput {
    result.unwrap_or_else(ToolOutput::error)
}

pub struct GitStatus(Git);

impl GitStatus {
    pub fn new(workspace: Arc<ToolWorkspace>) -> Self {
        Self(Git(workspace))
    }
}

#[async_trait]
impl Tool for GitStatus {
    fn spec(&self) -> ToolSpec {
        let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let description = "Shows the branch and the changed files in the format of git status --porcelain.";
        spec("git_status", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, _: &Value) -> ToolOutput {
        let args =
            ["status", "--porcelain=v1", "--branch", "--untracked-files=all", "--ignore-submodules=dirty"];
        into_output(self.0.run_read_only(&args, &[], "no changes").await)
    }
}

pub struct GitDiff(Git);

impl GitDiff {
    pub fn new(workspace: Arc<ToolWorkspace>) -> Self {
        Self(Git(workspace))
    }
}

#[async_trait]
impl Tool for GitDiff {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "a file or directory; default: everything"},
                "staged": {"type": "boolean", "description": "show staged changes instead of unstaged ones"}
            },
            "additionalProperties": false
        });
        let description = "Shows the changes in tracked files since the last commit or staging.";
        spec("git_diff", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let mut args =
            vec!["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"];
        if input["staged"].as_bool() == Some(true) {
            args.push("--cached");
        }
        let paths: Vec<&str> = input["path"].as_str().into_iter().collect();
        into_output(self.0.run_read_only(&args, &paths, "no differences").await)
    }
}

pub struct GitCommit(Git);

impl GitCommit {
    pub fn new(workspace: Arc<ToolWorkspace>) -> Self {
        Self(Git(workspace))
    }
}

#[async_trait]
impl Tool for GitCommit {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "message": {"type": "string", "minLength": 1, "maxLength": MESSAGE_CHARS_MAX},
                "paths": {"type": "array", "minItems": 1, "maxItems": PATHS_MAX,
                          "items": {"type": "string", "minLength": 1},
                          "description": "files or directories; default: every change"}
            },
            "required": ["message"],
            "additionalProperties": false
        });
        let description =
            "Commits changed, new and deleted files. Hooks do not run and the commit is not signed.";
        spec("git_commit", description, &schema, Touch::Commits, Replay::Never)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let message = text_field(input, "message");
        if message.contains('\0') {
            return ToolOutput::error("the message contains a NUL character");
        }
        let paths: Vec<&str> =
            input["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        into_output(self.0.commit(message, &paths).await)
    }
}
