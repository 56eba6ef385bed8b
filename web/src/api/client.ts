// HTTP client. The console is a regular client of the public API: its types are generated from the OpenAPI document,
// and every failed request is an ApiError with a stable code. Every request has the CSRF header, which a form on
// another site cannot set.
import type { components, paths } from "../api.gen";

export type Schemas = components["schemas"];
export type Session = Schemas["Session"];
export type EntryBody = Schemas["EntryBody"];
export type Part = Schemas["Part"];
export type BlobRef = Schemas["BlobRef"];
export type Event = Schemas["Event"];
export type Feed = Schemas["Feed"];
export type FeedItem = Schemas["FeedItem"];
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
type ResponseOf<O> = O extends { responses: infer R }
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
  const detail =
    typeof body?.detail === "string" ? body.detail : `the server responded with status ${response.status}`;
  return new ApiError(response.status, code, detail);
}

/** Send a request. A network failure becomes an ApiError with the code `network.unreachable`. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      ...init,
      headers: { ...CSRF, ...init.headers },
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "network.unreachable", "the server does not respond");
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
): Promise<ResponseOf<Operation<P, "get">>> {
  return read(await request(fill(path, params, query), signal ? { signal } : {}));
}

type WriteMethod = "post" | "put" | "patch" | "delete";

export async function send<P extends keyof paths, M extends WriteMethod>(
  method: M,
  path: P,
  params?: Params,
  body?: unknown,
  query?: Query,
): Promise<ResponseOf<Operation<P, M>>> {
  const init: RequestInit = { method: method.toUpperCase() };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  return read(await request(fill(path, params, query), init));
}

export async function upload<P extends keyof paths>(
  path: P,
  params: Params,
  query: Query,
  file: Blob,
): Promise<ResponseOf<Operation<P, "post">>> {
  const headers = { "content-type": file.type || "application/octet-stream" };
  return read(await request(fill(path, params, query), { method: "POST", body: file, headers }));
}

/** The hint for the user, by error code. */
export function hintFor(error: unknown): string {
  const code = error instanceof ApiError ? error.code : "";
  const hints: Record<string, string> = {
    "network.unreachable": "Check that the server is running. This page reconnects automatically.",
    "auth.required": "Sign in with a key. The server's operator can create one.",
    "auth.invalid": "The key is unknown, revoked or expired. Ask the server's operator for a new one.",
    "auth.origin": "Open the console at the server's own address, not through another site.",
    "key.scope": "Your key is read-only. Ask for a key with the scope `write`.",
    "session.denied": "Ask the session's owner to do it, or to share it with you as a collaborator.",
    "session.not_found": "The session was erased or is not shared with you. Go back to the list.",
    "session.leased": "Another process is running a turn in this session. Its events appear here live.",
    "session.archived": "Reopen the session from its menu to write to it.",
    "session.conflict": "The session changed in the meantime. Check the changes and try again.",
    "turn.running": "Queue your message for the next turn, or steer the running turn.",
    "turn.interrupted": "Resume the interrupted turn first.",
    "turn.ended": "The turn has ended. Send your message as a new turn.",
    turn_limit: "Start a new session, or ask its owner to raise the limit of turns.",
    budget_exceeded: "Ask the owner of the session to raise its budget, or start a new session.",
    "rate.limited": "Wait a moment, then try again.",
    "share.exceeded": "Close other pages and clients that follow sessions, or wait a moment.",
    "server.full": "The server has reached its limit on requests. Try again in a moment.",
    "input.too_large": "Send smaller parts, or ask the server's operator to raise the limit.",
    "input.format": "Ask the server's operator to import databases and other formats.",
    "model.none": "Ask the server's operator to configure a model.",
    "model.no_key": "Choose another model, or ask the server's operator to configure a key for this one.",
    "model.unknown": "Choose another model, as PROVIDER/NAME.",
    "model.not_allowed": "Choose another model: only the server's operator can allow this one.",
    "store.busy": "The store is busy. Try again in a moment.",
    "request.timeout": "The server is slow right now. Try again.",
  };
  return (
    hints[code] ??
    (code.startsWith("input.")
      ? "Correct your input and try again."
      : "Try again. The server's log has details.")
  );
}
