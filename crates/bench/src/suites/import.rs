//! Imports of Claude Code and Codex files: the readers alone and imports into a store, vs. reading the lines and
//! parsing them as JSON. Also measures memory during an import.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use sapwood::core::entry::Body;
use sapwood::core::{Draft, Part};
use sapwood::engine::import::Mode;
use sapwood::formats::import::reconcile::Reconciler;
use sapwood::formats::import::steps::StepBatch;
use sapwood::formats::import::{Format, reader};
use sapwood::store::Durability;
use serde_json::{Value, json};

use crate::bodies::bodies;
use crate::measure::{Peak, median};
use crate::program;
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "import";
/// Minimum speed of the readers.
const MB_PER_SECOND_MIN: f64 = 100.0;
/// Maximum memory growth after the first tenth of the file, in MB. Only the table of keys grows.
const GROWTH_MB_MAX: f64 = 64.0;
const SESSION: &str = "be9c4000-0000-4000-8000-000000000001";
const STEPS: usize = 512;

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for format in [Format::ClaudeCode, Format::Codex] {
        let file = stage.scratch.file("foreign.jsonl");
        let megabytes = write_file(&file, format, stage.sizes.import_bytes)? as f64 / 1e6;
        let (mut parsed, mut read) = (Vec::new(), Vec::new());
        for _ in 0..stage.sizes.rounds {
            let start = Instant::now();
            parse_lines(&file)?;
            parsed.push(megabytes / start.elapsed().as_secs_f64());
            let start = Instant::now();
            read_file(&file, format)?;
            read.push(megabytes / start.elapsed().as_secs_f64());
        }
        let (parsed, read) = (median(parsed), median(read));
        let name = format.as_str();
        figures.push(Figure::new(
            AXIS,
            format!("{name}: only reading lines and parsing JSON"),
            parsed,
            "MB/s",
        ));
        figures.push(
            Figure::new(AXIS, format!("{name}: into entries"), read, "MB/s")
                .goal(Goal::AtLeast(MB_PER_SECOND_MIN)),
        );
        figures.push(
            Figure::new(AXIS, format!("{name}: into entries, vs. only parsing lines"), read, "MB/s")
                .over(parsed),
        );
        let rate = import_as_command(stage, &file, format, megabytes)?;
        figures.push(
            Figure::new(
                AXIS,
                format!("{name}: into a store, the way `sapwood import` does it"),
                rate,
                "MB/s",
            )
            .goal(Goal::AtLeast(MB_PER_SECOND_MIN)),
        );
        figures.extend(import_with_samples(stage, &file, format, megabytes).await?);
        stage.scratch.remove("foreign.jsonl");
    }
    Ok(figures)
}

/// Read the next line with its line break. Returns `false` at the end of the file.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    Ok(from.read_until(b'\n', line)? > 0)
}

/// Parse every line as a value, the minimum work of any reader.
fn parse_lines(path: &Path) -> anyhow::Result<()> {
    let mut from = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut line = Vec::new();
    while read_line(&mut from, &mut line)? {
        let value: Value = serde_json::from_slice(&line)?;
        anyhow::ensure!(value.is_object(), "a line is not an object");
    }
    Ok(())
}

/// Convert lines to drafts and drop the drafts.
fn read_file(path: &Path, format: Format) -> anyhow::Result<()> {
    let mut from = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut reader = reader(format, SESSION).ok_or_else(|| anyhow::anyhow!("no reader"))?;
    let (mut step_batch, mut reconciler) = (StepBatch::default(), Reconciler::new(format.agent()));
    let (mut line, mut number) = (Vec::new(), 0);
    let mut drafts: Vec<Draft> = Vec::new();
    while read_line(&mut from, &mut line)? {
        number += 1;
        reader.push_line(&line, number, &mut step_batch);
        if step_batch.steps.len() >= STEPS {
            reconcile(&mut step_batch, &mut reconciler, &mut drafts);
        }
    }
    reader.finish(&mut step_batch);
    reconcile(&mut step_batch, &mut reconciler, &mut drafts);
    anyhow::ensure!(step_batch.problems.is_empty(), "{:?}", step_batch.problems.first());
    anyhow::ensure!(reconciler.added + 2 >= number / 2, "{} entries of {number} lines", reconciler.added);
    Ok(())
}

fn reconcile(step_batch: &mut StepBatch, reconciler: &mut Reconciler, drafts: &mut Vec<Draft>) {
    for step in step_batch.steps.drain(..) {
        reconciler.take(step, drafts, &mut step_batch.problems);
    }
    drafts.clear();
}

/// Speed of the command, including its threads and syncs.
fn import_as_command(stage: &Stage, path: &Path, format: Format, megabytes: f64) -> anyhow::Result<f64> {
    let mut rates = Vec::new();
    for _ in 0..stage.sizes.rounds {
        let mut command = program::sapwood(&stage.scratch);
        command.args(["--store", &stage.scratch.url("foreign.db"), "import", "--from", format.as_str()]);
        command.arg(path);
        let start = Instant::now();
        let status = command.status().context(program::NOT_STARTED)?;
        rates.push(megabytes / start.elapsed().as_secs_f64());
        anyhow::ensure!(status.success(), "`sapwood import` failed");
        stage.scratch.remove("foreign.db");
    }
    Ok(median(rates))
}

/// Import into a store, and sample the memory.
async fn import_with_samples(
    stage: &Stage,
    path: &Path,
    format: Format,
    megabytes: f64,
) -> anyhow::Result<Vec<Figure>> {
    let engine = stage.open("foreign.db", Durability::Normal)?;
    let mut from = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut reader = reader(format, SESSION).ok_or_else(|| anyhow::anyhow!("no reader"))?;
    let mut intake = engine.imports().begin_intake(&stage.scope, format, Mode::Write);
    let mut step_batch = StepBatch::default();
    let (mut line, mut number, mut bytes) = (Vec::new(), 0, 0.0);
    let (mut all, mut tenth) = (Peak::default(), Peak::default());
    let start = Instant::now();
    while read_line(&mut from, &mut line)? {
        number += 1;
        bytes += line.len() as f64 / 1e6;
        reader.push_line(&line, number, &mut step_batch);
        if step_batch.steps.len() >= STEPS {
            intake.take(&mut step_batch).await?;
            all.sample();
            if bytes <= megabytes / 10.0 {
                tenth = all;
            }
        }
    }
    reader.finish(&mut step_batch);
    intake.finish(&mut step_batch).await?;
    let rate = megabytes / start.elapsed().as_secs_f64();
    stage.close("foreign.db", engine)?;
    stage.scratch.remove("foreign.db");
    let name = format.as_str();
    let growth = all.anonymous - tenth.anonymous;
    Ok(vec![
        Figure::new(AXIS, format!("{name}: into a store, one thread"), rate, "MB/s"),
        Figure::new(
            AXIS,
            format!("{name}: {megabytes:.0} MB, peak without mapped files"),
            all.anonymous,
            "MB",
        ),
        Figure::new(AXIS, format!("{name}: growth after the first tenth"), growth, "MB")
            .goal(Goal::AtMost(GROWTH_MB_MAX)),
    ])
}

/// Write a transcript in the format of the other program.
fn write_file(path: &Path, format: Format, bytes_max: u64) -> anyhow::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut bytes = 0;
    let mut write = |value: Value| -> anyhow::Result<u64> {
        let line = format!("{value}\n");
        out.write_all(line.as_bytes())?;
        bytes += line.len() as u64;
        Ok(bytes)
    };
    if format == Format::Codex {
        write(
            json!({ "timestamp": "2026-01-02T03:04:05.000Z", "type": "session_meta", "payload": { "id": SESSION, "cwd": "/work" } }),
        )?;
    }
    let mut tokens = 0;
    for (number, body) in bodies(7).enumerate() {
        let written = match format {
            Format::ClaudeCode => write(claude_line(number, &body))?,
            _ => {
                let mut written = 0;
                for line in codex_lines(&body, &mut tokens) {
                    written = write(line)?;
                }
                written
            }
        };
        if written >= bytes_max {
            break;
        }
    }
    out.flush()?;
    Ok(bytes)
}

fn claude_line(number: usize, body: &Body) -> Value {
    let uuid = |number: usize| format!("be9c4000-0000-4000-8000-{number:012x}");
    let message = match body {
        Body::AssistantMessage(answer) => {
            let blocks: Vec<Value> = answer.parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(json!({ "type": "text", "text": text.text })),
                Part::ToolCall(call) => Some(json!({ "type": "tool_use", "id": call.call_id, "name": call.name, "input": call.input.to_value() })),
                _ => None,
            }).collect();
            json!({ "id": format!("msg_{number}"), "role": "assistant", "model": "bench-model-1", "content": blocks,
                "usage": { "input_tokens": 3, "output_tokens": 50, "cache_read_input_tokens": 12_000, "cache_creation_input_tokens": 400 } })
        }
        Body::ToolResult(result) => {
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": result.call_id, "content": body.text() }] })
        }
        other => json!({ "role": "user", "content": other.text() }),
    };
    json!({
        "parentUuid": number.checked_sub(1).map(uuid), "isSidechain": false, "userType": "external", "cwd": "/work",
        "sessionId": SESSION, "version": "2.1.81", "type": message["role"], "message": message, "uuid": uuid(number),
        "timestamp": "2026-01-02T03:04:05.000Z",
    })
}

fn codex_lines(body: &Body, tokens: &mut u64) -> Vec<Value> {
    let line = |kind: &str, payload: Value| json!({ "timestamp": "2026-01-02T03:04:05.000Z", "type": kind, "payload": payload });
    let item = |payload: Value| line("response_item", payload);
    match body {
        Body::AssistantMessage(answer) => {
            let mut lines = vec![item(
                json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": body.text() }] }),
            )];
            for call in answer.parts.iter().filter_map(Part::as_tool_call) {
                lines.push(item(json!({ "type": "function_call", "name": call.name, "arguments": call.input.get(), "call_id": call.call_id })));
            }
            *tokens += 1_000;
            let total = json!({ "input_tokens": *tokens, "cached_input_tokens": *tokens / 2, "output_tokens": *tokens / 10 });
            lines.push(line("event_msg", json!({ "type": "token_count", "info": { "total_token_usage": total, "last_token_usage": total } })));
            lines
        }
        Body::ToolResult(result) => {
            vec![item(
                json!({ "type": "function_call_output", "call_id": result.call_id, "output": body.text() }),
            )]
        }
        other => vec![item(
            json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": other.text() }] }),
        )],
    }
}
