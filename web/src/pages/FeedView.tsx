// The live feed of a session. New items appear at the bottom; the view follows them until the user scrolls away. The
// browser does not render items outside the viewport.
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { FeedItem as Item } from "../api/client";
import { useMe } from "../api/queries";
import { styleOf } from "../log/items";
import { Button, Empty } from "../ui/base";
import { plural } from "../ui/format";
import { useRoute } from "../ui/route";
import { notifyError } from "../ui/toast";
import { Composer } from "./Composer";
import { FeedItem } from "./FeedItem";
import { LiveItems } from "./LiveItems";
import type { ViewProps } from "./SessionPage";
import { TurnBar } from "./TurnBar";

/** Distance from the bottom within which the view follows new items. */
const FOLLOW_PX = 80;

export function FeedView({ session, log, snapshot }: ViewProps) {
  const box = useRef<HTMLDivElement>(null);
  const { query } = useRoute();
  const me = useMe();
  const at = query.get("at");
  const [follows, setFollows] = useState(at === null);
  const [showsEvents, setShowsEvents] = useState(true);
  const { feed, live } = snapshot;
  const groups = useMemo(
    () =>
      grouped(
        feed.items.filter((item) => isShown(item, showsEvents)),
        feed.offPath,
      ),
    [feed, showsEvents],
  );
  useJump(at, box, (seq) => log.loadBackTo(seq));
  useLayoutEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const onScroll = useCallback(() => {
    const element = box.current;
    if (!element) return;
    setFollows(element.scrollHeight - element.scrollTop - element.clientHeight < FOLLOW_PX);
  }, []);
  const earlier = async () => {
    const element = box.current;
    const fromEnd = element ? element.scrollHeight - element.scrollTop : 0;
    try {
      await log.loadEarlier();
    } catch (error) {
      notifyError(error);
    }
    requestAnimationFrame(() => {
      if (element) element.scrollTop = element.scrollHeight - fromEnd;
    });
  };
  const mayWrite = me.data?.may_write !== false && session.state !== "archived";
  return (
    <div className="feed-page">
      <div
        className="feed"
        ref={box}
        onScroll={onScroll}
        tabIndex={0}
        role="log"
        aria-label="Feed"
        aria-live="off"
      >
        {snapshot.before > 0 && (
          <Button tone="ghost" onClick={() => void earlier()}>
            {`Show earlier (${plural(snapshot.before, "entry", "entries")})`}
          </Button>
        )}
        {!feed.items.some((item) => item.kind === "user_message" || item.answer) && snapshot.before === 0 && (
          <EmptyFeed />
        )}
        {groups.map((group) =>
          group.isOffPath ? (
            <OffPathItems
              key={`off-path-${group.items[0]?.id}`}
              items={group.items}
              session={session.id}
              at={at}
            />
          ) : (
            group.items.map((item) => (
              <FeedItem key={item.id} item={item} session={session.id} isMarked={at === String(item.seq)} />
            ))
          ),
        )}
        <LiveItems live={live} isOpen={feed.openTurn !== null} />
      </div>
      {!follows && (
        <Button className="to-end" icon="down" onClick={() => setFollows(true)}>
          Latest
        </Button>
      )}
      <div className="feed-foot">
        <TurnBar
          session={session}
          snapshot={snapshot}
          showsEvents={showsEvents}
          onShowEvents={setShowsEvents}
        />
        {mayWrite ? (
          <Composer session={session.id} openTurn={feed.openTurn} onSent={() => setFollows(true)} />
        ) : (
          <p className="quiet read-only">
            {session.state === "archived"
              ? "This session is archived. Reopen it from its menu to write."
              : "Your key is read-only."}
          </p>
        )}
      </div>
    </div>
  );
}

interface Group {
  isOffPath: boolean;
  items: Item[];
}

function isShown(item: Item, showsEvents: boolean): boolean {
  const style = styleOf(item);
  return style !== null && (showsEvents || style !== "event");
}

/** Group adjacent items that are on another branch. */
function grouped(items: Item[], offPath: Set<number>): Group[] {
  const groups: Group[] = [];
  for (const item of items) {
    const last = groups.at(-1);
    const isOffPath = offPath.has(item.seq);
    if (last && last.isOffPath === isOffPath) last.items.push(item);
    else groups.push({ isOffPath, items: [item] });
  }
  return groups;
}

function OffPathItems({ items, session, at }: { items: Item[]; session: string; at: string | null }) {
  const isTarget = items.some((item) => String(item.seq) === at);
  return (
    <details className="aside" open={isTarget}>
      <summary>{plural(items.length, "item")} on another branch, not in the context</summary>
      {items.map((item) => (
        <FeedItem key={item.id} item={item} session={session} isMarked={at === String(item.seq)} />
      ))}
    </details>
  );
}

/** Scroll an entry into view, once. */
function useJump(
  at: string | null,
  box: React.RefObject<HTMLDivElement | null>,
  load: (seq: number) => Promise<void>,
): void {
  const done = useRef<string | null>(null);
  useEffect(() => {
    if (at === null || done.current === at) return;
    done.current = at;
    void load(Number(at)).then(() => {
      requestAnimationFrame(() =>
        box.current?.querySelector(`[data-seq="${CSS.escape(at)}"]`)?.scrollIntoView({ block: "center" }),
      );
    }, notifyError);
  });
}

function EmptyFeed() {
  return (
    <Empty title="No messages yet">
      <p>
        Write a message below. The demo model needs no key: try <code>what can you do?</code>,{" "}
        <code>list</code>, <code>think about trees</code> or <code>write 2000 words</code>.
      </p>
    </Empty>
  );
}
