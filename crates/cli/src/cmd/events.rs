//! `sapwood events`: prints the log as events, one JSON line each, with or without `--json`.

use std::io::Write;

use clap::Args;
use sapwood::core::Record;
use sapwood::core::project::event::Event;
use sapwood::{Seq, SessionId};

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::number_arg::count;
use crate::render::{Format, Out};

/// Print a session's events as JSON Lines
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood events @last
  sapwood events @last --after 40 --follow")]
pub struct EventsArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Print only events after this seq
    #[arg(long, value_name = "SEQ", value_parser = count, allow_hyphen_values = true)]
    after: Option<u32>,
    /// Keep printing new events until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

pub async fn run(app: &mut App, args: EventsArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let cursor = Seq(args.after.unwrap_or(0));
    let mut follower = app.engine.events().follow(&app.scope, &session, cursor).await?;
    // Events are always printed as JSON.
    app.out = Out::new(Format::Json);
    if args.follow {
        end_on_interrupt()?;
        loop {
            let record = follower.next().await?;
            print_event(&mut app.out, &session, &record)?;
            // Flush each line so that a reader of the pipe sees it at once.
            app.out.flush()?;
        }
    }
    while let Some(record) = follower.try_next().await? {
        print_event(&mut app.out, &session, &record)?;
    }
    Ok(())
}

fn print_event(out: &mut Out, session: &SessionId, record: &Record) -> Result<()> {
    let unreadable = |source| sapwood::Error::Unreadable { session: session.clone(), source };
    out.json(&Event::of(session, record).map_err(unreadable)?)
}

/// Exits with 130 and no message on Ctrl-C. A follower has no state that needs cleanup.
#[cfg(unix)]
pub fn end_on_interrupt() -> Result<()> {
    let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, always)
        .map(|_| ())
        .map_err(|error| {
            Failure::new("output.failed", format!("failed to install the Ctrl-C handler: {error}"))
        })
}

#[cfg(not(unix))]
pub fn end_on_interrupt() -> Result<(), Failure> {
    Ok(())
}
