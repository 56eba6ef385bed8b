//! Flows: graphs of roles that hand work to each other. `docs/spec/flows.md` describes them. This module also loads
//! flows from files and writes role files. No other module of the façade accesses the disk itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use sapwood_core::{Agent, BlobHash};
use sapwood_formats::workflow::readings::{INDEX_DEFAULT, parse_index};
use sapwood_formats::workflow::{self, Document, OwnAgents, Readings, RequiredReadings};

pub use sapwood_core::flow::Mistake;
pub use sapwood_core::flow::graph::{
    Consent, Edge, EdgeKind, Feedback, Flow, FlowRole, HandoffBy, Improvement, Join, Node, NodeKind, Order,
    Route,
};
pub use sapwood_core::flow::state::Ended;
pub use sapwood_core::flow::{EdgeStatus, NodeStatus, Phase, RunOutcome};
pub use sapwood_engine::flow::{
    EdgeView, FlowReport, NodeView, ResultView, RoleFileSink, RunList, RunRow, RunStatus, RunView,
    RunningFlow, StartFlow,
};
pub use sapwood_formats::workflow::WorkflowError;

use crate::{Error, Result, Sapwood, SessionId};

/// Default name of the file of required readings, in the directory of the flow.
const READINGS_DEFAULT: &str = "required-readings.yaml";
/// Maximum size of a required reading, in bytes.
const READING_BYTES_MAX: u64 = 1 << 20;

/// An error while loading the files of a flow.
#[derive(Debug)]
pub enum FlowFileError {
    /// A file cannot be read.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The flow, its required readings or their index cannot be parsed.
    Workflow(WorkflowError),
    /// All errors in the flow.
    Mistakes {
        /// The flow's id.
        flow: String,
        /// The errors, and where they are in the flow.
        mistakes: Vec<Mistake>,
    },
}

impl FlowFileError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        match self {
            FlowFileError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                "file.not_found"
            }
            FlowFileError::Io { .. } => "file.io",
            FlowFileError::Workflow(error) => error.code(),
            FlowFileError::Mistakes { .. } => "flow.invalid",
        }
    }
}

impl std::fmt::Display for FlowFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FlowFileError::Io { path, source } => write!(f, "{}: {source}", path.display()),
            FlowFileError::Workflow(error) => error.fmt(f),
            FlowFileError::Mistakes { flow, mistakes } => {
                Error::Flow { flow: flow.clone(), mistakes: mistakes.clone() }.fmt(f)
            }
        }
    }
}

impl std::error::Error for FlowFileError {}

impl From<WorkflowError> for FlowFileError {
    fn from(error: WorkflowError) -> Self {
        FlowFileError::Workflow(error)
    }
}

/// Load a flow with the required readings of its roles. `known` resolves agents that the file does not
/// define. All errors, including missing readings, are reported here, before anything runs.
pub fn load_flow(path: &Path, known: impl Fn(&str) -> Option<Agent>) -> Result<Flow, FlowFileError> {
    load_flow_with(path, BTreeMap::new(), known)
}

/// Like [`load_flow`], with values for `{{ctx.NAME}}` in prompts. They override those in the file.
pub fn load_flow_with(
    path: &Path,
    variables: BTreeMap<String, String>,
    known: impl Fn(&str) -> Option<Agent>,
) -> Result<Flow, FlowFileError> {
    let document = workflow::parse(&read(path)?)?;
    let mut mistakes = Vec::new();
    let readings = load_readings(path, &document, &mut mistakes)?;
    let mut flow = workflow::flow_of(&document, &readings, OwnAgents::Use, known)?;
    flow.variables.extend(variables);
    let is_about_reading = |mistake: &Mistake| mistake.why.starts_with("the required reading");
    // The missing readings were already reported with their paths.
    let has_missing_readings = !mistakes.is_empty();
    mistakes.extend(
        flow.mistakes().into_iter().filter(|mistake| !(has_missing_readings && is_about_reading(mistake))),
    );
    if mistakes.is_empty() { Ok(flow) } else { Err(FlowFileError::Mistakes { flow: flow.id, mistakes }) }
}

fn read(path: &Path) -> Result<String, FlowFileError> {
    std::fs::read_to_string(path).map_err(|source| FlowFileError::Io { path: path.to_owned(), source })
}

fn load_readings(
    flow: &Path,
    document: &Document,
    mistakes: &mut Vec<Mistake>,
) -> Result<Readings, FlowFileError> {
    let base = flow.parent().unwrap_or(Path::new("."));
    let named = document.workflow.required_readings.as_ref().map(|named| base.join(named));
    let beside = Some(base.join(READINGS_DEFAULT)).filter(|path| path.is_file());
    let own = document.workflow.nodes.iter().flat_map(|node| &node.required_readings);
    let own = own.chain(document.workflow.roles.iter().flat_map(|role| &role.required_readings));
    let Some(file) = named.or(beside) else { return Ok(Readings::default()) };
    let required = RequiredReadings::parse(&read(&file)?)?;
    let folder = file.parent().unwrap_or(base);
    let index_path = folder.join(required.index.as_deref().unwrap_or(INDEX_DEFAULT));
    let index = parse_index(&read(&index_path)?)?;
    let mut texts = BTreeMap::new();
    for name in required.names().into_iter().chain(own) {
        let mut missing = |why: String| mistakes.push(Mistake { place: format!("reading {name}"), why });
        let Some(listed_path) = index.get(name) else {
            missing(format!("not listed in {}", index_path.display()));
            continue;
        };
        let path = index_path.parent().unwrap_or(base).join(listed_path);
        match std::fs::metadata(&path).and_then(|meta| Ok((meta.len(), std::fs::read_to_string(&path)?))) {
            Ok((bytes, _)) if bytes > READING_BYTES_MAX => {
                missing(format!("{} has {bytes} bytes; the limit is {READING_BYTES_MAX}", path.display()));
            }
            Ok((_, text)) => drop(texts.insert(name.clone(), text)),
            Err(error) => missing(format!("{}: {error}", path.display())),
        }
    }
    Ok(Readings { required, texts })
}

/// Role files in a directory: `DIR/FLOW/RUN/roles/ROLE/transcript.json` and `feed.json`, each replaced
/// atomically.
#[derive(Debug, Clone)]
pub struct RoleFiles {
    dir: PathBuf,
}

impl RoleFiles {
    /// Write role files below this directory.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory of a role's files.
    pub fn folder(&self, flow: &str, run: &str, role: &str) -> PathBuf {
        self.dir.join(path_component(flow)).join(path_component(run)).join("roles").join(path_component(role))
    }
}

impl RoleFileSink for RoleFiles {
    fn write(&self, flow: &str, run: &str, role: &str, name: &str, text: &str) -> std::io::Result<()> {
        let folder = self.folder(flow, run, role);
        std::fs::create_dir_all(&folder)?;
        let temporary = folder.join(format!(".{name}.tmp"));
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        std::fs::rename(&temporary, folder.join(name))
    }
}

/// Maximum length of a path component, in bytes. Most file systems allow 255.
const NAME_BYTES_MAX: usize = 200;

/// Turn any name into a safe path component. A long name is truncated and gets a hash suffix to stay unique.
fn path_component(name: &str) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let text: String = name.chars().map(|letter| if safe(letter) { letter } else { '_' }).collect();
    if text.len() > NAME_BYTES_MAX {
        let hash = BlobHash::of(name.as_bytes()).to_string();
        return format!("{}-{}", &text[..NAME_BYTES_MAX - 17], &hash[..16]);
    }
    if text.chars().all(|letter| letter == '.') { "_".to_owned() } else { text }
}

/// Operations on flows.
impl Sapwood {
    /// Start a run of a flow. It continues even if no caller waits for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use sapwood::Sapwood;
    /// use sapwood::flow::{RunOutcome, StartFlow, load_flow};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let file = dir.path().join("flow.yaml");
    /// std::fs::write(&file, "
    /// schema_version: '1.0'
    /// workflow:
    ///   id: note
    ///   agents: [{id: writer, model: demo}]
    ///   nodes:
    ///     - {id: input, type: input}
    ///     - {id: write, type: agent, agent_ref: writer, prompt_template: 'Write about {{input}}.'}
    ///     - {id: output, type: output}
    ///   edges: [{from: input, to: write}, {from: write, to: output}]
    /// ")?;
    /// let flow = load_flow(&file, |_| None)?;
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let report = sapwood.run_flow(flow.clone(), "harbours").await?;
    /// assert_eq!(report.ended.expect("nothing waits").outcome, RunOutcome::Completed);
    /// assert!(sapwood.resume_flow(&report.run).await?.is_none()); // it has ended
    ///
    /// let start = StartFlow { flow, input: "tides".into(), ..StartFlow::default() };
    /// let running = sapwood.start_flow(start).await?;
    /// let run = running.run.clone();
    /// sapwood.cancel_flow(&run).await?;
    /// running.ended().await?;
    /// println!("{:?}", sapwood.show_flow(&run).await?.status);
    /// assert_eq!(sapwood.list_flows(10).await?.items.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_flow(&self, start: StartFlow) -> Result<RunningFlow> {
        self.engine.flows().start(&self.scope, start).await
    }

    /// Run a flow until it ends or waits for answers. Example: [`start_flow`](Sapwood::start_flow).
    pub async fn run_flow(&self, flow: Flow, input: impl Into<String>) -> Result<FlowReport> {
        let start = StartFlow { flow, input: input.into(), ..StartFlow::default() };
        self.start_flow(start).await?.ended().await
    }

    /// Resume a run that was interrupted, is waiting, or failed; `None` if there is nothing to resume. Example:
    /// [`start_flow`](Sapwood::start_flow).
    pub async fn resume_flow(&self, run: &SessionId) -> Result<Option<FlowReport>> {
        match self.engine.flows().resume(&self.scope, run).await? {
            Some(running) => Ok(Some(running.ended().await?)),
            None => Ok(None),
        }
    }

    /// Request cancellation of a run, even if another process executes it. If no process does, the run has
    /// ended when this call returns. Example: [`start_flow`](Sapwood::start_flow).
    pub async fn cancel_flow(&self, run: &SessionId) -> Result<()> {
        if let Some(running) = self.engine.flows().cancel(&self.scope, run).await? {
            running.ended().await?;
        }
        Ok(())
    }

    /// A run with its graph and the state of each node. Example: [`start_flow`](Sapwood::start_flow).
    pub async fn show_flow(&self, run: &SessionId) -> Result<RunView> {
        self.engine.flows().show(&self.scope, run).await
    }

    /// The newest runs. Example: [`start_flow`](Sapwood::start_flow).
    pub async fn list_flows(&self, limit: usize) -> Result<RunList> {
        self.engine.flows().list(&self.scope, limit, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_become_unique_path_components() {
        let long = "a".repeat(300);
        let names =
            [path_component(&long), path_component(&format!("{long}b")), path_component(&"ä".repeat(300))];
        assert!(names.iter().all(|name| name.len() <= NAME_BYTES_MAX), "{names:?}");
        assert_ne!(names[0], names[1]);
        assert_eq!(path_component(&long[..NAME_BYTES_MAX]), long[..NAME_BYTES_MAX]);
    }
}
