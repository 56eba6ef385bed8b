//! Reading a path: from an entry upwards, as far as a context needs it.

use std::ops::ControlFlow;

use sapwood_core::entry::{Body, Outcome, Stance};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::settings_at;
use sapwood_core::view::Settings;
use sapwood_core::{EntryId, Kind, Record, Seq, SessionId, TurnId};

use super::log::LogRows;
use crate::rules::{beside_tree, no_entry};

pub(super) fn read_path(
    log: &mut LogRows<'_>,
    summary: &Summary,
    at: Option<Seq>,
    until: Until,
) -> Result<PathSlice> {
    if let Some(at) = at {
        check_in_tree(log, &summary.id, at)?;
    }
    let records = match at.or(summary.head.leaf) {
        Some(from) => collect(log, from, until)?,
        None => Vec::new(),
    };
    let above = records.first().and_then(|record| record.meta.parent);
    Ok(PathSlice {
        head: summary.head,
        inherited: summary.inherited,
        settings_before: above.map(|above| settings_at(above, log)).transpose()?.unwrap_or_else(Settings::default),
        ended_turns: ended_turns(log, &records)?,
        open_turn: summary.open_turn,
        records,
    })
}

/// Refuses an entry that is not there, or that no path leads to.
pub(super) fn check_in_tree(log: &mut LogRows<'_>, session: &SessionId, seq: Seq) -> Result<()> {
    let record = log.record(seq)?.ok_or_else(|| no_entry(session, seq))?;
    match record.meta.kind.stance() {
        Stance::InTree => Ok(()),
        Stance::Beside => Err(beside_tree(seq, record.meta.kind)),
    }
}

fn collect(log: &mut LogRows<'_>, from: Seq, until: Until) -> Result<Vec<Record>> {
    let desk = log.desk;
    let mut records = Vec::new();
    let mut goal = Goal::Searching;
    log.walk(from, &mut |step| {
        let record = step.record(desk)?;
        let flow = match until {
            Until::Root => ControlFlow::Continue(()),
            Until::Entries(count) if records.len() + 1 >= count as usize => ControlFlow::Break(()),
            Until::Entries(_) => ControlFlow::Continue(()),
            Until::ContextStart => {
                if record.meta.kind == Kind::Compaction && goal == Goal::Searching {
                    let body = record.decode().map_err(|error| desk.damaged(error.to_string()))?;
                    goal = Goal::of(&body);
                }
                if goal == Goal::Reached || goal == Goal::Kept(record.meta.id) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            }
        };
        records.push(record);
        Ok(flow)
    })?;
    records.reverse();
    Ok(records)
}

/// What a walk towards the context's start looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The latest compaction.
    Searching,
    /// The oldest entry that the compaction keeps.
    Kept(EntryId),
    /// The compaction keeps nothing before itself.
    Reached,
}

impl Goal {
    fn of(body: &Body) -> Self {
        match body {
            Body::Compaction(compaction) => compaction.first_kept.map_or(Goal::Reached, Goal::Kept),
            _ => Goal::Searching,
        }
    }
}

/// How the turns ended that the path's own entries belong to.
fn ended_turns(log: &LogRows<'_>, records: &[Record]) -> Result<Vec<(TurnId, Outcome)>> {
    let own = records.iter().find(|record| record.meta.seq.0 > log.inherited && record.meta.turn.is_some());
    let Some(first) = own else { return Ok(Vec::new()) };
    let mut ended = Vec::new();
    let mut after = first.meta.seq;
    loop {
        let page = log.read_kind(Kind::TurnEnded, after, PAGE_ROWS_MAX)?;
        for record in &page {
            after = record.meta.seq;
            let body = record.decode().map_err(|error| log.desk.damaged(error.to_string()))?;
            if let (Some(turn), Body::TurnEnded(body)) = (record.meta.turn, body) {
                ended.push((turn, body.outcome));
            }
        }
        if page.len() < PAGE_ROWS_MAX {
            return Ok(ended);
        }
    }
}
