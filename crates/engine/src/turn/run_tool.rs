//! Run one tool call: check its input, run it, and store its output. Large output is stored in a blob; the model
//! receives its head, its tail and instructions to read the rest.

use sapwood_core::Part;
use sapwood_core::content::{BlobRef, ToolCall};
use sapwood_core::entry::ToolResult;
use sapwood_core::port::tool::{OutputPart, ToolOutput, ToolSpec, Touch};
use sapwood_core::turn::Input;
use tokio::time::Instant;
use tracing::Instrument;

use super::TurnContext;
use super::builtin_tools::READ_OUTPUT;
use super::hooks::HookGate;
use crate::Result;
use crate::fragments::FragmentKind;
use crate::spans::{record_failure, record_tool_failure, tool_span};

/// Output over either limit is stored in a blob.
const OUTPUT_BYTES_MAX: usize = 50 << 10;
const OUTPUT_LINES_MAX: usize = 2_000;
/// Bytes shown from each end of a large output.
const END_BYTES: usize = 8 << 10;

impl TurnContext {
    /// Run a call, with a trace span.
    pub(super) async fn run_tool(&self, call: &ToolCall) -> Result<Input> {
        let span = tool_span(&self.session, call);
        let done = self.run_and_store(call).instrument(span.clone()).await;
        match &done {
            Ok(result) if result.is_error => record_tool_failure(&span),
            Ok(_) => {}
            Err(error) => record_failure(&span, error.code()),
        }
        Ok(Input::ToolDone(done?))
    }

    async fn run_and_store(&self, call: &ToolCall) -> Result<ToolResult> {
        self.send_fragment(FragmentKind::ToolRunning {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
        });
        let started = Instant::now();
        let output = match self.ask_before_tool(call).await? {
            HookGate::Pass(call) => self.run_checked(&call).await?,
            HookGate::Done(output) => output,
        };
        self.notify_tool_result(call, &output).await;
        let (parts, full) = self.store_output(output.parts).await?;
        Ok(ToolResult {
            call_id: call.call_id.clone(),
            tool: Some(call.name.clone()),
            parts,
            is_error: output.is_error,
            duration_ms: Some(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)),
            interrupted: false,
            full,
        })
    }

    async fn run_checked(&self, call: &ToolCall) -> Result<ToolOutput> {
        Ok(match self.input_error(call) {
            Some(input_error) => ToolOutput::error(format!("Invalid tool input: {input_error}")),
            None if self.is_builtin_tool(&call.name) => self.run_builtin_tool(call).await?,
            None => self.toolbox.run(call).await,
        })
    }

    /// Return why the input is invalid. Unknown tools are refused by the state machine.
    pub(super) fn input_error(&self, call: &ToolCall) -> Option<String> {
        let is_callers = |spec: &ToolSpec| spec.name == call.name && spec.touch == Touch::Callers;
        if self.specs.iter().any(is_callers) {
            return None;
        }
        if self.is_builtin_tool(&call.name) {
            return self.check_builtin_tool(call).err();
        }
        if !self.toolbox.specs().iter().any(|spec| spec.name == call.name) {
            return None;
        }
        self.toolbox.check(call).err()
    }

    async fn store_output(&self, output: Vec<OutputPart>) -> Result<(Vec<Part>, Option<BlobRef>)> {
        let mut parts = Vec::with_capacity(output.len());
        let mut full = None;
        for part in output {
            match part {
                OutputPart::Media { mime, name, bytes } => {
                    let size = bytes.len() as u64;
                    let blob = self.engine.store.put_blob(&self.scope, bytes).await?;
                    parts.push(Part::Media(BlobRef { blob, mime, name, bytes: size, duration_ms: None }));
                }
                OutputPart::Text(text) if is_large(&text) => {
                    let bytes = text.len() as u64;
                    let shown = head_and_tail(&text);
                    let blob = self.engine.store.put_blob(&self.scope, text.into_bytes()).await?;
                    let mime = "text/plain".to_owned();
                    full = Some(BlobRef { blob, mime, name: None, bytes, duration_ms: None });
                    parts.push(Part::text(format!("{shown}\n[read more with {READ_OUTPUT}, output {blob}]")));
                }
                OutputPart::Text(text) => parts.push(Part::text(text)),
            }
        }
        Ok((parts, full))
    }
}

fn is_large(text: &str) -> bool {
    text.len() > OUTPUT_BYTES_MAX || text.lines().nth(OUTPUT_LINES_MAX).is_some()
}

fn head_and_tail(text: &str) -> String {
    let head = &text[..text.floor_char_boundary(END_BYTES.min(text.len() / 2))];
    let tail = &text[text.ceil_char_boundary(text.len() - END_BYTES.min(text.len() / 2))..];
    let omitted_bytes = text.len() - head.len() - tail.len();
    let lines = text.lines().count();
    format!("{head}\n[… {omitted_bytes} of {} bytes omitted, {lines} lines in total …]\n{tail}", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_output_shows_head_and_tail_without_splitting_characters() {
        let text = "ä".repeat(OUTPUT_BYTES_MAX);
        let shown = head_and_tail(&text);
        assert!(shown.starts_with('ä') && shown.ends_with('ä') && shown.len() < 2 * END_BYTES + 200);
    }

    #[test]
    fn output_with_many_short_lines_is_large() {
        assert!(is_large(&"x\n".repeat(OUTPUT_LINES_MAX + 1)));
        assert!(!is_large(&"x\n".repeat(OUTPUT_LINES_MAX)));
    }
}
