// The compactions: the context before and after each, and an undo button.
import { useQuery } from "@tanstack/react-query";
import { type Archive, get, send } from "../api/client";
import { invalidateSession, useContextAt, useMe, useView } from "../api/queries";
import { Markdown } from "../text/Markdown";
import { Badge, Button, Empty, ErrorNote, Loading, Time } from "../ui/base";
import { count, plural } from "../ui/format";
import { to, useRoute } from "../ui/route";
import { notify, notifyError } from "../ui/toast";
import { MessageCard } from "./MessageCard";
import type { ViewProps } from "./SessionPage";

/** Number of messages rendered per side, counted from the end. */
const SHOWN = 500;

export default function ArchivesView({ session }: ViewProps) {
  const archives = useView(session.id, "archives");
  const { query } = useRoute();
  if (archives.isPending) return <Loading what="Loading the archives" />;
  if (archives.error) return <ErrorNote error={archives.error} onRetry={() => void archives.refetch()} />;
  const items = [...archives.data.items].reverse();
  if (items.length === 0) {
    return (
      <Empty title="No compactions yet">
        <p>
          When the context fills up, its older part is replaced by a summary. This page shows what each
          compaction removed and kept. To compact now, use the session's menu.
        </p>
      </Empty>
    );
  }
  const chosen = items.find((item) => String(item.seq) === query.get("at")) ?? items[0];
  return (
    <div className="split">
      <nav className="split-list" aria-label="Compactions">
        {items.map((item) => (
          <a
            key={item.seq}
            href={to(["s", session.id, "archives"], { at: String(item.seq) })}
            aria-current={item === chosen ? "true" : undefined}
          >
            <strong>{item.strategy.replace("_", " ")}</strong> <Badge>{item.trigger}</Badge>{" "}
            {!item.on_path && <Badge tone="warn">inactive</Badge>}
            <br />
            <span className="quiet">
              entry {item.seq} · <Time at={item.at} />
              {item.tokens_before ? ` · ${count(item.tokens_before)} → ${count(item.tokens_after ?? 0)}` : ""}
            </span>
          </a>
        ))}
      </nav>
      {chosen && <BeforeAfter key={chosen.seq} session={session.id} archive={chosen} />}
    </div>
  );
}

function BeforeAfter({ session, archive }: { session: string; archive: Archive }) {
  const me = useMe();
  const parent = useQuery({
    queryKey: ["session", session, "entry", archive.seq],
    queryFn: async () => {
      const page = await get(
        "/v1/sessions/{session}/entries",
        { session },
        { after: archive.seq - 1, limit: 1 },
      );
      return page.items[0]?.parent ?? null;
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
  const before = useContextAt(session, parent.data ? String(parent.data) : null, !!parent.data);
  const after = useContextAt(session, String(archive.seq));
  if (!before.data || !after.data) {
    return before.error || after.error ? (
      <ErrorNote error={before.error ?? after.error} />
    ) : (
      <Loading what="Building both contexts" />
    );
  }
  const kept = new Set(after.data.messages.map((message) => message.entry));
  const removed = before.data.messages.filter((message) => !kept.has(message.entry)).length;
  const known = new Set(before.data.messages.map((message) => message.entry));
  const undo = async () => {
    try {
      await send("post", "/v1/sessions/{session}/uncompact", { session }, { entry: archive.seq });
      invalidateSession(session);
      notify("Compaction undone");
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <div className="split-main scroll">
      <div className="facts">
        <span>
          {plural(removed, "message")} removed from the context: <strong>{count(before.data.tokens)}</strong>{" "}
          → <strong>{count(after.data.tokens)}</strong> tokens
        </span>
        {archive.on_path && me.data?.may_write && (
          <Button icon="redo" onClick={() => void undo()}>
            Undo compaction
          </Button>
        )}
      </div>
      {archive.summary && (
        <details className="message" open>
          <summary>
            <span className="message-role">summary</span>
          </summary>
          <Markdown text={archive.summary} />
        </details>
      )}
      <div className="columns">
        <section>
          <h2>
            Before <span className="quiet">{plural(before.data.messages.length, "message")}</span>
          </h2>
          {before.data.messages.slice(-SHOWN).map((message, index) => (
            <MessageCard
              key={index}
              message={message}
              session={session}
              tone={kept.has(message.entry) ? "" : "gone"}
            />
          ))}
        </section>
        <section>
          <h2>
            After <span className="quiet">{plural(after.data.messages.length, "message")}</span>
          </h2>
          {after.data.messages.slice(-SHOWN).map((message, index) => (
            <MessageCard
              key={index}
              message={message}
              session={session}
              tone={known.has(message.entry) ? "" : "new"}
            />
          ))}
        </section>
      </div>
    </div>
  );
}
