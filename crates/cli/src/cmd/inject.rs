//! `sapwood inject`: appends messages without calling a model.
//!
//! Each batch contains all lines of stdin that are ready, so one disk sync serves many lines. Lines are
//! acknowledged in order, after their batch is durable. An invalid line ends the command: the lines before it are
//! written and acknowledged, the lines after it are not.

use std::io::{Read, Write};

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use sapwood::core::port::store::{APPEND_ENTRIES_MAX, Appended, BODY_BYTES_MAX};
use sapwood::engine::edits::InjectOptions;
use sapwood::formats::{MessageIn, read_message_with_media};
use sapwood::{Body, EntryId, Seq, SessionId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::app::App;
use crate::failure::{Exit, Failure, Result};
use crate::lines::read_line;
use crate::number_arg::count;

/// Maximum number of lines, and of bytes, per batch.
const BATCH_LINES_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Number of lines to read ahead.
const LINES_AHEAD: usize = 2_000;
/// Maximum length of a line.
const LINE_BYTES_MAX: usize = BODY_BYTES_MAX;

/// Append messages without calling a model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood inject @last --role user --text \"hello\"
  echo \"a long note\" | sapwood inject @last --role system --text -
  sapwood inject @last --message - < messages.jsonl
  sapwood inject @last --custom review --text \"The reviewer agreed.\"
  sapwood inject @last --info review --data '{\"score\": 3}'")]
#[command(group = ArgGroup::new("what").required(true).args(["text", "message", "data"]))]
pub struct InjectArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Role of the message: user, assistant or system; tool results need --message
    #[arg(long, value_name = "ROLE", required_unless_present_any = ["message", "custom", "info"], conflicts_with = "message")]
    role: Option<String>,
    /// Append an extension's message of this type, which the model also receives
    #[arg(long, value_name = "TYPE", requires = "text", conflicts_with_all = ["role", "message"])]
    custom: Option<String>,
    /// Append an extension's data of this type, which the model does not receive
    #[arg(long, value_name = "TYPE", requires = "data", conflicts_with_all = ["role", "message", "text", "custom"])]
    info: Option<String>,
    /// Data for --info, as JSON
    #[arg(long, value_name = "JSON", requires = "info", allow_hyphen_values = true)]
    data: Option<String>,
    /// Text of the message; - reads it from stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// Message as JSON; - reads JSON Lines from stdin, one message per line
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    message: Option<String>,
    /// Append only if the session's log ends at this seq
    #[arg(long, value_name = "SEQ", value_parser = count, allow_hyphen_values = true)]
    expected_head: Option<u32>,
    /// Idempotency key: a repeated key writes nothing and returns the first result; line N of stdin uses KEY:N
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    idempotency_key: Option<String>,
}

/// The acknowledgement of a message, with its last entry. `entries` lists all entries if there are several, as for
/// combined tool results.
#[derive(Serialize)]
struct Ack {
    seq: Seq,
    id: EntryId,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<EntryAck>,
}

#[derive(Serialize)]
struct EntryAck {
    seq: Seq,
    id: EntryId,
}

pub async fn run(app: &mut App, args: InjectArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let mut writer = BatchWriter {
        session,
        expected_head: args.expected_head.map(Seq),
        idempotency_key: args.idempotency_key,
        batch: Vec::new(),
        media: Vec::new(),
        batch_bytes: 0,
    };
    let message = match (args.message.as_deref(), args.info) {
        (Some("-"), _) => return inject_lines(app, &mut writer).await,
        (Some(json), _) => read_message_with_media(json.as_bytes())?,
        (None, Some(name)) => info_message(&name, args.data.as_deref().unwrap_or_default())?,
        (None, None) => {
            let text = args.text.unwrap_or_default();
            let text = if text == "-" { read_text()? } else { text };
            text_message(args.role.as_deref(), args.custom.as_deref(), &text)?
        }
    };
    writer.push(0, message);
    writer.write(app).await
}

fn text_message(role: Option<&str>, custom: Option<&str>, text: &str) -> Result<MessageIn> {
    let json = match custom {
        Some(name) => json!({ "role": "custom", "custom_type": name, "content": text }),
        None => json!({ "role": role, "content": text }),
    };
    read_message_with_media(json.to_string().as_bytes()).map_err(with_message_hint)
}

fn info_message(name: &str, data: &str) -> Result<MessageIn> {
    let data: Value = serde_json::from_str(data).map_err(|error| {
        Failure::usage(format!("--data is not valid JSON: {error}"), "quote text: '\"text\"'")
    })?;
    let json = json!({ "role": "info", "custom_type": name, "data": data });
    Ok(read_message_with_media(json.to_string().as_bytes())?)
}

/// Adds a hint to use --message, because only a JSON message can have more than a role and a text.
fn with_message_hint(error: sapwood::formats::MessageError) -> Failure {
    let failure = Failure::from(error);
    if failure.code == "input.invalid" {
        return failure.with_hint("use --message to give the whole message as JSON");
    }
    failure
}

fn read_text() -> Result<String> {
    let mut bytes = Vec::new();
    let stdin = std::io::stdin().lock();
    stdin.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| stdin_failed(&error))?;
    if bytes.len() > BODY_BYTES_MAX {
        let message = format!("the text on stdin exceeds the limit of {BODY_BYTES_MAX} bytes");
        return Err(Failure::new("input.too_large", message));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let message =
            format!("the text on stdin is not valid UTF-8 at byte {}", error.utf8_error().valid_up_to());
        Failure::new("input.invalid", message)
    })?;
    // Strip one trailing newline, because `echo` and text files end with one.
    if text.ends_with('\n') {
        text.truncate(text.len() - 1);
    }
    Ok(text)
}

fn stdin_failed(error: &std::io::Error) -> Failure {
    Failure::new("file.io", format!("failed to read stdin: {error}"))
}

/// A line of stdin, numbered from 1, or a read error.
type InputLine = std::io::Result<(u64, Vec<u8>)>;

/// Reads stdin in a separate thread, because reading blocks. The thread ends with the process.
fn spawn_reader() -> mpsc::Receiver<InputLine> {
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

async fn inject_lines(app: &mut App, writer: &mut BatchWriter) -> Result<()> {
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

/// Batches messages and appends them to the log.
struct BatchWriter {
    session: SessionId,
    expected_head: Option<Seq>,
    idempotency_key: Option<String>,
    /// Bodies of each message with its line number, which is 0 for a message from the command line.
    batch: Vec<(u64, Vec<Body>)>,
    /// Media inside the messages, stored before the batch is appended.
    media: Vec<Vec<u8>>,
    batch_bytes: usize,
}

impl BatchWriter {
    fn take(&mut self, input: InputLine) -> Result<()> {
        let (number, line) = input.map_err(|error| stdin_failed(&error))?;
        let text = line.trim_ascii();
        if text.is_empty() {
            return Ok(());
        }
        let location = format!("line {number}");
        if line.len() > LINE_BYTES_MAX {
            let message = format!("{location} exceeds the limit of {LINE_BYTES_MAX} bytes");
            return Err(Failure::new("input.too_large", message));
        }
        let message = read_message_with_media(text).map_err(|error| Failure::from(error).at(location))?;
        self.batch_bytes += line.len();
        self.push(number, message);
        Ok(())
    }

    fn push(&mut self, number: u64, message: MessageIn) {
        self.batch.push((number, message.bodies));
        self.media.extend(message.media);
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_LINES_MAX || self.batch_bytes >= BATCH_BYTES_MAX
    }

    /// Appends the batch and acknowledges it.
    async fn write(&mut self, app: &mut App) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let media = std::mem::take(&mut self.media);
        app.engine.edits().put_media(&app.scope, &self.session, media).await?;
        if self.idempotency_key.is_none() {
            for group in groups(batch) {
                self.append(app, group, None).await?;
            }
            return Ok(());
        }
        // Append each line separately: an idempotency key covers one append, and a retry may start at any line.
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
            audited: Some("inject"),
        };
        let appended = app.engine.edits().inject(&app.scope, &self.session, bodies, options).await;
        let appended = appended.map_err(|error| match first {
            0 => Failure::from(error),
            first => Failure::from(error).at(format!("from line {first} on")),
        })?;
        // A caller that expects a head also expects no other writes between its messages.
        self.expected_head = self.expected_head.map(|_| appended.head.seq);
        acknowledge(app, &appended, &counts).map_err(fail_on_closed_output)
    }
}

/// Splits a batch to respect the store's limit of entries per append. One message can have many entries.
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

/// Makes a closed output pipe a failure, because the rest of the input is not written.
fn fail_on_closed_output(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Closed => Failure { exit: Exit::Failed, ..failure },
        _ => failure,
    }
}

fn acknowledge(app: &mut App, appended: &Appended, counts: &[usize]) -> Result<()> {
    let mut entries = appended.entries.iter().map(|(seq, id)| (*seq, *id));
    for count in counts {
        let parts: Vec<EntryAck> =
            entries.by_ref().take(*count).map(|(seq, id)| EntryAck { seq, id }).collect();
        let Some(EntryAck { seq, id }) = parts.last() else { continue };
        let (seq, id) = (*seq, *id);
        if app.out.is_json() {
            app.out.json(&Ack { seq, id, entries: if parts.len() > 1 { parts } else { Vec::new() } })?;
        } else {
            writeln!(app.out, "{seq} {id}")?;
        }
    }
    Ok(app.out.flush()?)
}
