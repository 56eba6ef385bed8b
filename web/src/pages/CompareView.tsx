// Two branches side by side, from where they part.
import { useMemo } from "react";
import { useContextAt, useView } from "../api/queries";
import { commonAncestor } from "../log/layout";
import { ErrorNote, Loading } from "../ui/base";
import { count, plural } from "../ui/format";
import { to, useRoute } from "../ui/route";
import { MessageCard } from "./MessageCard";
import type { ViewProps } from "./SessionPage";

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
  const isShared = (entry: string | null | undefined) =>
    left.data.messages.some((message) => message.entry === entry) && right.data.messages.some((message) => message.entry === entry);
  const both = left.data.messages.filter((message) => isShared(message.entry));
  const side = (context: typeof left.data, at: string) => (
    <section>
      <h2>
        At entry {at} <span className="quiet">{plural(context.messages.length, "message")}, {count(context.tokens)} tokens</span>
      </h2>
      {context.messages
        .filter((message) => !isShared(message.entry))
        .map((message, index) => (
          <MessageCard key={index} message={message} session={session.id} tone="new" isOpen />
        ))}
      {context.messages.every((message) => isShared(message.entry)) && <p className="quiet">Nothing of its own: the other one goes on from here.</p>}
    </section>
  );
  return (
    <div className="scroll compare">
      <div className="facts">
        <a href={to(["s", session.id, "tree"], { at: b, mark: a })}>Back to the tree</a>
        <span>
          {shared === null ? "They share nothing" : `They share ${plural(both.length, "message")}, up to entry ${shared}`}
        </span>
      </div>
      {both.length > 0 && (
        <details className="folded">
          <summary>
            <span className="folded-label">shared</span>
            <span className="folded-first">{plural(both.length, "message")} both have</span>
          </summary>
          <div>
            {both.map((message, index) => (
              <MessageCard key={index} message={message} session={session.id} />
            ))}
          </div>
        </details>
      )}
      <div className="columns">
        {side(left.data, a)}
        {side(right.data, b)}
      </div>
    </div>
  );
}
