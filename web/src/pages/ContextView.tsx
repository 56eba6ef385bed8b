// The context as a model would receive it, message by message, with token counts.
import { type FormEvent, useState } from "react";
import { useContextAt } from "../api/queries";
import { Plain } from "../text/Text";
import { Badge, Button, Empty, ErrorNote, Loading } from "../ui/base";
import { count, plural } from "../ui/format";
import { go, useRoute } from "../ui/route";
import { MessageCard } from "./MessageCard";
import type { ViewProps } from "./SessionPage";

/** Number of messages rendered initially. */
const SHOWN = 400;

export default function ContextView({ session }: ViewProps) {
  const { query } = useRoute();
  const at = query.get("at");
  const context = useContextAt(session.id, at);
  const [isWhole, setWhole] = useState(false);
  if (context.isPending) return <Loading what="Building the context" />;
  if (context.error) return <ErrorNote error={context.error} onRetry={() => void context.refetch()} />;
  const { messages, system, tokens, model, thinking, skills, system_tokens } = context.data;
  const most = Math.max(1, system_tokens ?? 0, ...messages.map((message) => message.tokens ?? 0));
  const shown = isWhole ? messages : messages.slice(-SHOWN);
  return (
    <div className="scroll">
      <div className="facts">
        <At session={session.id} at={at} />
        <span>
          <strong>{count(tokens)}</strong> tokens in {plural(messages.length, "message")}
        </span>
        {model && <Badge>{model}</Badge>}
        <Badge>thinking: {thinking}</Badge>
        {skills.map((skill) => (
          <Badge key={skill}>{skill}</Badge>
        ))}
      </div>
      {(system || messages.length > 0) && (
        <p className="message-heads" aria-hidden="true">
          <span>tokens</span>
          <span>entry</span>
        </p>
      )}
      {system && (
        <details className="message system">
          <summary>
            <span className="message-role">system</span>
            <span className="folded-first">system prompt</span>
            <span className="message-tokens">{count(system_tokens ?? 0)}</span>
            <span className="message-seq">–</span>
          </summary>
          <Plain text={system} />
        </details>
      )}
      {messages.length === 0 && (
        <Empty title="The context is empty">
          <p>A model would receive only the system prompt. Earlier messages may be on another branch.</p>
        </Empty>
      )}
      {shown.length < messages.length && (
        <Button
          tone="ghost"
          onClick={() => setWhole(true)}
        >{`Show ${messages.length - shown.length} earlier messages`}</Button>
      )}
      {shown.map((message, index) => (
        <MessageCard
          key={`${message.entry}-${index}`}
          message={message}
          session={session.id}
          share={(message.tokens ?? 0) / most}
        />
      ))}
    </div>
  );
}

function At({ session, at }: { session: string; at: string | null }) {
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const value = String(new FormData(event.currentTarget).get("at") ?? "").trim();
    go(["s", session, "context"], { at: value });
  };
  return (
    <form className="inline-form" onSubmit={submit} key={at ?? ""}>
      <input name="at" aria-label="Entry" placeholder="entry or label" defaultValue={at ?? ""} />
      <Button type="submit">Show</Button>
      {at && (
        <Button tone="ghost" onClick={() => go(["s", session, "context"])}>
          Current leaf
        </Button>
      )}
    </form>
  );
}
