// Chart of the context size at each answer, with compactions and the default thresholds of the pressure levels.
import { useState } from "react";
import type { TimelinePoint } from "../api/client";
import { count, money, whole } from "../ui/format";
import { to } from "../ui/route";

const WIDTH = 900;
const HEIGHT = 210;
const PAD = { left: 52, right: 16, top: 14, bottom: 24 };
/** Maximum number of points drawn. Adjacent points are merged: a compaction is kept, or else the highest point. */
const POINTS_MAX = 600;

interface Props {
  points: TimelinePoint[];
  budget: number | null;
  session: string;
}

interface Step {
  point: TimelinePoint;
  x: number;
  y: number;
}

export function PressureChart({ points, budget, session }: Props) {
  const [at, setAt] = useState<Step | null>(null);
  const known = thin(points.filter((point) => point.tokens !== null && point.tokens !== undefined));
  if (known.length === 0) return <p className="quiet">No token counts yet.</p>;
  const highest = Math.max(...known.map((point) => Math.max(point.tokens ?? 0, point.tokens_before ?? 0)));
  const top = Math.max(highest * 1.15, budget !== null && highest > budget * 0.35 ? budget * 1.05 : 0, 1);
  const x = (index: number) =>
    PAD.left + (index * (WIDTH - PAD.left - PAD.right)) / Math.max(1, known.length - 1);
  const y = (tokens: number) => HEIGHT - PAD.bottom - (tokens * (HEIGHT - PAD.top - PAD.bottom)) / top;
  const steps: Step[] = known.map((point, index) => ({ point, x: x(index), y: y(point.tokens ?? 0) }));
  const path = lineOf(steps, y);
  const lines = [0.5, 0.75, 0.9].filter((part) => budget !== null && budget * part < top);
  const compactions = steps.filter(({ point }) => point.what === "compaction");
  return (
    <figure className="chart">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="group"
        aria-label={describe(known, budget, compactions.length)}
      >
        {[0, top / 2, top].map((tokens) => (
          <g key={tokens}>
            <line className="grid" x1={PAD.left} x2={WIDTH - PAD.right} y1={y(tokens)} y2={y(tokens)} />
            <text x={PAD.left - 8} y={y(tokens) + 4} textAnchor="end">
              {count(Math.round(tokens))}
            </text>
          </g>
        ))}
        {lines.map((part, index) => (
          <line
            key={part}
            className={`level ${["yellow", "orange", "red"][index]}`}
            x1={PAD.left}
            x2={WIDTH - PAD.right}
            y1={y((budget ?? 0) * part)}
            y2={y((budget ?? 0) * part)}
          />
        ))}
        <path
          className="area"
          d={`${path} L${steps.at(-1)?.x ?? 0},${y(0)} L${steps[0]?.x ?? 0},${y(0)} Z`}
        />
        <path className="curve" d={path} />
        {compactions.map((step) => (
          <g key={step.point.seq} className="cut">
            <line x1={step.x} x2={step.x} y1={PAD.top} y2={y(0)} />
            <text x={step.x} y={HEIGHT - 7} textAnchor="middle">
              ✂
            </text>
          </g>
        ))}
        {steps.map((step) => (
          <a
            key={step.point.seq}
            href={to(["s", session, step.point.what === "compaction" ? "archives" : "feed"], {
              at: String(step.point.seq),
            })}
            aria-label={labelOf(step.point)}
            onMouseEnter={() => setAt(step)}
            onFocus={() => setAt(step)}
          >
            <circle className={step.point.what} cx={step.x} cy={step.y} r={steps.length > 80 ? 2.2 : 3.8} />
            <circle className="target" cx={step.x} cy={step.y} r={9} />
          </a>
        ))}
      </svg>
      <figcaption className="quiet">
        {at
          ? labelOf(at.point)
          : "Hover over a dot to see the context size at that answer. ✂ marks a compaction."}
      </figcaption>
    </figure>
  );
}

function thin(points: TimelinePoint[]): TimelinePoint[] {
  if (points.length <= POINTS_MAX) return points;
  const size = Math.ceil(points.length / POINTS_MAX);
  const kept: TimelinePoint[] = [];
  for (let index = 0; index < points.length; index += size) {
    const column = points.slice(index, index + size);
    const cut = column.find((point) => point.what === "compaction");
    const highest = column.reduce((a, b) => ((b.tokens ?? 0) > (a.tokens ?? 0) ? b : a));
    kept.push(cut ?? highest);
  }
  return kept;
}

/** The SVG path of the curve. A compaction is a vertical drop from the previous size. */
function lineOf(steps: Step[], y: (tokens: number) => number): string {
  return steps
    .map((step, index) => {
      const before =
        step.point.what === "compaction" && step.point.tokens_before
          ? ` L${step.x},${y(step.point.tokens_before)}`
          : "";
      return index === 0 ? `M${step.x},${step.y}` : `${before} L${step.x},${step.y}`;
    })
    .join("");
}

function labelOf(point: TimelinePoint): string {
  const tokens = `${(point.tokens ?? 0).toLocaleString()} tokens`;
  if (point.what === "compaction") {
    return `entry ${point.seq}: compacted from ${(point.tokens_before ?? 0).toLocaleString()} to ${tokens} (${point.strategy?.replace("_", " ")}, ${point.trigger}), ${whole(point.at)}`;
  }
  const cost =
    point.cost_nano_usd === null || point.cost_nano_usd === undefined
      ? "price unknown"
      : money(point.cost_nano_usd);
  return `entry ${point.seq}: ${point.model ?? "a model"}, ${tokens}, ${cost}, ${whole(point.at)}`;
}

function describe(points: TimelinePoint[], budget: number | null, compactions: number): string {
  const last = points.at(-1)?.tokens ?? 0;
  const of = budget === null ? "" : ` of ${budget.toLocaleString()}`;
  return `Tokens in the context over ${points.length} points, now ${last.toLocaleString()}${of}, with ${compactions} compactions`;
}
