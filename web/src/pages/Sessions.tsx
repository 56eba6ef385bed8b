// All sessions, newest first, with search as you type and filters. Only rows in view are rendered and only nearby pages
// are kept, so the cost does not depend on the number of sessions.
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import type { Session } from "../api/client";
import {
  type End,
  type Filters,
  onSessionListsInvalidated,
  SearchResults,
  sessionList,
  useMe,
  useNewest,
} from "../api/queries";
import type { LongList } from "../log/longList";
import { Button, Empty, ErrorNote, Loading } from "../ui/base";
import { useKeys } from "../ui/keys";
import { go, replaceQuery, useRoute } from "../ui/route";
import { FilterBar } from "./FilterBar";
import { ImportDropZone } from "./Import";
import { NewSession } from "./NewSession";
import { type ListPosition, Rows } from "./Rows";

const ROW_PX = 62;
const FOUND_ROW_PX = 88;
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
    <ImportDropZone>
      <div className="page sessions-page">
        <header className="page-head">
          <h1>Sessions</h1>
          <input
            ref={field}
            type="search"
            className="search"
            aria-label="Search all sessions"
            placeholder="Search all messages  ( / )"
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
    </ImportDropZone>
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

/** Debounce a value. */
function useSettled(value: string): string {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

/** Scroll position in the list, restored when the user returns. */
let saved: { key: string; list: LongList<Session>; position: ListPosition } | null = null;
onSessionListsInvalidated(() => {
  saved = null;
});

function All({ filters }: { filters: Filters }) {
  const key = JSON.stringify(filters);
  const [end, setEnd] = useState<End>(() => (saved?.key === key ? saved.position.end : "newest"));
  const [round, setRound] = useState(0);
  useEffect(() => onSessionListsInvalidated(() => setRound((before) => before + 1)), []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key represents the filters, and a new round reloads.
  const [list, position] = useMemo(() => {
    if (saved?.key === key && saved.position.end === end) return [saved.list, saved.position];
    return [sessionList(filters, end), { end, offset: 0, at: -1 }] as const;
  }, [key, end, round]);
  useEffect(() => {
    saved = { key, list, position };
  }, [key, list, position]);
  useSyncExternalStore(list.subscribe, list.snapshot);
  const newest = useNewest(filters, end === "newest").data?.items[0];
  const top = list.row(0);
  const isOld = newest && top && (newest.id !== top.id || newest.head.seq > top.head.seq);
  useEffect(() => {
    if (isOld && end === "newest") void list.refresh();
  }, [isOld, list, end]);
  if (list.isNew && !list.error) return <Loading what="Loading the sessions" />;
  if (list.rows === 0 && list.error) return <ErrorNote error={list.error} onRetry={() => list.retry()} />;
  if (list.rows === 0 && !list.isMore) {
    return Object.keys(filters).length > 0 ? <NoMatchingSessions /> : <NoSessions />;
  }
  return (
    <Rows
      key={`${key} ${end} ${round}`}
      list={list}
      words=""
      rowPx={ROW_PX}
      position={position}
      onEnd={setEnd}
    />
  );
}

function Found({ words, filters }: { words: string; filters: Filters }) {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key represents the filters.
  const findings = useMemo(() => new SearchResults(words, filters), [words, JSON.stringify(filters)]);
  // Keep the previous results until new results arrive.
  const before = useRef(findings);
  const { list } = findings;
  useSyncExternalStore(list.subscribe, list.snapshot);
  const shown = list.isNew && !list.error ? before.current : findings;
  useEffect(() => {
    if (!list.isNew) before.current = findings;
  });
  if (shown.list.rows === 0 && list.error)
    return <ErrorNote error={list.error} onRetry={() => list.retry()} />;
  if (shown.list.isNew) return <Loading what="Searching" />;
  if (shown.list.rows === 0 && !shown.list.isMore) {
    return (
      <Empty title="No matching messages">
        <p>
          All words must be in one message or title. <code>"words in quotes"</code> match a phrase, and{" "}
          <code>tre*</code> matches words by prefix.
        </p>
      </Empty>
    );
  }
  return <Rows key={words} list={shown.list} hits={shown.hits} words={words} rowPx={FOUND_ROW_PX} />;
}

function NoMatchingSessions() {
  return (
    <Empty title="No matching sessions">
      <p>Remove a filter to see more sessions.</p>
      <Button onClick={() => go([])}>Show all sessions</Button>
    </Empty>
  );
}

function NoSessions() {
  return (
    <Empty title="No sessions yet">
      <p>
        A session is a durable conversation with an agent. Press <kbd>n</kbd> to start one, or drop a session
        file of Claude Code, Codex, pi or Sapwood here to import it.
      </p>
      <p>
        In a terminal, <code>sapwood chat</code> starts a chat, and <code>sapwood import</code> imports
        sessions of coding agents on this machine.
      </p>
    </Empty>
  );
}
