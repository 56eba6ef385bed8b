// The ledger: a line per round with action, result and cost, and the context use over the session's lifetime.
import type { LedgerLine, Schemas, Total } from "../api/client";
import { usePressure, useView } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Badge, Empty, ErrorNote, Loading, Time } from "../ui/base";
import { count, money, whole } from "../ui/format";
import { notify } from "../ui/toast";
import { PressureChart } from "./PressureChart";
import type { ViewProps } from "./SessionPage";

export default function LedgerView({ session }: ViewProps) {
  const ledger = useView(session.id, "ledger");
  const usage = useView(session.id, "usage");
  const timeline = useView(session.id, "timeline");
  const pressure = usePressure(session);
  const failed = ledger.error ?? usage.error ?? timeline.error;
  if (failed) return <ErrorNote error={failed} onRetry={() => void ledger.refetch()} />;
  if (!ledger.data || !usage.data || !timeline.data) return <Loading what="Loading the ledger" />;
  if (ledger.data.items.length === 0 && timeline.data.items.length === 0) {
    return (
      <Empty title="No model calls yet">
        <p>Each round of a turn has a line here: action, result, tokens, cost, confidence and trace.</p>
      </Empty>
    );
  }
  return (
    <div className="scroll ledger">
      <section>
        <h2>Pressure</h2>
        <PressureChart
          points={timeline.data.items}
          budget={pressure.data?.budget_tokens ?? null}
          session={session.id}
        />
      </section>
      <section>
        <h2>Cost by model</h2>
        <Models total={usage.data.total} models={usage.data.models} />
      </section>
      <section>
        <h2>Rounds</h2>
        <Rounds lines={ledger.data.items} />
      </section>
    </div>
  );
}

function Models({ total, models }: { total: Total; models: Record<string, Total> }) {
  const rows = Object.entries(models).sort(([, a], [, b]) => b.cost_nano_usd - a.cost_nano_usd);
  const figure = (row: Total, name: string) => count(Number(row[name] ?? 0));
  const cells = (row: Total) => (
    <>
      <td>{row.calls}</td>
      <td>{figure(row, "input")}</td>
      <td>{figure(row, "output")}</td>
      <td>{figure(row, "cache_read")}</td>
      <td>
        {money(row.cost_nano_usd)}
        {row.unpriced_calls > 0 && (
          <span title="calls with an unknown price"> + {row.unpriced_calls} unpriced</span>
        )}
      </td>
    </>
  );
  return (
    <div className="table-box" tabIndex={0}>
      <table className="data">
        <thead>
          <tr>
            <th scope="col">Model</th>
            <th scope="col">Calls</th>
            <th scope="col">Tokens in</th>
            <th scope="col">Tokens out</th>
            <th scope="col">From cache</th>
            <th scope="col">Cost</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([model, row]) => (
            <tr key={model}>
              <th scope="row">{cleanLine(model, 80)}</th>
              {cells(row)}
            </tr>
          ))}
        </tbody>
        {rows.length > 1 && (
          <tfoot>
            <tr>
              <th scope="row">total</th>
              {cells(total)}
            </tr>
          </tfoot>
        )}
      </table>
    </div>
  );
}

/** Number of rendered rounds, newest first. */
const ROUNDS_SHOWN = 1_000;

function Rounds({ lines }: { lines: LedgerLine[] }) {
  const newest = lines.slice(-ROUNDS_SHOWN).reverse();
  return (
    <div className="table-box" tabIndex={0}>
      <table className="data">
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Round</th>
            <th scope="col">Action</th>
            <th scope="col">Result</th>
            <th scope="col">Reason</th>
            <th scope="col">Tokens</th>
            <th scope="col">Cost</th>
            <th scope="col">Confidence</th>
            <th scope="col">Trace</th>
          </tr>
        </thead>
        <tbody>
          {newest.map((line) => (
            <Round key={line.seq} line={line} />
          ))}
        </tbody>
      </table>
      {lines.length > ROUNDS_SHOWN && (
        <p className="quiet">
          Showing the newest {ROUNDS_SHOWN} of {lines.length} rounds.
        </p>
      )}
    </div>
  );
}

/** A round that asked a person or was given up is not an error. */
function toneOf(status: Schemas["RoundStatus"]): "good" | "warn" | "bad" {
  if (status === "ok") return "good";
  return status === "asked" || status === "backtracked" ? "warn" : "bad";
}

function Round({ line }: { line: LedgerLine }) {
  const { action, result } = line;
  return (
    <tr>
      <td title={whole(line.at)}>
        <Time at={line.at} />
      </td>
      <td>{line.round}</td>
      <td className="wide">
        {action.kind} <bdi className="quiet">{cleanLine(action.what ?? "", 80)}</bdi>
      </td>
      <td>
        {result ? (
          <Badge tone={toneOf(result.status)}>{result.status}</Badge>
        ) : (
          <Badge tone="warn">open</Badge>
        )}
      </td>
      <td className="wide">
        <bdi className="quiet" title={line.reason ?? undefined}>
          {cleanLine(line.reason ?? "", 160)}
        </bdi>
      </td>
      <td>{result?.tokens ? count(result.tokens) : "–"}</td>
      <td>{typeof result?.cost_nano_usd === "number" ? money(result.cost_nano_usd) : "–"}</td>
      <td>
        {line.confidence === null || line.confidence === undefined ? "unknown" : line.confidence.toFixed(2)}
      </td>
      <td>
        {line.trace_id ? (
          <button
            type="button"
            className="linklike"
            title={`Copy ${line.trace_id}`}
            onClick={() =>
              void navigator.clipboard.writeText(line.trace_id ?? "").then(() => notify("Trace id copied"))
            }
          >
            <code>{line.trace_id.slice(0, 8)}</code>
          </button>
        ) : (
          "–"
        )}
      </td>
    </tr>
  );
}
