// The tree on a canvas, with the selected entry next to it. Every node can be reached with the arrow keys and is
// announced by screen readers.

import { useQueries } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { get, type Tree, type TreeNode } from "../api/client";
import { useView } from "../api/queries";
import { type Folding, layoutTree } from "../log/layout";
import { cleanLine } from "../text/clean";
import { Button, Empty, ErrorNote, Loading } from "../ui/base";
import { plural } from "../ui/format";
import { replaceQuery, to, useRoute } from "../ui/route";
import { EntryPanel } from "./EntryPanel";
import type { ViewProps } from "./SessionPage";
import { TreeCanvas, type TreeHandle } from "./TreeCanvas";

/** Minimum number of entries at which runs are collapsed initially. */
const FOLD_FROM = 150;
const FORKS_MAX = 40;

export default function TreeView({ session }: ViewProps) {
  const tree = useView(session.id, "tree");
  if (tree.isPending) return <Loading what="Loading the tree" />;
  if (tree.error) return <ErrorNote error={tree.error} onRetry={() => void tree.refetch()} />;
  if (tree.data.nodes.length === 0) {
    return (
      <Empty title="No tree yet">
        <p>Every message becomes a node. Continuing from an earlier message creates a branch.</p>
      </Empty>
    );
  }
  return <TreePane session={session.id} tree={tree.data} />;
}

function TreePane({ session, tree }: { session: string; tree: Tree }) {
  const { query } = useRoute();
  const canvas = useRef<TreeHandle>(null);
  const [folding, setFolding] = useState<Folding>(tree.nodes.length > FOLD_FROM ? "runs" : "none");
  const bySeq = useMemo(() => new Map(tree.nodes.map((node) => [node.seq, node])), [tree]);
  const requested = Number(query.get("at"));
  const selected = bySeq.get(nearest(requested, bySeq) ?? tree.leaf ?? tree.nodes[0]?.seq ?? 0) ?? null;
  const mark = bySeq.get(Number(query.get("mark"))) ?? null;
  const forks = useForks(session, bySeq);
  const keep = useMemo(
    () => new Set([selected?.seq ?? 0, mark?.seq ?? 0, ...forks.keys()]),
    [selected, mark, forks],
  );
  const layout = useMemo(
    () => layoutTree(tree.nodes, tree.leaf ?? null, folding, keep),
    [tree, folding, keep],
  );
  const select = (seq: number) =>
    replaceQuery(["s", session, "tree"], { at: String(seq), mark: mark ? String(mark.seq) : null });
  // Show the selected entry first.
  const seq = selected?.seq;
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs once per folding mode, not per selection.
  useEffect(() => {
    if (seq !== undefined) canvas.current?.show(seq);
  }, [folding]);
  return (
    <div className="tree-page">
      <div className="tree-left">
        <div className="tree-bar">
          <span className="quiet">
            {plural(tree.nodes.length, "entry", "entries")} · {plural(layout.lanes, "lane")}
          </span>
          <span className="spread" />
          <label className="check">
            <input
              type="checkbox"
              checked={folding === "runs"}
              onChange={(event) => setFolding(event.target.checked ? "runs" : "none")}
            />
            Collapse runs
          </label>
          <Button tone="ghost" onClick={() => canvas.current?.fit()}>
            Fit to view
          </Button>
          <Button tone="ghost" onClick={() => seq !== undefined && canvas.current?.show(seq)}>
            Selected
          </Button>
        </div>
        <TreeCanvas
          ref={canvas}
          layout={layout}
          leaf={tree.leaf ?? null}
          selected={selected?.seq ?? null}
          marked={mark?.seq ?? null}
          forks={forks}
          onSelect={select}
        />
        <p className="sr-only" role="status">
          {selected
            ? `entry ${selected.seq}, ${selected.kind.replace("_", " ")}: ${cleanLine(selected.text, 80)}`
            : ""}
        </p>
      </div>
      {selected && (
        <EntryPanel
          session={session}
          node={selected}
          isLeaf={selected.seq === tree.leaf}
          forks={forks.get(selected.seq) ?? []}
          mark={mark}
          compareHref={
            mark && mark !== selected
              ? to(["s", session, "compare"], { a: String(mark.seq), b: String(selected.seq) })
              : null
          }
          onMark={() =>
            replaceQuery(["s", session, "tree"], { at: String(selected.seq), mark: String(selected.seq) })
          }
        />
      )}
    </div>
  );
}

/** An entry outside the tree is shown at the last node before it. */
function nearest(seq: number, bySeq: Map<number, TreeNode>): number | null {
  if (!Number.isFinite(seq) || seq <= 0) return null;
  for (let at = seq; at > 0 && at > seq - 1_000; at--) if (bySeq.has(at)) return at;
  return null;
}

/** The forks of this session by their branch point. */
function useForks(session: string, bySeq: Map<number, TreeNode>): Map<number, string[]> {
  const ancestry = useView(session, "ancestry");
  const children = (ancestry.data?.children ?? []).slice(0, FORKS_MAX);
  const summaries = useQueries({
    queries: children.map((child) => ({
      queryKey: ["session", child, "summary"],
      queryFn: () => get("/v1/sessions/{session}", { session: child }),
      staleTime: 60_000,
      retry: false,
    })),
  });
  const known = summaries.map((summary) => summary.data?.id ?? "").join(" ");
  // biome-ignore lint/correctness/useExhaustiveDependencies: `known` changes when the summaries arrive.
  return useMemo(() => {
    const seqs = new Map([...bySeq.values()].map((node) => [node.id, node.seq]));
    const forks = new Map<number, string[]>();
    for (const summary of summaries) {
      const at = summary.data?.parent?.at;
      const seq = at ? seqs.get(at) : undefined;
      if (seq !== undefined && summary.data) forks.set(seq, [...(forks.get(seq) ?? []), summary.data.id]);
    }
    return forks;
  }, [known, bySeq]);
}
