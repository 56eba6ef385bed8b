//! Selects the session of a chat: a named session, the latest session of this directory, or a new session with a
//! frozen agent.

use sapwood::core::agent::Agent;
use sapwood::core::entry::{Body, ModelChanged, SessionContext, SessionState};
use sapwood::core::port::store::ListFilter;
use sapwood::engine::edits::InjectOptions;
use sapwood::engine::sessions::StartOptions;
use sapwood::{OpenOptions, SessionId};

use crate::app::App;
use crate::cmd::new::directory;
use crate::failure::{Failure, Result};

/// Sessions read at a time to find the latest one.
const PAGE_SESSIONS: usize = 20;

/// The most recently updated session of this user in this directory. Archived sessions are skipped, because they accept
/// no messages.
pub async fn latest_here(app: &App) -> Result<SessionId> {
    let (cwd, owner) = (Some(directory(None)?), Some(app.scope.principal.clone()));
    let filter = ListFilter { cwd, owner, limit: PAGE_SESSIONS, ..ListFilter::default() };
    latest_unarchived(app, filter).await?.ok_or_else(|| {
        Failure::new("session.not_found", "this directory has no session to resume").with_hint(
            "run `sapwood chat` to start one, or `sapwood ls` to list the sessions of other directories",
        )
    })
}

async fn latest_unarchived(app: &App, mut filter: ListFilter) -> Result<Option<SessionId>> {
    loop {
        let page = app.engine.directory().list(&app.scope, &filter).await?;
        let open = page.items.into_iter().find(|summary| summary.state != SessionState::Archived);
        if open.is_some() || page.next.is_none() {
            return Ok(open.map(|summary| summary.id));
        }
        filter.cursor = page.next;
    }
}

/// Options for a session that does not exist yet.
#[derive(Debug, Clone)]
pub struct SessionTemplate {
    pub agent: Agent,
    pub context: SessionContext,
}

impl SessionTemplate {
    /// Create the session and freeze the agent into it.
    pub async fn start(self, app: &App) -> Result<SessionId> {
        let open = OpenOptions { cwd: self.context.working_dir.clone(), ..OpenOptions::default() };
        let (agent, context) = (self.agent.interactive(), self.context);
        let options = StartOptions { open, agent, context, ..StartOptions::default() };
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
