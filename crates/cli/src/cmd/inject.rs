//! `sapwood inject`: appends messages without calling a model.
//!
//! Many lines on stdin are written in batches, as many as are ready, so that a sync of the disk serves all of them. A
//! line is acknowledged after its batch is durable, in order. A bad line stops everything: what came before it is
//! written and acknowledged, what comes after it is not.

use std::io::{Read, Write};

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use sapwood::core::port::store::{APPEND_ENTRIES_MAX, Appended, BODY_BYTES_MAX};
use sapwood::engine::write::InjectOptions;
use sapwood::formats::read_message;
use sapwood::{Body, EntryId, Seq, SessionId};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::app::App;
use crate::args::count;
use crate::failure::{Exit, Failure, Result};
use crate::lines::read_line;

/// Most lines of one batch, and most bytes they may have together.
const BATCH_LINES_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How many lines are read ahead.
const LINES_AHEAD: usize = 2_000;
/// Longest line: the largest body, with room for how the message writes it.
const LINE_BYTES_MAX: usize = BODY_BYTES_MAX;

/// Append messages without calling a model
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["text", "message"]))]
pub struct InjectArgs {
    session: String,
    /// Who speaks: user, assistant, tool, system
    #[arg(long, value_name = "ROLE", required_unless_present = "message", conflicts_with = "message")]
    role: Option<String>,
    /// What is said; - reads it from stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// A message as JSON; - reads JSON Lines from stdin, a message each
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    message: Option<String>,
    /// Only if the session's log ends at this seq
    #[arg(long, value_name = "SEQ", value_parser = count, allow_hyphen_values = true)]
    expected_head: Option<u32>,
    /// The same key again writes nothing and gives the first answer; line N of stdin has the key KEY:N
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    idempotency_key: Option<String>,
}

/// What a message became: an entry, or several when tool results came together.
#[derive(Serialize)]
struct Ack {
    seq: Seq,
    id: EntryId,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    seq: Seq,
    id: EntryId,
}

pub async fn run(app: &mut App, args: InjectArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let mut writer = Writer {
        session,
        expected_head: args.expected_head.map(Seq),
        idempotency_key: args.idempotency_key,
        batch: Vec::new(),
        batch_bytes: 0,
    };
    match (args.message.as_deref(), args.text) {
        (Some("-"), _) => return inject_lines(app, &mut writer).await,
        (Some(json), _) => writer.batch.push((0, read_message(json.as_bytes())?)),
        (None, text) => {
            let text = text.unwrap_or_default();
            let text = if text == "-" { read_text()? } else { text };
            let json = serde_json::json!({ "role": args.role, "content": text }).to_string();
            writer.batch.push((0, read_message(json.as_bytes()).map_err(about_text)?));
        }
    }
    writer.write(app).await
}

/// Only messages in JSON can carry more than a role and a text.
fn about_text(error: sapwood::formats::MessageError) -> Failure {
    let failure = Failure::from(error);
    if failure.code == "input.invalid" {
        return failure.with_hint("--message takes the whole message as JSON");
    }
    failure
}

fn read_text() -> Result<String> {
    let mut bytes = Vec::new();
    let stdin = std::io::stdin().lock();
    stdin.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| stdin_failed(&error))?;
    if bytes.len() > BODY_BYTES_MAX {
        let message = format!("the text on stdin is over the limit of {BODY_BYTES_MAX} bytes");
        return Err(Failure::new("input.too_large", message));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let message =
            format!("the text on stdin is not valid UTF-8 at byte {}", error.utf8_error().valid_up_to());
        Failure::new("input.invalid", message)
    })?;
    // The last line break is the shell's, as in $(…).
    if text.ends_with('\n') {
        text.truncate(text.len() - 1);
    }
    Ok(text)
}

fn stdin_failed(error: &std::io::Error) -> Failure {
    Failure::new("file.io", format!("stdin cannot be read: {error}"))
}

/// A line of stdin, numbered from 1, or why there is none.
type Input = std::io::Result<(u64, Vec<u8>)>;

/// Reading blocks, so it has a thread of its own. It ends with the process.
fn spawn_reader() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut stdin = std::io::BufReader::with_capacity(1 << 16, std::io::stdin());
        for number in 1.. {
            let mut line = Vec::new();
            let input = match read_line(&mut stdin, &mut line, LINE_BYTES_MAX) {
                Ok(false) => return,
                Ok(true) => Ok((number, line)),
                Err(error) => Err(error),
            };
            let is_end = input.is_err();
            if sender.blocking_send(input).is_err() || is_end {
                return;
            }
        }
    });
    receiver
}

async fn inject_lines(app: &mut App, writer: &mut Writer) -> Result<()> {
    let mut lines = spawn_reader();
    while let Some(first) = lines.recv().await {
        let mut next = Some(first);
        while let Some(input) = next {
            if let Err(failure) = writer.take(input) {
                writer.write(app).await?;
                return Err(failure);
            }
            next = if writer.is_full() { None } else { lines.try_recv().ok() };
        }
        writer.write(app).await?;
    }
    Ok(())
}

/// Messages on their way into the log.
struct Writer {
    session: SessionId,
    expected_head: Option<Seq>,
    idempotency_key: Option<String>,
    /// The bodies of each message, with its line; 0 for a message that came with the command.
    batch: Vec<(u64, Vec<Body>)>,
    batch_bytes: usize,
}

impl Writer {
    fn take(&mut self, input: Input) -> Result<()> {
        let (number, line) = input.map_err(|error| stdin_failed(&error))?;
        let text = line.trim_ascii();
        if text.is_empty() {
            return Ok(());
        }
        let place = format!("line {number}");
        if line.len() > LINE_BYTES_MAX {
            let message = format!("{place} is over the limit of {LINE_BYTES_MAX} bytes");
            return Err(Failure::new("input.too_large", message));
        }
        let bodies = read_message(text).map_err(|error| Failure::from(error).at(place))?;
        self.batch_bytes += line.len();
        self.batch.push((number, bodies));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_LINES_MAX || self.batch_bytes >= BATCH_BYTES_MAX
    }

    /// Writes the batch and acknowledges it.
    async fn write(&mut self, app: &mut App) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if self.idempotency_key.is_none() {
            for group in groups(batch) {
                self.append(app, group, None).await?;
            }
            return Ok(());
        }
        // A key is one append's, and a producer that retries may begin anywhere: so each line is an append of its own.
        for (number, bodies) in batch {
            let key = self.idempotency_key.as_ref().map(|key| match number {
                0 => key.clone(),
                number => format!("{key}:{number}"),
            });
            self.append(app, vec![(number, bodies)], key).await?;
        }
        Ok(())
    }

    async fn append(
        &mut self,
        app: &mut App,
        batch: Vec<(u64, Vec<Body>)>,
        key: Option<String>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let counts: Vec<usize> = batch.iter().map(|(_, bodies)| bodies.len()).collect();
        let first = batch.first().map_or(0, |(number, _)| *number);
        let bodies = batch.into_iter().flat_map(|(_, bodies)| bodies).collect();
        let options = InjectOptions {
            expected_head: self.expected_head,
            idempotency_key: key,
            ..InjectOptions::default()
        };
        let appended = app.engine.inject(&app.scope, &self.session, bodies, options).await;
        let appended = appended.map_err(|error| match first {
            0 => Failure::from(error),
            first => Failure::from(error).at(format!("from line {first} on")),
        })?;
        // Whoever expected a head expects nobody between its own messages either.
        self.expected_head = self.expected_head.map(|_| appended.head.seq);
        acknowledge(app, &appended, &counts).map_err(unheard)
    }
}

/// Cuts a batch so that no append is over the store's limit: one message can be many entries.
fn groups(batch: Vec<(u64, Vec<Body>)>) -> Vec<Vec<(u64, Vec<Body>)>> {
    let (mut groups, mut entries) = (vec![Vec::new()], 0);
    for (number, bodies) in batch {
        entries += bodies.len();
        if entries > APPEND_ENTRIES_MAX {
            entries = bodies.len();
            groups.push(Vec::new());
        }
        if let Some(group) = groups.last_mut() {
            group.push((number, bodies));
        }
    }
    groups
}

/// Messages that nobody hears about are no reason to go on quietly: the rest of the input is not written.
fn unheard(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Closed => Failure { exit: Exit::Failed, ..failure },
        _ => failure,
    }
}

fn acknowledge(app: &mut App, appended: &Appended, counts: &[usize]) -> Result<()> {
    let mut entries = appended.entries.iter().map(|(seq, id)| (*seq, *id));
    for count in counts {
        let parts: Vec<Part> = entries.by_ref().take(*count).map(|(seq, id)| Part { seq, id }).collect();
        let Some(Part { seq, id }) = parts.last() else { continue };
        let (seq, id) = (*seq, *id);
        if app.out.is_json() {
            app.out.json(&Ack { seq, id, entries: if parts.len() > 1 { parts } else { Vec::new() } })?;
        } else {
            writeln!(app.out, "{seq} {id}")?;
        }
    }
    Ok(app.out.flush()?)
}
