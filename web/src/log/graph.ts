// Layout of a flow graph: a node's column is its longest forward path from the input. Backward edges are ignored, so
// they cannot form a cycle.
export interface Edge {
  from: string;
  to: string;
  type: string;
}

export interface NodePosition {
  id: string;
  column: number;
  row: number;
}

export interface Graph {
  positions: Map<string, NodePosition>;
  columns: number;
  rows: number;
}

export function layoutGraph(ids: string[], edges: Edge[]): Graph {
  const forward = edges.filter((edge) => edge.type !== "backward" && edge.from !== edge.to);
  const column = new Map(ids.map((id) => [id, 0]));
  // An acyclic graph needs at most one round per node. The bound also ends the loop if the graph has a cycle.
  for (let round = 0; round < ids.length; round++) {
    let isMoved = false;
    for (const { from, to } of forward) {
      const least = (column.get(from) ?? 0) + 1;
      if ((column.get(to) ?? 0) < least && least < ids.length) {
        column.set(to, least);
        isMoved = true;
      }
    }
    if (!isMoved) break;
  }
  const taken: number[] = [];
  const positions = new Map<string, NodePosition>();
  for (const id of order(ids, forward, column)) {
    const at = column.get(id) ?? 0;
    const row = taken[at] ?? 0;
    taken[at] = row + 1;
    positions.set(id, { id, column: at, row });
  }
  return {
    positions,
    columns: Math.max(0, ...[...column.values()]) + 1,
    rows: Math.max(1, ...taken.map((rows) => rows ?? 0)),
  };
}

/** Order nodes by column. Within a column, place each node near its predecessors to reduce crossing lines. */
function order(ids: string[], edges: Edge[], column: Map<string, number>): string[] {
  const sorted = [...ids].sort((a, b) => (column.get(a) ?? 0) - (column.get(b) ?? 0));
  const rank = new Map<string, number>();
  const ranked: string[] = [];
  const columns = new Map<number, string[]>();
  for (const id of sorted) {
    const at = column.get(id) ?? 0;
    columns.set(at, [...(columns.get(at) ?? []), id]);
  }
  for (const members of columns.values()) {
    const preferredRow = (id: string) => {
      const above = edges
        .filter((edge) => edge.to === id && rank.has(edge.from))
        .map((edge) => rank.get(edge.from) ?? 0);
      return above.length > 0
        ? above.reduce((sum, each) => sum + each, 0) / above.length
        : members.indexOf(id);
    };
    const placed = [...members].sort((a, b) => preferredRow(a) - preferredRow(b));
    for (const [row, id] of placed.entries()) rank.set(id, row);
    ranked.push(...placed);
  }
  return ranked;
}
