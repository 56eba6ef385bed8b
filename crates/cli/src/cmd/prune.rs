//! `sapwood prune`: removes old messages from the context of inactive sessions. The log keeps them.

use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use sapwood::core::port::store::{ListFilter, PAGE_ROWS_MAX};
use sapwood::engine::compact::{PRUNE_KEEP_LAST, Pruned, Pruning, Writing};
use serde_json::json;

use crate::app::App;
use crate::failure::Result;
use crate::number_arg::count;
use crate::render::{note, plural};
use crate::time_arg::duration_ms;

/// Remove old messages from the context of inactive sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood prune @last --inactive-for 30d
  sapwood prune --all --inactive-for 30d --dry-run")]
pub struct PruneArgs {
    /// Session id, unique prefix, or @last
    #[arg(required_unless_present = "all")]
    session: Option<String>,
    /// Prune every session that has been inactive for this long
    #[arg(long, conflicts_with = "session")]
    all: bool,
    /// Minimum time since the last write: 30d, 12h, 45m, 10s
    #[arg(long, value_name = "TIME", value_parser = duration_ms, allow_hyphen_values = true)]
    inactive_for: i64,
    /// Number of recent messages to keep; default: 12
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    keep_last: Option<u32>,
    /// Show what would change, without changing it
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(app: &mut App, args: PruneArgs) -> Result<()> {
    let pruning = Pruning {
        inactive_for_ms: args.inactive_for,
        keep_last: args.keep_last.map_or(PRUNE_KEEP_LAST, |count| count as usize),
        writing: if args.dry_run { Writing::DryRun } else { Writing::Write },
    };
    match &args.session {
        Some(given) => {
            let session = app.session(given).await?;
            let pruned = app.engine.compaction().prune(&app.scope, &session, pruning).await?;
            print_pruned(app, &session, &pruned, args.dry_run)
        }
        None => prune_all(app, pruning, args.dry_run).await,
    }
}

/// Prunes every inactive session. Skips sessions that cannot be pruned, such as archived sessions and sessions of other
/// users.
async fn prune_all(app: &mut App, pruning: Pruning, is_dry: bool) -> Result<()> {
    let (mut cursor, mut count) = (None, 0);
    loop {
        let filter = ListFilter { limit: PAGE_ROWS_MAX, cursor, ..ListFilter::default() };
        let page = app.engine.directory().list(&app.scope, &filter).await?;
        for summary in page.items {
            match app.engine.compaction().prune(&app.scope, &summary.id, pruning).await {
                Ok(pruned) if pruned.removed == 0 => {}
                Ok(pruned) => {
                    count += 1;
                    print_pruned(app, &summary.id, &pruned, is_dry)?;
                }
                Err(error) => note(app.format(), &format!("skipped session {}: {error}", summary.id)),
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if count == 0 && !app.out.is_json() {
        writeln!(app.out, "nothing to prune: no inactive session has messages to remove")?;
    }
    Ok(())
}

fn print_pruned(app: &mut App, session: &SessionId, pruned: &Pruned, is_dry: bool) -> Result<()> {
    if app.out.is_json() {
        let mut line = json!({
            "session": session, "kept": pruned.kept, "archived": pruned.removed, "idle_ms": pruned.idle_ms,
            "tokens_before": pruned.tokens_before, "tokens_after": pruned.tokens_after,
        });
        if is_dry {
            line["dry_run"] = json!(true);
        }
        return app.out.json(&line);
    }
    let (kept, would) =
        (plural(pruned.kept as u64, "message"), if is_dry { "would be removed" } else { "removed" });
    match pruned.removed {
        0 => Ok(writeln!(app.out, "nothing to prune: {kept} in the context")?),
        removed => {
            let removed = plural(removed as u64, "message");
            Ok(writeln!(app.out, "{session}: {removed} {would} from the context, {kept} kept")?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::duration_ms;

    #[test]
    fn a_duration_requires_a_unit() {
        assert_eq!(duration_ms("30d"), Ok(30 * 86_400_000));
        assert_eq!(duration_ms("0s"), Ok(0));
        for wrong in ["30", "d", "-1d", "3 d", "9223372036854775807w"] {
            assert!(duration_ms(wrong).is_err(), "{wrong}");
        }
    }
}
