//! Selects the session of a chat: a named session, the latest session of this directory, or a new session with a
//! frozen agent.

use std::collections::BTreeMap;

use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ModelChanged};
use sapwood::core::port::store::ListFilter;
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::sessions::StartOptions;
use sapwood::{OpenOptions, SessionId};

use crate::app::App;
use crate::cmd::new::directory;
use crate::failure::{Failure, Result};

/// The most recently updated session of this directory.
pub async fn latest_here(app: &App) -> Result<SessionId> {
    let cwd = Some(directory(None)?);
    let filter = ListFilter { cwd, limit: 1, ..ListFilter::default() };
    let latest = app.engine.directory().first_listed(&app.scope, filter).await?.into_iter().next();
    latest.map(|summary| summary.id).ok_or_else(|| {
        Failure::new("session.not_found", "this directory has no session to resume").with_hint(
            "run `sapwood chat` to start one, or `sapwood ls` to list the sessions of other directories",
        )
    })
}

/// Options for a session that does not exist yet.
#[derive(Debug, Clone)]
pub struct SessionTemplate {
    pub agent: Agent,
    pub variables: BTreeMap<String, String>,
}

impl SessionTemplate {
    /// Create the session and freeze the agent into it.
    pub async fn start(self, app: &App) -> Result<SessionId> {
        let open = OpenOptions { cwd: Some(directory(None)?), ..OpenOptions::default() };
        let (agent, variables) = (self.agent, self.variables);
        let options = StartOptions { open, agent, variables, ..StartOptions::default() };
        Ok(app.engine.sessions().start(&app.scope, options).await?.0)
    }
}

/// Set the model for the session's next turns. Fails if the model cannot be called. Returns its full name.
pub async fn change_model(app: &App, session: &SessionId, model: &str) -> Result<String> {
    let model = app.engine.configuration().callable_model(model)?;
    let changed = Body::ModelChanged(ModelChanged { model: model.clone() });
    let options = InjectOptions { audited: Some("settings"), ..InjectOptions::default() };
    app.engine.edits().inject(&app.scope, session, vec![changed], options).await?;
    Ok(model)
}
