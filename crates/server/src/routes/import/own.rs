//! Import of Sapwood's own format. Concatenated exports are imported as one session each.

use sapwood::engine::import::OwnImport;
use sapwood::formats::import::{Format, LineSplitter};

use super::response::ImportedSessions;
use super::upload::Upload;
use crate::problem::{Problem, Result};
use crate::wire;

/// Maximum number of sessions per file, because the response has an item for each.
const SESSIONS_MAX: usize = 10_000;

pub async fn import_lines(upload: &mut Upload<'_>, mut import: OwnImport) -> Result<Vec<wire::Imported>> {
    let (mut imported, mut lines) = (ImportedSessions::new(Format::Sapwood), LineSplitter::default());
    loop {
        let received = upload.next().await;
        if let Ok(Some(bytes)) = &received {
            lines.push(bytes, |line, number| import.push_line(line, number));
            add_ended(&mut import, &mut imported).await?;
            if import.store_if_full().await {
                upload.release_stored(lines.held_bytes() + import.held_bytes());
            }
            if import.is_given_up() {
                upload.discard_rest().await;
            }
            continue;
        }
        // If the upload was interrupted, the entries before the interruption are still stored.
        if received.is_ok() {
            lines.finish(|line, number| import.push_line(line, number));
        }
        add_ended(&mut import, &mut imported).await?;
        imported.add(import.finish().await)?;
        return received.map(|_| imported.items);
    }
}

async fn add_ended(import: &mut OwnImport, imported: &mut ImportedSessions) -> Result<()> {
    while let Some(report) = import.next_report().await {
        imported.add(report)?;
        if imported.items.len() >= SESSIONS_MAX {
            let detail = format!(
                "a file may contain at most {SESSIONS_MAX} sessions: only the first {SESSIONS_MAX} were imported"
            );
            return Err(Problem::new("input.too_large", detail));
        }
    }
    Ok(())
}
