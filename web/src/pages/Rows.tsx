// Virtualized rows of a long list. A list is anchored at its top (the newest row) or at its bottom (the oldest row).
// Rows loaded later are added at the other end, so rows in view do not move.
import { useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import type { Hit, Session } from "../api/client";
import type { End } from "../api/queries";
import type { LongList } from "../log/longList";
import { Button, ErrorNote } from "../ui/base";
import { useKeys } from "../ui/keys";
import { go } from "../ui/route";
import { SessionRow } from "./SessionRow";

const OVERSCAN = 8;
/** Height of the loading indicator. */
const MORE_PX = 44;

/** Position in a list: the scroll offset from its anchored end, and the focused row. */
export interface ListPosition {
  end: End;
  offset: number;
  at: number;
}

interface Props {
  list: LongList<Session>;
  hits?: Map<string, Hit[]>;
  words: string;
  rowPx: number;
  /** The position to restore. */
  position?: ListPosition;
  /** Called to show the list from its other end; undefined if unsupported. */
  onEnd?: (end: End) => void;
}

export function Rows({ list, hits, words, rowPx, position: saved, onEnd }: Props) {
  useSyncExternalStore(list.subscribe, list.snapshot);
  const [initial] = useState<ListPosition>({ end: "newest", offset: 0, at: -1 });
  const position = saved ?? initial;
  const box = useRef<HTMLElement>(null);
  const [view, setView] = useState({ offset: position.offset, height: 0 });
  const isReversed = position.end === "oldest";
  const total = list.rows * rowPx + (list.isMore ? MORE_PX : 0);
  const first = Math.max(0, Math.min(list.rows - 1, Math.floor(view.offset / rowPx)) - OVERSCAN);
  const last = Math.min(list.rows - 1, Math.ceil((view.offset + view.height) / rowPx) + OVERSCAN);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    element.scrollTop = isReversed ? -position.offset : position.offset;
    const measure = () => setView({ offset: Math.abs(element.scrollTop), height: element.clientHeight });
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [isReversed, position]);
  useEffect(() => {
    position.offset = view.offset;
    list.setVisibleRows(first, last);
  });

  const moveTo = (index: number) => {
    const next = Math.max(0, Math.min(list.rows - 1, index));
    const element = box.current;
    position.at = next;
    if (!element) return;
    const offset = Math.abs(element.scrollTop);
    const wanted = Math.max(Math.min(offset, next * rowPx), (next + 1) * rowPx - element.clientHeight);
    if (wanted !== offset) element.scrollTop = isReversed ? -wanted : wanted;
    setView({ offset: wanted, height: element.clientHeight });
    requestAnimationFrame(() =>
      element.querySelector<HTMLElement>(`[data-index="${next}"] a`)?.focus({ preventScroll: true }),
    );
  };
  const step = (by: number) => {
    const seen = Math.ceil(Math.abs(box.current?.scrollTop ?? 0) / rowPx);
    moveTo(position.at < 0 ? seen : position.at + (isReversed ? -by : by));
  };
  const toEnd = (end: End) => {
    if (end === position.end) moveTo(0);
    else if (!list.isMore || !onEnd) moveTo(list.rows - 1);
    else onEnd(end);
  };
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    ArrowDown: () => step(1),
    ArrowUp: () => step(-1),
    Home: () => toEnd("newest"),
    End: () => toEnd("oldest"),
    G: () => toEnd("oldest"),
    "g g": () => toEnd("newest"),
    o: () => {
      const session = list.row(position.at);
      if (session) go(["s", session.id]);
    },
  });
  const indices = Array.from({ length: Math.max(0, last - first + 1) }, (_, n) => first + n);
  if (isReversed) indices.reverse();
  return (
    <>
      <section
        className={isReversed ? "rows from-end" : "rows"}
        ref={box}
        tabIndex={0}
        aria-label={`${list.rows.toLocaleString("en")}${list.isMore ? " or more" : ""} sessions`}
        onScroll={(event) => {
          const { scrollTop, clientHeight } = event.currentTarget;
          setView({ offset: Math.abs(scrollTop), height: clientHeight });
        }}
      >
        <ul style={{ height: total }}>
          {indices.map((index) => {
            const session = list.row(index);
            const own = (session && hits?.get(session.id)) ?? [];
            const at = { [isReversed ? "bottom" : "top"]: index * rowPx, height: rowPx };
            return (
              <li key={session?.id ?? index} data-index={index} style={at}>
                {session ? (
                  <SessionRow session={session} hit={own[0] ?? null} hits={own.length} words={words} />
                ) : (
                  <span className="row waiting" aria-hidden="true" />
                )}
              </li>
            );
          })}
          {list.isMore && (
            <li
              className="row-more"
              style={{ [isReversed ? "bottom" : "top"]: list.rows * rowPx, height: MORE_PX }}
            >
              {list.error ? "" : "Loading…"}
            </li>
          )}
        </ul>
      </section>
      {list.error != null && <ErrorNote error={list.error} onRetry={() => list.retry()} />}
      {onEnd && (list.isMore || isReversed) && (
        <div className="rows-end">
          <Button tone="ghost" onClick={() => toEnd(isReversed ? "newest" : "oldest")}>
            {isReversed ? "Go to newest" : "Go to oldest"}
          </Button>
        </div>
      )}
    </>
  );
}
