//! Follows a turn without a screen. Prints the complete answer, every event as a JSON line, or nothing, as
//! [`TurnOutput`] selects. Ctrl-C cancels the turn, and the command fails when the turn has ended.
//! Discarded answers are reported on stderr.

use std::io::Write;

use sapwood::core::Kind;
use sapwood::core::entry::Body;
use sapwood::core::pressure::Pressure;
use sapwood::core::project::event::Event;
use sapwood::engine::turn::{Running, TurnReport};
use sapwood::engine::{SessionEvent, Subscription};

use super::view::given_up;
use super::watch::SessionHandle;
use crate::failure::{Exit, Failure, Result};
use crate::render::{Format, Out, clean, note};

/// The output of a turn for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnOutput {
    Answer,
    Events,
    Nothing,
}

pub async fn follow(
    handle: &SessionHandle,
    running: Running,
    mut events: Subscription,
    show: TurnOutput,
    out: &mut Out,
) -> Result<TurnReport> {
    let ended = running.ended();
    tokio::pin!(ended);
    let mut is_cancelled = false;
    let report = loop {
        tokio::select! {
            event = events.next() => print_event(handle, &event?, show, out)?,
            _ = tokio::signal::ctrl_c(), if !is_cancelled => {
                is_cancelled = true;
                cancel(handle).await?;
            }
            report = &mut ended => break report?,
        }
    };
    while let Some(event) = events.try_next().await? {
        print_event(handle, &event, show, out)?;
    }
    if is_cancelled {
        let cancelled = Failure::new("turn.cancelled", "the turn was cancelled");
        return Err(Failure { exit: Exit::Interrupted, ..cancelled });
    }
    if show == TurnOutput::Answer && !report.text.is_empty() {
        // Piped text is data and printed unchanged. On a terminal, control characters are replaced.
        let text = if out.terminal.is_some() { clean(&report.text) } else { report.text.as_str().into() };
        writeln!(out, "{}", text.trim_end_matches('\n'))?;
        out.flush()?;
    }
    Ok(report)
}

/// The warning that an entry contains for the user.
fn warning_of(event: &SessionEvent) -> Option<String> {
    let SessionEvent::Entry(record) = event else { return None };
    // Decode only the entries that can contain a warning.
    let is_pressure = record.meta.kind == Kind::PressureChanged;
    let body = is_pressure.then(|| record.decode().ok()).flatten()?;
    Pressure::of_body(&body)?.warning()
}

async fn cancel(handle: &SessionHandle) -> Result<()> {
    match handle.engine.turn_control().cancel(&handle.scope, &handle.session).await {
        Err(sapwood::Error::NoTurn { .. }) => Ok(()),
        cancelled => Ok(cancelled.map(drop)?),
    }
}

fn print_event(handle: &SessionHandle, event: &SessionEvent, show: TurnOutput, out: &mut Out) -> Result<()> {
    if let Some(warning) = warning_of(event) {
        note(out.format, &format!("warning: {warning}"));
    }
    if show != TurnOutput::Events {
        if let (TurnOutput::Answer, SessionEvent::Entry(record)) = (show, event)
            && let Ok(Body::Round(round)) = record.decode()
        {
            given_up(&round).iter().for_each(|why| note(Format::Text, why));
        }
        return Ok(());
    }
    match event {
        SessionEvent::Entry(record) => {
            let session = handle.session.clone();
            let unreadable = |source| sapwood::Error::Unreadable { session, source };
            out.json(&Event::of(&handle.session, record).map_err(unreadable)?)?;
        }
        SessionEvent::Fragment(fragment) => out.json(fragment)?,
    }
    // Flush, because the reader of the pipe may wait for each line.
    Ok(out.flush()?)
}
