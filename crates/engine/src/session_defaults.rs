//! Defaults for sessions without a configuration, and the file-backed models that may be called.

use std::collections::BTreeSet;

use sapwood_core::Agent;

/// Defaults for sessions without a configuration.
#[derive(Debug, Clone, Default)]
pub struct SessionDefaults {
    /// `None` if the configured agent cannot be used; turns in imported sessions without an agent are then refused.
    pub agent: Option<Agent>,
    pub cwd: Option<String>,
}

/// Which file-backed models may be called. A model name in a request or an import is not enough, because it could
/// point to any file that the process can read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FileModels {
    /// The process acts for the user who started it: any model that this user named, now or earlier, is
    /// allowed.
    #[default]
    Local,
    /// The process is a server: only models in its operator's configuration and agent files are allowed, and models
    /// that the local command line recorded for the session.
    Named(BTreeSet<String>),
}
