// Live state of a turn: fragments of an answer and running tools. Fragments are never stored or replayed. The durable
// entry replaces them.
export interface LiveTool {
  callId: string;
  name: string;
  isRunning: boolean;
}

export interface Live {
  text: string;
  reasoning: string;
  tools: LiveTool[];
  /** A notice from the engine: a retry, a failover, a compaction. */
  notice: string;
}

export const NOTHING: Live = { text: "", reasoning: "", tools: [], notice: "" };

/** Maximum characters of streamed text. Longer text loses its beginning until the entry arrives. */
const LIVE_CHARS_MAX = 200_000;

export function applyFragment(live: Live, name: string, data: unknown): Live {
  const news = data as Record<string, unknown>;
  const text = typeof news.text === "string" ? news.text : "";
  switch (name) {
    case "agent:token":
      return { ...live, text: (live.text + text).slice(-LIVE_CHARS_MAX), notice: "" };
    case "agent:reasoning":
      return { ...live, reasoning: (live.reasoning + text).slice(-LIVE_CHARS_MAX), notice: "" };
    case "agent:tool_call":
    case "agent:tool_running":
      return withTool(live, String(news.call_id), String(news.name), name === "agent:tool_running");
    case "agent:failover":
      return { ...live, notice: `${news.from} failed (${news.why}); falling back to ${news.to}` };
    case "agent:retrying":
      return { ...live, notice: `retrying ${news.model} in ${news.after_ms} ms: ${news.why}` };
    case "session:compacting":
      return { ...live, notice: "compacting the context" };
    case "cost:warning":
      return { ...live, notice: text };
    default:
      return live;
  }
}

function withTool(live: Live, callId: string, name: string, isRunning: boolean): Live {
  const others = live.tools.filter((tool) => tool.callId !== callId);
  return { ...live, tools: [...others, { callId, name, isRunning }], notice: "" };
}

/** Drop the fragments that a durable entry replaces. */
export function settle(live: Live, kind: string): Live {
  switch (kind) {
    case "assistant_message":
      return { ...live, text: "", reasoning: "", tools: live.tools.filter((tool) => tool.isRunning) };
    case "tool_result":
    case "turn_ended":
    case "turn_started":
      return NOTHING;
    default:
      return live;
  }
}
