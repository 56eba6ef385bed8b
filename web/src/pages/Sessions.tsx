// All sessions: newest first, found by their words as they are typed, narrowed by what they are. Only the rows in view
// exist, and only what is near them is kept, so a hundred thousand are as quick as ten.
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import type { Session } from "../api/client";
import {
  type End,
  type Filters,
  Findings,
  onSessionsOutdated,
  sessionList,
  useMe,
  useNewest,
} from "../api/queries";
import type { LongList } from "../log/longList";
import { Button, Empty, ErrorNote, Loading } from "../ui/base";
import { useKeys } from "../ui/keys";
import { go, replaceQuery, useRoute } from "../ui/route";
import { FilterBar } from "./FilterBar";
import { Dropped } from "./Import";
import { NewSession } from "./NewSession";
import { type Place, Rows } from "./Rows";

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

/** Where somebody was in the list, so that they are there again when they come back. */
let left: { key: string; list: LongList<Session>; place: Place } | null = null;
onSessionsOutdated(() => {
  left = null;
});

function All({ filters }: { filters: Filters }) {
  const key = JSON.stringify(filters);
  const [end, setEnd] = useState<End>(() => (left?.key === key ? left.place.end : "newest"));
  const [round, setRound] = useState(0);
  useEffect(() => onSessionsOutdated(() => setRound((before) => before + 1)), []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a key says what the filters are, and a round reads anew.
  const [list, place] = useMemo(() => {
    if (left?.key === key && left.place.end === end) return [left.list, left.place];
    return [sessionList(filters, end), { end, offset: 0, at: -1 }] as const;
  }, [key, end, round]);
  useEffect(() => {
    left = { key, list, place };
  }, [key, list, place]);
  useSyncExternalStore(list.subscribe, list.snapshot);
  const newest = useNewest(filters, end === "newest").data?.items[0];
  const top = list.row(0);
  const isOld = newest && top && (newest.id !== top.id || newest.head.seq > top.head.seq);
  useEffect(() => {
    if (isOld && end === "newest") void list.refresh();
  }, [isOld, list, end]);
  if (list.isNew && !list.error) return <Loading what="Reading the sessions" />;
  if (list.rows === 0 && list.error) return <ErrorNote error={list.error} onRetry={() => list.retry()} />;
  if (list.rows === 0 && !list.isMore) {
    return Object.keys(filters).length > 0 ? <NothingFits /> : <NothingYet />;
  }
  return (
    <Rows key={`${key} ${end} ${round}`} list={list} words="" rowPx={ROW_PX} place={place} onEnd={setEnd} />
  );
}

function Found({ words, filters }: { words: string; filters: Filters }) {
  // biome-ignore lint/correctness/useExhaustiveDependencies: a key says what the filters are.
  const findings = useMemo(() => new Findings(words, filters), [words, JSON.stringify(filters)]);
  // What was found before stays until something else is.
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
      <Empty title="Nobody said that">
        <p>
          All words must occur in one message. <code>"words in quotes"</code> occur together, and{" "}
          <code>tre*</code> matches the rest of a word.
        </p>
      </Empty>
    );
  }
  return <Rows key={words} list={shown.list} hits={shown.hits} words={words} rowPx={FOUND_ROW_PX} />;
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
