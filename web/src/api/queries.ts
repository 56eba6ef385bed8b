// Queries of the pages, with keys for invalidation.
import { keepPreviousData, QueryClient, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { LongList } from "../log/longList";
import { ApiError, get, type Hit, type Session } from "./client";

export const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      retry: (times, error) =>
        times < 2 &&
        error instanceof ApiError &&
        (error.status === 0 || error.status >= 500 || error.status === 429),
      refetchOnWindowFocus: true,
    },
  },
});

/** Invalidate the given views of a session, or all of its views by default. */
export function invalidateSession(session: string, ...views: string[]): void {
  for (const view of views.length > 0 ? views : [""]) {
    void client.invalidateQueries({ queryKey: view ? ["session", session, view] : ["session", session] });
  }
  void client.invalidateQueries({ queryKey: ["sessions", "head"] });
}

const listeners = new Set<() => void>();

/** Reload session lists after a session was created or erased. */
export function invalidateSessionLists(): void {
  for (const listener of listeners) listener();
  void client.invalidateQueries({ queryKey: ["sessions"] });
}

export function onSessionListsInvalidated(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useMe() {
  return useQuery({ queryKey: ["me"], queryFn: () => get("/v1/me"), staleTime: 60_000, retry: false });
}

export function useAgents() {
  return useQuery({ queryKey: ["agents"], queryFn: () => get("/v1/agents"), staleTime: 60_000 });
}

export interface Filters {
  state?: string;
  agent?: string;
  cwd?: string;
  owner?: string;
  since?: string;
}

const SINCE_MS: Record<string, number> = {
  hour: 3_600_000,
  day: 86_400_000,
  week: 604_800_000,
  month: 2_592_000_000,
};

function asQuery({ since, ...rest }: Filters): Record<string, string | number | undefined> {
  const span = since ? SINCE_MS[since] : undefined;
  // Rounded to the minute, so that equal filters produce equal requests.
  return { ...rest, since: span ? Math.floor((Date.now() - span) / 60_000) * 60_000 : undefined };
}

/** Sessions per page. */
const SESSIONS_PAGE = 200;
const HITS_PAGE = 200;
/** Poll interval for the newest session; filtered lists cost the server more. */
const POLL_MS = 4_000;
const POLL_FILTERED_MS = 20_000;

export type End = "newest" | "oldest";

/** A session list, starting at either end. */
export function sessionList(filters: Filters, end: End): LongList<Session> {
  const list = new LongList<Session>((cursor) =>
    get("/v1/sessions", {}, { ...asQuery(filters), order: end, limit: SESSIONS_PAGE, cursor }),
  );
  list.reset();
  return list;
}

/** Poll the newest session: activity elsewhere moves a session to the top. */
export function useNewest(filters: Filters, enabled: boolean) {
  return useQuery({
    queryKey: ["sessions", "head", filters],
    queryFn: () => get("/v1/sessions", {}, { ...asQuery(filters), limit: 1 }),
    enabled,
    refetchInterval: Object.keys(filters).length > 0 ? POLL_FILTERED_MS : POLL_MS,
  });
}

/** Build a query from partially typed text: the last word is a prefix. */
export function asSearch(words: string): string {
  const trimmed = words.trim();
  return /[\p{L}\p{N}]$/u.test(trimmed) && !trimmed.includes('"') ? `${trimmed}*` : trimmed;
}

/** The first sessions that match a search; the newest sessions if the query is empty. */
export function useSessionSearch(words: string) {
  const q = asSearch(words);
  return useQuery({
    queryKey: ["sessions", "found", q],
    queryFn: ({ signal }) => get("/v1/sessions", {}, { q, limit: 20 }, signal),
    placeholderData: keepPreviousData,
  });
}

/** Search results: sessions, and the hits in the sessions loaded so far. */
export class SearchResults {
  readonly list: LongList<Session>;
  readonly hits = new Map<string, Hit[]>();
  private next: string | null | undefined;

  constructor(words: string, filters: Filters) {
    const q = asSearch(words);
    this.list = new LongList<Session>(async (cursor) => {
      const [page] = await Promise.all([
        get("/v1/sessions", {}, { ...asQuery(filters), q, limit: SESSIONS_PAGE, cursor }),
        this.readHits(q),
      ]);
      return page;
    });
    this.list.reset();
  }

  private async readHits(q: string): Promise<void> {
    if (this.next === null) return;
    const page = await get("/v1/search", {}, { q, limit: HITS_PAGE, cursor: this.next });
    this.next = page.next ?? null;
    for (const hit of page.items) this.hits.set(hit.session, [...(this.hits.get(hit.session) ?? []), hit]);
  }
}

export function useSession(session: string) {
  return useQuery({
    queryKey: ["session", session, "summary"],
    queryFn: () => get("/v1/sessions/{session}", { session }),
  });
}

/** Context pressure, requested again when the log has grown. */
export function usePressure(session: Pick<Session, "id" | "head">, enabled = true) {
  return useQuery({
    queryKey: ["pressure", session.id, session.head.seq],
    queryFn: ({ signal }) => get("/v1/sessions/{session}/pressure", { session: session.id }, {}, signal),
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
    retry: false,
  });
}

type View =
  | "tree"
  | "ledger"
  | "usage"
  | "timeline"
  | "archives"
  | "ancestry"
  | "members"
  | "artifacts"
  | "inputs"
  | "grafts";

export function useView<V extends View>(session: string, view: V) {
  return useQuery({
    queryKey: ["session", session, view],
    queryFn: ({ signal }) => get(`/v1/sessions/{session}/${view}`, { session }, {}, signal),
  });
}

export function useContextAt(session: string, at: string | null, enabled = true) {
  return useQuery({
    queryKey: ["session", session, "context", at ?? "leaf"],
    queryFn: ({ signal }) => get("/v1/sessions/{session}/context", { session }, { at, count: true }, signal),
    enabled,
  });
}

/** The questions that wait for a person, in all sessions. */
export function useApprovals() {
  return useInfiniteQuery({
    queryKey: ["approvals"],
    queryFn: ({ pageParam, signal }) => get("/v1/approvals", {}, { cursor: pageParam, limit: 100 }, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    refetchInterval: POLL_MS,
  });
}

export function useAudit(session: string | null) {
  return useInfiniteQuery({
    queryKey: session ? ["session", session, "audit"] : ["audit"],
    queryFn: ({ pageParam }) => get("/v1/audit", {}, { session, after: pageParam, limit: 1_000 }),
    initialPageParam: undefined as number | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });
}
