//! Export sessions: read the data for exporters from the store, and append the entry that records an export.

use std::collections::HashMap;

use sapwood_core::entry::{Draft, Exported};
use sapwood_core::port::store::{Append, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Part, Scope, SessionId};
use sapwood_formats::export::{html, markdown, messages, role_files};
use sapwood_formats::workflow;

use crate::views::Views;
use crate::{EngineError, Result};

/// Maximum number of media bytes embedded in one page or document.
pub const MEDIA_BYTES_MAX: usize = 64 << 20;

/// Formats that render the whole active path or context as one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    RoleFiles,
    Messages,
    MessagesAnthropic,
    Markdown,
    Html,
    Workflow,
}

impl Views<'_> {
    /// Render a session as one page or document.
    pub async fn page(self, scope: &Scope, summary: &Summary, format: PageFormat) -> Result<String> {
        if matches!(format, PageFormat::Messages | PageFormat::MessagesAnthropic) {
            return self.export_messages(scope, &summary.id, format).await;
        }
        let path = self.path(scope, &summary.id, None).await?;
        Ok(match format {
            PageFormat::RoleFiles => format!("{:#}\n", role_files::transcript(summary, &path)),
            PageFormat::Markdown => markdown::page(summary, &path),
            PageFormat::Html => {
                let blobs: Vec<_> = path.iter().flat_map(|entry| entry.body.blobs()).collect();
                html::page(summary, &path, &self.media_of(scope, blobs).await?)
            }
            PageFormat::Workflow | PageFormat::Messages | PageFormat::MessagesAnthropic => {
                workflow::serialise(&workflow::of_session(summary, &path).document)
            }
        })
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
