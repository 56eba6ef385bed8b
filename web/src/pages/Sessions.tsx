// All sessions: newest first, found by their words as they are typed, narrowed by what they are. Only the rows in view
// exist, so a hundred thousand are as quick as ten.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import type { Hit, Session } from "../api/client";
import { client, type Filters, NEWEST, useFound, useMe, useNewest, useSessions } from "../api/queries";
import { Button, Empty, ErrorNote, Loading } from "../ui/base";
import { useKeys } from "../ui/keys";
import { go, replaceQuery, useRoute } from "../ui/route";
import { FilterBar } from "./FilterBar";
import { Dropped } from "./Import";
import { NewSession } from "./NewSession";
import { SessionRow } from "./SessionRow";

const ROW_PX = 62;
const FOUND_ROW_PX = 88;
const OVERSCAN = 8;
const TYPING_MS = 150;

export function Sessions() {
  const { query } = useRoute();
  const filters = useMemo(() => filtersOf(query), [query]);
  const [words, setWords] = useState(query.get("q") ?? "");
  const settled = useSettled(words);
  const [isNew, setNew] = useState(query.get("new") === "1");
  const field = useRef<HTMLInputElement>(null);
  const me = useMe();
  const latest = useRef(filters);
  latest.current = filters;
  useEffect(() => {
    if (/^#?\/?(\?|$)/.test(location.hash)) replaceQuery([], { q: settled, ...latest.current });
  }, [settled]);
  useKeys({ "/": () => field.current?.focus(), n: () => setNew(true) });
  return (
    <Dropped>
      <div className="page sessions-page">
        <header className="page-head">
          <h1>Sessions</h1>
          <input
            ref={field}
            type="search"
            className="search"
            aria-label="Search all sessions"
            placeholder="Search everything that was said  ( / )"
            value={words}
            onChange={(event) => setWords(event.target.value)}
            onKeyDown={(event) => event.key === "Escape" && field.current?.blur()}
          />
          <Button
            icon="plus"
            tone="main"
            onClick={() => setNew(true)}
            disabled={me.data?.may_write === false}
          >
            New
          </Button>
        </header>
        <FilterBar filters={filters} onChange={(next) => replaceQuery([], { q: settled, ...next })} />
        {settled.trim() === "" ? <All filters={filters} /> : <Found words={settled} filters={filters} />}
        {isNew && <NewSession onClose={() => setNew(false)} />}
      </div>
    </Dropped>
  );
}

function filtersOf(query: URLSearchParams): Filters {
  const filters: Filters = {};
  for (const name of ["state", "agent", "cwd", "owner", "since"] as const) {
    const value = query.get(name);
    if (value) filters[name] = value;
  }
  return filters;
}

/** A value once it has not changed for a moment. */
function useSettled(value: string): string {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

function All({ filters }: { filters: Filters }) {
  const pages = useSessions(filters, true);
  const newest = useNewest(filters, true);
  const rows = useMemo(() => {
    const seen = new Map<string, Session>();
    for (const session of newest.data?.items ?? []) seen.set(session.id, session);
    for (const page of pages.data?.pages ?? []) {
      for (const session of page.items) if (!seen.has(session.id)) seen.set(session.id, session);
    }
    return [...seen.values()].map((session) => ({ session, hit: null, hits: 0 }));
  }, [pages.data, newest.data]);
  useNoGap(pages.data?.pages[0]?.items, newest.data?.items, filters);
  if (pages.isPending) return <Loading what="Reading the sessions" />;
  if (pages.error) return <ErrorNote error={pages.error} onRetry={() => void pages.refetch()} />;
  if (rows.length === 0 && !pages.hasNextPage) {
    return Object.keys(filters).length > 0 ? <NothingFits /> : <NothingYet />;
  }
  const more = () => {
    if (pages.hasNextPage && !pages.isFetchingNextPage) void pages.fetchNextPage();
  };
  return <Rows rows={rows} words="" rowPx={ROW_PX} onEnd={more} isMore={pages.hasNextPage} />;
}

/** If so much is new that the newest do not reach what was read before, the list is read anew. */
function useNoGap(first: Session[] | undefined, newest: Session[] | undefined, filters: Filters): void {
  const last = newest?.length === NEWEST ? newest.at(-1)?.id : undefined;
  const isTorn = last !== undefined && first !== undefined && !first.some((session) => session.id === last);
  useEffect(() => {
    if (isTorn) void client.resetQueries({ queryKey: ["sessions", "pages", filters] });
  }, [isTorn, filters]);
}

function Found({ words, filters }: { words: string; filters: Filters }) {
  const found = useFound(words, filters);
  const rows = useMemo(() => {
    const hits = new Map<string, Hit[]>();
    for (const hit of found.data?.hits ?? []) hits.set(hit.session, [...(hits.get(hit.session) ?? []), hit]);
    return (found.data?.sessions ?? []).map((session) => {
      const own = hits.get(session.id) ?? [];
      return { session, hit: own[0] ?? null, hits: own.length };
    });
  }, [found.data]);
  if (found.isPending) return <Loading what="Searching" />;
  if (found.error) return <ErrorNote error={found.error} onRetry={() => void found.refetch()} />;
  if (rows.length === 0) {
    return (
      <Empty title="Nobody said that">
        <p>
          All words must occur in one message. <code>"words in quotes"</code> occur together, and{" "}
          <code>tre*</code> matches the rest of a word.
        </p>
      </Empty>
    );
  }
  return <Rows rows={rows} words={words} rowPx={FOUND_ROW_PX} onEnd={() => {}} isMore={false} />;
}

interface Row {
  session: Session;
  hit: Hit | null;
  hits: number;
}

interface RowsProps {
  rows: Row[];
  words: string;
  rowPx: number;
  isMore: boolean;
  onEnd: () => void;
}

function Rows({ rows, words, rowPx, onEnd, isMore }: RowsProps) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState(-1);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => rowPx,
    overscan: OVERSCAN,
    getItemKey: (index) => rows[index]?.session.id ?? index,
  });
  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (isMore && last >= rows.length - OVERSCAN * 2) onEnd();
  });
  const move = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, at + by));
    setAt(next);
    virtual.scrollToIndex(next);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>(`[data-index="${next}"] a`)?.focus());
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    o: () => {
      const row = rows[at];
      if (row) go(["s", row.session.id]);
    },
  });
  return (
    <section
      className="rows"
      ref={box}
      tabIndex={0}
      aria-label={`${rows.length}${isMore ? " or more" : ""} sessions`}
    >
      <ul style={{ height: virtual.getTotalSize() }}>
        {shown.map((item) => {
          const row = rows[item.index];
          return (
            row && (
              <li
                key={item.key}
                data-index={item.index}
                style={{ transform: `translateY(${item.start}px)`, height: rowPx }}
              >
                <SessionRow {...row} words={words} />
              </li>
            )
          );
        })}
      </ul>
    </section>
  );
}

function NothingFits() {
  return (
    <Empty title="No session fits">
      <p>Take a filter away to see more of them.</p>
      <Button onClick={() => go([])}>Show all sessions</Button>
    </Empty>
  );
}

function NothingYet() {
  return (
    <Empty title="No sessions yet">
      <p>
        A session is a conversation with an agent, kept for good. Press <kbd>n</kbd> to begin one, or drop a
        file of Claude Code, Codex, pi or Sapwood here to bring what you have.
      </p>
      <p>
        From a terminal: <code>sapwood chat</code> talks, <code>sapwood import</code> finds what your agents
        have left on this machine.
      </p>
    </Empty>
  );
}
