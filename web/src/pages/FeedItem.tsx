// One item of the feed.
import { memo, useState } from "react";
import { fill } from "../api/client";
import type { BlobRef, Part } from "../log/bodies";
import type { AnswerItem, Item } from "../log/feed";
import { cleanLine } from "../text/clean";
import { Markdown } from "../text/Markdown";
import { Badge, Name } from "../ui/base";
import { bytes, clock, count, money, whole } from "../ui/format";
import { Icon, type IconName } from "../ui/icons";
import { to } from "../ui/route";
import { ApprovalCard } from "./ApprovalCard";
import { ToolCard } from "./ToolCard";

interface Props {
  item: Item;
  session: string;
  isMarked: boolean;
}

export const FeedItem = memo(function FeedItem({ item, session, isMarked }: Props) {
  return (
    <article
      className={`item is-${item.kind} ${isMarked ? "marked" : ""}`}
      data-seq={item.seq}
      data-kind={item.kind}
    >
      <Content item={item} session={session} />
    </article>
  );
});

function Content({ item, session }: { item: Item; session: string }) {
  switch (item.kind) {
    case "user":
      return (
        <>
          <Who name={item.by.replace(/^user:/, "")} item={item} session={session} />
          <div className="bubble">
            <Parts parts={item.parts} session={session} />
          </div>
        </>
      );
    case "answer":
      return <Answer item={item} session={session} />;
    case "reasoning":
      return <Folded icon="thought" label="reasoning" text={item.text} />;
    case "media":
      return <Media media={item.media} session={session} />;
    case "tool":
      return <ToolCard item={item} session={session} />;
    case "approval":
      return <ApprovalCard item={item} session={session} />;
    case "queued":
      return (
        <p className="event-line">
          <Icon name="clock" />
          <span>{item.steers ? "steering" : "queued"}</span>
          <Badge>{item.isTaken ? "delivered" : "pending"}</Badge>
          <bdi>{cleanLine(item.text)}</bdi>
        </p>
      );
    case "compaction":
      return <Compaction item={item} session={session} />;
    case "note":
      return <Folded icon="eye" label={item.label} text={item.text} />;
    case "error":
      return (
        <p className="event-line bad" role="alert">
          <Icon name="close" />
          <strong>{item.label}</strong> <bdi>{cleanLine(item.text, 1_000)}</bdi>
        </p>
      );
    case "event":
      return (
        <p className="event-line">
          <span className="tick" aria-hidden="true" />
          <span>{cleanLine(item.label, 60)}</span> <bdi>{cleanLine(item.text)}</bdi>
          <Seq item={item} session={session} />
        </p>
      );
  }
}

/** The time and number of the entry, linked to the tree. */
function Seq({ item, session }: { item: Item; session: string }) {
  return (
    <a
      className="seq"
      href={to(["s", session, "tree"], { at: String(item.seq) })}
      title={`entry ${item.seq}, ${whole(item.at)}`}
    >
      {clock(item.at)} · {item.seq}
    </a>
  );
}

function Who({ name, item, session }: { name: string; item: Item; session: string }) {
  return (
    <p className="who">
      <strong>
        <Name>{name}</Name>
      </strong>
      <Seq item={item} session={session} />
    </p>
  );
}

function Answer({ item, session }: { item: AnswerItem; session: string }) {
  const { usage, cost } = item;
  return (
    <>
      <p className="who">
        <strong>
          <Name>{item.model ?? "assistant"}</Name>
        </strong>
        {item.stop !== "stop" && item.stop !== "tool_use" && <Badge tone="warn">{item.stop}</Badge>}
        {usage && (
          <span
            className="quiet"
            title={`${usage.input} in, ${usage.output} out, ${usage.cache_read ?? 0} from the cache`}
          >
            {count(usage.input + (usage.cache_read ?? 0))} → {count(usage.output)}
            {cost !== null && ` · ${money(cost)}`}
          </span>
        )}
        <Seq item={item} session={session} />
      </p>
      <Markdown text={item.text} />
    </>
  );
}

export function Parts({ parts, session }: { parts: Part[]; session: string }) {
  return parts.map((part, index) => {
    if (part.type === "text") return <Markdown key={index} text={part.text} />;
    if (part.type === "media") return <Media key={index} media={part} session={session} />;
    return null;
  });
}

/** Show images of safe types; offer other files for download. */
export function Media({ media, session }: { media: BlobRef; session: string }) {
  const [isBroken, setBroken] = useState(false);
  const href = fill("/v1/sessions/{session}/blobs/{blob}", { session, blob: media.blob });
  const name = media.name ?? media.mime;
  const isPicture = /^image\/(png|jpeg|gif|webp)$/.test(media.mime) && !isBroken;
  return (
    <figure className="media">
      {isPicture && (
        <a href={href} target="_blank" rel="noopener noreferrer">
          <img src={href} alt={cleanLine(name, 80)} loading="lazy" onError={() => setBroken(true)} />
        </a>
      )}
      <figcaption>
        <a
          href={href}
          target="_blank"
          rel="noopener noreferrer"
          download={isPicture ? undefined : cleanLine(name, 80)}
        >
          <Name>{name}</Name>
        </a>{" "}
        <span className="quiet">{bytes(media.bytes)}</span>
      </figcaption>
    </figure>
  );
}

/** Collapsed text that shows its first line. */
function Folded({ icon, label, text }: { icon: IconName; label: string; text: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className="folded" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name={icon} />
        <span className="folded-label">{cleanLine(label, 60)}</span>
        <span className="folded-first">{cleanLine(text, 140)}</span>
      </summary>
      {isOpen && <Markdown text={text} />}
    </details>
  );
}

function Compaction({ item, session }: { item: Extract<Item, { kind: "compaction" }>; session: string }) {
  const { body } = item;
  const [isOpen, setOpen] = useState(false);
  return (
    <details className="folded compaction" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name="scissors" />
        <span className="folded-label">{body.strategy === "trim" ? "trimmed" : "compacted"}</span>
        <span className="folded-first">
          {body.tokens_before !== undefined &&
            `${count(body.tokens_before)} → ${count(body.tokens_after ?? 0)} tokens · `}
          {body.strategy.replace("_", " ")}, {body.trigger}
        </span>
      </summary>
      {isOpen && (
        <div>
          <p>
            <a href={to(["s", session, "archives"], { at: String(item.seq) })}>Before and after</a>
          </p>
          {body.summary ? <Markdown text={body.summary} /> : <p className="quiet">No summary.</p>}
        </div>
      )}
    </details>
  );
}
