// One session in a list: title, state, context use and cost.
import { memo, useEffect, useState } from "react";
import type { Hit, Session } from "../api/client";
import { usePressure } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Badge, Gauge, Name, Time } from "../ui/base";
import { count, money, plural, spent } from "../ui/format";
import { Icon } from "../ui/icons";
import { to } from "../ui/route";

interface Props {
  session: Session;
  /** The newest search hit, and the number of hits loaded so far. */
  hit: Hit | null;
  hits: number;
  words: string;
}

export const SessionRow = memo(function SessionRow({ session, hit, hits, words }: Props) {
  const { cost, tokens, unpriced } = spent(session);
  const title = session.title ?? session.preview ?? session.id;
  const href = hit ? to(["s", session.id, "feed"], { at: String(hit.seq) }) : to(["s", session.id]);
  return (
    <a className="row" href={href}>
      <span className="row-main">
        <span className="row-title">
          <Name>{title}</Name>
          {session.open_turn && <Badge tone="live">turn open</Badge>}
          {session.state !== "active" && <Badge>{session.state}</Badge>}
        </span>
        <span className="row-facts">
          {session.agent && (
            <span>
              <Name>{session.agent}</Name>
            </span>
          )}
          {session.model && session.model !== session.agent && (
            <span>
              <Name>{session.model}</Name>
            </span>
          )}
          <span>{plural(session.messages, "message")}</span>
          {session.inherited > 0 && (
            <span title="forked from another session">
              <Icon name="fork" /> fork
            </span>
          )}
          {session.compactions > 0 && <span>{plural(session.compactions, "compaction")}</span>}
          {session.cwd && (
            <span className="row-cwd">
              <Name>{session.cwd}</Name>
            </span>
          )}
          <span className="row-owner">
            <Name>{session.owner}</Name>
          </span>
        </span>
        {hit && (
          <span className="row-hit">
            <Snippet text={hit.snippet} words={words} />
            {hits > 1 && <span className="quiet"> · {hits} hits</span>}
          </span>
        )}
      </span>
      <DelayedGauge session={session} />
      <span
        className="row-cost"
        title={`${tokens.toLocaleString()} tokens${unpriced > 0 ? `, ${unpriced} calls with an unknown price` : ""}`}
      >
        {tokens > 0 ? money(cost) : "–"}
        {unpriced > 0 && "+"}
        <span className="quiet">{tokens > 0 && ` ${count(tokens)}`}</span>
      </span>
      <span className="row-time">
        <Time at={session.updated_at} />
      </span>
    </a>
  );
});

/** Highlight the search terms. */
function Snippet({ text, words }: { text: string; words: string }) {
  const terms = words.match(/[\p{L}\p{N}_]+/gu) ?? [];
  const line = cleanLine(text, 400);
  if (terms.length === 0) return <bdi>{line}</bdi>;
  const parts = line.split(new RegExp(`(${terms.map((term) => `${term}[\\p{L}\\p{N}]*`).join("|")})`, "giu"));
  return (
    <bdi>
      {parts.map((part, index) =>
        index % 2 === 1 ? <mark key={index}>{part}</mark> : <span key={index}>{part}</span>,
      )}
    </bdi>
  );
}

/** Delay before a row in view requests its pressure. */
const REQUEST_DELAY_MS = 200;

/** Context pressure of a row, requested after a delay so that rows scrolled past quickly send no requests. */
function DelayedGauge({ session }: { session: Session }) {
  const [isDue, setDue] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setDue(true), REQUEST_DELAY_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <span className="row-gauge">{isDue && session.messages > 0 && <PressureGauge session={session} />}</span>
  );
}

function PressureGauge({ session }: { session: Session }) {
  const { level, used_tokens: used, budget_tokens: budget } = usePressure(session).data ?? {};
  return level && budget ? <Gauge level={level} used={used ?? 0} budget={budget} /> : null;
}
