// One message of a context as the model receives it, with its token count.
import { useState } from "react";
import type { ContextMessage, Part } from "../api/client";
import { cleanLine } from "../text/clean";
import { Markdown } from "../text/Markdown";
import { Code, Plain } from "../text/Text";
import { Badge, Name } from "../ui/base";
import { count } from "../ui/format";
import { Media } from "./FeedItem";

interface Props {
  message: ContextMessage;
  session: string;
  /** The message's size relative to the largest message, from 0 to 1, drawn as a bar. */
  share?: number;
  tone?: "" | "gone" | "new";
  isOpen?: boolean;
}

export function MessageCard({ message, session, share, tone = "", isOpen: opened = false }: Props) {
  const [isOpen, setOpen] = useState(opened);
  const { parts } = message;
  const calls = parts.filter((part) => part.type === "tool_call");
  const first = message.text || calls.map((call) => `→ ${call.name}`).join(", ");
  return (
    <details
      className={`message ${message.role} ${tone}`}
      open={isOpen}
      onToggle={(event) => setOpen(event.currentTarget.open)}
    >
      <summary>
        <span className="message-role">{message.role}</span>
        {message.tool && <Badge tone={message.is_error ? "bad" : ""}>{cleanLine(message.tool, 40)}</Badge>}
        <span className="folded-first">{cleanLine(first, 160)}</span>
        {message.tokens !== undefined && message.tokens !== null && (
          <span className="message-tokens">
            {share !== undefined && (
              <span className="bar" aria-hidden="true">
                <span style={{ width: `${Math.max(1, share * 100)}%` }} />
              </span>
            )}
            <span className="message-count">{count(message.tokens)}</span>
          </span>
        )}
        <span className="message-seq">{message.seq ?? "generated"}</span>
      </summary>
      {isOpen && (
        <div className="message-parts">
          {parts.map((part, index) => (
            <PartView key={index} part={part} role={message.role} session={session} />
          ))}
        </div>
      )}
    </details>
  );
}

function PartView({ part, role, session }: { part: Part; role: string; session: string }) {
  switch (part.type) {
    case "text":
      return role === "tool" ? <Plain text={part.text} /> : <Markdown text={part.text} />;
    case "reasoning":
      return (
        <blockquote>
          <Markdown text={part.text} />
        </blockquote>
      );
    case "tool_call":
      return (
        <div>
          <p>
            <strong>
              <Name>{part.name}</Name>
            </strong>{" "}
            <code>{cleanLine(part.call_id, 40)}</code>
          </p>
          <Code code={JSON.stringify(part.input, null, 2)} language="json" />
        </div>
      );
    case "media":
      return <Media media={part} session={session} />;
  }
}
