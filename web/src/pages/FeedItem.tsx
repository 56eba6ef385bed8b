// One item of the feed.
import { memo, useState } from "react";
import { type BlobRef, fill, type FeedItem as Item, type Part, type Schemas } from "../api/client";
import { lineOf, partsOf, styleOf } from "../log/items";
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
  const style = styleOf(item);
  return (
    <article className={`item is-${style} ${isMarked ? "marked" : ""}`} data-seq={item.seq} data-kind={style}>
      <Content item={item} session={session} />
    </article>
  );
});

function Content({ item, session }: { item: Item; session: string }) {
  const { answer, tool, approval, queued, body } = item;
  const [label, text] = lineOf(item);
  if (answer) return <Answer item={item} answer={answer} session={session} />;
  if (tool) return <ToolCard item={item} tool={tool} session={session} />;
  if (approval) return <ApprovalCard approval={approval} question={item.text} session={session} />;
  if (queued) {
    return (
      <p className="event-line">
        <Icon name="clock" />
        <span>{queued.queue === "steer" ? "steering" : "queued"}</span>
        <Badge>{queued.taken ? "delivered" : "pending"}</Badge>
        <bdi>{cleanLine(item.text)}</bdi>
      </p>
    );
  }
  if (body?.type === "compaction") return <Compaction item={item} body={body} session={session} />;
  switch (styleOf(item)) {
    case "user":
      return (
        <>
          <Who name={item.by.replace(/^user:/, "")} item={item} session={session} />
          <div className="bubble">
            <Parts parts={partsOf(item)} session={session} />
          </div>
        </>
      );
    case "reasoning":
      return <Folded icon="thought" label="reasoning" text={item.text} />;
    case "media":
      return <Parts parts={partsOf(item)} session={session} />;
    case "note":
      return <Folded icon="eye" label={label} text={text} />;
    case "error":
      return (
        <p className="event-line bad" role="alert">
          <Icon name="close" />
          <strong>{label}</strong> <bdi>{cleanLine(text, 1_000)}</bdi>
        </p>
      );
    case "warning":
      return (
        <p className="event-line warn" role="alert">
          <Icon name="eye" />
          <strong>{label}</strong> <bdi>{cleanLine(text, 1_000)}</bdi>
          <Seq item={item} session={session} />
        </p>
      );
    default:
      return (
        <p className="event-line">
          <span className="tick" aria-hidden="true" />
          <span>{cleanLine(label, 60)}</span> <bdi>{cleanLine(text)}</bdi>
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

function Answer({ item, answer, session }: { item: Item; answer: Schemas["FeedAnswer"]; session: string }) {
  const { model, usage, stop, cost_nano_usd: cost } = answer;
  return (
    <>
      <p className="who">
        <strong>
          <Name>{model ?? "assistant"}</Name>
        </strong>
        {stop !== "stop" && stop !== "tool_use" && <Badge tone="warn">{stop}</Badge>}
        {usage && (
          <span
            className="quiet"
            title={`${usage.input} in, ${usage.output} out, ${usage.cache_read ?? 0} from the cache`}
          >
            {count(usage.input + (usage.cache_read ?? 0))} → {count(usage.output)}
            {typeof cost === "number" && ` · ${money(cost)}`}
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

interface CompactionProps {
  item: Item;
  body: Schemas["CompactionBody"];
  session: string;
}

function Compaction({ item, body, session }: CompactionProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className="folded compaction" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name="scissors" />
        <span className="folded-label">{body.strategy === "trim" ? "trimmed" : "compacted"}</span>
        <span className="folded-first">
          {typeof body.tokens_before === "number" &&
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
