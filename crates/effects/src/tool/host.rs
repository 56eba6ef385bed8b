//! Opens toolboxes: for each session, the granted tools with the granted files and rights. The host creates the scratch
//! directories. It also redacts secrets, because all tool output passes through it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::content::ToolCall;
use sapwood_core::id::{SessionId, TenantId};
use sapwood_core::port::tool::{FsScope, ToolError, ToolGrant, ToolHost, ToolOutput, ToolSpec, Toolbox};

use super::command::{Allowlist, RunCommand};
use super::files::root::Root;
use super::files::{EditFile, ListDirectory, ReadFile, WriteFile};
use super::git::{GitCommit, GitDiff, GitStatus};
use super::http::{HTTP_REQUEST, HttpRequest};
use super::mcp::{McpLimits, McpProfile, McpPrograms, open_mcp_tools};
use super::schema::InputSchema;
use super::search::{FindFiles, SearchText};
pub use super::workspace::GitAuthor;
use super::workspace::ToolWorkspace;
use super::{Tool, ToolSource};
use crate::egress::{AllowedHosts, Egress, EgressLimits};
use crate::sandbox::limits::ResourceLimits;
use crate::sandbox::{Launcher, Network};
use crate::secret::Secrets;

/// All built-in tools that work outside of the log.
pub const EFFECT_TOOLS: &[&str] = &[
    "read_file",
    "write_file",
    "edit_file",
    "list_directory",
    "find_files",
    "search_text",
    "run_command",
    "git_status",
    "git_diff",
    "git_commit",
    "http_request",
];
/// Tools that work on the log. The engine implements them, and the host ignores their names.
pub const ENGINE_TOOLS: &[&str] = &[
    "put_artifact",
    "ask_user",
    "delegate",
    "recall",
    "graft",
    "list_inputs",
    "read_input",
    "search_inputs",
];

/// Maximum number of tools in a toolbox.
const TOOLS_MAX: usize = 512;
/// Default search path for programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The operator's settings for all tools.
#[derive(Clone)]
pub struct Settings {
    /// Parent of the session directories.
    pub base: PathBuf,
    pub launcher: Launcher,
    /// Search path for programs, like `PATH`.
    pub search_path: String,
    /// Environment variables for programs, in addition to the standard ones.
    pub env: BTreeMap<String, String>,
    /// Paths that confined programs may read in addition to system and session files, such as a toolchain.
    pub readable: Vec<PathBuf>,
    /// Network access of programs in the `sandboxed` and `project` scopes. Always open in `full`.
    pub network: Network,
    /// Limits of each command, with all processes that it starts.
    pub limits: ResourceLimits,
    /// What programs of MCP servers may use.
    pub mcp_profile: McpProfile,
    /// Directories for control groups that the operator has delegated to Sapwood.
    pub cgroups: Vec<PathBuf>,
    /// Author of commits in repositories that configure no author.
    pub git_author: GitAuthor,
    /// The values for `secret:NAME`, redacted from every output (I12).
    pub secrets: Arc<Secrets>,
    pub egress_limits: EgressLimits,
    pub mcp_limits: McpLimits,
    /// Sources of further tools, in this order.
    pub sources: Vec<Arc<dyn ToolSource>>,
}

impl Settings {
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self {
            base: base.into(),
            launcher: Launcher::None,
            search_path: SEARCH_PATH.to_owned(),
            env: BTreeMap::new(),
            readable: Vec::new(),
            network: Network::Denied,
            limits: ResourceLimits::default(),
            mcp_profile: McpProfile::default(),
            cgroups: Vec::new(),
            git_author: GitAuthor { name: "Sapwood".to_owned(), address: "sapwood@localhost".to_owned() },
            secrets: Arc::default(),
            egress_limits: EgressLimits::default(),
            mcp_limits: McpLimits::default(),
            sources: Vec::new(),
        }
    }
}

pub struct Host {
    settings: Settings,
}

impl Host {
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Remove a session's scratch directory.
    pub fn remove_scratch(&self, tenant: &TenantId, session: &SessionId) -> io::Result<()> {
        match std::fs::remove_dir_all(self.scratch_of(tenant, session)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn scratch_of(&self, tenant: &TenantId, session: &SessionId) -> PathBuf {
        self.settings.base.join(directory_name(tenant.as_str())).join(directory_name(&session.to_string()))
    }

    /// Open the directory in which a session's tools work.
    fn open_workspace(&self, grant: &ToolGrant) -> Result<ToolWorkspace, ToolError> {
        let scratch = self.scratch_of(&grant.tenant, &grant.session);
        let (files, home) = (scratch.join("files"), scratch.join("home"));
        let of_tenant = scratch.parent().unwrap_or(&scratch);
        for dir in [of_tenant, &scratch, &files, &home, &home.join("tmp")] {
            create_private_dir(dir).map_err(|why| no_directory(dir, &why.to_string()))?;
        }
        let directory = match (grant.fs_scope, &grant.cwd) {
            (FsScope::Sandboxed, _) => files,
            (_, Some(cwd)) if Path::new(cwd).is_absolute() => PathBuf::from(cwd),
            (_, Some(cwd)) => return Err(no_directory(Path::new(cwd), "it is not an absolute path")),
            (_, None) => {
                return Err(no_directory(Path::new("(none)"), "this scope needs a working directory"));
            }
        };
        let root = Root::open(&directory, grant.fs_scope)
            .map_err(|why| no_directory(&directory, &why.to_string()))?;
        let home = std::fs::canonicalize(&home).map_err(|why| no_directory(&home, &why.to_string()))?;
        let settings = &self.settings;
        Ok(ToolWorkspace {
            root: Arc::new(root),
            home,
            launcher: settings.launcher.clone(),
            search_path: settings.search_path.clone(),
            extra_env: settings.env.clone(),
            readable: settings.readable.clone(),
            network: settings.network,
            limits: settings.limits.narrowed(&grant.sandbox),
            cgroups: settings.cgroups.clone(),
            git_author: settings.git_author.clone(),
        })
    }

    /// Create one of the built-in tools. Returns `None` for `http_request`, which is opened separately, and for
    /// `run_command` if no command is allowed.
    fn create_tool(
        &self,
        name: &str,
        grant: &ToolGrant,
        workspace: &Arc<ToolWorkspace>,
    ) -> Result<Option<Arc<dyn Tool>>, ToolError> {
        let root = || workspace.root.clone();
        Ok(Some(match name {
            "read_file" => Arc::new(ReadFile::new(root())),
            "write_file" => Arc::new(WriteFile::new(root())),
            "edit_file" => Arc::new(EditFile::new(root())),
            "list_directory" => Arc::new(ListDirectory::new(root())),
            "find_files" => Arc::new(FindFiles::new(root())),
            "search_text" => Arc::new(SearchText::new(root())),
            "git_status" => Arc::new(GitStatus::new(workspace.clone())),
            "git_diff" => Arc::new(GitDiff::new(workspace.clone())),
            "git_commit" => Arc::new(GitCommit::new(workspace.clone())),
            "run_command" if !grant.allowed_commands.is_empty() => {
                Arc::new(RunCommand::new(workspace.clone(), read_allowlist(grant)?))
            }
            _ => return Ok(None),
        }))
    }

    /// `http_request` if granted, and every tool of the granted MCP servers.
    async fn open_network_tools(
        &self,
        grant: &ToolGrant,
        workspace: &ToolWorkspace,
    ) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
        let has_http_request = grant.tools.iter().any(|name| name == HTTP_REQUEST);
        if !has_http_request && grant.mcp_servers.is_empty() {
            return Ok(Vec::new());
        }
        let Settings { secrets, egress_limits, mcp_limits, .. } = &self.settings;
        let invalid = |why: String| ToolError::Invalid { what: "allowed_hosts".to_owned(), why };
        let hosts = AllowedHosts::parse(&grant.allowed_hosts).map_err(|why| invalid(why.to_string()))?;
        let egress = Egress::new(hosts, *egress_limits).map_err(|why| invalid(why.to_string()))?;
        let programs = Arc::new(McpPrograms::new(&self.settings.mcp_profile, grant, workspace));
        let mut tools = open_mcp_tools(grant, &egress, secrets, *mcp_limits, &programs).await?;
        if has_http_request {
            tools.push(Arc::new(HttpRequest::new(egress, secrets.clone())));
        }
        Ok(tools)
    }

    /// All tools of a grant: file and program tools by name, network tools, and the tools of the sources.
    async fn tools_of(&self, grant: &ToolGrant) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
        let workspace = Arc::new(self.open_workspace(grant)?);
        let mut tools = Vec::new();
        for name in EFFECT_TOOLS.iter().filter(|name| grant.tools.iter().any(|granted| granted == *name)) {
            tools.extend(self.create_tool(name, grant, &workspace)?);
        }
        tools.extend(self.open_network_tools(grant, &workspace).await?);
        for source in &self.settings.sources {
            tools.extend(source.open(grant).await?);
        }
        Ok(tools)
    }
}

#[async_trait]
impl ToolHost for Host {
    async fn open(&self, grant: &ToolGrant) -> Result<Arc<dyn Toolbox>, ToolError> {
        let tools = self.tools_of(grant).await?;
        let mut bound = Vec::new();
        for tool in tools {
            bound.push(BoundTool::new(tool)?);
        }
        check_names(grant, &bound)?;
        let specs = bound.iter().map(|tool| tool.spec.clone()).collect();
        Ok(Arc::new(SessionToolbox { specs, tools: bound, secrets: self.settings.secrets.clone() }))
    }
}

/// Check that each granted name is known and no two tools have the same name.
fn check_names(grant: &ToolGrant, tools: &[BoundTool]) -> Result<(), ToolError> {
    let is_opened = |name: &str| tools.iter().any(|tool| tool.spec.name == name);
    for name in &grant.tools {
        let is_known = [EFFECT_TOOLS, ENGINE_TOOLS].concat().contains(&name.as_str()) || is_opened(name);
        if !is_known {
            let opened = tools.iter().map(|tool| tool.spec.name.as_str());
            let mut known: Vec<&str> =
                [EFFECT_TOOLS, ENGINE_TOOLS].concat().into_iter().chain(opened).collect();
            known.sort_unstable();
            known.dedup();
            return Err(ToolError::Unknown {
                name: name.clone(),
                known: format!("known tools: {}", known.join(", ")),
            });
        }
    }
    let invalid = |what: &str, why: &str| ToolError::Invalid { what: what.to_owned(), why: why.to_owned() };
    if tools.len() > TOOLS_MAX {
        return Err(invalid("the list of tools", "it has more than 512 tools"));
    }
    for (index, tool) in tools.iter().enumerate() {
        let name = &tool.spec.name;
        if tools[..index].iter().any(|earlier| earlier.spec.name == *name) {
            return Err(invalid(name, "two tools have this name"));
        }
    }
    Ok(())
}

/// A tool with its compiled schema.
struct BoundTool {
    spec: ToolSpec,
    schema: InputSchema,
    tool: Arc<dyn Tool>,
}

impl BoundTool {
    fn new(tool: Arc<dyn Tool>) -> Result<Self, ToolError> {
        let spec = tool.spec();
        let schema = InputSchema::compile(&spec.input_schema.to_value())
            .map_err(|why| ToolError::Invalid { what: format!("the schema of {}", spec.name), why })?;
        Ok(Self { spec, schema, tool })
    }
}

/// The tools of one session.
struct SessionToolbox {
    specs: Vec<ToolSpec>,
    tools: Vec<BoundTool>,
    secrets: Arc<Secrets>,
}

impl SessionToolbox {
    fn find_tool(&self, name: &str) -> Result<&BoundTool, String> {
        self.tools.iter().find(|tool| tool.spec.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
            format!("no tool {name} in this session; available tools: {}", names.join(", "))
        })
    }
}

#[async_trait]
impl Toolbox for SessionToolbox {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn run(&self, call: &ToolCall) -> ToolOutput {
        let input = call.input.to_value();
        let output =
            match self.find_tool(&call.name).and_then(|bound| bound.schema.check(&input).map(|()| bound)) {
                Ok(bound) => bound.tool.run(&input).await,
                Err(why) => ToolOutput::error(why),
            };
        self.secrets.scrub_output(output)
    }

    fn check(&self, call: &ToolCall) -> Result<(), String> {
        self.find_tool(&call.name)?.schema.check(&call.input.to_value())
    }
}

fn read_allowlist(grant: &ToolGrant) -> Result<Allowlist, ToolError> {
    Allowlist::read(&grant.allowed_commands).map_err(|(pattern, why)| ToolError::Invalid {
        what: format!("the allowed command {pattern:?}"),
        why,
    })
}

fn no_directory(dir: &Path, why: &str) -> ToolError {
    ToolError::NoDirectory { dir: dir.display().to_string(), why: why.to_owned() }
}

/// Encode a name as a directory name. Different names stay different on every file system.
fn directory_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let encode =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("={byte:02x}") };
    name.bytes().map(encode).collect()
}

/// Create a directory that only the owner can enter. Fails if the path is a link.
fn create_private_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = std::fs::symlink_metadata(dir)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a link"));
    }
    if found.permissions().mode() & 0o777 != 0o700 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_have_different_directories_on_every_file_system() {
        assert_eq!(directory_name("acme-1"), "acme-1");
        assert_eq!(directory_name("Acme"), "=41cme");
        assert_eq!(directory_name("a.b:c@d"), "a=2eb=3ac=40d");
    }
}
