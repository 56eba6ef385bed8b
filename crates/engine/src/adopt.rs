//! Take over the agent of an imported session. What an import names is information until its owner adopts it here.

use std::collections::BTreeMap;

use sapwood_core::agent::Agent;
use sapwood_core::content::Json;
use sapwood_core::entry::{Body, LOG_VERSION, SessionContext};
use sapwood_core::port::store::Appended;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Right, Scope, Seq, SessionId};

use crate::configuration::{Configuration, check_variables, configured_body};
use crate::{EngineError, Result};

/// The agent that an imported session names last, with the variables of its prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedAgent {
    /// The agent, with everything that it asks for: tools, programs, scope.
    pub agent: Agent,
    /// The values of the placeholders in its prompt.
    pub variables: BTreeMap<String, String>,
}

impl Configuration<'_> {
    /// The agent that an imported session names last. Nothing runs with it until it is adopted. `None` if the session
    /// names none.
    pub async fn imported_agent(self, scope: &Scope, session: &SessionId) -> Result<Option<ImportedAgent>> {
        let summary = self.engine.store.summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        let (mut agent, mut variables): (Option<Json>, _) = (None, BTreeMap::new());
        let kinds = [Kind::Configured, Kind::ContextChanged];
        let log = self.engine.log();
        log.each_of_kinds_after(scope, session, &kinds, Seq::ZERO, |entry| {
            if authority.is_own(entry.meta.seq) {
                return;
            }
            match entry.body {
                Body::Configured(configured) => {
                    (agent, variables) = (Some(configured.agent), configured.context.variables);
                }
                Body::ContextChanged(changed) => {
                    agent = changed.agent.or(agent.take());
                    variables = changed.variables.unwrap_or(std::mem::take(&mut variables));
                }
                _ => {}
            }
        })
        .await?;
        let Some(agent) = agent else { return Ok(None) };
        Ok(Some(ImportedAgent { agent: Agent::from_frozen(&agent)?, variables }))
    }

    /// Configure an imported session with the agent that its owner has seen. The working directory is the one that a
    /// new session would get: a path of another machine has no meaning here.
    pub async fn adopt(
        self,
        scope: &Scope,
        session: &SessionId,
        imported: ImportedAgent,
    ) -> Result<Appended> {
        self.engine.directory().check_right(scope, session, Right::Own).await?;
        if self.engine.store.log_format().await? < LOG_VERSION {
            return Err(EngineError::FormatTooOld { what: "adopting an agent" });
        }
        if let Some(mistake) = imported.agent.mistakes().into_iter().next() {
            return Err(mistake.into());
        }
        check_variables(&imported.agent, &imported.variables)?;
        self.record_models(scope, session, &imported.agent).await?;
        let scope_of = scope.clone();
        self.engine
            .log()
            .decide(scope, session, "adopt", move |engine, summary| {
                let (scope, imported) = (scope_of.clone(), imported.clone());
                async move { engine.configuration().adopted_bodies(&scope, &summary, imported).await }
            })
            .await
    }

    async fn adopted_bodies(
        self,
        scope: &Scope,
        summary: &Summary,
        imported: ImportedAgent,
    ) -> Result<Vec<Body>> {
        if let Some(config) = self.current_config(scope, summary).await? {
            return Err(EngineError::AlreadyConfigured {
                session: summary.id.clone(),
                agent: config.agent.id,
            });
        }
        let ImportedAgent { agent, variables } = imported;
        let working_dir = self.engine.config.session_defaults.cwd.clone();
        let context = SessionContext { working_dir, variables, ..SessionContext::default() };
        let memories = self.engine.memories().memory_prompt(scope, &agent).await;
        Ok(vec![configured_body(&agent, context, memories).into()])
    }
}
