//! Reads a Markdown or HTML page of a session entry by entry, so that the page is never in memory as a whole.

use sapwood_core::port::store::StoreError;
use sapwood_core::project::path_runs::PathRuns;
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Entry, Scope};
use sapwood_formats::export::messages::Blobs;
use sapwood_formats::export::{html, markdown};

use crate::export::{MEDIA_BYTES_MAX, PageFormat};
use crate::path_reader::{PathReader, PathStart, walk};
use crate::views::Views;
use crate::{Engine, Result};

enum PageWriter {
    Markdown(markdown::PageWriter),
    Html(html::PageWriter),
}

/// A page that is being read.
pub struct PageReader {
    engine: Engine,
    scope: Scope,
    reader: PathReader,
    writer: PageWriter,
    begin: Option<String>,
    is_over: bool,
    /// Bytes of media that may still be embedded.
    media_bytes: u64,
}

impl Views<'_> {
    /// Read a page entry by entry. `None` for a format that can only be rendered as a whole.
    pub async fn read_page(
        self,
        scope: &Scope,
        summary: &Summary,
        format: PageFormat,
    ) -> Result<Option<PageReader>> {
        let (writer, begin) = match format {
            PageFormat::Markdown => (PageWriter::Markdown(Default::default()), markdown::begin(summary)),
            PageFormat::Html => (PageWriter::Html(Default::default()), html::begin(summary)),
            PageFormat::RoleFiles
            | PageFormat::RoleFeed
            | PageFormat::Messages
            | PageFormat::MessagesAnthropic
            | PageFormat::Workflow => return Ok(None),
        };
        let (engine, session) = (self.engine, &summary.id);
        let walked = match summary.head.leaf {
            Some(leaf) => walk(engine, scope, session, Some(leaf), PathStart::Root, usize::MAX).await?,
            None => Vec::new(),
        };
        Ok(Some(PageReader {
            engine: engine.clone(),
            scope: scope.clone(),
            reader: PathReader::new(engine, scope, session, PathRuns::of_walk(walked)),
            writer,
            begin: Some(begin),
            is_over: false,
            media_bytes: MEDIA_BYTES_MAX as u64,
        }))
    }
}

impl PageReader {
    /// The next part of the page.
    pub async fn next(&mut self) -> Result<Option<String>> {
        if let Some(begin) = self.begin.take() {
            return Ok(Some(begin));
        }
        if self.is_over {
            return Ok(None);
        }
        let Some(entry) = self.reader.next().await? else {
            self.is_over = true;
            return Ok(matches!(self.writer, PageWriter::Html(_)).then(|| html::END.to_owned()));
        };
        let media = match self.writer {
            PageWriter::Markdown(_) => Blobs::new(),
            PageWriter::Html(_) => self.media_of(&entry).await?,
        };
        Ok(Some(match &mut self.writer {
            PageWriter::Markdown(writer) => writer.entry(&entry),
            PageWriter::Html(writer) => writer.entry(&entry, &media),
        }))
    }

    /// The media of an entry, as long as the page has room for them.
    async fn media_of(&mut self, entry: &Entry) -> Result<Blobs> {
        let mut media = Blobs::new();
        for blob in entry.body.blobs() {
            if let Some(bytes) = self.blob(blob).await? {
                media.insert(blob, bytes);
            }
        }
        Ok(media)
    }

    async fn blob(&mut self, blob: BlobHash) -> Result<Option<Vec<u8>>> {
        let store = &self.engine.store;
        match store.blob_size(&self.scope, blob).await {
            Ok(size) if size <= self.media_bytes => {
                self.media_bytes -= size;
                Ok(Some(store.get_blob(&self.scope, blob).await?))
            }
            Ok(_) | Err(StoreError::NoBlob { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Drop the page of the log in memory. The next call reads it again.
    pub fn release(&mut self) {
        self.reader.release();
    }
}
