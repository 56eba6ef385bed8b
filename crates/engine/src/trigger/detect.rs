//! Detect that a trigger is due. Every server checks. A firing is appended only if the trigger's log has not
//! changed since it was read, so it is recorded by one server only.

use std::collections::BTreeMap;

use sapwood_core::port::store::StoreError;
use sapwood_core::port::trigger::{Calendar, Watcher};
use sapwood_core::project::event::Event;
use sapwood_core::trigger::{Missed, TriggerCursor, TriggerNote, TriggerState};
use sapwood_core::{Record, Seq, SessionId, TimestampMs};
use serde_json::{Value, json};

use super::{InstalledTrigger, NoteConditions, TriggerSource, Triggers};
use crate::{EngineError, Result};

/// Maximum number of missed times counted per check. A calendar with very frequent times may have missed more.
const MISSED_MAX: usize = 10_000;
/// A scheduled time older than this counts as missed.
const MISSED_AFTER_MS: i64 = 60_000;
/// Poll interval for events of other sessions.
const EVENT_POLL_MS: u64 = 500;
/// Longest wait for a calendar time, because the system clock may be changed.
const CALENDAR_PAUSE_MS_MAX: i64 = 30_000;
/// Entries of another session read per check.
const EVENTS_MAX: usize = 500;
/// Maximum number of files listed in a payload.
const FILES_LISTED_MAX: usize = 100;
/// How long a file must be unchanged before a change counts.
const SETTLE_MS: u64 = 100;

impl Triggers<'_> {
    /// Check once. Returns the milliseconds until the next check, or `None` if none is needed.
    pub(super) async fn detect(
        self,
        installed: &InstalledTrigger,
        log: &SessionId,
        state: &TriggerState,
        seen: &mut Option<Seq>,
    ) -> Result<Option<u64>> {
        let Some(mark) = &state.mark else {
            let armed = TriggerNote::Armed { mark: self.first_mark(installed).await? };
            return self.note_at_head(installed, log, state, &armed).await.map(|()| Some(0));
        };
        match &installed.source {
            TriggerSource::Webhook => Ok(None),
            TriggerSource::Cron { calendar, missed } => {
                let now = self.engine.clock.now();
                let since = mark.time.unwrap_or(now);
                let CalendarCheck { note, pause_ms } = check_calendar(calendar.as_ref(), *missed, since, now);
                if let Some(note) = note {
                    self.note_at_head(installed, log, state, &note).await?;
                }
                Ok(pause_ms)
            }
            TriggerSource::Watch { watcher, poll_ms } => {
                let before = mark.files.clone().unwrap_or_default();
                if let Some(note) = check_files(watcher.as_ref(), &before).await {
                    self.note_at_head(installed, log, state, &note).await?;
                }
                Ok(Some(*poll_ms))
            }
            TriggerSource::Event { session, types } => {
                let after = mark.seq.unwrap_or_default().max(seen.unwrap_or_default());
                match self.check_events(installed, session, types, after).await? {
                    EventCheck::Due(note) => self.note_at_head(installed, log, state, &note).await?,
                    EventCheck::NoMatch(last) => *seen = Some(last),
                    EventCheck::NoEntries => return Ok(Some(EVENT_POLL_MS)),
                }
                Ok(Some(0))
            }
        }
    }

    /// Append a note at the head that was read. On a conflict another server was faster, and the log is read
    /// again.
    async fn note_at_head(
        self,
        installed: &InstalledTrigger,
        log: &SessionId,
        state: &TriggerState,
        note: &TriggerNote,
    ) -> Result<()> {
        let conditions = NoteConditions { head: Some(state.head), ..NoteConditions::default() };
        match self.append_note(&installed.scope, log, note, conditions).await {
            Ok(_) | Err(EngineError::Store(StoreError::Conflict { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn first_mark(self, installed: &InstalledTrigger) -> Result<TriggerCursor> {
        Ok(match &installed.source {
            TriggerSource::Webhook => TriggerCursor::default(),
            TriggerSource::Cron { .. } => {
                TriggerCursor { time: Some(self.engine.clock.now()), ..TriggerCursor::default() }
            }
            TriggerSource::Watch { watcher, .. } => {
                let files = watcher.fingerprints().await.map_err(unwatchable)?;
                TriggerCursor { files: Some(files), ..TriggerCursor::default() }
            }
            TriggerSource::Event { session, .. } => {
                let seq = match self.engine.store.summary(&installed.scope, session).await {
                    Ok(summary) => summary.head.seq,
                    Err(StoreError::NoSession { .. }) => Seq::ZERO,
                    Err(error) => return Err(error.into()),
                };
                TriggerCursor { seq: Some(seq), ..TriggerCursor::default() }
            }
        })
    }

    /// Find the next matching event.
    async fn check_events(
        self,
        installed: &InstalledTrigger,
        session: &SessionId,
        types: &[String],
        after: Seq,
    ) -> Result<EventCheck> {
        let records = match self.engine.store.read_after(&installed.scope, session, after, EVENTS_MAX).await {
            Err(StoreError::NoSession { .. }) => return Ok(EventCheck::NoEntries),
            records => records?,
        };
        let Some(last) = records.last().map(|record| record.meta.seq) else {
            return Ok(EventCheck::NoEntries);
        };
        let found = records.iter().find_map(|record| payload_of(session, record, types));
        Ok(match found {
            Some((payload, seq)) => {
                let mark = Some(TriggerCursor { seq: Some(seq), ..TriggerCursor::default() });
                EventCheck::Due(TriggerNote::Due { payload, mark })
            }
            None => EventCheck::NoMatch(last),
        })
    }
}

/// The result of checking another session.
enum EventCheck {
    NoEntries,
    /// No matching event up to and including this entry.
    NoMatch(Seq),
    Due(TriggerNote),
}

fn unwatchable(why: String) -> EngineError {
    EngineError::Invalid { what: "the files of a trigger", why }
}

/// The payload for an event of a matching type.
fn payload_of(session: &SessionId, record: &Record, types: &[String]) -> Option<(Value, Seq)> {
    let event = Event::of(session, record).ok()?;
    if !types.is_empty() && !types.iter().any(|name| name == event.name) {
        return None;
    }
    let text = record.decode().map(|body| body.text()).unwrap_or_default();
    let payload = json!({
        "type": event.name, "session": session, "seq": event.seq, "at": event.at, "by": event.by,
        "turn": event.turn, "text": sapwood_core::port::hook::event_text(&text),
    });
    Some((payload, record.meta.seq))
}

/// The result of checking the calendar.
struct CalendarCheck {
    note: Option<TriggerNote>,
    pause_ms: Option<u64>,
}

/// Compute the firing due since `since`, without side effects. All times that have passed are combined into one firing.
fn check_calendar(
    calendar: &dyn Calendar,
    missed: Missed,
    since: TimestampMs,
    now: TimestampMs,
) -> CalendarCheck {
    let Some(first) = calendar.next_after(since) else { return CalendarCheck { note: None, pause_ms: None } };
    if first > now {
        let left = (first.0 - now.0).min(CALENDAR_PAUSE_MS_MAX);
        return CalendarCheck { note: None, pause_ms: Some(left.unsigned_abs()) };
    }
    let (mut latest, mut passed) = (first, 1);
    while let Some(next) = calendar.next_after(latest).filter(|next| *next <= now && passed < MISSED_MAX) {
        latest = next;
        passed += 1;
    }
    let mark = TriggerCursor { time: Some(latest), ..TriggerCursor::default() };
    let is_missed = now.0 - latest.0 > MISSED_AFTER_MS;
    let note = match (missed, is_missed) {
        (Missed::Skip, true) => TriggerNote::Armed { mark },
        _ => {
            let payload = json!({"scheduled_at": latest, "passed": passed});
            TriggerNote::Due { payload, mark: Some(mark) }
        }
    };
    CalendarCheck { note: Some(note), pause_ms: Some(0) }
}

/// Detect changed files, once they are stable: a file that is still being written is ignored for now.
async fn check_files(watcher: &dyn Watcher, before: &BTreeMap<String, String>) -> Option<TriggerNote> {
    let now =
        watcher.fingerprints().await.inspect_err(|why| tracing::warn!(%why, "failed to watch files")).ok()?;
    if now == *before {
        return None;
    }
    tokio::time::sleep(std::time::Duration::from_millis(SETTLE_MS)).await;
    let settled = watcher.fingerprints().await.ok()?;
    if settled != now {
        return None;
    }
    let listed =
        |names: Vec<&String>| -> Vec<String> { names.into_iter().take(FILES_LISTED_MAX).cloned().collect() };
    let added = now.keys().filter(|name| !before.contains_key(*name)).collect();
    let removed = before.keys().filter(|name| !now.contains_key(*name)).collect();
    let changed = now.iter().filter(|(name, print)| before.get(*name).is_some_and(|old| old != *print));
    let changed = changed.map(|(name, _)| name).collect();
    let payload = json!({"added": listed(added), "changed": listed(changed), "removed": listed(removed)});
    Some(TriggerNote::Due {
        payload,
        mark: Some(TriggerCursor { files: Some(now), ..TriggerCursor::default() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fires every ten seconds.
    struct Tens;

    impl Calendar for Tens {
        fn next_after(&self, at: TimestampMs) -> Option<TimestampMs> {
            Some(TimestampMs((at.0 / 10_000 + 1) * 10_000))
        }
        fn describe(&self) -> String {
            "tens".to_owned()
        }
    }

    fn check(missed: Missed, since: i64, now: i64) -> (Option<TriggerNote>, Option<u64>) {
        let checked = check_calendar(&Tens, missed, TimestampMs(since), TimestampMs(now));
        (checked.note, checked.pause_ms)
    }

    fn due(time: i64, passed: usize) -> TriggerNote {
        let mark = Some(TriggerCursor { time: Some(TimestampMs(time)), ..TriggerCursor::default() });
        TriggerNote::Due { payload: json!({"scheduled_at": time, "passed": passed}), mark }
    }

    #[test]
    fn fires_when_a_scheduled_time_has_passed() {
        assert_eq!(check(Missed::Once, 0, 9_000), (None, Some(1_000)));
        assert_eq!(check(Missed::Once, 0, 10_001), (Some(due(10_000, 1)), Some(0)));
        assert_eq!(check(Missed::Once, 10_000, 10_001), (None, Some(9_999)));
    }

    #[test]
    fn missed_times_fire_once_or_not_at_all() {
        // Checked at 95 s: the latest scheduled time is recent.
        assert_eq!(check(Missed::Skip, 0, 95_000), (Some(due(90_000, 9)), Some(0)));
        struct Once;
        impl Calendar for Once {
            fn next_after(&self, at: TimestampMs) -> Option<TimestampMs> {
                (at.0 < 1_000).then_some(TimestampMs(1_000))
            }
            fn describe(&self) -> String {
                String::new()
            }
        }
        let late = |missed| check_calendar(&Once, missed, TimestampMs(0), TimestampMs(1_000_000)).note;
        assert_eq!(late(Missed::Once), Some(due(1_000, 1)));
        let mark = TriggerCursor { time: Some(TimestampMs(1_000)), ..TriggerCursor::default() };
        assert_eq!(late(Missed::Skip), Some(TriggerNote::Armed { mark }));
    }
}
