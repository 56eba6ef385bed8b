// What is happening right now: fragments of an answer, tools that run. Never stored, never replayed; when the entry they
// belong to is durable, it replaces them.
export interface LiveTool {
  callId: string;
  name: string;
  isRunning: boolean;
}

export interface Live {
  text: string;
  reasoning: string;
  tools: LiveTool[];
  /** What the engine tells in between: a retry, a failover, a compaction. */
  notice: string;
}

export const NOTHING: Live = { text: "", reasoning: "", tools: [], notice: "" };

/** Most characters of a stream that are held; beyond it the beginning is left out until the entry is there. */
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
      return { ...live, notice: `${news.from} failed (${news.why}); ${news.to} answers instead` };
    case "agent:retrying":
      return { ...live, notice: `${news.model} is asked again in ${news.after_ms} ms: ${news.why}` };
    case "session:compacting":
      return { ...live, notice: "making room in the context" };
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

/** What is left of the fragments once an entry is durable. */
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
