//! Follow a session as a stream: first the entries in the log, then live events.
//!
//! `cargo run -p sapwood --example subscribe`

use std::future::ready;

use futures_util::StreamExt;
use sapwood::{Agent, FragmentKind, Kind, Sapwood, Seq, SessionEvent};

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), sapwood::Error> {
    let sapwood = Sapwood::open("memory:")?;
    let session = sapwood.start(Agent::default()).await?;

    let events = sapwood.subscribe(&session, Seq::ZERO).await?;
    let mut events = events.take_while(|event| ready(!is_end_of_turn(event)));
    let printing = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            print_event(event);
        }
    });
    sapwood.send(&session, "Hello!").await?;
    printing.await.expect("the task does not panic");
    Ok(())
}

fn is_end_of_turn(event: &sapwood::Result<SessionEvent>) -> bool {
    matches!(event, Ok(SessionEvent::Entry(record)) if record.meta.kind == Kind::TurnEnded)
}

fn print_event(event: sapwood::Result<SessionEvent>) {
    match event {
        // A reader that stops here can later subscribe again after this seq.
        Ok(SessionEvent::Entry(record)) => println!("\n[{} {}]", record.meta.seq, record.meta.kind.as_str()),
        Ok(SessionEvent::Fragment(fragment)) => {
            if let FragmentKind::Token { text } = &fragment.kind {
                print!("{text}");
            }
        }
        Err(error) => eprintln!("failed to read the session: {error}"),
    }
}
