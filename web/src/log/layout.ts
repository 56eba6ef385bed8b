// Layout of the tree: each node has its own row, each branching depth a lane, and the active path the first lane. Runs
// of entries without branches can be collapsed into one node, so that ten thousand entries fit on a screen.
import type { TreeNode } from "../api/client";

export interface PlacedNode {
  /** The entry, or the last entry of a collapsed run. */
  node: TreeNode;
  /** Number of entries in the run; 1 for a single entry. */
  count: number;
  lane: number;
  row: number;
  parent: PlacedNode | null;
  children: PlacedNode[];
}

export interface Layout {
  nodes: PlacedNode[];
  bySeq: Map<number, PlacedNode>;
  lanes: number;
  rows: number;
}

export type Folding = "runs" | "none";

export function layoutTree(
  nodes: TreeNode[],
  leaf: number | null,
  folding: Folding,
  keep: Set<number>,
): Layout {
  const bySeq = new Map(nodes.map((node) => [node.seq, node]));
  const kept = (node: TreeNode) => folding === "none" || isLandmark(node, bySeq, leaf) || keep.has(node.seq);
  const placed = fold(nodes, bySeq, kept);
  return place(placed);
}

/** Nodes that are never collapsed: ends of a run, labelled entries, compactions, branch summaries, the leaf. */
function isLandmark(node: TreeNode, bySeq: Map<number, TreeNode>, leaf: number | null): boolean {
  const parent = node.parent === null || node.parent === undefined ? undefined : bySeq.get(node.parent);
  return (
    node.seq === leaf ||
    node.children.length !== 1 ||
    !parent ||
    parent.children.length > 1 ||
    !!node.label ||
    node.kind === "compaction" ||
    node.kind === "branch_summary"
  );
}

function fold(
  nodes: TreeNode[],
  bySeq: Map<number, TreeNode>,
  kept: (node: TreeNode) => boolean,
): Map<number, PlacedNode> {
  const placed = new Map<number, PlacedNode>();
  // Nodes are ordered by seq and a parent has a smaller seq, so a parent is placed before its children.
  for (const node of nodes) {
    const parentNode = node.parent === null || node.parent === undefined ? undefined : bySeq.get(node.parent);
    const parent = parentNode ? (placed.get(parentNode.seq) ?? null) : null;
    const joins = parent !== null && parentNode !== undefined && !kept(node) && !kept(parentNode);
    if (joins) {
      parent.node = node;
      parent.count++;
      placed.set(node.seq, parent);
      continue;
    }
    const fresh: PlacedNode = { node, count: 1, lane: 0, row: 0, parent, children: [] };
    parent?.children.push(fresh);
    placed.set(node.seq, fresh);
  }
  return placed;
}

/**
 * Every node has its own row, as in an outline. Inactive branches follow directly below their branch point, one lane to
 * the right, and the path continues below them in its own lane. Labels therefore never overlap, and a lane is a
 * branching depth. Iterative, because a path can be very long.
 */
function place(bySeq: Map<number, PlacedNode>): Layout {
  const nodes = [...new Set(bySeq.values())];
  const roots = nodes.filter((node) => node.parent === null);
  let lanes = 0;
  let rows = 0;
  const stack: { node: PlacedNode; lane: number }[] = [];
  const push = (children: PlacedNode[], lane: number, inner: number) => {
    // The child on the active path, or else the newest child, keeps the lane and is placed last.
    const ordered = [...children].sort(
      (a, b) => Number(a.node.on_path) - Number(b.node.on_path) || a.node.seq - b.node.seq,
    );
    for (let index = ordered.length - 1; index >= 0; index--) {
      const node = ordered[index];
      if (node) stack.push({ node, lane: index === ordered.length - 1 ? lane : inner });
    }
  };
  push(roots, 0, 0);
  for (let next = stack.pop(); next; next = stack.pop()) {
    const { node, lane } = next;
    node.lane = lane;
    node.row = rows++;
    lanes = Math.max(lanes, lane + 1);
    push(node.children, lane, lane + 1);
  }
  return { nodes: nodes.sort((a, b) => a.row - b.row), bySeq, lanes, rows };
}

export function commonAncestor(a: number, b: number, bySeq: Map<number, TreeNode>): number | null {
  const above = new Set<number>();
  for (let at: number | null | undefined = a; at !== null && at !== undefined; at = bySeq.get(at)?.parent)
    above.add(at);
  for (let at: number | null | undefined = b; at !== null && at !== undefined; at = bySeq.get(at)?.parent) {
    if (above.has(at)) return at;
  }
  return null;
}
