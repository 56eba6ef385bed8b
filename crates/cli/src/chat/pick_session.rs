//! Which session is talked to: one that was named, the last one of this directory, or a new one with a frozen agent.

use std::collections::BTreeMap;

use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ModelChanged};
use sapwood::core::port::store::ListFilter;
use sapwood::engine::turn::StartOptions;
use sapwood::engine::write::InjectOptions;
use sapwood::{OpenOptions, SessionId};

use crate::app::App;
use crate::cmd::new::directory;
use crate::failure::{Failure, Result};

/// The session of this directory that was written to last.
pub async fn latest_here(app: &App) -> Result<SessionId> {
    let cwd = Some(directory(None)?);
    let filter = ListFilter { cwd, limit: 1, ..ListFilter::default() };
    let latest = app.engine.first_listed(&app.scope, filter).await?.into_iter().next();
    latest.map(|summary| summary.id).ok_or_else(|| {
        Failure::new("session.not_found", "this directory has no session to go on with")
            .with_hint("sapwood chat begins one; sapwood ls shows those of other directories")
    })
}

/// What a session that is still to be made begins with.
#[derive(Debug, Clone)]
pub struct Opening {
    pub agent: Agent,
    pub variables: BTreeMap<String, String>,
}

impl Opening {
    /// Begins a session with the agent, which is frozen into it.
    pub async fn start(self, app: &App) -> Result<SessionId> {
        let open = OpenOptions { cwd: Some(directory(None)?), ..OpenOptions::default() };
        let (agent, variables) = (self.agent, self.variables);
        let options = StartOptions { open, agent, variables, ..StartOptions::default() };
        Ok(app.engine.start(&app.scope, options).await?.0)
    }
}

/// Another model answers from now on.
pub async fn change_model(app: &App, session: &SessionId, model: &str) -> Result<()> {
    let changed = Body::ModelChanged(ModelChanged { model: model.to_owned() });
    let options = InjectOptions { audited: Some("settings"), ..InjectOptions::default() };
    app.engine.inject(&app.scope, session, vec![changed], options).await?;
    Ok(())
}
