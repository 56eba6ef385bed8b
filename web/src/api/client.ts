// Talking to the server. The console is one more client of the public API: its types come from the OpenAPI document, and
// every failure is an ApiError with the server's stable code. Requests that change something carry the header that no
// other site's form can set.
import type { components, paths } from "../api.gen";

export type Schemas = components["schemas"];
export type Session = Schemas["Session"];
export type Entry = Schemas["Entry"];
export type TreeNode = Schemas["Node"];
export type Tree = Schemas["Tree"];
export type Context = Schemas["Context"];
export type ContextMessage = Schemas["Message"];
export type LedgerLine = Schemas["LedgerLine"];
export type Archive = Schemas["Archive"];
export type Artifact = Schemas["Artifact"];
export type Hit = Schemas["Hit"];
export type AgentCard = Schemas["AgentCard"];
export type Me = Schemas["Me"];
export type Pressure = Schemas["Pressure"];
export type TimelinePoint = Schemas["TimelinePoint"];
export type Imported = Schemas["Imported"];
export type Total = Schemas["Total"];

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
  ) {
    super(detail);
    this.name = "ApiError";
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;
type Params = Record<string, string>;
type Json<R> = R extends { content: { "application/json": infer T } } ? T : undefined;
type AnswerOf<O> = O extends { responses: infer R }
  ? R extends { 200: infer A }
    ? Json<A>
    : R extends { 201: infer A }
      ? Json<A>
      : R extends { 202: infer A }
        ? Json<A>
        : undefined
  : never;
type Operation<P extends keyof paths, M extends string> = paths[P] extends Record<M, infer O> ? O : never;

const CSRF = { "x-sapwood-csrf": "1" };

export function fill(path: string, params: Params = {}, query: Query = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? ""));
  const pairs = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const search = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]));
  return pairs.length > 0 ? `${filled}?${search}` : filled;
}

async function problemOf(response: Response): Promise<ApiError> {
  const body = await response.json().catch(() => null);
  const code = typeof body?.code === "string" ? body.code : "server.unknown";
  const detail = typeof body?.detail === "string" ? body.detail : `the server answered ${response.status}`;
  return new ApiError(response.status, code, detail);
}

/** Any request; what the network does not answer becomes an error with a code of its own. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      ...init,
      headers: { ...CSRF, ...init.headers },
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "network.unreachable", "the server does not answer");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function read<T>(response: Response): Promise<T> {
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

export async function get<P extends keyof paths>(
  path: P,
  params?: Params,
  query?: Query,
  signal?: AbortSignal,
): Promise<AnswerOf<Operation<P, "get">>> {
  return read(await ask(fill(path, params, query), signal ? { signal } : {}));
}

type Changing = "post" | "put" | "patch" | "delete";

export async function send<P extends keyof paths, M extends Changing>(
  method: M,
  path: P,
  params?: Params,
  body?: unknown,
  query?: Query,
): Promise<AnswerOf<Operation<P, M>>> {
  const init: RequestInit = { method: method.toUpperCase() };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  return read(await ask(fill(path, params, query), init));
}

/** Sends a file's bytes. */
export async function upload<P extends keyof paths>(
  path: P,
  params: Params,
  query: Query,
  file: Blob,
): Promise<AnswerOf<Operation<P, "post">>> {
  const headers = { "content-type": file.type || "application/octet-stream" };
  return read(await ask(fill(path, params, query), { method: "POST", body: file, headers }));
}

/** What a person can do about an error, by its code. */
export function hintFor(error: unknown): string {
  const code = error instanceof ApiError ? error.code : "";
  const hints: Record<string, string> = {
    "network.unreachable": "Check that `sapwood serve` is running; this page goes on by itself once it is.",
    "auth.required": "Sign in with a key: `sapwood key new --user NAME` makes one.",
    "auth.invalid": "The key was revoked or has expired. Make a new one with `sapwood key new`.",
    "auth.origin": "Open the console at the server's own address, not through another site.",
    "key.scope": "Your key may only read. Ask for one with the scope `write`.",
    "session.denied": "Ask the session's owner to share it with you as a collaborator.",
    "session.not_found": "It was erased, or was never shared with you. Go back to the list.",
    "session.leased": "Another process runs this turn right now; what it does shows here as it happens.",
    "session.archived": "Reopen it from the session's menu to write in it.",
    "session.conflict": "Somebody was quicker. Look at what changed and try again.",
    "turn.running": "Queue your words for the next turn, or steer the one that runs.",
    "turn.interrupted": "Resume the interrupted turn first.",
    "turn.ended": "The turn is over; send your words as a new one.",
    turn_limit: "Fork the session to go on, or raise `limits.turns_max` of its agent.",
    budget_exceeded: "Raise the agent's budget, or go on in a new session.",
    "rate.limited": "Wait a moment; the page tries again by itself.",
    "share.exceeded": "Close other pages and clients that follow sessions, or wait a moment.",
    "server.full": "The server is busy with others. Try again in a moment.",
    "input.too_large": "Send it in smaller pieces, or raise the limit in sapwood.toml.",
    "input.format": "Use `sapwood import FILE` on the server's machine for databases and other formats.",
    "model.none": "Start the server with a model: set a provider's key, or use the demo model.",
    "store.busy": "The store is busy. Try again in a moment.",
    "request.timeout": "The server is slow right now. Try again.",
  };
  return (
    hints[code] ??
    (code.startsWith("input.")
      ? "Change what you entered and try again."
      : "Try again; the server's log says more.")
  );
}
