// Compares two branches side by side, from their common ancestor.
import { useMemo, useState } from "react";
import type { ContextMessage } from "../api/client";
import { useContextAt, useView } from "../api/queries";
import { commonAncestor } from "../log/layout";
import { Button, ErrorNote, Loading } from "../ui/base";
import { count, plural } from "../ui/format";
import { to, useRoute } from "../ui/route";
import { MessageCard } from "./MessageCard";
import type { ViewProps } from "./SessionPage";

/** Numbers of messages rendered and expanded initially, per side. */
const SHOWN = 100;
const OPEN_AT_FIRST = 20;

export default function CompareView({ session }: ViewProps) {
  const { query } = useRoute();
  const [a, b] = [query.get("a") ?? "", query.get("b") ?? ""];
  const tree = useView(session.id, "tree");
  const left = useContextAt(session.id, a);
  const right = useContextAt(session.id, b);
  const shared = useMemo(() => {
    const bySeq = new Map((tree.data?.nodes ?? []).map((node) => [node.seq, node]));
    return commonAncestor(Number(a), Number(b), bySeq);
  }, [tree.data, a, b]);
  const error = tree.error ?? left.error ?? right.error;
  if (error) return <ErrorNote error={error} />;
  if (!left.data || !right.data || !tree.data) return <Loading what="Comparing" />;
  const entriesOf = (messages: ContextMessage[]) => new Set(messages.map((message) => message.entry));
  const [inLeft, inRight] = [entriesOf(left.data.messages), entriesOf(right.data.messages)];
  const isShared = (entry: string | null | undefined) => inLeft.has(entry) && inRight.has(entry);
  const both = left.data.messages.filter((message) => isShared(message.entry));
  const own = (messages: ContextMessage[]) => messages.filter((message) => !isShared(message.entry));
  return (
    <div className="scroll compare">
      <div className="facts">
        <a href={to(["s", session.id, "tree"], { at: b, mark: a })}>Back to the tree</a>
        <span>
          {shared === null
            ? "The branches share no entries"
            : `Both branches share ${plural(both.length, "message")}, up to entry ${shared}`}
        </span>
      </div>
      {both.length > 0 && (
        <details className="folded">
          <summary>
            <span className="folded-label">shared</span>
            <span className="folded-first">{plural(both.length, "message")} on both branches</span>
          </summary>
          <div>
            {both.slice(-SHOWN).map((message, index) => (
              <MessageCard key={index} message={message} session={session.id} />
            ))}
          </div>
        </details>
      )}
      <div className="columns">
        <Side session={session.id} at={a} messages={own(left.data.messages)} tokens={left.data.tokens} />
        <Side session={session.id} at={b} messages={own(right.data.messages)} tokens={right.data.tokens} />
      </div>
    </div>
  );
}

interface SideProps {
  session: string;
  at: string;
  messages: ContextMessage[];
  tokens: number;
}

/** The messages that only one branch has. */
function Side({ session, at, messages, tokens }: SideProps) {
  const [shown, setShown] = useState(SHOWN);
  return (
    <section>
      <h2>
        At entry {at}{" "}
        <span className="quiet">
          {plural(messages.length, "message")} only here, {count(tokens)} tokens in total
        </span>
      </h2>
      {messages.length === 0 && (
        <p className="quiet">
          No messages are only on this branch: the other branch continues from this entry.
        </p>
      )}
      {messages.slice(0, shown).map((message, index) => (
        <MessageCard
          key={index}
          message={message}
          session={session}
          tone="new"
          isOpen={index < OPEN_AT_FIRST}
        />
      ))}
      {messages.length > shown && (
        <Button tone="ghost" icon="down" onClick={() => setShown(shown * 4)}>
          {`Show more (${messages.length - shown} left)`}
        </Button>
      )}
    </section>
  );
}
