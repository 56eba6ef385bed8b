// A session's event stream. It is read with fetch, because EventSource does not deliver unregistered event names and
// does not report why a request was refused. The id of a durable event is its seq. A reconnect requests the events
// after the last received seq, so no event is lost or duplicated.
import { ApiError, type Event, fill, request } from "./client";

export interface StreamEvent {
  name: string;
  /** The seq of a durable event; null for a fragment. */
  id: number | null;
  data: Event;
}

/** Parse a text stream into server-sent events. */
export class EventParser {
  private rest = "";

  push(chunk: string): StreamEvent[] {
    const blocks = (this.rest + chunk).split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.map(parseBlock).filter((event): event is StreamEvent => event !== null);
  }
}

function parseBlock(block: string): StreamEvent | null {
  let name = "message";
  let id: number | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const field = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "id") id = Number(value);
    else if (field === "data") data.push(value);
  }
  if (data.length === 0) return null;
  try {
    return { name, id, data: JSON.parse(data.join("\n")) };
  } catch {
    return null;
  }
}

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "waiting"; retryAt: number }
  | { state: "refused"; error: ApiError };

export interface FollowOptions {
  session: string;
  /** The last seq received. */
  cursor: () => number;
  /** The seq before the first entry of the feed whose changes the events contain. */
  feedAfter: () => number;
  onEvent: (event: StreamEvent) => void;
  onConnection: (connection: Connection) => void;
}

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 15_000;
/** A connection without data for more than two heartbeats counts as dead. */
const SILENCE_MS_MAX = 40_000;

/** Follow a session until the returned function is called. */
export function follow(options: FollowOptions): () => void {
  const stop = new AbortController();
  void run(options, stop.signal);
  return () => stop.abort();
}

async function run(options: FollowOptions, stop: AbortSignal): Promise<void> {
  let pause = RETRY_MS_MIN;
  while (!stop.aborted) {
    options.onConnection({ state: "connecting" });
    try {
      await readOnce(options, stop, () => {
        pause = RETRY_MS_MIN;
      });
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof ApiError && [401, 403, 404].includes(error.status)) {
        options.onConnection({ state: "refused", error });
        return;
      }
    }
    if (stop.aborted) return;
    options.onConnection({ state: "waiting", retryAt: Date.now() + pause });
    await sleep(pause, stop);
    pause = Math.min(pause * 2, RETRY_MS_MAX);
  }
}

async function readOnce(options: FollowOptions, stop: AbortSignal, onAlive: () => void): Promise<void> {
  const attempt = new AbortController();
  const end = () => attempt.abort();
  stop.addEventListener("abort", end);
  let watchdog = setTimeout(end, SILENCE_MS_MAX);
  try {
    const path = fill(
      "/v1/sessions/{session}/events",
      { session: options.session },
      { after: options.cursor(), feed_after: options.feedAfter() },
    );
    const response = await request(path, {
      signal: attempt.signal,
      headers: { accept: "text/event-stream" },
    });
    options.onConnection({ state: "live" });
    onAlive();
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (;;) {
      const chunk = await reader?.read();
      if (!chunk || chunk.done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(end, SILENCE_MS_MAX);
      for (const event of parser.push(chunk.value)) {
        if (event.name === "error") throw problemIn(event.data);
        options.onEvent(event);
      }
    }
  } finally {
    clearTimeout(watchdog);
    stop.removeEventListener("abort", end);
    attempt.abort();
  }
}

function problemIn(data: unknown): ApiError {
  const problem = data as { status?: number; code?: string; detail?: string };
  return new ApiError(
    problem.status ?? 500,
    problem.code ?? "server.unknown",
    problem.detail ?? "the stream ended",
  );
}

function sleep(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
    window.addEventListener("online", () => resolve(), { once: true });
  });
}
