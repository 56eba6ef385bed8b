// One session's feed in the browser: the items of its last entries, then the changes by every new entry, exactly once
// and in order. The server folds the log. Views subscribe.
import { type ApiError, type EntryBody, type FeedItem, get } from "../api/client";
import { type Connection, follow, type StreamEvent } from "../api/stream";
import { mergeItems } from "./items";
import { applyFragment, dropReplaced, EMPTY_LIVE, type LiveState } from "./live";

/** Entries per page. */
const PAGE = 500;
/** If the last entry is older than this, the open turn is shown as silent until new data arrives. */
const STALE_MS = 60_000;

export interface Feed {
  items: FeedItem[];
  /** The seq of the last applied entry. */
  seq: number;
  openTurn: string | null;
  /** The seqs of entries that are on another branch. */
  offPath: Set<number>;
}

const EMPTY_FEED: Feed = { items: [], seq: 0, openTurn: null, offPath: new Set() };

export interface Snapshot {
  status: "loading" | "ready" | "failed";
  error: ApiError | null;
  feed: Feed;
  live: LiveState;
  connection: Connection;
  /** The seq before the first entry of the feed; 0 when the whole feed is loaded. */
  before: number;
  /** Time of the latest activity of the open turn. */
  lastActivityAt: number;
}

const EMPTY: Snapshot = {
  status: "loading",
  error: null,
  feed: EMPTY_FEED,
  live: EMPTY_LIVE,
  connection: { state: "connecting" },
  before: 0,
  lastActivityAt: 0,
};

/** Called with the kinds of new entries, to invalidate views. */
export type OnEntries = (kinds: Set<EntryBody["type"]>) => void;

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
    const session = await get("/v1/sessions/{session}", { session: this.session });
    const before = Math.max(0, session.head.seq - PAGE);
    const feed = await this.readFeed(before);
    // An open turn without recent entries is shown as silent immediately.
    const isStale = Date.now() - session.updated_at > STALE_MS;
    const lastActivityAt = isStale ? session.updated_at : Date.now();
    this.set({ status: "ready", error: null, feed, before, lastActivityAt });
  }

  private async readFeed(after: number): Promise<Feed> {
    const feed = await get("/v1/sessions/{session}/feed", { session: this.session }, { after });
    const { seq, open_turn: openTurn = null } = feed;
    return { items: mergeItems([], feed.items), seq, openTurn, offPath: new Set(feed.off_path) };
  }

  /** Load the page before the first loaded entry. */
  async loadEarlier(): Promise<void> {
    await this.loadAfter(Math.max(0, this.snapshot.before - PAGE));
  }

  /** Load earlier pages up to an entry, unless it is loaded already. */
  async loadBackTo(seq: number): Promise<void> {
    if (this.snapshot.before >= seq) await this.loadAfter(Math.max(0, seq - PAGE));
  }

  /** Replace the feed, and reconnect: the stream's changes must refer to the same first entry as the feed. */
  private async loadAfter(before: number): Promise<void> {
    if (this.snapshot.status !== "ready") return;
    const feed = await this.readFeed(before);
    this.stop?.();
    this.stop = null;
    this.set({ feed, before });
    this.connect();
  }

  private connect(): void {
    if (this.stop || this.listeners.size === 0) return;
    this.stop = follow({
      session: this.session,
      cursor: () => this.snapshot.feed.seq,
      feedAfter: () => this.snapshot.before,
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
    let { live, feed } = this.snapshot;
    const kinds = new Set<EntryBody["type"]>();
    const news: FeedItem[] = [];
    for (const { id, data } of events) {
      if (!("entry" in data)) {
        live = applyFragment(live, data);
      } else if (id !== null && id > feed.seq) {
        feed = { ...feed, seq: id, openTurn: data.feed?.open_turn ?? null };
        news.push(...(data.feed?.items ?? []));
        kinds.add(data.entry.type);
        live = dropReplaced(live, data.entry.type);
      }
    }
    if (news.length > 0) feed = { ...feed, items: mergeItems(feed.items, news) };
    this.set({ live, feed, lastActivityAt: Date.now() });
    if (kinds.size > 0) this.onEntries(kinds);
    // Another branch is active now.
    if (kinds.has("leaf_moved")) void this.loadAfter(this.snapshot.before).catch(() => this.retry());
  }
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
