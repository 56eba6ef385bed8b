// Entry bodies as specified in docs/spec/log-format.md. The API returns bodies unchanged from the log. The console
// shows an entry of an unknown kind by the name of its kind.
import type { Entry } from "../api/client";

export type Part =
  | { type: "text"; text: string }
  | { type: "reasoning"; text: string; redacted?: boolean }
  | { type: "tool_call"; call_id: string; name: string; input: unknown }
  | ({ type: "media" } & BlobRef);

export interface BlobRef {
  blob: string;
  mime: string;
  name?: string;
  bytes: number;
}

export interface Usage {
  input: number;
  output: number;
  cache_read?: number;
  cache_write?: number;
  reasoning?: number;
}

export type Body =
  | { type: "user_message"; parts: Part[]; origin?: { channel: string } }
  | {
      type: "assistant_message";
      parts: Part[];
      model?: string;
      usage?: Usage;
      cost_nano_usd?: number;
      stop?: string;
    }
  | {
      type: "tool_result";
      call_id: string;
      tool?: string;
      parts: Part[];
      is_error?: boolean;
      duration_ms?: number;
      interrupted?: boolean;
      full?: BlobRef;
    }
  | { type: "system_note"; text: string; reason?: string }
  | { type: "custom_message"; custom_type: string; parts: Part[]; display?: boolean }
  | {
      type: "compaction";
      summary?: string;
      first_kept?: string;
      strategy: string;
      trigger: string;
      tokens_before?: number;
      tokens_after?: number;
      archived?: number;
    }
  | { type: "branch_summary"; summary: string; from?: string }
  | { type: "model_changed"; model: string }
  | { type: "thinking_changed"; level: string }
  | { type: "skills_changed"; active: string[] }
  | { type: "context_changed"; system?: string; cwd?: string }
  | { type: "graft"; source: string; what?: string; name?: string }
  | { type: "leaf_moved"; to?: string }
  | { type: "label"; target: string; text?: string }
  | { type: "session_named"; title: string }
  | { type: "custom_info"; custom_type: string; data: unknown }
  | { type: "turn_started"; trace_id?: string }
  | {
      type: "turn_ended";
      outcome: string;
      code?: string;
      message?: string;
      cost_nano_usd?: number;
      usage?: Usage;
    }
  | {
      type: "round";
      number: number;
      action: { kind: string; what?: string };
      result?: { status: string; tokens: number; cost_nano_usd?: number };
      confidence?: number;
    }
  | {
      type: "approval_asked";
      approval: string;
      question: string;
      call_id?: string;
      details?: { kind?: string };
    }
  | { type: "approval_answered"; approval: string; answer: string; reason?: string }
  | { type: "artifact_put"; name: string; usage: string; content: BlobRef }
  | { type: "member_changed"; member: string; role?: string }
  | { type: "state_changed"; state: string; reason?: string }
  | { type: "exported"; format: string; entries: number }
  | { type: "input_queued"; queue: string; parts: Part[] }
  | { type: "input_taken"; input: string }
  | { type: "cancel_asked"; turn: string };

const IN_TREE = new Set([
  "user_message",
  "assistant_message",
  "tool_result",
  "system_note",
  "custom_message",
  "compaction",
  "branch_summary",
  "model_changed",
  "thinking_changed",
  "skills_changed",
  "context_changed",
  "graft",
]);

/** Whether an entry of this kind becomes the leaf. */
export function isInTree(kind: string): boolean {
  return IN_TREE.has(kind);
}

export function bodyOf(entry: Entry): Body {
  return entry.body as Body;
}

/** The joined text parts of a message. */
export function textOf(parts: Part[] | undefined): string {
  return (parts ?? []).flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
}
