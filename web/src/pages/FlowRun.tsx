// One flow run: its graph with the state of each node, its pending approvals and its results.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas, send } from "../api/client";
import { layoutGraph } from "../log/graph";
import { cleanLine } from "../text/clean";
import { Markdown } from "../text/Markdown";
import { Plain } from "../text/Text";
import { Badge, Button, ErrorNote, Loading, Name, Time } from "../ui/base";
import { bytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { to } from "../ui/route";
import { notifyError } from "../ui/toast";
import { ApprovalCard } from "./ApprovalCard";
import { toneOf } from "./FlowsPage";

type Run = Schemas["FlowRun"];
type Node = Schemas["FlowNode"];

/** Poll interval of a run that has not ended. */
const POLL_MS = 1_000;
const NODE = { width: 168, height: 58 };
const GAP = { x: 74, y: 30 };
const PAD = 16;

export function FlowRunView({ run }: { run: string }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const found = useQuery({
    queryKey: ["flows", run],
    queryFn: () => get("/v1/flows/{run}", { run }),
    refetchInterval: (query) => (isOver(query.state.data?.status) ? false : POLL_MS),
  });
  if (found.isPending) return <Loading what="Loading the run" />;
  if (found.error) return <ErrorNote error={found.error} onRetry={() => void found.refetch()} />;
  const view = found.data;
  const node =
    view.nodes.find((each) => each.id === chosen) ??
    view.nodes.find((each) => each.status === "running") ??
    view.nodes[0];
  const act = async (verb: "resume" | "cancel") => {
    try {
      await send("post", `/v1/flows/{run}/${verb}`, { run });
      await found.refetch();
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <div className="page">
      <header className="session-head">
        <a className="button ghost compact" href={to(["flows"])} aria-label="All runs" title="All runs">
          <Icon name="left" />
        </a>
        <div className="session-title">
          <h1>
            <Name>{view.name}</Name>
          </h1>
          <p className="row-facts">
            <Badge tone={toneOf(view.status)}>{view.status}</Badge>
            <span>{view.phase}</span>
            <Time at={view.updated_at} />
            <a href={to(["s", view.run])}>events</a>
          </p>
        </div>
        {["waiting", "failed", "open"].includes(view.status) && (
          <Button icon="play" onClick={() => void act("resume")}>
            Resume
          </Button>
        )}
        {!isOver(view.status) && (
          <Button icon="stop" onClick={() => void act("cancel")}>
            Cancel
          </Button>
        )}
      </header>
      <div className="scroll flow">
        {view.message && (
          <p className="bad" role="alert">
            {cleanLine(view.message, 600)} {view.code && <code>{view.code}</code>}
          </p>
        )}
        <GraphPicture view={view} chosen={node?.id ?? null} onChoose={setChosen} />
        {view.approvals.map((approval) => (
          <ApprovalCard
            key={approval.approval}
            session={approval.session}
            question={approval.question}
            approval={{
              id: approval.approval,
              about: approval.kind,
              state: "open",
              why: approval.why ?? null,
            }}
          />
        ))}
        {node && <NodePanel node={node} />}
        {view.results.map((result) => (
          <details key={`${result.from}-${result.name}`} className="folded">
            <summary>
              <span className="folded-label">{cleanLine(result.name, 80)}</span>
              <span className="folded-first">from {cleanLine(result.from, 60)}</span>
              <span className="quiet">{bytes(result.bytes)}</span>
            </summary>
            <div>
              <Plain text={result.text} />
            </div>
          </details>
        ))}
      </div>
    </div>
  );
}

function isOver(status: string | undefined): boolean {
  return status === "completed" || status === "cancelled" || status === "failed";
}

function NodePanel({ node }: { node: Node }) {
  return (
    <section className="node-panel" aria-label="Selected node">
      <p className="row-facts">
        <strong>{cleanLine(node.name ?? node.id, 80)}</strong>
        <Badge tone={toneOf(node.status)}>{node.status}</Badge>
        {node.role && <span>role {cleanLine(node.role, 60)}</span>}
        {node.agent && <span>agent {cleanLine(node.agent, 60)}</span>}
        {node.visits > 0 && <span>visit {node.visits}</span>}
        {node.session && <a href={to(["s", node.session])}>open session</a>}
      </p>
      {node.why && <p className="bad">{cleanLine(node.why, 400)}</p>}
      {node.said ? <Markdown text={node.said} /> : <p className="quiet">No output yet.</p>}
    </section>
  );
}

function GraphPicture({
  view,
  chosen,
  onChoose,
}: {
  view: Run;
  chosen: string | null;
  onChoose: (id: string) => void;
}) {
  const graph = layoutGraph(
    view.nodes.map((node) => node.id),
    view.edges,
  );
  const x = (id: string) => PAD + (graph.positions.get(id)?.column ?? 0) * (NODE.width + GAP.x);
  const y = (id: string) => PAD + (graph.positions.get(id)?.row ?? 0) * (NODE.height + GAP.y);
  const width = PAD * 2 + graph.columns * (NODE.width + GAP.x) - GAP.x;
  const height = PAD * 2 + graph.rows * (NODE.height + GAP.y) + GAP.y / 2;
  return (
    <div className="flow-box" tabIndex={0} role="group" aria-label="Flow graph">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
        <title>Flow graph</title>
        {view.edges.map((edge) => (
          <path
            key={`${edge.from}-${edge.to}-${edge.type}`}
            className={`edge ${edge.status} ${edge.type}`}
            d={lineOf(x(edge.from), y(edge.from), x(edge.to), y(edge.to), edge.type === "backward")}
          />
        ))}
      </svg>
      {view.nodes.map((node) => (
        <button
          key={node.id}
          type="button"
          className={`node ${node.status}`}
          aria-pressed={node.id === chosen}
          style={{ left: x(node.id), top: y(node.id), width: NODE.width, height: NODE.height }}
          onClick={() => onChoose(node.id)}
        >
          <span className="node-name">{cleanLine(node.name ?? node.id, 40)}</span>
          <span className="node-facts">
            {node.status === "running" && <span className="spinner" aria-hidden="true" />}
            {node.status}
            {node.role && ` · ${cleanLine(node.role, 20)}`}
            {node.visits > 1 && ` · ${node.visits} visits`}
          </span>
        </button>
      ))}
    </div>
  );
}

/** Path from the right side of a node to the left side of the next node. Backward edges pass below both nodes. */
function lineOf(x1: number, y1: number, x2: number, y2: number, isBackward: boolean): string {
  if (isBackward) {
    const low = Math.max(y1, y2) + NODE.height + GAP.y * 0.7;
    const [from, to] = [x1 + NODE.width / 2, x2 + NODE.width / 2];
    return `M${from},${y1 + NODE.height} C${from},${low} ${from},${low} ${(from + to) / 2},${low} C${to},${low} ${to},${low} ${to},${y2 + NODE.height}`;
  }
  const [startX, startY] = [x1 + NODE.width, y1 + NODE.height / 2];
  const [endX, endY] = [x2, y2 + NODE.height / 2];
  const bend = Math.max(30, (endX - startX) / 2);
  return `M${startX},${startY} C${startX + bend},${startY} ${endX - bend},${endY} ${endX},${endY}`;
}
