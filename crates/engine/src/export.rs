//! Export sessions: read the data for exporters from the store, and append the entry that records an export.

use std::collections::{BTreeMap, HashMap};

use sapwood_core::entry::{Body, Draft, Exported};
use sapwood_core::port::store::{Append, PathSlice, StoreError, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::project::turn_outcomes::TurnOutcomes;
use sapwood_core::settings::Settings;
use sapwood_core::{BlobHash, Json, Kind, Part, Scope, SessionId};
use sapwood_formats::export::{html, markdown, messages};
use sapwood_formats::workflow::{self, SessionToExport};

use crate::views::Views;
use crate::{EngineError, Result};

/// Maximum number of media bytes embedded in one page or document.
pub const MEDIA_BYTES_MAX: usize = 64 << 20;

/// Maximum number of sources of a fork whose turns are read.
const SOURCES_MAX: usize = 1_000;

/// Formats that render the whole active path or context as one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// A role's `transcript.json`.
    RoleFiles,
    /// A role's `feed.json`.
    RoleFeed,
    Messages,
    MessagesAnthropic,
    Markdown,
    Html,
    Workflow,
}

impl Views<'_> {
    /// Render a session as one page or document.
    pub async fn page(self, scope: &Scope, summary: &Summary, format: PageFormat) -> Result<String> {
        match format {
            PageFormat::Messages | PageFormat::MessagesAnthropic => {
                self.export_messages(scope, &summary.id, format).await
            }
            PageFormat::RoleFiles => self.engine.flows().role_transcript(scope, summary, None).await,
            PageFormat::RoleFeed => self.engine.flows().role_feed(scope, &summary.id).await,
            PageFormat::Workflow => self.export_workflow(scope, summary).await,
            PageFormat::Markdown => Ok(markdown::page(summary, &self.configured_path(scope, summary).await?)),
            PageFormat::Html => {
                let path = self.configured_path(scope, summary).await?;
                let blobs: Vec<_> = path.iter().flat_map(|entry| entry.body.blobs()).collect();
                Ok(html::page(summary, &path, &self.media_of(scope, blobs).await?))
            }
        }
    }

    /// The session's completed turns as a workflow, with the agent that the session runs with and its variables. An
    /// imported agent is not included: a workflow runs its agents, and an import must not choose them.
    async fn export_workflow(self, scope: &Scope, summary: &Summary) -> Result<String> {
        let slice = self.engine.store.read_path(scope, &summary.id, None, Until::Root).await?;
        let outcomes = self.turn_outcomes(scope, summary, &slice).await?;
        let config = self.engine.configuration().current_config(scope, summary).await?;
        let agent: Option<Json> = config.as_ref().map(|config| config.agent.to_frozen());
        let variables: BTreeMap<String, String> = match config {
            Some(config) => config.context.variables,
            None => settings_of(&slice).variables,
        };
        let session = SessionToExport {
            summary,
            path: &slice.entries,
            outcomes: &outcomes,
            agent: agent.as_ref(),
            variables: &variables,
        };
        Ok(workflow::serialise(&workflow::of_session(session).document))
    }

    /// How the turns of a path ended, including the turns that a fork shares with its sources.
    pub(crate) async fn turn_outcomes(
        self,
        scope: &Scope,
        summary: &Summary,
        slice: &PathSlice,
    ) -> Result<TurnOutcomes> {
        let mut outcomes = TurnOutcomes::of_slice(slice);
        if self.engine.turns().is_interrupted_import(scope, summary).await? {
            outcomes.set_ends_interrupted();
        }
        let mut source = summary.parent.clone().filter(|_| slice.inherited > 0);
        for _ in 0..SOURCES_MAX {
            let Some(lineage) = source.take() else { break };
            match self.engine.store.summary(scope, &lineage.session).await {
                Ok(found) => source = found.parent,
                Err(StoreError::NoSession { .. }) => {
                    outcomes.set_unknown_up_to(slice.inherited);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            let ended = |entry: sapwood_core::Entry| {
                if let (Body::TurnEnded(ended), Some(turn)) = (&entry.body, entry.meta.turn) {
                    outcomes.add(turn, ended.outcome);
                }
            };
            self.engine.log().each_of_kinds(scope, &lineage.session, &[Kind::TurnEnded], ended).await?;
        }
        Ok(outcomes)
    }

    /// The messages that a model would receive.
    async fn export_messages(self, scope: &Scope, session: &SessionId, format: PageFormat) -> Result<String> {
        let context = self.context(scope, session, None).await?;
        let parts = context.messages.iter().flat_map(|message| &message.parts);
        let media = parts.filter_map(|part| match part {
            Part::Media(media) => Some(media.blob),
            _ => None,
        });
        let media = self.media_of(scope, media.collect::<Vec<_>>()).await?;
        let value = match format {
            PageFormat::MessagesAnthropic => messages::anthropic(&context, &media),
            _ => messages::openai(&context, &media),
        };
        Ok(format!("{value:#}\n"))
    }

    /// The media that entries refer to, up to a limit. Erased media and media over the limit are left out.
    pub async fn media_of(
        self,
        scope: &Scope,
        blobs: impl IntoIterator<Item = BlobHash>,
    ) -> Result<HashMap<BlobHash, Vec<u8>>> {
        let (mut found, mut bytes) = (HashMap::new(), 0);
        for blob in blobs {
            if found.contains_key(&blob) {
                continue;
            }
            match self.engine.store.blob_size(scope, blob).await {
                Ok(size) if bytes + size <= MEDIA_BYTES_MAX as u64 => {
                    bytes += size;
                    found.insert(blob, self.engine.store.get_blob(scope, blob).await?);
                }
                Ok(_) | Err(StoreError::NoBlob { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Append an entry that notifies followers of the export, unless the caller lacks write access or the session is
    /// archived. [`Views::record_export`] writes the audit line.
    pub async fn mark_exported(
        self,
        scope: &Scope,
        session: &SessionId,
        format: &str,
        entries: u32,
    ) -> Result<()> {
        let now = self.engine.clock.now();
        let draft = Draft::new(now, Exported { format: format.to_owned(), entries });
        match self.engine.log().append(scope, Append::new(session.clone(), now, vec![draft])).await {
            Ok(_) | Err(EngineError::Store(StoreError::Denied { .. } | StoreError::Archived { .. })) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The settings at the end of a path.
fn settings_of(slice: &PathSlice) -> Settings {
    let mut settings = slice.settings_before.clone();
    slice.entries.iter().for_each(|entry| settings.apply(&entry.body));
    settings
}
