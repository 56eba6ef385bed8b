// One session's log in the browser: its last pages, then every new entry exactly once and in order. Views
// subscribe; the fold runs once per change.
import { type ApiError, type Entry, get, type Session } from "../api/client";
import { type Connection, follow, type StreamEvent } from "../api/stream";
import { type Feed, foldFeed } from "./feed";
import { applyFragment, dropReplaced, EMPTY_LIVE, type LiveState } from "./live";

const PAGE = 500;
const PAGES_MAX = 2_000;
/** If the last entry is older than this, the open turn is shown as silent until new data arrives. */
const STALE_MS = 60_000;

export interface Snapshot {
  status: "loading" | "ready" | "failed";
  error: ApiError | null;
  entries: Entry[];
  feed: Feed;
  live: LiveState;
  connection: Connection;
  /** The seq before the first loaded entry; 0 when all entries are loaded. */
  before: number;
  /** Time of the latest activity of the open turn. */
  lastActivityAt: number;
}

const EMPTY: Snapshot = {
  status: "loading",
  error: null,
  entries: [],
  feed: foldFeed([]),
  live: EMPTY_LIVE,
  connection: { state: "connecting" },
  before: 0,
  lastActivityAt: 0,
};

/** Called with the kinds of new entries, to invalidate views. */
export type OnEntries = (kinds: Set<string>) => void;

export class SessionLog {
  private snapshot = EMPTY;
  private listeners = new Set<() => void>();
  private stop: (() => void) | null = null;
  private frame = 0;
  private pending: StreamEvent[] = [];
  onEntries: OnEntries = () => {};

  constructor(readonly session: string) {}

  read = (): Snapshot => this.snapshot;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.open();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.close();
    };
  };

  private set(change: Partial<Snapshot>): void {
    this.snapshot = { ...this.snapshot, ...change };
    for (const listener of this.listeners) listener();
  }

  private open(): void {
    const load = this.snapshot.status === "ready" ? Promise.resolve() : this.load();
    load.then(
      () => this.connect(),
      (error: ApiError) => this.set({ status: "failed", error }),
    );
  }

  private close(): void {
    this.stop?.();
    this.stop = null;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.pending = [];
    this.set({ live: EMPTY_LIVE });
  }

  retry(): void {
    this.close();
    this.set({ ...EMPTY });
    this.open();
  }

  private async load(): Promise<void> {
    const session: Session = await get("/v1/sessions/{session}", { session: this.session });
    const before = Math.max(0, session.head.seq - PAGE);
    const entries = await this.readAfter(before);
    const feed = foldFeed(entries);
    // An open turn without recent entries is shown as silent immediately.
    const lastActivityAt = Date.now() - feed.lastAt > STALE_MS ? feed.lastAt : Date.now();
    this.set({ status: "ready", error: null, entries, feed, before, lastActivityAt });
  }

  private async readAfter(after: number, upto = Number.POSITIVE_INFINITY): Promise<Entry[]> {
    const entries: Entry[] = [];
    let next: number | null | undefined = after;
    for (let page = 0; page < PAGES_MAX && next !== null && next !== undefined && next < upto; page++) {
      const limit = Math.min(1_000, upto - next);
      const response: { items: Entry[]; next?: number | null } = await get(
        "/v1/sessions/{session}/entries",
        { session: this.session },
        { after: next, limit },
      );
      entries.push(...response.items);
      next = response.next;
    }
    return entries;
  }

  /** Load the page before the first loaded entry. */
  async loadEarlier(): Promise<void> {
    const { before } = this.snapshot;
    if (before === 0) return;
    const from = Math.max(0, before - PAGE);
    const earlier = await this.readAfter(from, before);
    const entries = [...earlier, ...this.snapshot.entries.filter((entry) => entry.seq > before)];
    this.set({ entries, feed: foldFeed(entries), before: from });
  }

  /** Load earlier pages until the entry is loaded. */
  async loadBackTo(seq: number): Promise<void> {
    while (this.snapshot.status === "ready" && this.snapshot.before >= seq) await this.loadEarlier();
  }

  private lastSeq(): number {
    const { entries, before } = this.snapshot;
    return entries.at(-1)?.seq ?? before;
  }

  private connect(): void {
    if (this.stop || this.listeners.size === 0) return;
    this.stop = follow({
      session: this.session,
      cursor: () => this.lastSeq(),
      onEvent: (event) => {
        this.pending.push(event);
        // A hidden page draws no frames but must still process events.
        if (document.hidden) this.applyPending();
        else this.frame ||= requestAnimationFrame(() => this.applyPending());
      },
      // Fragments are incomplete after a disconnect. The entry will have the whole text.
      onConnection: (connection) =>
        this.set(connection.state === "waiting" ? { connection, live: EMPTY_LIVE } : { connection }),
    });
  }

  /** Apply all events since the previous frame, so that many tokens cause one render. */
  private applyPending(): void {
    this.frame = 0;
    const events = this.pending;
    this.pending = [];
    let { live } = this.snapshot;
    const fresh: Entry[] = [];
    let last = this.lastSeq();
    for (const event of events) {
      if (event.id === null) {
        live = applyFragment(live, event.name, event.data);
      } else if (event.id > last) {
        const entry = entryOf(event);
        last = event.id;
        fresh.push(entry);
        live = dropReplaced(live, entry.kind);
      }
    }
    const change: Partial<Snapshot> = { live, lastActivityAt: Date.now() };
    if (fresh.length > 0) {
      change.entries = [...this.snapshot.entries, ...fresh];
      change.feed = foldFeed(change.entries);
    }
    this.set(change);
    if (fresh.length > 0) this.onEntries(new Set(fresh.map((entry) => entry.kind)));
  }
}

/** A durable event contains its entry. */
function entryOf(event: StreamEvent): Entry {
  const data = event.data as Omit<Entry, "body" | "kind"> & { entry: { type: string } };
  const { seq, id, at, by } = data;
  return {
    seq,
    id,
    at,
    by,
    parent: data.parent ?? null,
    turn: data.turn ?? null,
    kind: data.entry.type,
    body: data.entry as unknown as Entry["body"],
  };
}

const OPEN_MAX = 4;
const opened = new Map<string, SessionLog>();

/** Get the log of a session. The most recently used logs are cached. */
export function sessionLog(session: string): SessionLog {
  const log = opened.get(session) ?? new SessionLog(session);
  opened.delete(session);
  opened.set(session, log);
  const oldest = opened.keys().next().value;
  if (opened.size > OPEN_MAX && oldest !== undefined) opened.delete(oldest);
  return log;
}
