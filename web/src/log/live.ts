// Live state of a turn: fragments of an answer and running tools. Fragments are never stored or replayed. The durable
// entry replaces them.
import type { EntryBody, Event } from "../api/client";

export interface LiveTool {
  callId: string;
  name: string;
  isRunning: boolean;
}

export interface LiveState {
  text: string;
  reasoning: string;
  tools: LiveTool[];
  /** A notice from the engine: a retry, a failover, a compaction, a budget warning. */
  notice: string;
}

export const EMPTY_LIVE: LiveState = { text: "", reasoning: "", tools: [], notice: "" };

/** Maximum characters of streamed text. Longer text loses its beginning until the entry arrives. */
const LIVE_CHARS_MAX = 200_000;

export function applyFragment(live: LiveState, event: Event): LiveState {
  switch (event.type) {
    case "agent:token":
      return { ...live, text: (live.text + event.text).slice(-LIVE_CHARS_MAX), notice: "" };
    case "agent:reasoning":
      return { ...live, reasoning: (live.reasoning + event.text).slice(-LIVE_CHARS_MAX), notice: "" };
    case "agent:tool_call":
    case "agent:tool_running":
      return withTool(live, event.call_id, event.name, event.type === "agent:tool_running");
    case "agent:failover":
      return { ...live, notice: `${event.from} failed (${event.why}); falling back to ${event.to}` };
    case "agent:retrying":
      return { ...live, notice: `retrying ${event.model} in ${event.after_ms} ms: ${event.why}` };
    case "session:compacting":
      return { ...live, notice: "compacting the context" };
    case "cost:warning":
      return { ...live, notice: event.text };
    default:
      return live;
  }
}

function withTool(live: LiveState, callId: string, name: string, isRunning: boolean): LiveState {
  const others = live.tools.filter((tool) => tool.callId !== callId);
  return { ...live, tools: [...others, { callId, name, isRunning }], notice: "" };
}

/** Drop the fragments that a durable entry replaces. */
export function dropReplaced(live: LiveState, kind: EntryBody["type"]): LiveState {
  switch (kind) {
    case "assistant_message":
      return { ...live, text: "", reasoning: "", tools: live.tools.filter((tool) => tool.isRunning) };
    case "tool_result":
    case "turn_ended":
    case "turn_started":
      return EMPTY_LIVE;
    default:
      return live;
  }
}
